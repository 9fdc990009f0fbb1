"""Stats, groups and peek: why a group runs or does not, and nothing changes by looking."""

from __future__ import annotations

import msgspec
import pytest

from harel.engine.queue.contract import GroupInfo, GroupState, QueueStats, Transport
from harel.testing.conformance.kit import (
    VISIBILITY_S,
    assert_counts,
    info_of,
    kinds_in,
    open_queue,
    put,
    put_batch,
    put_groups,
    snapshot,
    take,
    take_from,
)
from harel.testing.subject import Subject

NOTHING = QueueStats(messages=0, groups=0, ready=0, leased=0, parked=0, held=0, dead_letters=0, oldest_ready_s=0.0)


def _one_of_each(queue: Transport) -> None:
    """Bring about a group in every state, named for it, and a dead letter."""
    put_batch(queue, "leased m1", "leased m2", "parked m1", "dead m1", "ready m1", "ready m2", "ready m3", "held m1")
    take_from(queue, "leased", "worker-1", 100.0)
    assert queue.nack(take_from(queue, "parked"), 50.0)
    assert queue.reject(take_from(queue, "dead"), "a reason")
    assert queue.hold("held")


def test_an_empty_queue_counts_nothing(subject: Subject) -> None:
    assert open_queue(subject, "stats").stats() == NOTHING


def test_every_figure_of_stats(subject: Subject) -> None:
    queue = open_queue(subject, "stats", "fair", "hold", "dead_letters")
    _one_of_each(queue)
    figures = msgspec.structs.replace(queue.stats(), oldest_ready_s=0.0)
    assert figures == QueueStats(
        messages=7, groups=4, ready=1, leased=1, parked=1, held=1, dead_letters=1, oldest_ready_s=0.0
    )


def test_a_group_is_counted_as_what_time_makes_of_it(subject: Subject) -> None:
    queue = open_queue(subject, "stats")
    put_groups(queue, "a", "b")
    one, _ = queue.claim_many("w", 10.0, 2)
    assert queue.nack(one, 20.0)
    counts = []
    for _ in range(3):
        stats = queue.stats()
        counts.append((stats.ready, stats.leased, stats.parked))
        subject.clock.advance(11.0)
    assert counts == [(0, 1, 1), (1, 0, 1), (2, 0, 0)]


def test_oldest_ready_is_how_long_the_longest_waiting_group_has_waited(subject: Subject) -> None:
    queue = open_queue(subject, "stats", "fair")
    put(queue, "a", "m1", "m2")
    subject.clock.advance(100.0)
    put(queue, "b", "m1")
    assert queue.stats().oldest_ready_s == pytest.approx(100.0, abs=0.1)
    lease = take_from(queue, "a")
    assert queue.stats().oldest_ready_s == pytest.approx(0.0, abs=0.1)
    subject.clock.advance(10.0)
    assert queue.ack(lease)
    subject.clock.advance(5.0)
    assert queue.stats().oldest_ready_s == pytest.approx(15.0, abs=0.1)
    take_from(queue, "b")
    assert queue.stats().oldest_ready_s == pytest.approx(5.0, abs=0.1)
    take_from(queue, "a", visibility=60.0)
    assert queue.stats().oldest_ready_s == 0.0
    subject.clock.advance(100.0)
    assert queue.stats().oldest_ready_s > 30.0


def test_a_ready_group_is_shown(subject: Subject) -> None:
    queue = open_queue(subject, "groups")
    before = subject.clock.now
    put(queue, "g", "m1", "m2")
    subject.clock.advance(100.0)
    (info,) = queue.groups()
    assert before <= info.since <= before + 1.0
    assert info == GroupInfo(
        group_id="g", state="ready", since=info.since, until=None, holder=None, attempts=0, messages=2, priority=0
    )


def test_a_leased_group_is_shown(subject: Subject) -> None:
    queue = open_queue(subject, "groups")
    put(queue, "g", "m1", "m2")
    assert queue.nack(take(queue))
    before = subject.clock.now
    lease = take(queue, "worker:1", 100.0)
    after = subject.clock.now
    (info,) = queue.groups()
    assert before <= info.since <= after
    assert (info.state, info.until, info.holder) == ("leased", lease.expires_at, "worker:1")
    assert (info.attempts, info.messages) == (2, 2)
    subject.clock.advance(10.0)
    assert queue.extend(lease, 100.0)
    (extended,) = queue.groups()
    assert extended == msgspec.structs.replace(info, until=lease.expires_at)


def test_a_parked_group_is_shown(subject: Subject) -> None:
    queue = open_queue(subject, "groups")
    put(queue, "g", "m1")
    lease = take(queue)
    before = subject.clock.now
    assert queue.nack(lease, 50.0)
    after = subject.clock.now
    (info,) = queue.groups()
    assert info.until is not None
    assert before <= info.since <= after
    assert before <= info.until - 50.0 <= after
    assert (info.state, info.holder, info.attempts, info.messages) == ("parked", None, 1, 1)


def test_a_held_group_is_shown(subject: Subject) -> None:
    queue = open_queue(subject, "groups", "hold")
    put(queue, "g", "m1")
    subject.clock.advance(10.0)
    before = subject.clock.now
    assert queue.hold("g")
    after = subject.clock.now
    (info,) = queue.groups()
    assert before <= info.since <= after
    assert (info.state, info.until, info.holder, info.attempts) == ("held", None, None, 0)
    assert queue.release("g")
    (info,) = queue.groups()
    assert (info.state, info.until) == ("ready", None)
    assert info.since >= after


@pytest.mark.parametrize("parked", [False, True], ids=["a lease that ran out", "a park that ended"])
def test_a_group_is_ready_since_its_time_came(subject: Subject, parked: bool) -> None:
    queue = open_queue(subject, "groups")
    put(queue, "g", "m1")
    lease = take(queue, visibility=40.0)
    if parked:
        assert queue.nack(lease, 40.0)
    (info,) = queue.groups()
    subject.clock.advance(100.0)
    (later,) = queue.groups()
    assert (later.state, later.since, later.until, later.holder) == ("ready", info.until, None, None)
    assert later.attempts == 1


def test_a_settled_group_is_ready_since_then_with_no_attempts(subject: Subject) -> None:
    queue = open_queue(subject, "groups")
    put(queue, "g", "m1", "m2")
    lease = take(queue)
    subject.clock.advance(10.0)
    before = subject.clock.now
    assert queue.ack(lease)
    info = info_of(queue, "g")
    assert before <= info.since <= subject.clock.now
    assert (info.state, info.attempts, info.messages) == ("ready", 0, 1)


@pytest.mark.parametrize("state", ["ready", "leased", "parked", "held"])
def test_groups_of_one_state_are_listed(subject: Subject, state: GroupState) -> None:
    queue = open_queue(subject, "groups", "hold", "fair")
    _one_of_each(queue)
    assert [(info.group_id, info.state) for info in queue.groups(state=state)] == [(state, state)]


def test_groups_are_listed_by_name_a_page_at_a_time(subject: Subject) -> None:
    queue = open_queue(subject, "groups")
    names = ["b", "a", "é", "Z", "10", "9", "ab", "\U0001f418", "\uffff", " ", "~", "a b"]
    put_groups(queue, *names)
    assert [info.group_id for info in queue.groups()] == sorted(names)
    pages, after = [], None
    while page := queue.groups(limit=5, after=after):
        pages.append([info.group_id for info in page])
        after = page[-1].group_id
    assert pages == [sorted(names)[:5], sorted(names)[5:10], sorted(names)[10:]]
    assert [info.group_id for info in queue.groups(after="a\u0001")] == sorted(name for name in names if name > "a\1")


def test_a_page_is_full_though_other_states_lie_between(subject: Subject) -> None:
    queue = open_queue(subject, "groups", "fair")
    put_groups(queue, *(f"{n:02}" for n in range(0, 20, 2)))
    assert len(queue.claim_many("w", VISIBILITY_S, 10)) == 10
    put_groups(queue, *(f"{n:02}" for n in range(1, 20, 2)))
    first = queue.groups(state="ready", limit=3)
    assert [info.group_id for info in first] == ["01", "03", "05"]
    assert [info.group_id for info in queue.groups(state="ready", limit=3, after="05")] == ["07", "09", "11"]
    assert [info.group_id for info in queue.groups(state="leased", limit=100, after="05")] == [
        f"{n:02}" for n in range(6, 20, 2)
    ]


def test_a_hundred_groups_are_listed_unless_told_otherwise(subject: Subject) -> None:
    queue = open_queue(subject, "groups")
    put_groups(queue, *(f"{n:03}" for n in range(120)))
    assert [info.group_id for info in queue.groups()] == [f"{n:03}" for n in range(100)]
    assert len(queue.groups(limit=2**70)) == 120


def test_a_groups_messages_are_counted_up_to_a_thousand_promise_10(subject: Subject) -> None:
    queue = open_queue(subject, "groups")
    put_batch(queue, *(f"g m{n}" for n in range(999)))
    assert info_of(queue, "g").messages == 999
    put_batch(queue, *(f"g m{n}" for n in range(51)))
    assert info_of(queue, "g").messages == 1_000
    assert_counts(queue, messages=1_050)


def test_peek_shows_the_first_messages_in_order(subject: Subject) -> None:
    queue = open_queue(subject, "peek")
    put_batch(queue, *(f"g m{n}" for n in range(12)), "other m")
    assert kinds_in(queue, "g") == [f"m{n}" for n in range(12)]
    assert [message.event.kind for message in queue.peek("g")] == [f"m{n}" for n in range(10)]
    assert [message.event.kind for message in queue.peek("g", 1)] == ["m0"]
    assert len(queue.peek("g", 2**70)) == 12
    assert queue.peek("nobody") == []


def test_peek_shows_the_message_in_flight_first(subject: Subject) -> None:
    queue = open_queue(subject, "peek")
    put(queue, "g", "m1", "m2")
    lease = take(queue)
    shown = queue.peek("g")
    assert [message.event.kind for message in shown] == ["m1", "m2"]
    assert (shown[0].seq, shown[0].event, shown[0].raw) == (lease.seq, lease.event, lease.raw)
    assert shown[1].seq > shown[0].seq


def test_looking_changes_nothing(subject: Subject) -> None:
    queue = open_queue(subject, "stats", "groups", "peek", "dead_letters", "hold", "fair")
    _one_of_each(queue)
    before = snapshot(queue)
    subject.clock.advance(1.0)
    for _ in range(2):
        queue.stats()
        queue.wait(0.0)
        queue.dead_letters()
        for info in queue.groups():
            queue.peek(info.group_id)
    assert snapshot(queue) == before
    put(queue, "new", "m")
    assert [take(queue).group_id for _ in range(2)] == ["ready", "new"]
