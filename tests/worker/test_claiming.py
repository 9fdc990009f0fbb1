"""What a worker asks for, how much and when: floors, idleness, waking."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from harel import AsyncWorker, Event, Message, NotSupported, Worker
from harel.engine.queue.contract import Capabilities
from harel.engine.transport import InMemoryTransport
from tests.worker.driving import FakeTiming, Running, Watched, messages, settled


async def noted(event: Event) -> None: ...


class Blind(Watched):
    """Its ``wait`` only pauses, and by the test's time."""

    timing: FakeTiming

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, watch=False)

    async def wait(self, timeout: float) -> bool:
        self.calls.append(("wait", timeout))
        over = asyncio.Event()
        self.timing.later(timeout, over.set)
        await over.wait()
        return False


class Patient(Watched):
    """Its ``wait`` lasts by the test's time, and looks only at its end or when it is told to."""

    def __init__(self, timing: FakeTiming) -> None:
        super().__init__()
        self.timing = timing
        self.woken = asyncio.Event()
        self.lies = False

    async def wait(self, timeout: float) -> bool:
        self.calls.append(("wait", timeout))
        if self.lies:
            return True
        self.timing.later(timeout, self.woken.set)
        await self.woken.wait()
        self.woken.clear()
        return (await self.stats()).ready > 0


async def test_an_idle_worker_asks_twice_a_minute_and_sets_no_timer() -> None:
    timing = FakeTiming()
    async with Patient(timing) as queue:
        running = Running(AsyncWorker(queue, noted), timing)
        await settled()
        queue.calls.clear()
        timing.set = 0
        await timing.advance(600.0)
        assert [name for name, _ in queue.calls] == ["wait"] * 20
        assert timing.set == 20, "those of the waits themselves"
        await running.stopped()


async def test_a_worker_that_handled_something_is_idle_again() -> None:
    timing = FakeTiming()
    async with Patient(timing) as queue:
        await queue.publish_many(messages(groups=3, each=3))
        running = Running(AsyncWorker(queue, noted), timing)
        await timing.advance(60.0)
        assert (await queue.stats()).messages == 0
        queue.calls.clear()
        await timing.advance(600.0)
        assert [name for name, _ in queue.calls] == ["wait"] * 20
        await running.stopped()


async def test_a_wake_up_has_an_idle_worker_claim_at_once() -> None:
    timing = FakeTiming()
    async with Patient(timing) as queue:
        running = Running(AsyncWorker(queue, noted), timing)
        await timing.advance(10.0)
        await queue.publish("a", Event("k"))
        queue.woken.set()
        await settled()
        assert (await queue.stats()).messages == 0
        await running.stopped()


async def test_where_a_wait_does_not_look_a_claim_does_each_second() -> None:
    timing = FakeTiming()
    async with Blind() as queue:
        queue.timing = timing
        running = Running(AsyncWorker(queue, noted), timing)
        await settled()
        queue.calls.clear()
        await timing.advance(10.5)
        assert [name for name, _ in queue.calls] == ["claim", "wait"] * 10
        await queue.publish("a", Event("k"))
        await timing.advance(1.0)
        assert (await queue.stats()).messages == 0
        await running.stopped()


async def test_claims_that_find_nothing_though_there_was_something_slow_down() -> None:
    timing = FakeTiming()
    async with Patient(timing) as queue:
        queue.lies = True
        running = Running(AsyncWorker(queue, noted), timing)
        await timing.advance(10.0)
        assert 200 <= len(queue.named("claim")) <= 220, "twenty a second, when others are always faster"
        await running.stopped()


async def test_what_was_settled_makes_a_worker_look_again_without_waiting() -> None:
    """A group's next message is claimable when the one before is settled, and nobody else has to say so."""
    timing = FakeTiming()
    async with Patient(timing) as queue:
        await queue.publish_many(messages(groups=2, each=50))
        running = Running(AsyncWorker(queue, noted, concurrency=8), timing)
        await settled()
        for _ in range(20):
            await settled()
        assert (await queue.stats()).messages == 0, "with no time gone by"
        assert queue.named("wait") in ([], [30.0])
        await running.stopped()


async def test_of_a_batch_the_floor_takes_what_it_finds_and_the_rest_is_any() -> None:
    timing = FakeTiming()
    order: list[str] = []

    async def handle(event: Event, context: Any) -> None:
        order.append(context.lease.group_id)

    async with Watched() as queue:
        await queue.publish_many([Message(f"low-{n}", Event("k")) for n in range(4)])
        await queue.publish_many([Message(f"high-{n}", Event("k"), 3) for n in range(2)])
        running = Running(AsyncWorker(queue, handle, concurrency=4, high_ratio=1.0, priority_threshold=3), timing)
        await settled()
        assert queue.named("claim")[:2] == [(4, 3), (2, 0)]
        assert order[:4] == ["high-0", "high-1", "low-0", "low-1"]
        await running.stopped()


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 0), (0.25, 24, 26), (0.5, 49, 51), (1.0, 100, 100)])
async def test_that_share_of_claims_asks_for_the_floor(ratio: float, least: int, most: int) -> None:
    async with Watched() as queue:
        worker = AsyncWorker(queue, noted, high_ratio=ratio, priority_threshold=2)
        for _ in range(100):
            await worker.step()
        floors = [floor for _, floor in queue.named("claim")]
        assert least <= floors.count(2) <= most
        assert floors.count(0) == 100, "and falls back to any"


@pytest.mark.parametrize(
    ("remote", "concurrency", "first"), [(True, 32, 16), (True, 33, 16), (True, 31, 31), (False, 64, 64)]
)
async def test_a_server_looks_for_half_of_many_slots_while_the_other_half_works(
    remote: bool, concurrency: int, first: int
) -> None:
    class There(Watched):
        @property
        def capabilities(self) -> Capabilities:
            return msgspec.structs.replace(super().capabilities, remote=remote)

    async with There() as queue:
        await queue.publish_many(messages(groups=200, each=1))
        busy, handled = asyncio.Event(), 0

        async def handle(event: Event) -> None:
            nonlocal handled
            handled += 1
            await busy.wait()

        running = Running(AsyncWorker(queue, handle, concurrency=concurrency), FakeTiming())
        await settled()
        limits = [limit for limit, _ in queue.named("claim")]
        assert max(limits) == limits[0] == first
        assert sum(limits) == handled == concurrency, "all slots work, and nothing is claimed that cannot start"
        busy.set()
        await settled()
        assert handled == 200
        await running.stopped()


async def test_what_the_first_of_two_claims_found_is_kept_when_the_second_fails() -> None:
    class Half(Watched):
        async def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> Any:
            self.down = set() if min_priority else {"claim"}
            return await super().claim_many(worker_id, visibility, limit, min_priority)

    handled: list[str] = []

    async def handle(event: Event, context: Any) -> None:
        handled.append(context.lease.group_id)

    timing = FakeTiming()
    async with Half() as queue:
        await queue.publish("high", Event("k"), 3)
        running = Running(AsyncWorker(queue, handle, high_ratio=1.0, priority_threshold=3), timing)
        await settled()
        assert handled == ["high"]
        await running.stopped()


def test_a_backend_without_priorities_refuses_the_share() -> None:
    class Flat(InMemoryTransport):
        @property
        def capabilities(self) -> Capabilities:
            return msgspec.structs.replace(super().capabilities, priority=False)

    with pytest.raises(NotSupported, match=r"capabilities\.priority is False"):
        Worker(Flat(), lambda event: None, high_ratio=0.5)
