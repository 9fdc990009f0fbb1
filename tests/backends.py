"""The registry: every backend, sync and async, that the whole suite runs on. A new backend is a few lines here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harel.engine.aio_transport import (
    AsyncInMemoryTransport,
    AsyncPostgresTransport,
    AsyncRedisTransport,
    AsyncSqliteTransport,
)
from harel.engine.queue.memory.shared import SharedMemoryQueue
from harel.engine.transport import InMemoryTransport, PostgresTransport, RedisTransport, SqliteTransport
from harel.testing import Subject
from tests.servers.postgres import postgres_url, schema_in
from tests.servers.redis import prefix_in, redis_url

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


BACKENDS = (
    Backend("memory-sync", False, _memory(InMemoryTransport)),
    Backend("memory-async", True, _memory(AsyncInMemoryTransport)),
    Backend("sqlite-sync", False, _sqlite(SqliteTransport)),
    Backend("sqlite-async", True, _sqlite(AsyncSqliteTransport)),
    Backend("redis-sync", False, _redis(RedisTransport)),
    Backend("redis-async", True, _redis(AsyncRedisTransport)),
    Backend("postgres-sync", False, _postgres(PostgresTransport)),
    Backend("postgres-async", True, _postgres(AsyncPostgresTransport)),
)
