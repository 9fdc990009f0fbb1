"""Trouble with the server: tried again, said once, nothing lost and nothing settled twice."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from harel import AsyncWorker, Event, Observer, RetryPolicy, TransportUnavailable
from harel.testing import ManualClock
from tests.worker.driving import DEADLINE_S, FakeTiming, Running, Watched, messages, settled

AWAY = {"claim", "wait", "ack", "nack", "reject", "extend", "hold", "release"}


class Seen(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def unreachable(self, error: Exception) -> None:
        self.said.append("unreachable")

    def reachable(self) -> None:
        self.said.append("reachable")

    def settled(self, lease: Any, verdict: Any, handled_s: float, error: BaseException | None) -> None:
        self.said.append(f"{lease.group_id} {type(verdict).__name__}")

    def lost(self, lease: Any, handled_s: float) -> None:
        self.said.append(f"{lease.group_id} lost")


async def noted(event: Event) -> None: ...


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "harel.worker"]


async def test_it_is_tried_again_for_ever_and_said_once_when_it_begins_and_once_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    timing, seen = FakeTiming(), Seen()
    async with Watched() as queue:
        queue.down = set(AWAY)
        with caplog.at_level(logging.INFO, "harel.worker"):
            running = Running(AsyncWorker(queue, noted, observers=[seen]), timing)
            await timing.advance(3_600.0)
            tries = len(queue.named("claim"))
            assert 3_600 / 5 <= tries <= 3_600 / 2.5 + 20, "at most five seconds apart, and less at first"
            queue.down.clear()
            await queue.publish("a", Event("late"))
            await timing.advance(6.0)
            assert (await queue.stats()).messages == 0
            await running.stopped()
        first, last = said(caplog)
        assert first == "The queue cannot be reached; trying again until it can: db:5432 does not answer."
        assert last.startswith("The queue can be reached again, after 36")
        assert seen.said == ["unreachable", "reachable", "a Done"]


async def test_each_result_is_settled_once_the_server_is_back(caplog: pytest.LogCaptureFixture) -> None:
    timing, seen = FakeTiming(), Seen()
    handled: list[str] = []
    go = asyncio.Event()

    async def handle(event: Event, context: Any) -> None:
        handled.append(context.lease.group_id)
        await go.wait()
        if context.lease.group_id == "g1":
            raise RuntimeError("again")
        if context.lease.group_id == "g2":
            raise ValueError("never")

    async with Watched() as queue:
        await queue.publish_many(messages(groups=3, each=1))
        policy = RetryPolicy(give_up_on=(ValueError,))
        running = Running(AsyncWorker(queue, handle, observers=[seen], retry=policy, visibility=30.0), timing)
        await settled()
        queue.down = set(AWAY)
        go.set()
        await timing.advance(8.0)
        assert seen.said == ["unreachable"]
        queue.down.clear()
        await timing.advance(6.0)
        assert seen.said == ["unreachable", "g0 Done", "g1 Again", "g2 Dead", "reachable"]
        await running.stopped()
        assert handled == ["g0", "g1", "g2"], "each was handled once"
        assert [letter.group_id for letter in await queue.dead_letters()] == ["g2"]
        assert [(group.group_id, group.state) for group in await queue.groups()] == [("g1", "parked")]


async def test_what_was_settled_before_the_server_went_away_is_not_settled_again() -> None:
    timing = FakeTiming()
    go = asyncio.Event()

    async def handle(event: Event, context: Any) -> None:
        await go.wait()
        if context.lease.group_id == "g1":
            raise RuntimeError("again")

    async with Watched() as queue:
        await queue.publish_many(messages(groups=2, each=1))
        running = Running(AsyncWorker(queue, handle), timing)
        await settled()
        queue.down = {"nack"}
        go.set()
        await timing.advance(3.0)
        queue.down.clear()
        await timing.advance(6.0)
        await running.stopped()
        assert queue.named("ack") == [["g0"]]
        assert [(group.group_id, group.state) for group in await queue.groups()] == [("g1", "parked")]


async def test_an_ack_whose_answer_was_lost_is_no_lost_lease(caplog: pytest.LogCaptureFixture) -> None:
    """It happened; the second try says that the lease is gone, which only the first can have caused."""
    timing, seen = FakeTiming(), Seen()
    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        queue.deaf = {"ack"}
        with caplog.at_level(logging.INFO, "harel.worker"):
            running = Running(AsyncWorker(queue, noted, observers=[seen]), timing)
            await settled()
            queue.deaf.clear()
            await timing.advance(6.0)
            await running.stopped()
        assert queue.named("ack") == [["g0"], ["g0"]]
        assert seen.said == ["unreachable", "g0 Done", "reachable"]
        assert not [text for text in said(caplog) if "was lost" in text]


async def test_a_lease_that_somebody_took_meanwhile_is_lost_whatever_was_tried() -> None:
    clock = ManualClock()
    timing, seen = FakeTiming(clock), Seen()
    async with Watched(clock) as queue:
        await queue.publish_many(messages(groups=1, each=1))
        queue.down = {"ack"}
        running = Running(AsyncWorker(queue, noted, observers=[seen], visibility=30.0), timing)
        await timing.advance(31.0)
        other = await queue.claim("other", 1_000.0)
        assert other is not None
        queue.down.clear()
        await timing.advance(6.0)
        assert seen.said == ["unreachable", "g0 lost", "reachable"]
        await running.stopped()
        assert await queue.ack(other)


async def test_nothing_is_claimed_while_results_cannot_be_settled() -> None:
    timing = FakeTiming()
    async with Watched() as queue:
        await queue.publish_many(messages(groups=50, each=1))
        queue.down = {"ack"}
        running = Running(AsyncWorker(queue, noted, concurrency=4), timing)
        await timing.advance(20.0)
        assert (await queue.stats()).leased <= 12
        queue.down.clear()
        await timing.advance(6.0)
        assert (await queue.stats()).messages == 0
        await running.stopped()


async def test_nothing_is_claimed_while_leases_cannot_be_renewed() -> None:
    timing = FakeTiming()
    handled: list[str] = []
    go = asyncio.Event()

    async def handle(event: Event, context: Any) -> None:
        handled.append(context.lease.group_id)
        if context.lease.group_id == "g0":
            await go.wait()

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=300.0), timing)
        await settled()
        queue.down = {"extend"}
        await timing.advance(110.0)
        await queue.publish("new", Event("k"))
        await timing.advance(20.0)
        assert handled == ["g0"]
        queue.down.clear()
        await timing.advance(6.0)
        assert handled == ["g0", "new"]
        go.set()
        await running.stopped()


async def test_unsettled_results_are_bounded_also_while_the_server_is_only_slow() -> None:
    timing = FakeTiming()
    async with Watched() as queue:
        await queue.publish_many(messages(groups=50, each=1))
        queue.slow["ack"] = asyncio.Event()
        running = Running(AsyncWorker(queue, noted, concurrency=4), timing)
        await timing.advance(20.0)
        assert (await queue.stats()).leased <= 12
        queue.slow.pop("ack").set()
        await timing.advance(1.0)
        assert (await queue.stats()).messages == 0
        await running.stopped()


class OneEndsOneHangs:
    """A handler of two messages: g0's runs until it is let go, and g1's ends when it is told to."""

    def __init__(self) -> None:
        self.end, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, event: Event, context: Any) -> None:
        await (self.go if context.lease.group_id == "g0" else self.end).wait()


async def test_an_outage_is_over_when_all_that_failed_works_again() -> None:
    """Renewals that work again between settlements that do not are no end of it."""
    timing, seen, handle = FakeTiming(), Seen(), OneEndsOneHangs()
    async with Watched() as queue:
        await queue.publish_many(messages(groups=2, each=1))
        running = Running(AsyncWorker(queue, handle, observers=[seen], visibility=300.0), timing)
        await settled()
        queue.down = {"extend", "ack"}
        handle.end.set()
        await timing.advance(120.0)
        assert seen.said == ["unreachable"]
        queue.down = {"ack"}
        await timing.advance(20.0)
        assert seen.said == ["unreachable"]
        queue.down.clear()
        await timing.advance(6.0)
        assert seen.said == ["unreachable", "g1 Done", "reachable"]
        handle.go.set()
        await running.stopped()


async def test_the_first_that_works_again_has_the_others_tried_at_once() -> None:
    timing, handle = FakeTiming(), OneEndsOneHangs()
    async with Watched() as queue:
        await queue.publish_many(messages(groups=2, each=1))
        running = Running(AsyncWorker(queue, handle, visibility=300.0), timing)
        await settled()
        queue.down = {"extend", "ack"}
        handle.end.set()
        await timing.advance(120.0)
        queue.down.clear()
        queue.calls.clear()
        while not queue.calls:
            await timing.advance(0.02)
        assert {"extend", "ack"} <= {name for name, _ in queue.calls}, "at the same moment, in whatever order"
        handle.go.set()
        await running.stopped()


async def test_it_gives_up_when_it_is_told_to() -> None:
    timing = FakeTiming()
    async with Watched() as queue:
        queue.down = set(AWAY)
        running = Running(AsyncWorker(queue, noted, give_up_after=60.0), timing)
        await timing.advance(59.0)
        assert not running.task.done()
        await timing.advance(2.0)
        with pytest.raises(TransportUnavailable, match="could not be reached for 60 s, and the worker gives up: db:"):
            await asyncio.wait_for(running.task, DEADLINE_S)


async def test_giving_up_cancels_what_runs() -> None:
    timing = FakeTiming()
    cancelled = asyncio.Event()

    async def handle(event: Event) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = Running(AsyncWorker(queue, handle, give_up_after=10.0, visibility=300.0), timing)
        await settled()
        queue.down = set(AWAY)
        await queue.publish("b", Event("k"))  # so that it looks, and finds the server away
        await timing.advance(60.0)
        with pytest.raises(TransportUnavailable, match="gives up"):
            await asyncio.wait_for(running.task, DEADLINE_S)
        assert cancelled.is_set()


async def test_a_stop_during_an_outage_ends_within_the_drain_timeout(caplog: pytest.LogCaptureFixture) -> None:
    timing = FakeTiming()
    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        queue.down = set(AWAY) - {"claim"}
        running = Running(AsyncWorker(queue, noted, drain_timeout=20.0), timing)
        await settled()
        running.worker.stop()
        await timing.advance(19.0)
        assert not running.task.done(), "it tries to settle what was handled"
        with caplog.at_level(logging.WARNING, "harel.worker"):
            await timing.advance(12.0)
            await asyncio.wait_for(running.task, DEADLINE_S)
        assert said(caplog)[-1] == (
            "1 message could not be settled as the worker ended, and can be claimed again when its lease ends."
        )


async def test_a_step_raises_what_is_wrong_with_the_server() -> None:
    async with Watched() as queue:
        queue.down = {"claim"}
        with pytest.raises(TransportUnavailable, match="db:5432"):
            await AsyncWorker(queue, noted).step()
