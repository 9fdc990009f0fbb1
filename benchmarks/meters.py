"""How often a driver really asks its server, seen at the driver and not at what harel says."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any
from unittest.mock import patch

__all__ = ["METERS", "STAND_INS", "Meter", "PostgresMeter", "Trips"]

STAND_INS = ("rqlite", "mongo", "sqs")
"""Backends whose server the tests stand in for, unless they are given one."""


@dataclass(frozen=True)
class Trips:
    """What was counted."""

    trips: int
    """Round trips; in a file, transactions."""
    statements: int
    """What they carried: statements, commands or calls."""

    def since(self, before: Trips) -> Trips:
        return Trips(self.trips - before.trips, self.statements - before.statements)


class Meter:
    """Counts for as long as it is entered, and from the first connection on."""

    def __init__(self) -> None:
        self._trips = 0
        self._statements = 0

    def read(self) -> Trips:
        return Trips(self._trips, self._statements)

    def add(self, trips: int, statements: int) -> None:
        self._trips += trips
        self._statements += statements


@contextmanager
def _in_the_process() -> Iterator[Meter]:
    yield Meter()


@contextmanager
def _sqlite() -> Iterator[Meter]:
    """SQLite itself tells each statement that it runs, BEGIN and COMMIT too."""
    import sqlite3

    meter = Meter()
    connect: Any = sqlite3.connect

    def connected(*args: Any, **options: Any) -> Any:
        connection = connect(*args, **options)
        connection.set_trace_callback(lambda statement: meter.add(_begins(statement), 1))
        return connection

    with patch("sqlite3.connect", connected):
        yield meter


@contextmanager
def _libsql() -> Iterator[Meter]:
    import libsql  # type: ignore[import-untyped]

    meter = Meter()
    connect = libsql.connect

    class Counted:
        """A connection that counts; the driver's own lets no method of it be replaced."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def execute(self, statement: str, *values: Any) -> Any:
            meter.add(_begins(statement), 1)
            return self._connection.execute(statement, *values)

        def executemany(self, statement: str, sets: Any) -> Any:
            meter.add(0, len(sets))
            return self._connection.executemany(statement, sets)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

    with patch("libsql.connect", lambda *args, **options: Counted(connect(*args, **options))):
        yield meter


def _begins(statement: str) -> int:
    return statement.lstrip().upper().startswith("BEGIN")


@contextmanager
def _redis() -> Iterator[Meter]:
    import redis.asyncio.connection
    import redis.connection

    meter = Meter()
    with ExitStack() as stack:
        for module in (redis.connection, redis.asyncio.connection):
            owner: Any = module.AbstractConnection
            stack.enter_context(_counting(owner, "send_packed_command", lambda *_: meter.add(1, 1)))
        yield meter


class PostgresMeter(Meter):
    """Reads what the client library writes down of each message of the protocol."""

    def __init__(self, written: IO[bytes]) -> None:
        super().__init__()
        self._written = written
        self._read = 0
        self._found: list[tuple[bytes, bytes, bytes]] = []

    def read(self) -> Trips:
        """Count: what ends in Sync, or a simple Query, is a trip."""
        sent = [name for way, _, name in self._messages() if way == b"F"]
        simple = sent.count(b"Query")
        return Trips(simple + sent.count(b"Sync"), simple + sent.count(b"Execute"))

    def count_bytes(self) -> int:
        """Return how many bytes went to and fro; a message's kind is one more than its length says."""
        return sum(int(length) + 1 for _, length, _ in self._messages())

    def _messages(self) -> list[tuple[bytes, bytes, bytes]]:
        """Return each message's direction, length and name."""
        self._written.seek(self._read)
        new = self._written.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        self._found += re.findall(rb"^([FB])\t(\d+)\t(\w+)", whole, flags=re.MULTILINE)
        return self._found


@contextmanager
def _postgres() -> Iterator[Meter]:
    import psycopg
    from psycopg.pq import Trace

    with tempfile.TemporaryFile() as written:

        def trace(connection: Any) -> Any:
            connection.pgconn.trace(written.fileno())
            connection.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
            return connection

        connect: Any = psycopg.Connection.connect
        connect_async: Any = psycopg.AsyncConnection.connect

        async def traced(*args: Any, **options: Any) -> Any:
            return trace(await connect_async(*args, **options))

        with (
            patch.object(psycopg.Connection, "connect", lambda *args, **options: trace(connect(*args, **options))),
            patch.object(psycopg.AsyncConnection, "connect", traced),
        ):
            yield PostgresMeter(written)


@contextmanager
def _rqlite() -> Iterator[Meter]:
    import httpx2

    meter = Meter()

    def count(_: Any, request: Any, *__: Any) -> None:
        meter.add(1, len(json.loads(request.content or b"[]")))

    with _counting(httpx2.Client, "send", count), _counting(httpx2.AsyncClient, "send", count):
        yield meter


@contextmanager
def _mongo() -> Iterator[Meter]:
    from pymongo import monitoring

    meter = Meter()

    class Listener(monitoring.CommandListener):
        def started(self, event: Any) -> None:
            assert event
            meter.add(1, 1)

        def succeeded(self, event: Any) -> None: ...

        def failed(self, event: Any) -> None: ...

    monitoring.register(Listener())  # of every client that is made from now on
    yield meter


@contextmanager
def _sqs() -> Iterator[Meter]:
    from aiobotocore.client import AioBaseClient  # type: ignore[import-untyped]
    from botocore.client import BaseClient  # type: ignore[import-untyped]

    meter = Meter()

    def count(*_: Any) -> None:
        meter.add(1, 1)

    with _counting(BaseClient, "_make_api_call", count), _counting(AioBaseClient, "_make_api_call", count):
        yield meter


def _counting(owner: Any, name: str, count: Callable[..., None]) -> AbstractContextManager[Any]:
    """Have a method counted whenever it is called; it is given what the method is."""
    method = getattr(owner, name)

    if asyncio.iscoroutinefunction(method):

        @functools.wraps(method)
        async def counted(*args: Any, **options: Any) -> Any:
            count(*args)
            return await method(*args, **options)
    else:

        @functools.wraps(method)
        def counted(*args: Any, **options: Any) -> Any:
            count(*args)
            return method(*args, **options)

    return patch.object(owner, name, counted)


METERS: dict[str, Callable[[], AbstractContextManager[Meter]]] = {
    "memory": _in_the_process,
    "sqlite": _sqlite,
    "libsql": _libsql,
    "redis": _redis,
    "postgres": _postgres,
    "rqlite": _rqlite,
    "mongo": _mongo,
    "sqs": _sqs,
}
"""By the name of the backend. Enter one before the first connection is made."""
