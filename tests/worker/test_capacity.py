"""A worker asks for no more messages than it has handlers for: what waits for a slot is another worker's to take."""

from __future__ import annotations

import asyncio

import pytest

from harel import AsyncWorker, Event
from harel.engine.queue.contract import Lease
from tests.worker.driving import Watched, messages


class Counted(Watched):
    """Counts what a worker may have in hand when it has what it asks for: claimed, and not handled yet."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed = 0
        self.handled = 0
        self.in_hand: list[int] = []

    async def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> list[Lease]:
        self.in_hand.append(self.claimed - self.handled + limit)
        leases = await super().claim_many(worker_id, visibility, limit, min_priority)
        self.claimed += len(leases)
        return leases


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_more_is_claimed_than_can_be_handled_at_once(concurrency: int) -> None:
    async def handle(event: Event) -> None:
        await asyncio.sleep(0)
        queue.handled += 1
        if queue.handled == 40:
            worker.stop()

    async with Counted() as queue:
        await queue.publish_many(messages(groups=20, each=2))
        worker = AsyncWorker(queue, handle, concurrency=concurrency)
        await worker.run()
    assert max(queue.in_hand) == concurrency
