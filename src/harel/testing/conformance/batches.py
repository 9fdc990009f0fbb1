"""Many at once: in order, all or nothing, distinct groups, an answer for each."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from harel.engine.queue.contract import Lease, Transport
from harel.errors import InvalidArgument, PartlyPublished, TransportUnavailable
from harel.events import Event, Message
from harel.testing.conformance.kit import (
    VISIBILITY_S,
    assert_empty,
    assert_nothing_claimable,
    assert_refused,
    drain,
    kinds_in,
    open_queue,
    put,
    put_batch,
    put_groups,
    said,
    snapshot,
    take,
)
from harel.testing.subject import Subject


def _of_group(came: list[str], group_id: str) -> list[str]:
    return [kind for group, _, kind in (message.partition(" ") for message in came) if group == group_id]


def test_a_batch_keeps_the_order_of_each_group_promise_2(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "a", "first")
    put_batch(queue, "a m1", "b m1", "a m2", "c m1", "b m2", "a m3")
    put(queue, "a", "last")
    came = drain(queue)
    assert _of_group(came, "a") == ["first", "m1", "m2", "m3", "last"]
    assert _of_group(came, "b") == ["m1", "m2"]
    assert _of_group(came, "c") == ["m1"]


def test_a_large_batch_arrives_whole_and_in_order(subject: Subject) -> None:
    queue = open_queue(subject)
    put_batch(queue, *(f"g{n % 20} m{n}" for n in range(200)))
    came = drain(queue)
    assert len(came) == 200
    for group in range(20):
        assert _of_group(came, f"g{group}") == [f"m{n}" for n in range(group, 200, 20)]


def test_a_batch_may_be_any_iterable(subject: Subject) -> None:
    queue = open_queue(subject)
    queue.publish_many(Message("g", Event(kind=f"m{n}")) for n in range(3))
    queue.publish_many((Message("g", Event(kind="m3")),))
    assert drain(queue) == ["g m0", "g m1", "g m2", "g m3"]


def test_a_batch_of_nothing_does_nothing(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m")
    before = snapshot(queue)
    queue.publish_many([])
    queue.publish_many(iter(()))
    assert queue.ack_many([]) == []
    assert snapshot(queue) == before


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_message_and_none_of_the_batch_is_published(subject: Subject, place: int) -> None:
    queue = open_queue(subject)
    put(queue, "a", "m")
    messages = [Message("a", Event(kind="k")), Message("new", Event(kind="k"))]
    messages.insert(place, Message("a", Event(kind="k", payload={"x": float("nan")})))
    said = assert_refused(subject, queue, InvalidArgument, lambda: queue.publish_many(messages), queue)
    assert f"Message {place}" in said


def test_a_batch_whose_source_fails_is_not_published(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "a", "m")

    def messages() -> Iterator[Message]:
        yield Message("a", Event(kind="k"))
        raise KeyError("the source is dry")

    assert_refused(subject, queue, KeyError, lambda: queue.publish_many(messages()), queue)


class _Broken:
    """Breaks a transport's connection: from the nth request on, before it is sent or after it was carried out.

    It needs a transport made of harel's own faces, whose requests go through ``_send``.
    """

    def __init__(self, queue: Transport, healthy: int, *, after: bool) -> None:
        transport: Any = getattr(queue, "inner", queue)
        if not hasattr(transport, "_send"):
            pytest.skip("this transport does not say how its requests are sent")
        self._transport = transport
        self._healthy = healthy
        self._after = after
        self.sent = 0

    def __enter__(self) -> _Broken:
        send = self._transport._send  # noqa: SLF001

        def refuse() -> None:
            self.sent += 1
            if self.sent > self._healthy:
                raise TransportUnavailable("The connection is broken, as the test wants it.")

        def broken(request: Any) -> Any:
            if self._after:
                reply = send(request)
                refuse()
                return reply
            refuse()
            return send(request)

        async def broken_later(request: Any) -> Any:
            if self._after:
                reply = await send(request)
                refuse()
                return reply
            refuse()
            return await send(request)

        is_async = inspect.iscoroutinefunction(self._transport.publish)
        self._transport._send = broken_later if is_async else broken  # noqa: SLF001
        return self

    def __exit__(self, *_: object) -> None:
        del self._transport._send  # noqa: SLF001


def _published_in_part(subject: Subject, healthy: int, *, after: bool) -> int | None:
    """Publish a batch whose connection breaks; check what is stored; say how many, or ``None`` if it did not break."""
    queue = open_queue(subject)
    batch = [Message(f"{healthy}-{n % 3}", Event(kind=f"m{n}")) for n in range(25)]
    failed: PartlyPublished | TransportUnavailable | None = None
    with _Broken(queue, healthy, after=after) as broken:
        try:
            queue.publish_many(batch)
        except (PartlyPublished, TransportUnavailable) as error:
            failed = error
    published = 0 if failed else len(batch)
    if isinstance(failed, PartlyPublished):
        published = failed.published
        assert f"{published:,} were published" in str(failed)
        assert isinstance(failed.__cause__, TransportUnavailable)
    came = drain(queue)
    if queue.capabilities.atomic_batches:
        assert len(came) in (0, len(batch))
        assert not isinstance(failed, PartlyPublished)
    for group_id in {message.group_id for message in batch}:
        kinds = [message.event.kind for message in batch if message.group_id == group_id]
        stored = [said.rpartition(" ")[2] for said in came if said.startswith(f"{group_id} ")]
        assert stored == kinds[: len(stored)], "what is stored of a batch is its beginning, in order"
        assert len(stored) >= sum(message.group_id == group_id for message in batch[:published])
    queue.close()
    return published if broken.sent > healthy else None


@pytest.mark.parametrize("after", [False, True], ids=["before a request", "after a request"])
def test_a_batch_that_breaks_off_is_published_from_the_front_or_not_at_all(subject: Subject, after: bool) -> None:
    told = []
    for healthy in range(100):
        published = _published_in_part(subject, healthy, after=after)
        if published is None:
            break
        told.append(published)
    assert len(told) < 100, "a batch of 25 took more than 100 requests"
    assert told == sorted(told)


def test_a_batch_fixes_a_new_groups_priority_by_its_first_message_promise_8(subject: Subject) -> None:
    queue = open_queue(subject, "priority")
    queue.publish_many(
        [
            Message("low", Event(kind="m1"), 0),
            Message("low", Event(kind="m2"), 4),
            Message("high", Event(kind="m1"), 4),
            Message("high", Event(kind="m2"), 0),
        ]
    )
    assert [lease.group_id for lease in queue.claim_many("w", VISIBILITY_S, 10, 1)] == ["high"]


def test_claim_many_gives_distinct_groups_promise_1(subject: Subject) -> None:
    queue = open_queue(subject)
    put_batch(queue, "a m1", "a m2", "b m1", "a m3", "b m2", "c m1")
    leases = queue.claim_many("w", VISIBILITY_S, 10)
    assert sorted(said(lease) for lease in leases) == ["a m1", "b m1", "c m1"]
    assert [lease.attempt for lease in leases] == [1, 1, 1]
    assert_nothing_claimable(queue)


def test_claim_many_gives_no_more_than_its_limit(subject: Subject) -> None:
    queue = open_queue(subject)
    put_groups(queue, *(f"g{n}" for n in range(10)))
    assert len(queue.claim_many("w", VISIBILITY_S, 1)) == 1
    assert len(queue.claim_many("w", VISIBILITY_S, 4)) == 4
    assert len(queue.claim_many("w", VISIBILITY_S, 2**70)) == 5
    assert queue.claim_many("w", VISIBILITY_S, 4) == []


def test_claim_many_takes_and_returns_the_longest_waiting_first_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    names = [f"{n:02}" for n in range(12, 0, -1)]
    put_groups(queue, *names)
    taken = [queue.claim_many("w", VISIBILITY_S, limit) for limit in (5, 1, 6)]
    assert [lease.group_id for leases in taken for lease in leases] == names


def test_claim_many_measures_each_lease_and_keeps_to_the_floor(subject: Subject) -> None:
    queue = open_queue(subject, "priority")
    for priority in range(5):
        put(queue, f"p{priority}", "m", priority=priority)
    before = subject.clock.now
    leases = queue.claim_many("w", 20.0, 10, 2)
    after = subject.clock.now
    assert {lease.group_id for lease in leases} == {"p2", "p3", "p4"}
    assert all(before <= lease.expires_at - 20.0 <= after for lease in leases)


def test_ack_many_settles_each_and_their_groups_go_on(subject: Subject) -> None:
    queue = open_queue(subject)
    put_batch(queue, "a m1", "b m1", "c m1", "a m2")
    leases = queue.claim_many("w", VISIBILITY_S, 10)
    assert queue.ack_many(lease for lease in leases) == [True, True, True]
    assert drain(queue) == ["a m2"]


def test_ack_many_answers_in_order_when_some_were_lost_promise_5(subject: Subject) -> None:
    queue = open_queue(subject)
    put_batch(queue, "a m", "b m", "c m", "d m", "e m")
    lost = queue.claim_many("slow", 1.0, 2)
    subject.clock.advance(2.0)
    taken = queue.claim_many("quick", VISIBILITY_S, 10)
    assert len(taken) == 5
    mixed = [taken[0], lost[0], taken[1], lost[1], taken[2]]
    assert queue.ack_many(mixed) == [True, False, True, False, True]
    assert queue.ack_many(taken) == [False, False, False, True, True]
    assert_empty(queue)


def test_ack_many_of_one_lease_twice_settles_one_message(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "a", "m1", "m2")
    lease = take(queue)
    assert queue.ack_many([lease, lease]) == [True, False]
    assert drain(queue) == ["a m2"]


def _taken_over(subject: Subject, queue: Transport) -> tuple[Lease, Lease]:
    put(queue, "a", "m1", "m2")
    stale = take(queue, "slow", 1.0)
    subject.clock.advance(2.0)
    return stale, take(queue, "quick")


def test_ack_many_tells_a_groups_stale_lease_from_its_current_one_promise_5(subject: Subject) -> None:
    queue = open_queue(subject)
    stale, current = _taken_over(subject, queue)
    assert queue.ack_many([stale, current, stale]) == [False, True, False]
    assert drain(queue) == ["a m2"]


def test_ack_many_with_a_bad_lease_settles_none(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "a", "m1", "m2")
    lease = take(queue)
    leases: list[Lease] = [lease, None]  # type: ignore[list-item]
    assert_refused(subject, queue, InvalidArgument, lambda: queue.ack_many(leases), queue)
    assert queue.ack(lease)


def test_a_batch_to_groups_in_every_state_leaves_their_heads_alone_promise_9(subject: Subject) -> None:
    queue = open_queue(subject, "peek")
    put(queue, "leased", "m1")
    lease = take(queue)
    put_batch(queue, "leased m2", "new m1", "leased m3", "new m2")
    assert kinds_in(queue, "leased") == ["m1", "m2", "m3"]
    assert kinds_in(queue, "new") == ["m1", "m2"]
    assert queue.ack(lease)
