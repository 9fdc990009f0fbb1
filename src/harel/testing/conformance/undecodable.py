"""A stored event that cannot be decoded never kills a claim; its holder sees it, and may reject it."""

from __future__ import annotations

import pytest

from harel.errors import InvalidMessage
from harel.testing.conformance.kit import drain, kinds_in, only_dead_letter, open_queue, put, said, store_raw, take
from harel.testing.subject import Subject

UNDECODABLE = {
    "no JSON": "this is not JSON {",
    "empty": "",
    "cut off": '{"kind":"k","payload":{"a":',
    "no object": "[1,2,3]",
    "null": "null",
    "no kind": '{"payload":{},"id":"i","headers":{}}',
    "wrong kind": '{"kind":7,"payload":{},"id":"i","headers":{}}',
    "wrong payload": '{"kind":"k","payload":[],"id":"i","headers":{}}',
    "wrong headers": '{"kind":"k","payload":{},"id":"i","headers":{"a":1}}',
    "two values": '{"kind":"k"} {"kind":"k"}',
    "too deep": '{"kind":"k","payload":{"a":' + "[" * 100_000 + "]" * 100_000 + "}}",
}


@pytest.mark.parametrize("raw", UNDECODABLE.values(), ids=UNDECODABLE)
def test_an_event_that_cannot_be_decoded_raises_where_it_is_read(subject: Subject, raw: str) -> None:
    queue = open_queue(subject)
    put(queue, "g", "before")
    store_raw(queue, "g", raw)
    put(queue, "g", "after")
    assert queue.ack(take(queue))
    lease = take(queue)
    for _ in range(2):
        with pytest.raises(InvalidMessage) as raised:
            lease.event  # noqa: B018
        assert raised.value.__cause__ is not None
    assert (lease.group_id, lease.attempt, lease.raw) == ("g", 1, raw)
    assert repr(lease)
    assert queue.extend(lease, 60.0) is True
    assert queue.reject(lease, "it cannot be decoded") is True
    assert drain(queue) == ["g after"]


@pytest.mark.parametrize("raw", UNDECODABLE.values(), ids=UNDECODABLE)
def test_a_dead_letter_keeps_what_could_not_be_decoded(subject: Subject, raw: str) -> None:
    queue = open_queue(subject, "dead_letters")
    store_raw(queue, "g", raw)
    assert queue.reject(take(queue), "it cannot be decoded")
    letter = only_dead_letter(queue)
    assert letter.raw == raw
    with pytest.raises(InvalidMessage):
        letter.event  # noqa: B018
    assert queue.redrive(letter.seq)
    assert take(queue).raw == raw


def test_a_batch_with_an_undecodable_event_is_claimed_whole(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "a", "m")
    store_raw(queue, "b", "broken")
    put(queue, "c", "m")
    leases = {lease.group_id: lease for lease in queue.claim_many("w", 60.0, 10)}
    assert sorted(leases) == ["a", "b", "c"]
    assert (said(leases["a"]), leases["b"].raw, said(leases["c"])) == ("a m", "broken", "c m")
    assert queue.ack_many(leases.values()) == [True, True, True]


def test_peek_shows_what_cannot_be_decoded_as_text(subject: Subject) -> None:
    queue = open_queue(subject, "peek")
    put(queue, "g", "m1")
    store_raw(queue, "g", "broken")
    put(queue, "g", "m2")
    shown = queue.peek("g")
    assert shown[1].raw == "broken"
    with pytest.raises(InvalidMessage):
        shown[1].event  # noqa: B018
    assert (shown[0].event.kind, shown[2].event.kind) == ("m1", "m2")


def test_an_undecodable_event_may_be_given_back_and_purged(subject: Subject) -> None:
    queue = open_queue(subject, "purge")
    store_raw(queue, "g", "broken")
    put(queue, "g", "m")
    assert queue.nack(take(queue))
    assert take(queue, visibility=1.0).attempt == 2
    subject.clock.advance(2.0)
    assert queue.purge("g") == 2
    put(queue, "g", "again")
    assert drain(queue) == ["g again"]


def test_fields_that_a_newer_program_added_do_not_make_an_event_undecodable(subject: Subject) -> None:
    queue = open_queue(subject, "peek")
    store_raw(queue, "g", '{"kind":"k","payload":{},"id":"i","headers":{},"added":[1]}')
    assert kinds_in(queue, "g") == ["k"]
    assert said(take(queue)) == "g k"
