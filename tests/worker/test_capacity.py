"""A worker holds no more messages than it has handlers for: what waits for a slot would be another worker's to take."""

from __future__ import annotations

import asyncio

import pytest

from harel import AsyncWorker, Event
from tests.worker.driving import Watched, messages


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_more_is_leased_than_can_be_handled_at_once(concurrency: int) -> None:
    leased: list[int] = []

    async def handle(event: Event) -> None:
        await asyncio.sleep(0)
        leased.append((await queue.stats()).leased)
        if len(leased) == 40:
            worker.stop()

    async with Watched() as queue:
        await queue.publish_many(messages(groups=20, each=2))
        worker = AsyncWorker(queue, handle, concurrency=concurrency)
        await worker.run()
    assert max(leased) == concurrency
