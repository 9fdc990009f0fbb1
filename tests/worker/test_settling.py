"""What was handled is gathered for a moment, if that pays, and settled once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harel import AsyncWorker, Event, RetryLater, RetryPolicy
from harel.engine.worker.settling import Pace
from tests.worker.driving import FakeTiming, Running, Watched, messages, settled


def pace_of(seconds: float) -> Pace:
    pace = Pace()
    for _ in range(200):
        pace.took(seconds)
    return pace


@pytest.mark.parametrize(
    ("mean_s", "ago_s", "expected_s"),
    [
        (0.100, [], 0.0),
        (0.100, [0.050], 0.0),
        (0.100, [0.0995], 0.002),
        (0.100, [0.1005], 0.002),
        (0.100, [0.110], 0.0),
        (0.100, [0.050, 0.0995], 0.002),
        (0.008, [0.0075], 0.001),
        (0.008, [0.0065], 0.0),
    ],
)
def test_it_pays_to_wait_only_for_those_that_are_about_to_finish(
    mean_s: float, ago_s: list[float], expected_s: float
) -> None:
    """No longer than two milliseconds, nor than an eighth of the time that handlers take."""
    now = 1_000.0
    assert pace_of(mean_s).patience((now - ago for ago in ago_s), now) == pytest.approx(expected_s, rel=0.01)


class Paced:
    """Handlers that last by the test's time: ``n`` of the payload, in seconds."""

    def __init__(self, timing: FakeTiming) -> None:
        self.timing = timing

    async def __call__(self, event: Event) -> None:
        over = asyncio.Event()
        self.timing.later(event.payload["s"], over.set)
        await over.wait()


async def test_handlers_that_end_within_a_moment_are_settled_together() -> None:
    timing = FakeTiming()
    async with Watched() as queue:
        worker = AsyncWorker(queue, Paced(timing), concurrency=8)
        running = Running(worker, timing)
        for _ in range(100):
            await queue.publish("warm", Event("k", {"s": 0.1}))
            await timing.advance(0.2)
        queue.calls.clear()
        for n in range(4):
            await queue.publish(f"g{n}", Event("k", {"s": 0.1 + n * 0.0005}))
        await queue.publish("later", Event("k", {"s": 0.150}))
        await timing.advance(1.0)
        assert queue.named("ack") == [["g0", "g1", "g2", "g3"], ["later"]]
        await running.stopped()


async def test_one_that_ends_alone_is_settled_at_once() -> None:
    timing = FakeTiming()
    async with Watched() as queue:
        running = Running(AsyncWorker(queue, Paced(timing)), timing)
        await queue.publish("a", Event("k", {"s": 0.1}))
        await queue.publish("b", Event("k", {"s": 0.9}))
        await timing.advance(0.1)
        assert queue.named("ack") == [["a"]], "with no time gone by since it ended"
        await timing.advance(1.0)
        await running.stopped()


async def test_claims_and_settlements_go_on_side_by_side() -> None:
    timing = FakeTiming()

    async def handle(event: Event) -> None: ...

    async with Watched() as queue:
        await queue.publish_many(messages(groups=8, each=1))
        queue.slow["ack"] = asyncio.Event()
        running = Running(AsyncWorker(queue, handle, concurrency=4), timing)
        await settled()
        assert len(queue.named("ack")) == 1
        assert len(queue.named("claim")) == 2, "the next four are claimed while the first are being settled"
        queue.slow["ack"].set()
        await timing.advance(1.0)
        assert [len(acked) for acked in queue.named("ack")] == [4, 4]
        await running.stopped()


async def test_a_delay_longer_than_the_backend_takes_is_cut_to_that() -> None:
    async def handle(event: Event) -> None:
        raise RetryLater(1e15)

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        assert await AsyncWorker(queue, handle).step()
        assert queue.named("nack") == [("g0", queue.capabilities.max_visibility_s)]


async def test_a_batch_that_fails_in_part_has_its_acks_in_one_call() -> None:
    timing = FakeTiming()

    async def handle(event: Event, context: Any) -> None:
        if context.lease.group_id == "g1":
            raise RuntimeError("no luck")

    async with Watched() as queue:
        await queue.publish_many(messages(groups=3, each=1))
        running = Running(AsyncWorker(queue, handle, retry=RetryPolicy(backoff=7.0, jitter=0.0)), timing)
        await settled()
        assert queue.named("ack") == [["g0", "g2"]]
        assert queue.named("nack") == [("g1", 7.0)]
        await running.stopped()
