"""The registry: every backend, sync and async, that the whole suite runs on. A new backend is a few lines here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from harel.engine.aio_transport import (
    AsyncInMemoryTransport,
    AsyncLibsqlTransport,
    AsyncMongoTransport,
    AsyncPostgresTransport,
    AsyncRedisTransport,
    AsyncRqliteTransport,
    AsyncSqliteTransport,
    AsyncSqsTransport,
)
from harel.engine.queue.memory.shared import SharedMemoryQueue
from harel.engine.transport import (
    InMemoryTransport,
    LibsqlTransport,
    MongoTransport,
    PostgresTransport,
    RedisTransport,
    RqliteTransport,
    SqliteTransport,
    SqsTransport,
)
from harel.testing import Subject
from tests.servers.mongo import database_in, mongo_url
from tests.servers.postgres import postgres_url, schema_in
from tests.servers.redis import prefix_in, redis_url
from tests.servers.rqlite import prefix_in as rqlite_prefix_in
from tests.servers.rqlite import rqlite_url
from tests.servers.sqs import REGION, queue_in, sqs_url
from tests.servers.sqs import opener_in as sqs_opener_in

Opener = Callable[..., Any]


@dataclass(frozen=True)
class Backend:
    """One backend, one flavour."""

    name: str
    is_async: bool
    at: Callable[[Path], Opener]
    """From an empty folder to what opens one new queue there, any number of times."""

    def subject(self, folder: Path) -> Subject:
        return Subject(self.at(folder))


def _memory(transport: Callable[..., Any]) -> Callable[[Path], Opener]:
    def at(folder: Path) -> Opener:
        queues: list[SharedMemoryQueue] = []

        def open_memory(*, clock: Callable[[], float], fresh_first: bool = True) -> Any:
            if not queues:
                queues.append(SharedMemoryQueue(clock, fresh_first))
            return transport(queues[0])

        return open_memory

    return at


def _sqlite(transport: Callable[..., Any]) -> Callable[[Path], Opener]:
    return lambda folder: lambda **options: transport(folder / "queue.db", **options)


def _redis(transport: Any) -> Callable[[Path], Opener]:
    return lambda folder: lambda **options: transport.from_url(redis_url(), prefix=prefix_in(folder), **options)


def _postgres(transport: Callable[..., Any]) -> Callable[[Path], Opener]:
    return lambda folder: lambda **options: transport(postgres_url(), schema=schema_in(folder), **options)


def _rqlite(transport: Callable[..., Any]) -> Callable[[Path], Opener]:
    return lambda folder: (
        lambda **options: transport(rqlite_url(), prefix=rqlite_prefix_in(folder), timeout=60.0, **options)
    )


def _sqs(transport: Any) -> Callable[[Path], Opener]:
    return lambda folder: sqs_opener_in(transport, folder)


def _mongo(transport: Any) -> Callable[[Path], Opener]:
    return lambda folder: lambda **options: transport.from_url(mongo_url(), db_name=database_in(folder), **options)


BACKENDS = (
    Backend("memory-sync", False, _memory(InMemoryTransport)),
    Backend("memory-async", True, _memory(AsyncInMemoryTransport)),
    Backend("sqlite-sync", False, _sqlite(SqliteTransport)),
    Backend("sqlite-async", True, _sqlite(AsyncSqliteTransport)),
    Backend("libsql-sync", False, _sqlite(LibsqlTransport)),
    Backend("libsql-async", True, _sqlite(AsyncLibsqlTransport)),
    Backend("redis-sync", False, _redis(RedisTransport)),
    Backend("redis-async", True, _redis(AsyncRedisTransport)),
    Backend("postgres-sync", False, _postgres(PostgresTransport)),
    Backend("postgres-async", True, _postgres(AsyncPostgresTransport)),
    Backend("mongo-sync", False, _mongo(MongoTransport)),
    Backend("mongo-async", True, _mongo(AsyncMongoTransport)),
    Backend("rqlite-sync", False, _rqlite(RqliteTransport)),
    Backend("rqlite-async", True, _rqlite(AsyncRqliteTransport)),
    Backend("sqs-sync", False, _sqs(SqsTransport)),
    Backend("sqs-async", True, _sqs(AsyncSqsTransport)),
)


URLS: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/queue.db",
    "libsql": lambda folder: f"libsql:///{folder}/queue.db",
    "redis": lambda folder: with_options(redis_url(), prefix=prefix_in(folder)),
    "postgres": lambda folder: with_options(postgres_url(), schema=schema_in(folder)),
    "mongo": lambda folder: with_options(mongo_url(), db_name=database_in(folder)),
    "rqlite": lambda folder: with_options(rqlite_url(), prefix=rqlite_prefix_in(folder), timeout="60"),
    "sqs": lambda folder: with_options(f"sqs://{queue_in(folder)}", endpoint_url=sqs_url(), region=REGION),
}
"""Of each backend that other processes can open: from an empty folder to the URL of one new queue there."""


def with_options(url: str, **options: str) -> str:
    """Return a URL with these options added."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options)}"
