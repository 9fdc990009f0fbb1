"""The sync transports, one module a backend."""

from typing import TYPE_CHECKING

from harel.engine.extras import on_demand
from harel.engine.transport.memory import InMemoryTransport
from harel.engine.transport.sqlite import SqliteTransport

if TYPE_CHECKING:
    from harel.engine.transport.libsql import LibsqlTransport
    from harel.engine.transport.mongo import MongoTransport
    from harel.engine.transport.postgres import PostgresTransport
    from harel.engine.transport.redis import RedisTransport
    from harel.engine.transport.rqlite import RqliteTransport
    from harel.engine.transport.sqs import SqsTransport

__all__ = [
    "InMemoryTransport",
    "LibsqlTransport",
    "MongoTransport",
    "PostgresTransport",
    "RedisTransport",
    "RqliteTransport",
    "SqliteTransport",
    "SqsTransport",
]

__getattr__ = on_demand(
    __name__,
    {
        "LibsqlTransport": "libsql",
        "MongoTransport": "mongo",
        "PostgresTransport": "postgres",
        "RedisTransport": "redis",
        "RqliteTransport": "rqlite",
        "SqsTransport": "sqs",
    },
)
