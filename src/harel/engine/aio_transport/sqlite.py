"""The queue in a SQLite file, for asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harel.engine.queue.face import AsyncFace
from harel.engine.queue.op import Sleep
from harel.engine.queue.sqlite.ops import Read
from harel.engine.transport.sqlite import SqliteBase

__all__ = ["AsyncSqliteTransport"]


class AsyncSqliteTransport(SqliteBase, AsyncFace):
    """A queue in a SQLite file, for asyncio.

    A transaction runs whole in a thread, so it is one hop, belongs to one task, and cannot be left
    open: a task that is cancelled before its commit finds it rolled back.

    See :class:`SqliteBase` for the parameters.
    """

    _threads: _Threads | None = None

    async def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            return await self._sleep(request.seconds)
        threads = self._threads_of_this_process()
        thread = threads.reader if isinstance(request, Read) else threads.writer
        gone = threading.Event()
        future = thread.submit(self._file.send, request, gone.is_set)
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


class _Threads:
    """One thread for each of the file's connections."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.writer = ThreadPoolExecutor(1, "harel-sqlite-write")
        self.reader = ThreadPoolExecutor(1, "harel-sqlite-read")

    def stop(self) -> None:
        self.writer.shutdown(wait=False)
        self.reader.shutdown(wait=False)
