"""The connection that ``transaction()`` of the async transports over a file gives."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from harel.errors import InvalidArgument

__all__ = ["AsyncConnection", "AsyncCursor"]

T = TypeVar("T")


class AsyncConnection:
    """A connection inside ``transaction()``, for async code, with the method names of ``aiosqlite``.

    It is the same over SQLite and libSQL, and whether ``aiosqlite`` is installed or not. Each statement is one hop to
    a thread of the connection's own, which also reads all of its rows. Errors are the driver's own.

    Parameters
    ----------
    connection : connection
        The driver's, inside a transaction.
    """

    def __init__(self, connection: Any) -> None:
        self.raw = connection
        self._thread = ThreadPoolExecutor(1, "harel-transaction")
        self._over = False

    def execute(self, sql: str, parameters: Any = ()) -> Execution:
        """Run a statement: ``cursor = await connection.execute(...)``, or ``async with connection.execute(...)``."""
        return Execution(self, lambda: _ran(self.raw.execute(sql, parameters)))

    def executemany(self, sql: str, parameters: Iterable[Any]) -> Execution:
        """Run a statement for each set of parameters."""
        return Execution(self, lambda: _ran(self.raw.executemany(sql, parameters)))

    async def execute_fetchall(self, sql: str, parameters: Any = ()) -> list[Any]:
        """Run a statement, and return all of its rows."""
        return await (await self.execute(sql, parameters)).fetchall()

    @property
    def in_transaction(self) -> bool:
        """Whether the transaction is still open."""
        return not self._over and bool(self.raw.in_transaction)

    def must_be_open(self) -> None:
        """Raise once the block has ended."""
        if self._over:
            raise InvalidArgument("This connection's transaction() block has ended; open another one.")

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in the connection's thread. Whoever is cancelled meanwhile leaves it whole, or not begun."""
        self.must_be_open()
        return await asyncio.wrap_future(self._thread.submit(function))

    def finish(self, function: Callable[[], None]) -> Future[None]:
        """Call a function as the last one in the connection's thread, whoever is cancelled."""
        self._over = True
        last = self._thread.submit(function)
        self._thread.shutdown(wait=False)
        return last


class AsyncCursor:
    """What a statement left: its rows, which have all been read, and its counts."""

    def __init__(self, cursor: Any, rows: list[Any]) -> None:
        self._rows = iter(rows)
        self.rowcount: int = cursor.rowcount
        self.lastrowid: int | None = cursor.lastrowid
        self.description: Any = cursor.description

    async def fetchone(self) -> Any:
        """Return the next row, or ``None``."""
        return next(self._rows, None)

    async def fetchmany(self, size: int = 1) -> list[Any]:
        """Return the next rows, ``size`` at most."""
        return list(itertools.islice(self._rows, size))

    async def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        return list(self._rows)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        for row in self._rows:
            return row
        raise StopAsyncIteration


class Execution:
    """A statement that runs when it is awaited, or entered with ``async with``."""

    def __init__(self, connection: AsyncConnection, function: Callable[[], AsyncCursor]) -> None:
        self._connection = connection
        self._function = function

    def __await__(self) -> Generator[Any, None, AsyncCursor]:
        return self._connection.run(self._function).__await__()

    async def __aenter__(self) -> AsyncCursor:
        return await self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def _ran(cursor: Any) -> AsyncCursor:
    return AsyncCursor(cursor, cursor.fetchall() or [])
