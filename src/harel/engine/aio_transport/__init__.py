"""The async transports, one module a backend."""

from typing import TYPE_CHECKING

from harel.engine.aio_transport.memory import AsyncInMemoryTransport
from harel.engine.aio_transport.sqlite import AsyncSqliteTransport
from harel.engine.extras import on_demand

if TYPE_CHECKING:
    from harel.engine.aio_transport.postgres import AsyncPostgresTransport
    from harel.engine.aio_transport.redis import AsyncRedisTransport

__all__ = ["AsyncInMemoryTransport", "AsyncPostgresTransport", "AsyncRedisTransport", "AsyncSqliteTransport"]

__getattr__ = on_demand(__name__, {"AsyncPostgresTransport": "postgres", "AsyncRedisTransport": "redis"})
