"""A worker, one message at a time, on every backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from harel import AsyncWorker, Event, InvalidArgument, Reject, RetryLater, RetryPolicy, Transport, Worker
from harel.engine.aio_transport import AsyncInMemoryTransport
from harel.engine.transport import InMemoryTransport
from harel.testing import Blocking, Subject
from harel.testing.conformance.kit import open_queue, store_raw
from tests.worker.driving import Driver, messages

Asking: TypeAlias = Callable[..., Awaitable[Any]]

AT_ONCE = RetryPolicy(backoff=0.0, max_attempts=1000)


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
    assert driver.step()
    assert not driver.step()
    assert seen == [1, 2]
    assert queue.claim("other", 30.0) is None


def test_the_context_tells_the_lease_and_the_attempt(queue: Transport) -> None:
    told: list[Any] = []

    def handle(event: Event, context: Any) -> None:
        told.append((context.lease.group_id, context.attempt, context.lost, context.connection))

    queue.publish("a", event(1))
    Driver(queue, handle).step()
    assert told == [("a", 1, False, None)]


def test_an_error_parks_the_group_and_order_holds(subject: Subject, queue: Transport) -> None:
    """A message that fails is not overtaken by the ones behind it (promise 2)."""
    driver = Driver(queue, fail, retry=RetryPolicy(backoff=10.0, jitter=0.0))
    queue.publish("a", event(1))
    queue.publish("a", event(2))
    assert driver.step()
    assert not driver.step(), "the whole group is parked"
    subject.clock.advance(10.0)
    lease = queue.claim("other", 30.0)
    assert lease is not None
    assert (lease.event.payload, lease.attempt) == ({"n": 1}, 2)


def test_after_the_last_attempt_the_message_is_a_dead_letter_and_its_group_goes_on(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    driver = Driver(queue, fail, retry=RetryPolicy(max_attempts=3))
    queue.publish("a", event(1))
    for _ in range(3):
        assert driver.step()
        subject.clock.advance(100.0)
    assert not driver.step()
    (letter,) = queue.dead_letters()
    assert (letter.event.payload, letter.group_id, letter.attempts) == ({"n": 1}, "a", 3)
    assert letter.reason.startswith("Failed 3 times; the last error was RuntimeError: no luck with 1\n\nTraceback")
    assert "in fail" in letter.reason
    queue.publish("a", event(2))
    lease = queue.claim("other", 30.0)
    assert lease is not None
    assert (lease.event.payload, lease.attempt) == ({"n": 2}, 1)


def test_a_message_that_kills_its_worker_each_time_is_dead_after_exactly_the_limit(subject: Subject) -> None:
    """A claim counts as an attempt, whatever became of the worker."""
    queue = open_queue(subject, "dead_letters")
    handled: list[int] = []
    driver = Driver(queue, lambda event, context: handled.append(event.payload["n"]), retry=RetryPolicy(max_attempts=3))
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


def test_a_handler_may_ask_for_a_retry_later(subject: Subject, queue: Transport) -> None:
    attempts: list[int] = []

    def handle(event: Event, context: Any) -> None:
        attempts.append(context.attempt)
        if context.attempt < 3:
            raise RetryLater(60.0)

    driver = Driver(queue, handle, retry=RetryPolicy(max_attempts=1, max_claims=3))
    queue.publish("a", event(1))
    queue.publish("a", event(2))
    for _ in range(2):
        assert driver.step()
        subject.clock.advance(59.0)
        assert not driver.step(), "it is parked, and the one behind it waits too"
        subject.clock.advance(2.0)
    assert driver.step()
    assert attempts == [1, 2, 3]


def test_a_handler_may_reject_a_message(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")

    def handle(event: Event, context: Any) -> None:
        if event.payload["n"] == 1:
            raise Reject("this shop is closed")

    driver = Driver(queue, handle)
    queue.publish("a", event(1))
    queue.publish("a", event(2))
    assert driver.step()
    (letter,) = queue.dead_letters()
    assert (letter.reason, letter.attempts) == ("this shop is closed", 1)
    assert driver.step()
    assert not driver.step()


def test_a_message_that_cannot_be_decoded_is_rejected_and_its_group_goes_on(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    seen: list[int] = []
    store_raw(queue, "a", '{"kind": 7}')
    queue.publish("a", event(2))
    driver = Driver(queue, lambda event, context: seen.append(event.payload["n"]))
    assert driver.step()
    assert driver.step()
    assert seen == [2]
    (letter,) = queue.dead_letters()
    assert "cannot be decoded" in letter.reason


def test_ten_failing_groups_do_not_keep_one_worker_from_a_healthy_one(subject: Subject) -> None:
    """A retry goes to the back of the line."""
    queue = open_queue(subject, "fair")
    seen: list[str] = []

    def handle(event: Event, context: Any) -> None:
        seen.append(context.lease.group_id)
        if context.lease.group_id != "healthy":
            raise RuntimeError("again")

    driver = Driver(queue, handle, retry=AT_ONCE)
    for n in range(10):
        queue.publish(f"failing-{n}", event(n))
    for n in range(3):
        queue.publish("healthy", event(n))
    for _ in range(33):
        assert driver.step()
    assert [place for place, group in enumerate(seen) if group == "healthy"] == [10, 21, 32]


def test_the_share_asks_for_the_floor_first_and_falls_back_to_any(subject: Subject) -> None:
    queue = open_queue(subject, "priority", "fair")
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


def test_the_shares_hold_over_many_claims() -> None:
    """Of a backlog of both kinds, every fourth claim takes an urgent one, and the others what waits longest."""
    queue = InMemoryTransport()
    seen: list[str] = []
    driver = Driver(
        queue, lambda event, context: seen.append(context.lease.group_id), high_ratio=0.25, priority_threshold=2
    )
    for n in range(1_000):
        queue.publish(f"low-{n}", event(n))
    for n in range(300):
        queue.publish(f"high-{n}", event(n), 2)
    for _ in range(1_000):
        assert driver.step()
    urgent = [place for place, group in enumerate(seen) if group.startswith("high")]
    assert len(urgent) == 250
    assert urgent == list(range(3, 1_000, 4)), "evenly spread"


def step_awaiting(queue: Transport, handler: Callable[[Asking, Any], Awaitable[None]]) -> bool:
    """Make a step whose handler, an async function, uses the queue: ``await ask("claim", ...)`` whichever it is."""
    if isinstance(queue, Blocking):
        inner = queue.inner

        async def awaiting(event: Event, context: Any) -> None:
            await handler(lambda target, name, *given: getattr(target or inner, name)(*given), context)

        return bool(queue.runner.run(AsyncWorker(inner, awaiting, visibility=30.0).step()))

    async def answered(target: Any, name: str, *given: Any) -> Any:
        return getattr(target or queue, name)(*given)

    def plain(event: Event, context: Any) -> None:
        coroutine = handler(answered, context)
        with pytest.raises(StopIteration):
            coroutine.send(None)  # type: ignore[attr-defined]

    return Worker(queue, plain, visibility=30.0).step()


def test_a_zombie_changes_nothing(subject: Subject, queue: Transport) -> None:
    """Its lease ran out and another has it: whatever its handler did, nothing of it is settled (promise 5)."""
    taken: list[Any] = []

    async def handle(ask: Asking, context: Any) -> None:
        subject.clock.advance(31.0)
        taken.append(await ask(None, "claim", "other", 1_000.0))

    queue.publish("a", event(1))
    queue.publish("a", event(2))
    assert step_awaiting(queue, handle)
    (lease,) = taken
    assert (lease.event.payload, lease.attempt) == ({"n": 1}, 2)
    assert queue.claim("third", 30.0) is None
    assert queue.ack(lease), "the new holder was not disturbed"


def test_a_handler_renews_its_lease_by_itself(subject: Subject, queue: Transport) -> None:
    answers: list[Any] = []

    async def handle(ask: Asking, context: Any) -> None:
        answers.append(await ask(context, "extend", 1_000.0))
        subject.clock.advance(900.0)
        answers.append(await ask(None, "claim", "other", 30.0))

    queue.publish("a", event(1))
    assert step_awaiting(queue, handle)
    assert answers == [True, None]
    assert queue.claim("other", 30.0) is None, "it was settled"


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


def test_a_batch_fails_in_part_and_every_group_keeps_its_order(queue: Transport) -> None:
    """One of three that were claimed together fails: the others are settled, and its group waits for it."""
    seen: list[tuple[str, int]] = []

    def handle(event: Event, context: Any) -> None:
        seen.append((context.lease.group_id, event.payload["n"]))
        if (context.lease.group_id, event.payload["n"], context.attempt) == ("g1", 0, 1):
            raise RuntimeError("again")

    queue.publish_many(messages(groups=3, each=2))
    driver = Driver(queue, handle, retry=AT_ONCE)
    while driver.step():
        pass
    orders = {group: [n for g, n in seen if g == group] for group in ("g0", "g1", "g2")}
    assert orders == {"g0": [0, 1], "g1": [0, 0, 1], "g2": [0, 1]}


def test_an_error_that_is_none_for_a_policy_is_raised_by_a_step_and_the_message_given_back() -> None:
    def leave(event: Event, context: Any) -> None:
        raise KeyboardInterrupt

    queue = InMemoryTransport()
    queue.publish("a", event(1))
    with pytest.raises(KeyboardInterrupt):
        Driver(queue, leave).step()
    lease = queue.claim("other", 30.0)
    assert lease is not None, "it can be claimed at once"


def test_a_handler_of_the_wrong_kind_or_shape_is_refused() -> None:
    async def awaiting(event: Event) -> None: ...

    def too_many(one: Any, two: Any, three: Any) -> None: ...

    def plain(event: Event) -> None: ...

    queue = InMemoryTransport()
    with pytest.raises(InvalidArgument, match="use AsyncWorker"):
        Worker(queue, awaiting)
    with pytest.raises(InvalidArgument, match="use Worker"):
        AsyncWorker(AsyncInMemoryTransport(), plain)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="takes \\(event\\) or \\(event, context\\)"):
        Worker(queue, too_many)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", 0),
        ("concurrency", True),
        ("priority_threshold", 5),
        ("high_ratio", 2.0),
        ("visibility", 0.0),
        ("visibility", float("nan")),
        ("visibility", 1e12),
        ("drain_timeout", -1.0),
        ("drain_timeout", float("inf")),
        ("give_up_after", "soon"),
        ("retry", 5),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=name):
        Worker(InMemoryTransport(), lambda event: None, **{name: value})
