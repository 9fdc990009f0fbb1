"""``on_exhausted="hold"``: a message that failed too often stops its group until a person releases it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from harel import AsyncWorker, Event, NotSupported, Reject, RetryLater, RetryPolicy, Worker
from harel.engine.transport import InMemoryTransport
from harel.testing import ManualClock, Subject
from harel.testing.conformance.kit import info_of, open_queue
from tests.worker.driving import Driver, FakeTiming, Running, Watched, messages, settled

HOLD_AFTER_TWO = RetryPolicy(max_attempts=2, backoff=0.0, on_exhausted="hold")


def event(n: int) -> Event:
    return Event("counted", {"n": n})


class Failing:
    """Fails with the first message until told otherwise, and notes what it was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self.mended = False

    def __call__(self, event: Event, context: Any) -> None:
        self.seen.append((event.payload["n"], context.attempt))
        if event.payload["n"] == 1 and not self.mended:
            raise RuntimeError("no luck")


def test_the_messages_behind_an_exhausted_one_wait_for_a_release(subject: Subject) -> None:
    queue = open_queue(subject, "hold", "groups")
    handle = Failing()
    driver = Driver(queue, handle, retry=HOLD_AFTER_TWO)
    queue.publish("a", event(1))
    queue.publish("a", event(2))
    assert driver.step()
    assert info_of(queue, "a").state == "ready"
    assert driver.step()
    assert info_of(queue, "a").state == "held"
    subject.clock.advance(10_000.0)
    assert not driver.step()
    handle.mended = True
    assert queue.release("a")
    assert driver.step()
    assert driver.step()
    assert not driver.step()
    assert handle.seen == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert queue.dead_letters() == []


def test_after_a_release_it_has_another_round_of_attempts(subject: Subject) -> None:
    queue = open_queue(subject, "hold", "groups")
    handle = Failing()
    driver = Driver(queue, handle, retry=HOLD_AFTER_TWO)
    queue.publish("a", event(1))
    for _ in range(3):
        assert driver.step()
        assert driver.step()
        assert not driver.step()
        assert info_of(queue, "a").state == "held"
        assert queue.release("a")
    assert [attempt for _, attempt in handle.seen] == [1, 2, 3, 4, 5, 6]


def test_an_error_that_is_not_retried_holds_at_once(subject: Subject) -> None:
    queue = open_queue(subject, "hold", "groups")
    policy = RetryPolicy(max_attempts=5, on_exhausted="hold", give_up_on=(RuntimeError,))
    handle = Failing()
    driver = Driver(queue, handle, retry=policy)
    queue.publish("a", event(1))
    assert driver.step()
    assert info_of(queue, "a").state == "held"
    assert queue.release("a")
    assert driver.step()
    assert [attempt for _, attempt in handle.seen] == [1, 2]


def test_a_worker_that_dies_in_the_last_attempt_leaves_the_group_held(subject: Subject) -> None:
    """Otherwise a message that kills its workers would go on doing so, round after round."""
    queue = open_queue(subject, "hold", "groups")

    class Death(BaseException):
        pass

    def die(event: Event, context: Any) -> None:
        raise Death

    queue.publish("a", event(1))
    queue.publish("a", event(2))
    driver = Driver(queue, die, retry=HOLD_AFTER_TWO)
    driver.worker._make_loop = dying(driver.worker._make_loop)
    for _ in range(2):
        with pytest.raises(Death):
            driver.step()
        subject.clock.advance(31.0)
    assert info_of(queue, "a").state == "held"
    assert info_of(queue, "a").attempts == 2
    assert not driver.step()
    assert queue.release("a")
    handle = Failing()
    handle.mended = True
    survivor = Driver(queue, handle, retry=HOLD_AFTER_TWO)
    assert survivor.step()
    assert survivor.step()
    assert handle.seen == [(1, 3), (2, 1)]


def dying(make: Any) -> Any:
    """Have a loop do nothing more once its handler has raised, as a process that was killed."""

    def made(*arguments: Any) -> Any:
        loop = make(*arguments)

        async def nothing(job: Any) -> None: ...

        loop._give_back = nothing
        return loop

    return made


@pytest.mark.parametrize("how", ["returns", "later", "reject"])
def test_a_last_attempt_that_does_not_fail_leaves_no_hold_behind(subject: Subject, how: str) -> None:
    queue = open_queue(subject, "hold", "groups", "dead_letters")

    def handle(event: Event, context: Any) -> None:
        if event.payload["n"] == 1 and context.attempt == 1:
            if how == "later":
                raise RetryLater(60.0)
            if how == "reject":
                raise Reject("never")

    queue.publish("a", event(1))
    queue.publish("a", event(2))
    driver = Driver(queue, handle, retry=RetryPolicy(max_attempts=1, on_exhausted="hold"))
    assert driver.step()
    if how == "later":
        assert info_of(queue, "a").state == "parked"
        subject.clock.advance(61.0)
        assert driver.step()
    else:
        assert info_of(queue, "a").state == "ready"
    assert len(queue.dead_letters()) == (how == "reject")
    assert driver.step()
    assert queue.groups() == []


async def test_a_zombie_holds_and_releases_nothing() -> None:
    """Its last attempt ends long after another took the group, which has been released and is held anew."""
    clock = ManualClock()
    async with Watched(clock) as queue:
        await queue.publish("a", event(1))
        taken: list[Any] = []

        async def handle(event: Event, context: Any) -> None:
            clock.advance(31.0)
            await queue.release("a")
            taken.append(await queue.claim("other", 1_000.0))
            await queue.hold("a")
            queue.calls.clear()
            if len(taken) == 2:
                raise RuntimeError("too late")

        for _ in range(2):
            assert await AsyncWorker(queue, handle, retry=RetryPolicy(max_attempts=1, on_exhausted="hold")).step()
            assert [name for name, _ in queue.calls] == ["extend"], "it asked whether the lease was still its own"
            assert (await queue.groups())[0].state == "held"
            await queue.release("a")
            assert await queue.nack(taken[-1])


async def test_the_group_is_held_for_its_last_attempt_even_if_the_server_is_away_for_a_moment() -> None:
    timing = FakeTiming()
    begun: list[int] = []

    async def handle(event: Event, context: Any) -> None:
        begun.append(context.attempt)

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        queue.down = {"hold"}
        policy = RetryPolicy(max_attempts=1, on_exhausted="hold")
        running = Running(AsyncWorker(queue, handle, retry=policy, visibility=30.0), timing)
        await timing.advance(3.0)
        assert begun == [], "not before the hold stands"
        queue.down.clear()
        await timing.advance(6.0)
        assert begun == [1]
        assert await queue.groups() == []
        await running.stopped()


async def test_a_worker_stopped_in_the_last_attempt_leaves_the_group_to_others() -> None:
    timing = FakeTiming()

    async def handle(event: Event) -> None:
        await asyncio.Event().wait()

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        policy = RetryPolicy(max_attempts=1, on_exhausted="hold")
        running = Running(AsyncWorker(queue, handle, retry=policy, drain_timeout=1.0), timing)
        await settled()
        assert (await queue.groups())[0].state == "held"
        running.worker.stop()
        await timing.advance(2.0)
        await running.task
        assert (await queue.groups())[0].state == "ready"


def test_a_backend_that_cannot_hold_refuses_the_policy() -> None:
    class Unholding(InMemoryTransport):
        @property
        def capabilities(self) -> Any:
            return msgspec.structs.replace(super().capabilities, hold=False)

    with pytest.raises(NotSupported, match=r"capabilities\.hold is False"):
        Worker(Unholding(), lambda event: None, retry=HOLD_AFTER_TWO)
