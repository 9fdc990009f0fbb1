"""Several transports on one queue are one queue."""

from __future__ import annotations

from harel.testing.conformance.kit import (
    VISIBILITY_S,
    assert_empty,
    assert_nothing_claimable,
    drain,
    open_queue,
    put,
    put_groups,
    said,
    snapshot,
    take,
)
from harel.testing.subject import Subject


def test_what_one_publishes_another_claims(subject: Subject) -> None:
    one, other = open_queue(subject), subject.open()
    put(one, "g", "m1")
    put(other, "g", "m2")
    assert drain(one) == ["g m1", "g m2"]
    assert_nothing_claimable(other)


def test_a_group_leased_through_one_is_leased_for_the_other_promise_1(subject: Subject) -> None:
    one, other = open_queue(subject), subject.open()
    put(one, "g", "m1", "m2")
    lease = take(one)
    assert_nothing_claimable(other)
    assert one.ack(lease)
    lease = take(other)
    assert said(lease) == "g m2"
    assert_nothing_claimable(one)


def test_a_lease_may_be_settled_through_another_transport_on_its_queue(subject: Subject) -> None:
    one, other = open_queue(subject), subject.open()
    put(one, "g", "m1", "m2")
    lease = take(one)
    assert other.extend(lease, 60.0) is True
    assert other.ack(lease) is True
    assert one.ack(lease) is False
    assert other.ack_many([take(one)]) == [True]


def test_a_lease_taken_over_through_one_is_lost_to_the_other_promise_5(subject: Subject) -> None:
    one, other = open_queue(subject), subject.open()
    put(one, "g", "m1", "m2")
    old = take(one, visibility=10.0)
    subject.clock.advance(11.0)
    current = take(other)
    before = snapshot(one)
    assert one.ack(old) is False
    assert other.nack(old) is False
    assert snapshot(one) == before == snapshot(other)
    assert one.ack(current) is True


def test_claims_in_turn_share_out_the_groups_promises_1_and_7(subject: Subject) -> None:
    transports = [open_queue(subject, "fair"), *(subject.open() for _ in range(3))]
    names = [f"{n:02}" for n in range(20)]
    put_groups(transports[0], *names)
    leases = [take(transports[turn % 4]) for turn in range(20)]
    assert [lease.group_id for lease in leases] == names
    assert all(transports[(turn + 1) % 4].ack(lease) for turn, lease in enumerate(leases))
    assert_empty(transports[0])


def test_what_one_holds_the_other_cannot_claim_and_may_release(subject: Subject) -> None:
    one, other = open_queue(subject, "hold", "watch"), subject.open()
    put(one, "g", "m")
    assert one.hold("g")
    assert_nothing_claimable(other)
    assert other.wait(0.0) is False
    assert other.release("g")
    assert one.wait(VISIBILITY_S) is True
    assert take(one).group_id == "g"


def test_a_queue_that_is_opened_again_is_as_it_was_left_promise_3(subject: Subject) -> None:
    queue, watcher = open_queue(subject), subject.open()
    put(queue, "g", "m1", "m2")
    put(queue, "parked", "m1")
    leases = {lease.group_id: lease for lease in queue.claim_many("w", 60.0, 2)}
    assert queue.nack(leases["parked"], 60.0)
    before = snapshot(watcher)
    queue.close()
    again = subject.open()
    assert snapshot(again) == before
    assert again.ack(leases["g"]) is True
    assert drain(again) == ["g m2"]
