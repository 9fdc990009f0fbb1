"""What the tests of the worker share: one text for both workers, and time that goes where it is told."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import heapq
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from harel import AsyncWorker, Event, Lease, Message, Transport, TransportUnavailable, Worker
from harel.engine.aio_transport import AsyncInMemoryTransport
from harel.engine.worker.loop import Loop
from harel.engine.worker.timing import Timing
from harel.engine.worker.worker import WorkerBase
from harel.testing import Blocking, ManualClock

T = TypeVar("T")

DEADLINE_S = 60.0
"""How long a test waits for what has to happen: longer than any machine needs."""


class Driver:
    """A worker over a transport of either kind, stepped and run from sync code with a sync handler."""

    def __init__(self, queue: Transport, handler: Callable[[Any, Any], object], **options: Any) -> None:
        self._blocking = queue if isinstance(queue, Blocking) else None
        options.setdefault("worker_id", "worker")
        if self._blocking is None:
            self.worker: Any = Worker(queue, handler, **options)
        else:

            @functools.wraps(handler)
            async def awaiting(event: Any, context: Any) -> None:
                handler(event, context)

            self.worker = AsyncWorker(self._blocking.inner, awaiting, **options)

    def step(self) -> bool:
        return bool(self._run(self.worker.step))

    def run(self) -> None:
        self._run(self.worker.run)

    def _run(self, method: Callable[[], Any]) -> Any:
        return method() if self._blocking is None else self._blocking.runner.run(method())


async def until_set(event: threading.Event) -> None:
    """Await what another thread sets."""
    assert await asyncio.to_thread(event.wait, DEADLINE_S)


class FakeTimer:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class FakeTiming(Timing):
    """Time that stands still until a test moves it, and the queue's clock, if given, with it."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self._now = 1_000.0
        self._clock = clock
        self._order = itertools.count()
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self.set = 0
        """How many timers were set so far."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that goes by this time."""

    def now(self) -> float:
        return self._now

    def later(self, seconds: float, call: Callable[[], object]) -> FakeTimer:
        timer = FakeTimer(call)
        self.set += 1
        self.loop = asyncio.get_running_loop()
        if seconds <= 0.0:
            self.loop.call_soon(lambda: timer.call and timer.call())
            return timer
        heapq.heappush(self._timers, (self._now + seconds, next(self._order), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Let so many seconds go by, with everything that is due on the way, and let everything happen that follows."""
        await settled()
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            at, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                self._go_to(at)
                timer.call()
                await settled()
        self._go_to(end)
        await settled()

    def fire(self, seconds: float) -> None:
        """Let so many seconds go by, and what was due in them happen after that; on the event loop."""
        self._go_to(self._now + seconds)
        while self._timers and self._timers[0][0] <= self._now:
            timer = heapq.heappop(self._timers)[2]
            if timer.call is not None:
                timer.call()

    def jump(self, seconds: float) -> None:
        """Let so many seconds go by in which nothing on the loop gets a chance, as if something blocked it."""
        self._go_to(self._now + seconds)

    def _go_to(self, now: float) -> None:
        if now > self._now:
            if self._clock is not None:
                self._clock.advance(now - self._now)
            self._now = now


async def settled() -> None:
    """Let all tasks go on until they can go no further without time or a thread."""
    for _ in range(60):
        await asyncio.sleep(0)


def goes_by(worker: WorkerBase[Any, Any], timing: Timing) -> None:
    """Have a worker go by this time."""
    worker._settings = dataclasses.replace(worker._settings, timing=timing)


class Running:
    """An async worker that runs by a fake time, and its loop."""

    def __init__(self, worker: AsyncWorker, timing: Timing) -> None:
        goes_by(worker, timing)
        self.worker = worker
        self.loop: Loop = worker._start_loop(worker._transport, worker._hand())
        self.task = asyncio.create_task(self.loop.run())

    async def stopped(self) -> None:
        self.worker.stop()
        await asyncio.wait_for(self.task, DEADLINE_S)


class Watched(AsyncInMemoryTransport):
    """A queue in memory that records what is asked of it, and fails or hangs where a test says so."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__(clock=clock or ManualClock())
        self.calls: list[tuple[str, Any]] = []
        self.down: set[str] = set()
        """The methods that cannot reach the server."""
        self.deaf: set[str] = set()
        """The methods whose answers are lost: what they ask for happens."""
        self.slow: dict[str, asyncio.Event] = {}
        """The methods that wait for an event before they do anything."""
        self.late: dict[str, asyncio.Event] = {}
        """The methods that wait for an event when they have done what they do."""

    def named(self, name: str) -> list[Any]:
        return [detail for called, detail in self.calls if called == name]

    async def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> list[Lease]:
        return await self._call(
            "claim", (limit, min_priority), super().claim_many(worker_id, visibility, limit, min_priority)
        )

    async def ack_many(self, leases: Iterable[Lease]) -> list[bool]:
        given = list(leases)
        return await self._call("ack", [lease.group_id for lease in given], super().ack_many(given))

    async def nack(self, lease: Lease, delay: float = 0.0) -> bool:
        return await self._call("nack", (lease.group_id, delay), super().nack(lease, delay))

    async def reject(self, lease: Lease, reason: str) -> bool:
        return await self._call("reject", (lease.group_id, reason), super().reject(lease, reason))

    async def extend_many(self, leases: Iterable[Lease], visibility: float) -> list[bool]:
        given = list(leases)
        return await self._call("extend", [lease.group_id for lease in given], super().extend_many(given, visibility))

    async def hold(self, group_id: str) -> bool:
        return await self._call("hold", group_id, super().hold(group_id))

    async def release(self, group_id: str) -> bool:
        return await self._call("release", group_id, super().release(group_id))

    async def wait(self, timeout: float) -> bool:
        return await self._call("wait", timeout, super().wait(timeout))

    async def _call(self, name: str, detail: Any, operation: Coroutine[Any, Any, T]) -> T:
        self.calls.append((name, detail))
        try:
            if name in self.slow:
                await self.slow[name].wait()
            if name in self.down:
                raise TransportUnavailable("db:5432 does not answer.")
            answer = await operation
            if name in self.late:
                await self.late[name].wait()
        finally:
            operation.close()
        if name in self.deaf:
            raise TransportUnavailable("db:5432 did not answer.")
        return answer


def messages(groups: int, each: int) -> list[Message]:
    return [Message(f"g{group}", Event("counted", {"n": n}), 0) for n in range(each) for group in range(groups)]
