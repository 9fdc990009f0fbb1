"""The in-memory queue for asyncio."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from harel.engine.queue.face import AsyncFace
from harel.engine.queue.op import Sleep
from harel.engine.transport.memory import MemoryBase

__all__ = ["AsyncInMemoryTransport"]


class AsyncInMemoryTransport(MemoryBase, AsyncFace):
    """A queue in this process's memory, for asyncio. No operation but ``wait`` ever suspends its task.

    See :class:`MemoryBase` for the parameters.
    """

    async def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            return await self._sleep(request)
        return self._shared.call(request)

    async def _sleep(self, request: Sleep) -> float:
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        if self._shared.sleeper(wake, request.seen):
            try:
                async with asyncio.timeout(request.seconds):
                    await woken.wait()
            except TimeoutError:
                pass
            finally:
                self._shared.awake(wake)
        return time.monotonic() - began

    async def _shut(self) -> None:
        self._shared.wake_all()
