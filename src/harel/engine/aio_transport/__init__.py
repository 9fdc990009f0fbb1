"""The async transports, one module a backend."""

from harel.engine.aio_transport.memory import AsyncInMemoryTransport
from harel.engine.aio_transport.sqlite import AsyncSqliteTransport

__all__ = ["AsyncInMemoryTransport", "AsyncSqliteTransport"]
