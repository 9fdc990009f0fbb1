"""A queue and a caller's connection to its file, over either driver, sync or async, with ``await`` in any case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiosqlite

from harel.testing import ManualClock
from tests.sqlite.drivers import Driver

TABLE = "CREATE TABLE IF NOT EXISTS orders (name TEXT PRIMARY KEY)"


class Awaited:
    """A sync transport, or what is bound to one, whose methods are awaited."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return call

    def bind(self, connection: Any) -> Awaited:
        return Awaited(self.inner.bind(connection))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with self.inner.transaction() as connection:
            yield connection


@dataclass
class Stage:
    """Where a test plays."""

    driver: Driver
    is_async: bool
    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    opened: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def path(self) -> Path:
        return self.folder / "queue.db"

    async def open(self, path: Any = None, **options: Any) -> Any:
        """Open the queue; the file has a table of the caller's too."""
        options = {"clock": self.clock, "busy_timeout": 60.0, **options}
        make = self.driver.async_transport if self.is_async else self.driver.transport
        queue = make(self.path if path is None else path, **options)
        if not self.is_async:
            queue = Awaited(queue)
        else:
            await queue.open()
        self.opened.push_async_callback(queue.close)
        if path is None:
            connection = self.driver.connect(self.path)
            connection.execute(TABLE)
            connection.close()
        return queue

    async def connect(self, path: Path | None = None) -> Any:
        """Open a connection of the caller's, as a program of this flavour does."""
        if self.is_async and self.driver.scheme == "sqlite":
            connection: Any = await aiosqlite.connect(path or self.path, timeout=0.0, isolation_level=None)
            self.opened.push_async_callback(connection.close)
            return connection
        connection = self.driver.connect(path or self.path)
        self.opened.callback(connection.close)
        return connection

    async def execute(self, connection: Any, sql: str, *parameters: Any) -> list[Any]:
        """Run a statement of the caller's; return its rows."""
        cursor = connection.execute(sql, parameters)
        if hasattr(cursor, "__await__"):
            return list(await (await cursor).fetchall())
        return list(cursor.fetchall() or ())

    async def orders(self) -> list[str]:
        """Return the caller's rows, as another connection sees them."""
        connection = self.driver.connect(self.path)
        try:
            return [name for (name,) in connection.execute("SELECT name FROM orders ORDER BY name").fetchall()]
        finally:
            connection.close()

    async def until(self, condition: Any) -> None:
        """Wait for something that will come to be."""
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - threads bring it about, which know of no asyncio.Event
                await asyncio.sleep(0.001)
