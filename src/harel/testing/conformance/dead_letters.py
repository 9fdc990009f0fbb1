"""Reject, list, redrive."""

from __future__ import annotations

import pytest

from harel.engine.queue.contract import Transport
from harel.events import Event
from harel.testing.conformance.kit import (
    assert_counts,
    assert_empty,
    assert_nothing_claimable,
    drain,
    info_of,
    kinds_in,
    only_dead_letter,
    open_queue,
    put,
    put_batch,
    said,
    snapshot,
    take,
    take_from,
)
from harel.testing.subject import Subject


def _reject_all(queue: Transport, *group_ids: str) -> list[int]:
    """Publish and reject a message of each group, in order; return their seqs."""
    seqs = []
    for number, group_id in enumerate(group_ids):
        put(queue, group_id, f"m{number}")
        lease = take_from(queue, group_id)
        assert queue.reject(lease, f"reason {number}")
        seqs.append(lease.seq)
    return seqs


def test_a_rejected_messages_group_goes_on_at_once(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1", "m2")
    assert queue.reject(take(queue), "it is broken") is True
    lease = take(queue)
    assert (said(lease), lease.attempt) == ("g m2", 1)
    assert queue.ack(lease)
    put(queue, "g", "m3")
    assert drain(queue) == ["g m3"]


def test_a_group_whose_last_message_was_rejected_delivers_again(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1")
    for _ in range(4):
        assert queue.nack(take(queue))
    assert queue.reject(take(queue), "five attempts are enough") is True
    assert_empty(queue)
    put(queue, "g", "m2")
    assert drain(queue) == ["g m2"]


def test_a_dead_letter_says_what_it_was_and_why(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    event = Event(kind="k", payload={"n": [1, "zwei"]}, headers={"h": "v"})
    queue.publish("g", event, 3 if queue.capabilities.priority else 0)
    assert queue.nack(take(queue))
    lease = take(queue)
    before = subject.clock.now
    assert queue.reject(lease, "the handler said no")
    after = subject.clock.now
    letter = only_dead_letter(queue)
    assert (letter.seq, letter.group_id, letter.event, letter.raw) == (lease.seq, "g", event, lease.raw)
    assert (letter.attempts, letter.reason) == (2, "the handler said no")
    assert letter.priority == (3 if queue.capabilities.priority else 0)
    assert before <= letter.rejected_at <= after
    assert_counts(queue, dead_letters=1)


def test_a_rejection_done_twice_is_one(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    put(queue, "g", "m1", "m2")
    lease = take(queue)
    assert queue.reject(lease, "first") is True
    assert queue.reject(lease, "second") is False
    assert only_dead_letter(queue).reason == "first"
    assert drain(queue) == ["g m2"]


REASONS = {
    "empty": "",
    "unicode": "grüße ☃ \U0001f480",
    "an exception's": "Traceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: '%s {0} $1 :reason'",
    "long": "r" * 20_000,
}


@pytest.mark.parametrize("reason", REASONS.values(), ids=REASONS)
def test_a_reason_is_kept_as_it_was_given(subject: Subject, reason: str) -> None:
    queue = open_queue(subject, "dead_letters")
    put(queue, "g", "m")
    assert queue.reject(take(queue), reason)
    assert only_dead_letter(queue).reason == reason


@pytest.mark.parametrize(
    "reason", ["why \0 not", "why \ud800 not", "why not " * 1_000_000], ids=["NUL", "lone", "huge"]
)
def test_a_reason_that_cannot_be_kept_whole_does_not_keep_a_message_from_being_rejected(
    subject: Subject, reason: str
) -> None:
    queue = open_queue(subject, "dead_letters")
    put(queue, "g", "m")
    assert queue.reject(take(queue), reason)
    assert only_dead_letter(queue).reason.startswith("why ")


@pytest.mark.parametrize("wrong", ["\0", "\ud800"], ids=["NUL", "lone"])
def test_what_cannot_be_kept_of_a_reason_is_replaced_and_the_rest_is_kept(subject: Subject, wrong: str) -> None:
    queue = open_queue(subject, "dead_letters")
    put(queue, "g", "m")
    assert queue.reject(take(queue), f"before{wrong}after")
    reason = only_dead_letter(queue).reason
    assert (reason[:6], reason[7:]) == ("before", "after")
    assert reason[6] != wrong


def test_dead_letters_are_listed_by_seq_a_page_at_a_time(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    seqs = _reject_all(queue, *"cabacabacab")
    assert [letter.seq for letter in queue.dead_letters()] == seqs == sorted(seqs)
    pages, after = [], None
    while page := queue.dead_letters(limit=4, after=after):
        pages.append([letter.seq for letter in page])
        after = page[-1].seq
    assert pages == [seqs[:4], seqs[4:8], seqs[8:]]
    assert queue.dead_letters(after=2**70) == []
    assert len(queue.dead_letters(limit=2**70, after=0)) == 11


def test_a_rejection_out_of_order_is_listed_in_order(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters", "fair")
    put_batch(queue, "a m", "b m")
    a, b = take_from(queue, "a"), take_from(queue, "b")
    assert queue.reject(b, "first")
    assert queue.reject(a, "second")
    assert [letter.seq for letter in queue.dead_letters()] == [a.seq, b.seq]


def test_one_groups_dead_letters_are_listed_a_page_at_a_time(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    seqs = _reject_all(queue, *"abaabaaba")
    mine = [seq for seq, group_id in zip(seqs, "abaabaaba", strict=True) if group_id == "a"]
    assert [letter.seq for letter in queue.dead_letters(group_id="a")] == mine
    assert {letter.group_id for letter in queue.dead_letters(group_id="a")} == {"a"}
    assert [letter.seq for letter in queue.dead_letters(group_id="a", limit=2)] == mine[:2]
    assert [letter.seq for letter in queue.dead_letters(group_id="a", limit=3, after=mine[1])] == mine[2:5]
    assert queue.dead_letters(group_id="c") == []


def test_a_redrive_puts_a_new_message_at_its_groups_tail_once(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    put(queue, "g", "m1", "m2")
    lease = take(queue)
    assert queue.nack(lease)
    rejected = take(queue)
    assert queue.reject(rejected, "a reason")
    put(queue, "g", "m3")
    assert queue.redrive(rejected.seq) is True
    assert queue.redrive(rejected.seq) is False
    assert queue.dead_letters() == []
    assert_counts(queue, dead_letters=0)
    put(queue, "g", "m4")
    assert queue.ack(take(queue))
    third = take(queue)
    assert queue.ack(third)
    again = take(queue)
    assert (again.event, again.attempt) == (rejected.event, 1)
    assert again.seq > third.seq
    assert queue.ack(again)
    assert drain(queue) == ["g m4"]


def test_a_redrive_is_delivered_at_once_to_a_group_that_had_drained(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    (seq,) = _reject_all(queue, "g")
    assert queue.redrive(seq) is True
    lease = take(queue)
    assert (said(lease), lease.attempt) == ("g m0", 1)
    assert lease.seq > seq
    assert queue.ack(lease)
    assert_empty(queue)


def test_a_redriven_message_may_be_rejected_and_redriven_again(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    (seq,) = _reject_all(queue, "g")
    for turn in range(3):
        assert queue.redrive(seq) is True
        lease = take(queue)
        assert lease.seq > seq
        seq = lease.seq
        assert queue.reject(lease, f"again {turn}")
        assert (only_dead_letter(queue).seq, only_dead_letter(queue).reason) == (seq, f"again {turn}")


def test_a_redrive_that_makes_its_group_again_keeps_its_priority_promise_8(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters", "priority")
    put(queue, "low", "m")
    put(queue, "g", "m1", priority=3)
    lease = take(queue, floor=3)
    assert queue.reject(lease, "a reason")
    assert queue.redrive(lease.seq)
    assert take(queue, floor=3).group_id == "g"


def test_a_redrive_does_not_disturb_its_group_promise_9(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters", "priority", "groups", "peek")
    put(queue, "g", "m1", priority=3)
    rejected = take(queue)
    assert queue.reject(rejected, "a reason")
    put(queue, "g", "m2", priority=1)
    lease = take(queue)
    before = info_of(queue, "g")
    subject.clock.advance(1.0)
    assert queue.redrive(rejected.seq)
    after = info_of(queue, "g")
    assert (after.state, after.since, after.until) == (before.state, before.since, before.until)
    assert (after.holder, after.attempts, after.priority) == (before.holder, before.attempts, 1)
    assert kinds_in(queue, "g") == ["m2", "m1"]
    assert queue.ack(lease)


def test_a_redrive_to_a_held_group_stays_held(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters", "hold")
    put(queue, "g", "m1")
    lease = take(queue)
    assert queue.hold("g")
    assert queue.reject(lease, "a reason")
    assert queue.redrive(lease.seq) is True
    assert_nothing_claimable(queue)
    assert queue.release("g")
    assert drain(queue) == ["g m1"]


@pytest.mark.parametrize("seq", [0, 10**9, 2**63, 2**70])
def test_there_is_no_such_dead_letter_to_redrive(subject: Subject, seq: int) -> None:
    queue = open_queue(subject, "dead_letters")
    _reject_all(queue, "g")
    before = snapshot(queue)
    assert queue.redrive(seq) is False
    assert snapshot(queue) == before


def test_a_live_messages_seq_is_not_a_dead_letters(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    put(queue, "g", "m")
    lease = take(queue)
    assert queue.redrive(lease.seq) is False
    assert queue.ack(lease)
