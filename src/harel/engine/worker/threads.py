"""Threads for blocking calls, which keep no process alive when a call hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

__all__ = ["DaemonThreads"]

T = TypeVar("T")

_Task: TypeAlias = "tuple[Callable[[], Any], asyncio.Future[Any]] | None"


class DaemonThreads:
    """Makes blocking calls awaitable, so many at once. Used from one event loop.

    The interpreter joins the threads of ``concurrent.futures`` when it ends, so one call that hangs would keep the
    process for ever; these are daemons.

    Parameters
    ----------
    count : int
        How many at most; they are made when they are needed.
    name : str
        What their names begin with.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: SimpleQueue[_Task] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._outstanding = 0

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        """Make a call in a thread."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._outstanding += 1
        self._calls.put((call, future))
        if len(self._threads) < min(self._outstanding, self._count):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def stop(self, at_most_s: float) -> None:
        """Let the threads end after what they do, and wait for that, so many seconds in all."""
        for _ in self._threads:
            self._calls.put(None)
        deadline = time.monotonic() + at_most_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (task := self._calls.get()) is not None:
            call, future = task
            result = error = None
            try:
                result = call()
            except BaseException as raised:  # noqa: BLE001 - it is raised where the call is awaited
                error = raised
            try:
                future.get_loop().call_soon_threadsafe(self._deliver, future, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del task, call, future, result, error

    def _deliver(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._outstanding -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            # A future takes no StopIteration; and SystemExit ends a thread, not the process.
            wrapped = RuntimeError(f"The call ended with {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            future.set_exception(wrapped)
