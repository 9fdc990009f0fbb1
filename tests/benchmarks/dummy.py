"""A runtime that needs nothing, and the process that it is told what to do in."""

from __future__ import annotations

import asyncio
from collections import deque

from benchmarks.handler import main
from benchmarks.runtimes import RUNTIMES, Handle, Message, Runtime

__all__ = ["KEY", "Dummy"]

KEY = "dummy-memory"


class Dummy(Runtime):
    """Hands out one message after the other."""

    def __init__(self) -> None:
        self.published: deque[Message] = deque()
        self.arrived = asyncio.Event()

    async def open(self, place: str) -> None:
        print("what a peer prints does not come between the answers")
        assert place == "nowhere"

    async def publish(self, group: int, number: int) -> None:
        self.published.append((group, number))
        self.arrived.set()

    async def work(self, handle: Handle, enough: asyncio.Event, concurrency: int) -> None:
        assert concurrency == 1
        waiter = asyncio.create_task(enough.wait())
        while not enough.is_set():
            if self.published:
                rest = handle(*self.published.popleft())
                if rest is not None:
                    await rest
                continue
            self.arrived.clear()
            arrival = asyncio.create_task(self.arrived.wait())
            await asyncio.wait({waiter, arrival}, return_when=asyncio.FIRST_COMPLETED)
            arrival.cancel()
        await waiter

    async def waiting(self) -> int | None:
        return len(self.published)

    async def close(self) -> None:
        assert not self.published


if __name__ == "__main__":
    RUNTIMES[KEY] = Dummy
    main()
