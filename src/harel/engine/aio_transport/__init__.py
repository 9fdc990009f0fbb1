"""The async transports, one module a backend."""

from typing import TYPE_CHECKING

from harel.engine.aio_transport.memory import AsyncInMemoryTransport
from harel.engine.aio_transport.sqlite import AsyncSqliteTransport
from harel.engine.extras import on_demand

if TYPE_CHECKING:
    from harel.engine.aio_transport.libsql import AsyncLibsqlTransport
    from harel.engine.aio_transport.mongo import AsyncMongoTransport
    from harel.engine.aio_transport.postgres import AsyncPostgresTransport
    from harel.engine.aio_transport.redis import AsyncRedisTransport
    from harel.engine.aio_transport.rqlite import AsyncRqliteTransport
    from harel.engine.aio_transport.sqs import AsyncSqsTransport

__all__ = [
    "AsyncInMemoryTransport",
    "AsyncLibsqlTransport",
    "AsyncMongoTransport",
    "AsyncPostgresTransport",
    "AsyncRedisTransport",
    "AsyncRqliteTransport",
    "AsyncSqliteTransport",
    "AsyncSqsTransport",
]

__getattr__ = on_demand(
    __name__,
    {
        "AsyncLibsqlTransport": "libsql",
        "AsyncMongoTransport": "mongo",
        "AsyncPostgresTransport": "postgres",
        "AsyncRedisTransport": "redis",
        "AsyncRqliteTransport": "rqlite",
        "AsyncSqsTransport": "sqs",
    },
)
