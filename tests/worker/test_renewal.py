"""Leases are kept while handlers run, and what happens when one is lost."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from harel import AsyncWorker, Event, Worker
from harel.engine.transport import InMemoryTransport
from harel.testing import Blocking, ManualClock, Subject
from tests.worker.driving import DEADLINE_S, Driver, FakeTiming, Running, Watched, goes_by, messages, settled, until_set


class Waiting:
    """A handler that waits until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.ended: list[str] = []

    async def __call__(self, event: Event, context: Any) -> None:
        self.begun.append(context.lease.group_id)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(context.lease.group_id)
            raise
        self.ended.append(context.lease.group_id)


def lost_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "was lost" in record.getMessage()]


async def test_a_handler_of_many_visibilities_is_delivered_once() -> None:
    clock = ManualClock()
    timing, handle = FakeTiming(clock), Waiting()
    async with Watched(clock) as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=30.0), timing)
        await settled()
        for _ in range(30):
            await timing.advance(10.0)
            assert await queue.claim("other", 30.0) is None
        handle.go.set()
        await running.stopped()
        assert handle.begun == ["g0"]
        assert (await queue.stats()).messages == 0


async def test_leases_are_renewed_at_a_third_of_the_visibility_all_in_one_call() -> None:
    clock = ManualClock()
    timing, handle = FakeTiming(clock), Waiting()
    async with Watched(clock) as queue:
        await queue.publish_many(messages(groups=5, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=30.0), timing)
        await timing.advance(9.9)
        assert queue.named("extend") == []
        await timing.advance(0.2)
        assert queue.named("extend") == [["g0", "g1", "g2", "g3", "g4"]]
        await queue.publish("later", Event("k"))
        await timing.advance(1.0)
        await timing.advance(9.0)
        assert queue.named("extend")[1:] == [["g0", "g1", "g2", "g3", "g4", "later"]], "one that is due soon goes along"
        handle.go.set()
        await running.stopped()
        assert len(queue.named("extend")) == 2


async def test_a_lost_lease_cancels_its_handler_and_drops_the_result(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    timing, handle = FakeTiming(clock), Waiting()
    async with Watched(clock) as queue:
        await queue.publish_many(messages(groups=2, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=30.0, worker_id="w", concurrency=2), timing)
        await settled()
        clock.advance(31.0)  # the server's clock alone: the worker's timers do not know
        other = await queue.claim("other", 1_000.0)
        assert other is not None
        with caplog.at_level(logging.WARNING, "harel.worker"):
            await timing.advance(10.0)
            assert handle.cancelled == [other.group_id]
            handle.go.set()
            await running.stopped()
        (record,) = caplog.records
        assert record.getMessage() == (
            f"The lease of group {other.group_id!r}, seq {other.seq}, attempt 1 was lost; "
            "what its handler did is not settled."
        )
        fields = ("worker", "group", "seq", "attempt")
        assert [getattr(record, field) for field in fields] == ["w", other.group_id, other.seq, 1]
        assert await queue.ack(other), "the new holder was not disturbed"
        assert (await queue.stats()).messages == 0, "and the other message was settled"


async def test_a_group_that_a_worker_claims_again_has_its_older_handler_cancelled() -> None:
    clock = ManualClock()
    timing = FakeTiming(clock)
    log: list[str] = []
    go = asyncio.Event()

    async def handle(event: Event, context: Any) -> None:
        log.append(f"{event.kind} {context.attempt} began")
        await go.wait()
        log.append(f"{event.kind} {context.attempt} ended")

    async with Watched(clock) as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=30.0, concurrency=3), timing)
        await settled()
        clock.advance(31.0)
        await queue.publish("g0", Event("k"))  # a publish has the worker look, and it finds its own group
        await timing.advance(1.0)
        go.set()
        await timing.advance(1.0)
        await running.stopped()
        assert log == ["counted 1 began", "counted 2 began", "counted 2 ended", "k 1 began", "k 1 ended"]
        assert (await queue.stats()).messages == 0


async def test_a_slot_works_on_after_a_handler_was_cancelled_in_it() -> None:
    clock = ManualClock()
    timing = FakeTiming(clock)
    seen: list[tuple[str, int]] = []
    ends: list[asyncio.Event] = []

    async def handle(event: Event, context: Any) -> None:
        seen.append((context.lease.group_id, context.attempt))
        ends.append(asyncio.Event())
        async with asyncio.timeout(DEADLINE_S):
            await ends[-1].wait()

    async with Watched(clock) as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=30.0, concurrency=1), timing)
        await settled()
        clock.advance(31.0)
        other = await queue.claim("other", 30.0)
        assert other is not None
        await timing.advance(10.0)
        assert await queue.nack(other)
        await timing.advance(1.0)
        assert seen == [("g0", 1), ("g0", 3)]
        ends[-1].set()
        await running.stopped()
        assert (await queue.stats()).messages == 0


async def test_a_handler_that_swallows_its_cancellation_has_its_result_dropped_all_the_same() -> None:
    clock = ManualClock()
    timing = FakeTiming(clock)
    swallowed: list[bool] = []

    async def handle(event: Event, context: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed.append(context.lost)

    async with Watched(clock) as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=30.0), timing)
        await settled()
        clock.advance(31.0)
        assert await queue.claim("other", 1_000.0) is not None
        await timing.advance(10.0)
        assert swallowed == [True]
        await running.stopped()
        assert queue.named("ack") == []


async def test_a_lease_that_runs_out_while_the_server_is_away_counts_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    timing, handle = FakeTiming(), Waiting()
    async with Watched() as queue:
        await queue.publish_many(messages(groups=2, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=30.0), timing)
        await settled()
        queue.down = {"extend", "claim", "wait", "ack", "nack"}
        with caplog.at_level(logging.WARNING, "harel.worker"):
            await timing.advance(29.0)
            assert handle.cancelled == []
            assert len(queue.named("extend")) > 3, "it is tried again in good time"
            await timing.advance(2.0)
            assert sorted(handle.cancelled) == ["g0", "g1"]
            queue.down.clear()
            await timing.advance(10.0)
        assert len(lost_messages(caplog)) == 2
        assert queue.named("ack") == queue.named("nack") == []
        await running.stopped()


async def test_a_lease_that_runs_out_while_the_server_does_not_answer_counts_as_lost() -> None:
    """The call neither fails nor returns: the handler is cancelled when its time is over, not when the call ends."""
    timing, handle = FakeTiming(), Waiting()
    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=30.0), timing)
        await settled()
        queue.slow["extend"] = asyncio.Event()
        await timing.advance(29.9)
        assert handle.cancelled == []
        await timing.advance(0.2)
        assert handle.cancelled == ["g0"]
        queue.slow["extend"].set()
        await running.stopped()


async def test_a_loop_that_was_blocked_past_the_lease_asks_the_server_who_has_it() -> None:
    timing, handle = FakeTiming(), Waiting()
    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=30.0), timing)
        await timing.advance(11.0)
        assert queue.named("extend") == [["g0"]]
        queue.slow["extend"] = asyncio.Event()
        timing.jump(100.0)
        await timing.advance(1.0)
        assert handle.cancelled == [], "the answer is under way"
        queue.slow.pop("extend").set()
        await timing.advance(1.0)
        assert handle.cancelled == [], "nobody else took it, so it was renewed"
        handle.go.set()
        await running.stopped()
        assert (await queue.stats()).messages == 0


async def test_a_renewal_that_crosses_the_settlement_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    """The renewal's answer is that the lease is gone, since the message was settled while it was under way."""
    timing, handle = FakeTiming(), Waiting()
    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=30.0), timing)
        await settled()
        queue.slow["extend"] = asyncio.Event()
        await timing.advance(10.0)
        handle.go.set()
        await timing.advance(1.0)
        assert queue.named("ack") == [["g0"]]
        queue.slow["extend"].set()
        with caplog.at_level(logging.WARNING, "harel.worker"):
            await timing.advance(1.0)
            await running.stopped()
        assert lost_messages(caplog) == []


async def test_a_renewal_shortens_no_lease_that_its_handler_made_longer() -> None:
    clock = ManualClock()
    timing = FakeTiming(clock)
    go = asyncio.Event()

    async def handle(event: Event, context: Any) -> None:
        await context.extend(600.0)
        await go.wait()

    async with Watched(clock) as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=30.0), timing)
        await timing.advance(500.0)
        assert queue.named("extend") == []
        await timing.advance(95.0)
        assert queue.named("extend") == [["g0"], ["g0"]], "when it is near its end, it is renewed as ever"
        go.set()
        await running.stopped()


async def test_an_extend_below_the_workers_visibility_extends_by_that() -> None:
    clock = ManualClock()
    ends: list[float] = []

    async def handle(event: Event, context: Any) -> None:
        await context.extend(1.0)
        ends.append(context.lease.expires_at - clock.now)

    async with Watched(clock) as queue:
        await queue.publish_many(messages(groups=1, each=1))
        assert await AsyncWorker(queue, handle, visibility=30.0).step()
        assert ends == [pytest.approx(30.0, abs=0.1)]


async def test_an_async_step_renews_too() -> None:
    clock = ManualClock()
    timing, handle = FakeTiming(clock), Waiting()
    async with Watched(clock) as queue:
        await queue.publish_many(messages(groups=1, each=1))
        worker = AsyncWorker(queue, handle, visibility=30.0)
        running = Running(worker, timing)  # for its timing alone
        await running.stopped()
        step = asyncio.create_task(worker.step())
        for _ in range(9):
            await timing.advance(10.0)
            assert await queue.claim("other", 30.0) is None
        handle.go.set()
        assert await step


def test_a_sync_step_renews_too() -> None:
    """By the real clock, since the renewing thread and the queue both go by it."""
    queue = InMemoryTransport()
    renewed: list[bool] = []

    def handle(event: Event, context: Any) -> None:
        first = context.lease.expires_at
        deadline = time.monotonic() + DEADLINE_S
        while context.lease.expires_at == first and time.monotonic() < deadline:
            time.sleep(0.005)
        renewed.append(context.lease.expires_at > first)

    queue.publish("a", Event("long"))
    assert Worker(queue, handle, visibility=3.0).step()
    assert renewed == [True]
    assert queue.stats().messages == 0


def test_a_long_handler_is_delivered_once(subject: Subject) -> None:
    """On every backend: four renewals take it past its first end, and nobody else can have it."""
    queue = subject.open()
    timing = FakeTiming()
    inner: Any = queue.inner if isinstance(queue, Blocking) else queue
    extend_many = inner.extend_many
    renewed = threading.Event()
    attempts: list[int] = []

    def a_third_goes_by() -> None:
        renewed.clear()
        assert timing.loop is not None
        timing.loop.call_soon_threadsafe(timing.fire, 10.0)

    async def awaiting(event: Event, context: Any) -> None:
        attempts.append(context.attempt)
        for _ in range(4):
            a_third_goes_by()
            await until_set(renewed)
            subject.clock.advance(10.0)
        driver.worker.stop()

    def handle(event: Event, context: Any) -> None:
        attempts.append(context.attempt)
        for _ in range(4):
            a_third_goes_by()
            assert renewed.wait(DEADLINE_S)
            subject.clock.advance(10.0)
        driver.worker.stop()

    async def noted_async(leases: Any, visibility: float) -> Any:
        answers = await extend_many(leases, visibility)
        renewed.set()
        return answers

    def noted(leases: Any, visibility: float) -> Any:
        answers = extend_many(leases, visibility)
        renewed.set()
        return answers

    queue.publish("a", Event("long"))
    driver = Driver(queue, handle, visibility=30.0, concurrency=2)
    if isinstance(queue, Blocking):
        driver.worker = AsyncWorker(inner, awaiting, visibility=30.0, concurrency=2)
        inner.extend_many = noted_async
    else:
        inner.extend_many = noted
    goes_by(driver.worker, timing)
    driver.run()
    assert attempts == [1]
    assert queue.claim("other", 30.0) is None, "it was settled"


def test_a_sync_handler_whose_lease_is_lost_sees_it_and_its_result_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    queue = InMemoryTransport(clock=clock)
    seen: list[bool] = []

    def handle(event: Event, context: Any) -> None:
        clock.advance(31.0)
        assert queue.claim("other", 1_000.0) is not None
        deadline = time.monotonic() + DEADLINE_S
        while not context.lost and time.monotonic() < deadline:
            time.sleep(0.005)
        seen.append(context.lost)
        worker.stop()

    queue.publish("a", Event("long"))
    worker = Worker(queue, handle, visibility=0.5)
    with caplog.at_level(logging.WARNING, "harel.worker"):
        worker.run()
    assert seen == [True]
    assert len(lost_messages(caplog)) == 1
    assert queue.stats().leased == 1, "the other holder has it"
