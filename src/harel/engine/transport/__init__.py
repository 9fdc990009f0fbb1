"""The sync transports, one module a backend."""

from harel.engine.transport.memory import InMemoryTransport
from harel.engine.transport.sqlite import SqliteTransport

__all__ = ["InMemoryTransport", "SqliteTransport"]
