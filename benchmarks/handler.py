"""The process of one worker runtime: told what to do line by line, as the contender's own process is.

It runs in the contender's own environment, as ``python -m benchmarks.handler KEY`` from the root of the repository.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import mmap
import os
import random
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.runtimes import RUNTIMES, Runtime
from benchmarks.worker import ranked, serve

__all__ = ["SLOT_BYTES"]

SLOT_BYTES = 8
LOOK_S = 0.01
"""How often is looked whether all was handled; nothing is timed by it."""
TICK_S = 0.01
"""How often a flow publishes what has come due."""
BEFORE_FLOW_S = 0.3
STUCK_S = float(os.environ.get("HAREL_BENCH_STUCK_S") or 60.0)
"""After so long without a message there will be none."""


class Handler:
    """Carries out what it is told; the names of its methods are the commands."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._runner = asyncio.Runner()

    def open(self, place: str) -> dict[str, Any]:
        self._runner.run(self._runtime.open(place))
        return {}

    def prepare(self, groups: int) -> dict[str, Any]:
        self._runner.run(self._runtime.prepare(groups))
        return {}

    def backlog(self, groups: int = 0, each: int = 0, sizes: Sequence[int] | None = None) -> dict[str, Any]:
        """Publish to so many groups so many messages each, or to each group its size."""
        self._runner.run(self._runtime.backlog(groups, each, sizes))
        return {}

    def waiting(self) -> dict[str, Any]:
        return {"messages": self._runner.run(self._runtime.waiting())}

    def handle(
        self, count: int, tally: str, slot: int, concurrency: int, *, pause_ms: float = 0.0, profile: bool = False
    ) -> dict[str, Any]:
        """Work until all processes together have handled so many messages, with a handler that sleeps so long.

        Returns when it began, the seconds of a processor that it had, and of every message the time, its group and its
        number, and if the handler sleeps when it ended; times are those of a clock that all processes of the machine
        share.
        """
        if pause_ms and not self._runtime.pauses:
            raise NotImplementedError("Its handlers cannot await anything.")
        return self._runner.run(self._handle(count, tally, slot, concurrency, pause_ms=pause_ms, profile=profile))

    def trickle(self, groups: int, count: int, pause_s: float) -> dict[str, Any]:
        """Publish one by one with pauses; return when each publish had returned, with its group and number."""
        return self._runner.run(self._trickle(groups, count, pause_s))

    def flow(self, groups: int, rate: float, seconds: float) -> dict[str, Any]:
        """Publish so many messages a second, to the groups in turn and in batches; return what ``trickle`` does."""
        return self._runner.run(self._flow(groups, rate, seconds))

    def handle_trickle(
        self, groups: int, count: int, pause_s: float, tally: str, concurrency: int
    ) -> dict[str, dict[str, Any]]:
        """Do both in this process, for a queue that is in it."""

        async def both() -> dict[str, dict[str, Any]]:
            handled, published = await asyncio.gather(
                self._handle(count, tally, 0, concurrency), self._trickle(groups, count, pause_s)
            )
            return {"handled": handled, "published": published}

        return self._runner.run(both())

    def close(self) -> dict[str, Any]:
        self._runner.run(self._runtime.close())
        self._runner.close()
        return {}

    async def _handle(
        self, count: int, tally: str, slot: int, concurrency: int, *, pause_ms: float = 0.0, profile: bool = False
    ) -> dict[str, Any]:
        seen: list[Sequence[float]] = []
        enough = asyncio.Event()
        profiler = cProfile.Profile()
        with _shared(tally) as slots:

            def handle(group: int, number: int, now: Any = time.perf_counter) -> None:
                seen.append((now(), group, number))
                slots[slot] = len(seen)

            async def sleep(began: float, group: int, number: int) -> None:
                await asyncio.sleep(pause_ms / 1e3)
                seen.append((began, group, number, time.perf_counter()))
                slots[slot] = len(seen)

            def begin(group: int, number: int) -> Coroutine[Any, Any, None]:
                return sleep(time.perf_counter(), group, number)

            looking = asyncio.create_task(_look(slots, count, enough))
            gc.collect()
            if profile:
                profiler.enable()
            self._runtime.up_at = None
            busy_s, began = time.process_time(), time.perf_counter()
            try:
                await self._runtime.work(begin if pause_ms else handle, enough, concurrency)
            finally:
                busy_s = time.process_time() - busy_s
                profiler.disable()
                looking.cancel()
            if not looking.cancelled() and looking.done():
                looking.result()
        if self._runtime.up_at is not None:  # that it starts is not its work
            began = min([self._runtime.up_at, *(message[0] for message in seen[:1])])
        found = {"began": began, "client_s": busy_s, "seen": seen}
        return found | {"profile": ranked(profiler)} if profile else found

    async def _trickle(self, groups: int, count: int, pause_s: float) -> dict[str, Any]:
        published = []
        await asyncio.sleep(20 * pause_s)  # so that the worker waits
        for number in range(count):
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # so as not to keep step with one that polls
            group, number_in_group = number % groups, number // groups
            await self._runtime.publish(group, number_in_group)
            published.append((time.perf_counter(), group, number_in_group))
        return {"published": published}

    async def _flow(self, groups: int, rate: float, seconds: float) -> dict[str, Any]:
        count, sent = round(rate * seconds), 0
        published: list[tuple[float, int, int]] = []
        await asyncio.sleep(BEFORE_FLOW_S)  # so that the worker waits
        began = time.perf_counter()
        ticks = 0
        while sent < count:
            ticks += 1
            await asyncio.sleep(max(0.0, began + ticks * TICK_S - time.perf_counter()))
            due = min(count, round(rate * TICK_S * ticks))
            batch = [(number % groups, number // groups) for number in range(sent, due)]
            if batch:
                await self._runtime.publish_many(batch)
                now = time.perf_counter()
                published += [(now, group, number) for group, number in batch]
            sent = due
        return {"published": published}


@contextmanager
def _shared(tally: str) -> Iterator[memoryview]:
    """Open the numbers that all processes share: how many messages each has handled."""
    with (
        Path(tally).open("r+b") as file,
        mmap.mmap(file.fileno(), 0) as shared,
        memoryview(shared) as view,
        view.cast("Q") as slots,
    ):
        yield slots


async def _look(slots: memoryview, count: int, enough: asyncio.Event) -> None:
    """Set an event when enough was handled, or when nothing is handled any more, which it then says."""
    before, since = -1, time.monotonic()
    while (handled := sum(slots)) < count:
        if handled != before:
            before, since = handled, time.monotonic()
        elif time.monotonic() - since > STUCK_S:
            enough.set()
            raise RuntimeError(f"{handled} of {count} messages were handled, and then none for {STUCK_S:g} s.")
        await asyncio.sleep(LOOK_S)
    enough.set()


def main() -> None:
    serve(Handler(RUNTIMES[sys.argv[1]]()))


if __name__ == "__main__":
    main()
