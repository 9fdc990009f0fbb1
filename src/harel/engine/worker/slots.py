"""The places in which handlers run: as many tasks as there may be handlers at once, kept from message to message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextvars import copy_context
from typing import Any

from harel.engine.worker.job import Job
from harel.engine.worker.timing import Timing

__all__ = ["Fresh", "Slots"]

_LONGEST_TURN_S = 0.005
"""A slot whose handlers never suspend lets the rest of the loop come in between after so long."""

_LEAVING_S = 1.0


class Slots:
    """Tasks that carry out jobs, each one job at a time.

    A task for each message would cost more than a handler that does not suspend. Such handlers are called one after
    the other in one slot; the next slot is woken before each, and takes over when one does suspend. From then on all
    are woken that have something to do.

    Parameters
    ----------
    count : int
        How many at most; they are made when they are needed.
    carry_out : callable
        Carries out a job in a slot's task; raises nothing, unless the worker is to end.
    failed : callable
        Called with what it raised all the same.
    timing : Timing
    """

    def __init__(
        self,
        count: int,
        carry_out: Callable[[Job, asyncio.Task[Any]], Awaitable[None]],
        failed: Callable[[BaseException], None],
        timing: Timing,
    ) -> None:
        self._count = count
        self._carry_out = carry_out
        self._failed = failed
        self._timing = timing
        self._jobs: deque[Job] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._waking = 0
        """Slots that are woken and have not begun."""
        self._inside = 0
        """Slots whose handler was called and has not returned. Seen from another slot, they are suspended."""
        self._closing = False

    def give(self, jobs: Iterable[Job]) -> None:
        """Have these carried out, at once if there are as many free slots."""
        self._jobs.extend(jobs)
        self._wake()

    async def close(self) -> None:
        """Cancel all slots, and wait for them, but not for ever: a handler may ignore that it is cancelled."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LEAVING_S)

    def _wake(self) -> None:
        """Wake a slot for what is there to do, or as many as there are jobs where handlers do suspend."""
        wanted = len(self._jobs) if self._inside else min(1, len(self._jobs))
        while self._waking < wanted and self._wake_one():
            self._waking += 1

    def _wake_one(self) -> bool:
        while self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
                return True
        if len(self._tasks) == self._count:
            return False
        task = asyncio.create_task(self._work(), name=f"harel-slot-{len(self._tasks)}")
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return True

    async def _work(self) -> None:
        self._waking -= 1
        task = asyncio.current_task()
        assert task is not None, "a slot is a task"
        turn_began = self._timing.now()
        while not self._closing:
            try:
                if not self._jobs:
                    await self._rest()
                    turn_began = self._timing.now()
                elif self._timing.now() - turn_began > _LONGEST_TURN_S:
                    self._wake()
                    await asyncio.sleep(0)
                    turn_began = self._timing.now()
            except asyncio.CancelledError:
                if self._closing:
                    raise
                _forget_cancellations(task)  # left behind by a handler that cancelled its own task
            if self._jobs:
                job = self._jobs.popleft()
                self._wake()
                self._inside += 1
                try:
                    await self._carry_out(job, task)
                finally:
                    self._inside -= 1
                _forget_cancellations(task)

    async def _rest(self) -> None:
        idle = asyncio.get_running_loop().create_future()
        self._idle.append(idle)
        try:
            await idle
        finally:
            if not idle.cancelled():
                self._waking -= 1

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


class Fresh:
    """Calls an async function and awaits what it returns, in a context of its own, as a task of its own would.

    Context variables that one handler sets are not seen by the next one in its slot.

    Parameters
    ----------
    call : callable
        Returns what is to be awaited.
    *arguments
        What it is called with.
    """

    __slots__ = ("_arguments", "_call")

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._call = call
        self._arguments = arguments

    def __await__(self) -> Generator[Any, Any, Any]:
        run = copy_context().run
        made = run(self._call, *self._arguments)
        coroutine = made if hasattr(made, "send") else _awaited(made)
        try:
            wanted = run(coroutine.send, None)
            while True:
                try:
                    got = yield wanted
                except BaseException as error:  # noqa: BLE001 - a cancellation, for one, is the coroutine's to handle
                    wanted = run(coroutine.throw, error)
                else:
                    wanted = run(coroutine.send, got)
        except StopIteration as done:
            return done.value


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _forget_cancellations(task: asyncio.Task[Any]) -> None:
    while task.cancelling():
        task.uncancel()
