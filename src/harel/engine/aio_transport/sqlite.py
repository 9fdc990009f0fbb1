"""The queue in a SQLite file, for asyncio."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from harel.engine.aio_transport.sqlite_connection import AsyncConnection
from harel.engine.queue.face import AsyncFace
from harel.engine.queue.op import Sleep
from harel.engine.queue.sqlite.ops import Read, Write
from harel.engine.transport.sqlite import SqliteBase
from harel.engine.transport.sqlite_file import DatabaseFile, Kind, Pauses
from harel.engine.transport.sqlite_place import Asker
from harel.errors import InvalidArgument

__all__ = ["AsyncFileFace", "AsyncSqliteTransport"]


class AsyncFileFace(AsyncFace):
    """How requests are sent to a file, by asyncio.

    A transaction runs whole in a thread, so it is one hop, belongs to one task, and cannot be left
    open: a task that is cancelled before its commit finds it rolled back.
    """

    _file: DatabaseFile
    _lock: str
    _takes: str
    _threads: _Threads | None = None

    async def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            return await self._sleep(request.seconds)
        gone = threading.Event()
        asker = Asker(asyncio.current_task(), gone)
        threads = self._threads_of_this_process()
        if isinstance(request, Read):
            thread = threads.reader
        else:
            self._file.must_not_wait_for_itself(asker.who)
            thread = threads.writer
        future = thread.submit(self._file.send, request, asker)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            gone.set()
            raise

    async def _sleep(self, seconds: float) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(seconds)
        return loop.time() - began

    async def _shut(self) -> None:
        threads = self._threads_of_this_process()
        await asyncio.get_running_loop().run_in_executor(threads.writer, self._file.close)
        threads.stop()

    def _threads_of_this_process(self) -> _Threads:
        if self._threads is None or self._threads.pid != os.getpid():
            self._threads = _Threads()
        return self._threads

    def _transaction(self) -> AbstractAsyncContextManager[Any]:
        return self._in_transaction()

    @asynccontextmanager
    async def _in_transaction(self) -> AsyncIterator[AsyncConnection]:
        connection = await self._begin()
        try:
            yield connection
        except BaseException:
            await self._end(connection, commit=False)
            raise
        await self._end(connection, commit=True)

    async def _begin(self) -> AsyncConnection:
        if not self._opened:
            await self.open()
        gone = threading.Event()
        asker = Asker(asyncio.current_task(), gone)
        self._file.must_not_wait_for_itself(asker.who)
        future = self._threads_of_this_process().writer.submit(self._file.begin, asker)
        try:
            return AsyncConnection(await asyncio.wrap_future(future))
        except asyncio.CancelledError:
            gone.set()
            future.add_done_callback(self._undo_what_nobody_has)
            raise

    def _undo_what_nobody_has(self, begun: Future[Any]) -> None:
        if not begun.cancelled() and begun.exception() is None:
            self._file.end(begun.result(), commit=False)

    async def _end(self, connection: AsyncConnection, *, commit: bool) -> None:
        # Shielded: a task that is cancelled now must not leave it open.
        ended = connection.finish(lambda: self._file.end(connection.raw, commit=commit))
        await asyncio.shield(asyncio.wrap_future(ended))

    def _bound(self, connection: Any) -> tuple[Any, Callable[[Any], Awaitable[Any]]]:
        raw, run = self._guest(connection)
        self._file.must_be_in_a_transaction(raw)
        seen = False

        def carry_out(request: Write) -> Any:
            nonlocal seen
            if not seen:
                self._file.must_be_of_this_file(raw)
                seen = True
            return self._file.send_inside(raw, request, self._lock)

        async def send(request: Write) -> Any:
            pauses = Pauses(self._file.busy_timeout_s)
            with self._file.explaining:
                while True:
                    try:
                        return await run(lambda: carry_out(request))
                    except BaseException as error:
                        if self._file.kind_of(error) is not Kind.BUSY or pauses.over:
                            raise
                    await asyncio.sleep(pauses.next())

        return self._ops, send

    def _guest(self, connection: Any) -> tuple[Any, Callable[[Callable[[], Any]], Awaitable[Any]]]:
        """Return the driver's own connection, and what calls a function where that may be used."""
        if isinstance(connection, AsyncConnection) and isinstance(connection.raw, self._file.connection_class):
            connection.must_be_open()
            return connection.raw, connection.run
        raise InvalidArgument(
            f"bind takes {self._takes}, or what transaction() gives, not {type(connection).__name__}."
        )


class AsyncSqliteTransport(SqliteBase, AsyncFileFace):
    """A queue in a SQLite file, for asyncio; tasks and processes may share the file.

    ``bind`` takes an ``aiosqlite.Connection``, and ``transaction()`` gives an
    :class:`~harel.engine.aio_transport.sqlite_connection.AsyncConnection` that has the write lock.

    See :class:`~harel.engine.transport.sqlite.SqliteBase` for the parameters.
    """

    _takes = "an aiosqlite.Connection"

    def _guest(self, connection: Any) -> tuple[Any, Callable[[Callable[[], Any]], Awaitable[Any]]]:
        aiosqlite = sys.modules.get("aiosqlite")  # whoever has a connection of its has it loaded
        if aiosqlite is not None and isinstance(connection, aiosqlite.Connection):
            # It has no public way to run several statements in one hop, and a cancellation can tear what is more.
            try:
                return connection._conn, connection._execute  # noqa: SLF001
            except ValueError as error:
                raise InvalidArgument(f"The connection cannot be used, because it is closed: {error}.") from error
        return super()._guest(connection)


class _Threads:
    """One thread for each of the file's connections."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.writer = ThreadPoolExecutor(1, "harel-sqlite-write")
        self.reader = ThreadPoolExecutor(1, "harel-sqlite-read")

    def stop(self) -> None:
        self.writer.shutdown(wait=False)
        self.reader.shutdown(wait=False)
