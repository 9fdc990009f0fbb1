"""The sync transports, one module a backend."""

from typing import TYPE_CHECKING

from harel.engine.extras import on_demand
from harel.engine.transport.memory import InMemoryTransport
from harel.engine.transport.sqlite import SqliteTransport

if TYPE_CHECKING:
    from harel.engine.transport.postgres import PostgresTransport
    from harel.engine.transport.redis import RedisTransport

__all__ = ["InMemoryTransport", "PostgresTransport", "RedisTransport", "SqliteTransport"]

__getattr__ = on_demand(__name__, {"PostgresTransport": "postgres", "RedisTransport": "redis"})
