"""A worker, one message at a time, on every backend."""

from __future__ import annotations

from typing import Any

import pytest

from harel import AsyncWorker, Event, InvalidArgument, Transport, Worker
from harel.testing import Blocking, Subject
from harel.testing.conformance.kit import store_raw
from tests.worker.driving import Driver


def event(n: int) -> Event:
    return Event("counted", {"n": n})


def fail(event: Event, context: Any) -> None:
    raise RuntimeError(f"no luck with {event.payload['n']}")


def test_a_step_handles_exactly_one_message_and_says_whether_there_was_one(queue: Transport) -> None:
    seen: list[int] = []
    driver = Driver(queue, lambda event, context: seen.append(event.payload["n"]))
    queue.publish("a", event(1))
    queue.publish("a", event(2))
    assert driver.step()
    assert seen == [1]
    assert queue.stats().messages == 1
    assert driver.step()
    assert not driver.step()
    assert seen == [1, 2]
    assert queue.stats().groups == 0


def test_the_context_tells_the_lease_and_the_attempt(queue: Transport) -> None:
    told: list[Any] = []
    driver = Driver(queue, lambda event, context: told.append((context.lease.group_id, context.attempt, context.lost)))
    queue.publish("a", event(1))
    driver.step()
    assert told == [("a", 1, False)]


def test_an_error_parks_the_group_and_order_holds(subject: Subject, queue: Transport) -> None:
    """Row: a message that fails is not overtaken by the ones behind it (promise 2)."""
    driver = Driver(queue, fail, backoff=10.0, jitter=0.0)
    queue.publish("a", event(1))
    queue.publish("a", event(2))
    assert driver.step()
    assert not driver.step(), "the whole group is parked"
    (info,) = queue.groups()
    assert (info.state, info.attempts) == ("parked", 1)
    subject.clock.advance(10.0)
    lease = queue.claim("other", 30.0)
    assert lease is not None
    assert (lease.event.payload, lease.attempt) == ({"n": 1}, 2)


def test_after_the_last_attempt_the_message_is_a_dead_letter_and_its_group_goes_on(
    subject: Subject, queue: Transport
) -> None:
    driver = Driver(queue, fail, max_attempts=3, backoff=1.0)
    queue.publish("a", event(1))
    for _ in range(3):
        assert driver.step()
        subject.clock.advance(100.0)
    assert not driver.step()
    (letter,) = queue.dead_letters()
    assert (letter.event.payload, letter.attempts) == ({"n": 1}, 3)
    assert letter.reason == "Failed 3 times; the last error was RuntimeError: no luck with 1"
    queue.publish("a", event(2))
    lease = queue.claim("other", 30.0)
    assert lease is not None
    assert (lease.event.payload, lease.attempt) == ({"n": 2}, 1)


def test_a_message_that_kills_its_worker_each_time_is_dead_after_exactly_the_limit(
    subject: Subject, queue: Transport
) -> None:
    """A claim counts as an attempt, whatever became of the worker."""
    handled: list[int] = []
    driver = Driver(queue, lambda event, context: handled.append(event.payload["n"]), max_attempts=3)
    queue.publish("a", event(1))
    queue.publish("a", event(2))
    for attempt in (1, 2, 3):
        lease = queue.claim("dying", 30.0)
        assert lease is not None
        assert lease.attempt == attempt
        subject.clock.advance(31.0)
    assert driver.step()
    assert handled == []
    (letter,) = queue.dead_letters()
    assert letter.event.payload == {"n": 1}
    assert "Claimed 3 times" in letter.reason
    assert driver.step()
    assert handled == [2]


def test_a_message_that_cannot_be_decoded_is_rejected_and_its_group_goes_on(subject: Subject) -> None:
    queue = subject.open()
    seen: list[int] = []
    store_raw(queue, "a", '{"kind": 7}')
    queue.publish("a", event(2))
    driver = Driver(queue, lambda event, context: seen.append(event.payload["n"]))
    assert driver.step()
    assert driver.step()
    assert seen == [2]
    (letter,) = queue.dead_letters()
    assert "cannot be decoded" in letter.reason


def test_ten_failing_groups_do_not_keep_one_worker_from_a_healthy_one(queue: Transport) -> None:
    """A retry goes to the back of the line."""
    seen: list[str] = []

    def handle(event: Event, context: Any) -> None:
        seen.append(context.lease.group_id)
        if context.lease.group_id != "healthy":
            raise RuntimeError("again")

    driver = Driver(queue, handle, backoff=0.0, max_attempts=1000)
    for n in range(10):
        queue.publish(f"failing-{n}", event(n))
    for n in range(3):
        queue.publish("healthy", event(n))
    for _ in range(33):
        assert driver.step()
    assert [place for place, group in enumerate(seen) if group == "healthy"] == [10, 21, 32]


def test_the_share_asks_for_the_floor_first_and_falls_back_to_any(queue: Transport) -> None:
    seen: list[str] = []
    driver = Driver(
        queue, lambda event, context: seen.append(context.lease.group_id), high_ratio=0.5, priority_threshold=3
    )
    for n in range(4):
        queue.publish(f"low-{n}", event(n))
    for n in range(2):
        queue.publish(f"high-{n}", event(n), 3)
    for _ in range(6):
        assert driver.step()
    assert not driver.step()
    assert seen == ["low-0", "high-0", "low-1", "high-1", "low-2", "low-3"]


def test_a_handler_may_take_the_event_alone(subject: Subject) -> None:
    queue = subject.open()
    seen: list[int] = []

    def handle(event: Event) -> None:
        seen.append(event.payload["n"])

    queue.publish("a", event(1))
    if isinstance(queue, Blocking):

        async def awaiting(event: Event) -> None:
            handle(event)

        assert queue.runner.run(AsyncWorker(queue.inner, awaiting).step())
    else:
        assert Worker(queue, handle).step()
    assert seen == [1]


def test_a_handler_of_the_wrong_kind_or_shape_is_refused(subject: Subject) -> None:
    async def awaiting(event: Event) -> None: ...

    def two_many(one: Any, two: Any, three: Any) -> None: ...

    queue = subject.open()
    with pytest.raises(InvalidArgument, match="use AsyncWorker"):
        Worker(queue, awaiting)
    with pytest.raises(InvalidArgument, match="use Worker"):
        AsyncWorker(queue, lambda event: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidArgument, match="takes \\(event\\) or \\(event, context\\)"):
        Worker(queue, two_many)
    with pytest.raises(InvalidArgument, match="concurrency"):
        Worker(queue, lambda event: None, concurrency=0)
    with pytest.raises(InvalidArgument, match="priority_threshold"):
        Worker(queue, lambda event: None, priority_threshold=5)
