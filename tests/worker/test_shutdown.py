"""Ending a worker: what runs is finished, what does not end in time is given back, and signals."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest

from harel import AsyncWorker, Event, Worker
from harel.engine.transport import InMemoryTransport
from tests.worker.driving import DEADLINE_S, FakeTiming, Running, Watched, messages, settled


async def test_a_stop_finishes_what_is_held_and_claims_nothing_more() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def handle(event: Event) -> None:
        begun.set()
        await go.wait()

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=2))
        worker = AsyncWorker(queue, handle)
        running = asyncio.create_task(worker.run())
        await begun.wait()
        worker.stop()
        await settled()
        claims = len(queue.named("claim"))
        go.set()
        await asyncio.wait_for(running, DEADLINE_S)
        assert len(queue.named("claim")) == claims
        assert [message.event.payload for message in await queue.peek("g0")] == [{"n": 1}]
        assert (await queue.groups())[0].state == "ready"


async def test_after_the_drain_timeout_what_runs_is_cancelled_and_claimable_at_once() -> None:
    timing = FakeTiming()
    cancelled: list[str] = []

    async def handle(event: Event, context: Any) -> None:
        if context.lease.group_id == "g1":
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(context.lease.group_id)
            assert context.lost
            raise

    async with Watched() as queue:
        await queue.publish_many(messages(groups=3, each=1))
        running = Running(AsyncWorker(queue, handle, drain_timeout=20.0), timing)
        await settled()
        running.worker.stop()
        await timing.advance(19.0)
        assert cancelled == []
        await timing.advance(2.0)
        await asyncio.wait_for(running.task, DEADLINE_S)
        assert sorted(cancelled) == ["g0", "g2"]
        leases = await queue.claim_many("other", 30.0, 10)
        assert sorted((lease.group_id, lease.attempt) for lease in leases) == [("g0", 2), ("g2", 2)]


async def test_a_message_is_given_back_only_when_its_cancelled_handler_has_cleaned_up() -> None:
    timing = FakeTiming()
    cleaned: list[str] = []

    async def handle(event: Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            over = asyncio.Event()
            timing.later(2.0, over.set)
            await over.wait()
            cleaned.append(event.kind)

    async with Watched() as queue:
        await queue.publish("a", Event("k"))
        running = Running(AsyncWorker(queue, handle, drain_timeout=10.0), timing)
        await settled()
        running.worker.stop()
        await timing.advance(11.0)
        assert await queue.claim("other", 30.0) is None
        await timing.advance(2.0)
        assert cleaned == ["k"]
        assert await queue.claim("other", 30.0) is not None
        await asyncio.wait_for(running.task, DEADLINE_S)


async def test_a_handler_that_ignores_its_cancellation_does_not_keep_the_worker() -> None:
    timing = FakeTiming()
    go = asyncio.Event()

    async def handle(event: Event) -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = Running(AsyncWorker(queue, handle, drain_timeout=1.0), timing)
        await settled()
        running.worker.stop()
        await timing.advance(2.0)
        assert not running.task.done(), "it has a moment to clean up"
        await timing.advance(5.0)
        lease = await queue.claim("other", 30.0)
        assert lease is not None, "then its message is given back all the same"
        await asyncio.wait_for(running.task, DEADLINE_S)
        go.set()


async def test_cancelling_gives_back_what_was_held_for_others_to_claim_at_once() -> None:
    begun = asyncio.Event()

    async def handle(event: Event) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = asyncio.create_task(AsyncWorker(queue, handle).run())
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        lease = await queue.claim("other", 30.0)
        assert lease is not None
        assert lease.attempt == 2


@pytest.mark.parametrize("order", list(itertools.permutations(["run", "harel-slot-0", "harel-settle", "harel-claim"])))
async def test_the_end_of_its_event_loop_gives_back_what_was_held(order: tuple[str, ...]) -> None:
    """``asyncio.run`` cancels all tasks at once, those of the worker's inside too, in whatever order."""
    begun = asyncio.Event()

    async def handle(event: Event) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = asyncio.create_task(AsyncWorker(queue, handle).run(), name="run")
        await begun.wait()
        tasks = {task.get_name(): task for task in asyncio.all_tasks()}
        for name in order:
            tasks[name].cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await queue.claim("other", 30.0) is not None


async def test_a_settlement_that_is_under_way_at_the_end_is_no_lost_lease(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(event: Event) -> None: ...

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        queue.late["ack"] = asyncio.Event()
        running = asyncio.create_task(AsyncWorker(queue, handle).run())
        await settled()
        assert (await queue.stats()).messages == 0, "it happened, but the answer is not here"
        for task in asyncio.all_tasks():
            if task.get_name() == "harel-settle":
                task.cancel()
        queue.late.clear()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert caplog.records == []


async def test_a_claim_that_is_under_way_when_a_stop_comes_is_not_forgotten() -> None:
    async def handle(event: Event) -> None: ...

    async with Watched() as queue:
        await queue.publish_many(messages(groups=3, each=1))
        queue.slow["claim"] = asyncio.Event()
        worker = AsyncWorker(queue, handle)
        running = asyncio.create_task(worker.run())
        await settled()
        worker.stop()
        await settled()
        queue.slow["claim"].set()
        await asyncio.wait_for(running, DEADLINE_S)
        assert (await queue.stats()).leased == 0, "what it found was handled, or given back"


def test_a_sync_handler_that_hangs_keeps_neither_run_nor_its_message() -> None:
    queue = InMemoryTransport()
    begun, go = threading.Event(), threading.Event()
    lost: list[bool] = []

    def handle(event: Event, context: Any) -> None:
        begun.set()
        assert go.wait(DEADLINE_S)
        lost.append(context.lost)

    queue.publish("a", Event("k"))
    worker = Worker(queue, handle, drain_timeout=0.05)
    running = threading.Thread(target=worker.run)
    running.start()
    assert begun.wait(DEADLINE_S)
    worker.stop()
    running.join(DEADLINE_S)
    assert not running.is_alive()
    lease = queue.claim("other", 30.0)
    assert lease is not None, "claimable at once"
    (thread,) = [thread for thread in threading.enumerate() if thread.name.startswith("harel-handler")]
    assert thread.daemon, "it keeps no process alive"
    go.set()
    thread.join(DEADLINE_S)
    assert lost == [True]
    assert queue.ack(lease), "what it did after all changed nothing"


def test_stop_may_be_called_from_any_thread_and_at_any_time() -> None:
    queue = InMemoryTransport()
    worker = Worker(queue, lambda event: None)
    running = threading.Thread(target=worker.run)
    running.start()
    worker.stop()
    running.join(DEADLINE_S)
    assert not running.is_alive()
    worker.stop()  # it has ended, and its event loop is closed
