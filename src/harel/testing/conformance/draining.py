"""Nothing is left behind, and nothing that is blocked lies in the way. Promises 4 and 10."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harel.engine.queue.contract import Lease, Transport
from harel.testing.conformance.kit import (
    VISIBILITY_S,
    assert_counts,
    assert_empty,
    assert_nothing_claimable,
    drain,
    many,
    open_queue,
    put,
    put_batch,
    put_groups,
    take,
    take_from,
)
from harel.testing.conformance.looking import NOTHING
from harel.testing.subject import Subject


def _assert_nothing_is_left(queue: Transport) -> None:
    if queue.capabilities.stats:
        assert queue.stats() == NOTHING
    assert_nothing_claimable(queue)
    if queue.capabilities.groups:
        assert queue.groups() == []
    if queue.capabilities.dead_letters:
        assert queue.dead_letters() == []


def _ack_each(queue: Transport, leases: list[Lease]) -> None:
    for lease in leases:
        assert queue.ack(lease)


def _give_back_and_ack(queue: Transport, leases: list[Lease]) -> None:
    for lease in leases:
        assert queue.nack(lease)
    drain(queue)


def _ack_all(queue: Transport, leases: list[Lease]) -> None:
    assert all(queue.ack_many(leases))


def _reject_redrive_ack(queue: Transport, leases: list[Lease]) -> None:
    for lease in leases:
        assert queue.reject(lease, "a reason")
    for letter in queue.dead_letters(limit=1_000):
        assert queue.redrive(letter.seq)
    drain(queue)


def _give_back_and_purge(queue: Transport, leases: list[Lease]) -> None:
    for lease in leases:
        assert queue.nack(lease, 600.0)
        assert queue.purge(lease.group_id) == 1


def _hold_ack_release(queue: Transport, leases: list[Lease]) -> None:
    for lease in leases:
        assert queue.hold(lease.group_id)
        assert queue.ack(lease)
        assert queue.release(lease.group_id)


DRAINS: dict[str, tuple[tuple[str, ...], Callable[[Transport, list[Lease]], None]]] = {
    "acked": ((), _ack_each),
    "acked at once": ((), _ack_all),
    "given back and acked": ((), _give_back_and_ack),
    "rejected, redriven and acked": (("dead_letters",), _reject_redrive_ack),
    "purged": (("purge",), _give_back_and_purge),
    "acked while held": (("hold",), _hold_ack_release),
}


@pytest.mark.parametrize("drained", DRAINS)
def test_groups_that_come_and_go_leave_nothing_behind_promise_10(subject: Subject, drained: str) -> None:
    capabilities, empty = DRAINS[drained]
    queue = open_queue(subject, *capabilities)
    for batch in range(3):
        put_groups(queue, *(f"group {batch} {n}" for n in range(50)))
        leases = queue.claim_many("w", VISIBILITY_S, 1_000)
        assert len(leases) == 50
        empty(queue, leases)
        _assert_nothing_is_left(queue)


def test_a_rejected_groups_dead_letter_is_all_that_is_left_promise_10(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    put(queue, "g", "m")
    assert queue.reject(take(queue), "a reason")
    assert_empty(queue)
    assert_counts(queue, dead_letters=1)


BLOCKS: dict[str, Callable[[Transport, Lease], object]] = {
    "leased": lambda _queue, _lease: True,
    "parked": lambda queue, lease: queue.nack(lease, 600.0),
    "held": lambda queue, lease: queue.hold("blocked") and queue.nack(lease),
}


@pytest.mark.parametrize("blocked", BLOCKS)
def test_a_blocked_group_with_a_backlog_does_not_keep_another_waiting_promise_4(subject: Subject, blocked: str) -> None:
    queue = open_queue(subject, *(["hold"] if blocked == "held" else []))
    waiting = many(queue, 10_000)
    put_batch(queue, *(f"blocked m{n}" for n in range(waiting)))
    assert BLOCKS[blocked](queue, take(queue, visibility=600.0))
    put(queue, "other", "m")
    lease = take_from(queue, "other")
    assert_nothing_claimable(queue)
    assert queue.ack(lease)
    assert_counts(queue, messages=waiting, groups=1, ready=0)


def test_many_blocked_groups_do_not_keep_another_waiting_promise_4(subject: Subject) -> None:
    queue = open_queue(subject)
    put_groups(queue, *(f"blocked {n}" for n in range(1_000)))
    leases = queue.claim_many("w", 600.0, 1_000)
    assert all(queue.nack(lease, 600.0) for lease in leases[:100])
    put(queue, "other", "m")
    assert take(queue).group_id == "other"
    assert_nothing_claimable(queue)
