"""Publish, claim, ack: what goes in comes out, once, with the right to handle it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from harel.events import Event, decode_event
from harel.testing.conformance.kit import (
    VISIBILITY_S,
    assert_empty,
    assert_lasts,
    assert_nothing_claimable,
    drain,
    open_queue,
    put,
    said,
    take,
)
from harel.testing.subject import Subject

PAYLOADS: dict[str, dict[str, Any]] = {
    "empty": {},
    "flat": {"order": 17, "paid": True, "open": False, "note": None, "price": 12.5, "whole": 3.0},
    "nested": {"a": [{"b": [[], {}, [1, [2, [3]]]]}, {"c": {"d": {"e": "f"}}}]},
    "deep": {"down": [[[[[[[[[["there"]]]]]]]]]]},
    "unicode": {"ключ": "Größe ☃ 東京 👩‍👩‍👧 e\u0301 é", "": "an empty key"},
    "controls": {"text": "NUL \0 bell \a tab \t newline \r\n escape \x1b separators \u2028\u2029 last \uffff"},
    "quotes": {"text": "\"double\" 'single' \\ back / forward `tick` $dollar {brace} %s :name ?"},
    "integers": {"numbers": [0, -1, 2**31, 2**53 + 1, -(2**63), 2**64 - 1]},
    "floats": {"numbers": [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1e-7, 123456789.123456789]},
    "like an event": {"kind": "k", "payload": {"kind": "k"}, "id": "i", "headers": {"a": "b"}},
    "big": {"text": "0123456789abcdeé" * 8_000},
    "wide": {f"key {n}": [n, str(n)] for n in range(2_000)},
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_payload_comes_back_as_it_was(subject: Subject, payload: dict[str, Any]) -> None:
    queue = open_queue(subject)
    queue.publish("g", Event(kind="k", payload=payload))
    # The text of it too, since 1, 1.0 and True are equal.
    assert repr(take(queue).event.payload) == repr(payload)


@pytest.mark.parametrize(
    "event",
    [
        Event(kind="order.placed", id="an id of mine", headers={"traceparent": "00-4bf92f-00f067-01"}),
        Event(kind="☃", id="é", headers={"": "", "ключ": "värde\0\n"}),
        Event(kind="k\0\n", id="i\0\n"),
        Event(kind=" ", id="i" * 10_000, headers={f"h{n}": str(n) for n in range(500)}),
    ],
    ids=["plain", "unicode", "controls", "long"],
)
def test_kind_id_and_headers_come_back_as_they_were(subject: Subject, event: Event) -> None:
    queue = open_queue(subject)
    queue.publish("g", event)
    assert take(queue).event == event


def test_a_tuple_comes_back_as_a_list(subject: Subject) -> None:
    queue = open_queue(subject)
    queue.publish("g", Event(kind="k", payload={"pair": (1, (2, "three"))}))
    assert take(queue).event.payload == {"pair": [1, [2, "three"]]}


def test_an_event_delivered_again_has_the_same_id_and_seq(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m")
    first = take(queue)
    assert queue.nack(first)
    second = take(queue)
    assert (second.event, second.seq) == (first.event, first.seq)


def test_publish_returns_nothing_and_an_empty_queue_gives_nothing(subject: Subject) -> None:
    queue = open_queue(subject)
    assert_nothing_claimable(queue)
    assert queue.claim_many("worker", VISIBILITY_S, 10) == []
    result: object = queue.publish("g", Event(kind="k"))  # type: ignore[func-returns-value]
    assert result is None


def test_a_lease_says_what_it_is_for_and_how_long(subject: Subject) -> None:
    queue = open_queue(subject)
    event = Event(kind="k", payload={"n": 1})
    queue.publish("g", event)
    before = subject.clock.now
    lease = take(queue, "worker-7", 12.5)
    after = subject.clock.now
    assert (lease.group_id, lease.event, lease.attempt, lease.worker_id) == ("g", event, 1, "worker-7")
    assert_lasts(queue, lease, 12.5, before, after)
    assert isinstance(lease.seq, int)
    assert decode_event(lease.raw) == event


@pytest.mark.parametrize("worker_id", ["w", "host-1:4242", ":", "a:b:", "worker ☃", "w" * 200, "é" * 100])
def test_a_token_is_the_worker_and_a_uuid_new_on_every_claim(subject: Subject, worker_id: str) -> None:
    queue = open_queue(subject)
    put(queue, "a", "m")
    put(queue, "b", "m")
    put(queue, "c", "m")
    leases = [take(queue, worker_id), *queue.claim_many(worker_id, VISIBILITY_S, 10)]
    assert queue.nack(leases[0])
    leases.append(take(queue, worker_id))
    assert len(leases) == 4
    for lease in leases:
        who, _, number = lease.token.rpartition(":")
        assert who == worker_id == lease.worker_id
        assert str(uuid.UUID(number)) == number
    assert len({lease.token for lease in leases}) == 4


def test_one_message_of_a_group_is_in_flight_promise_1(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1", "m2")
    lease = take(queue)
    assert_nothing_claimable(queue)
    assert queue.claim_many("another", VISIBILITY_S, 10) == []
    assert queue.ack(lease)
    assert said(take(queue)) == "g m2"
    assert_nothing_claimable(queue)


def test_groups_proceed_side_by_side(subject: Subject) -> None:
    queue = open_queue(subject)
    for group_id in "abc":
        put(queue, group_id, "m1", "m2")
    leases = [take(queue, f"worker {n}") for n in range(3)]
    assert {said(lease) for lease in leases} == {"a m1", "b m1", "c m1"}
    assert_nothing_claimable(queue)
    assert all(queue.ack(lease) for lease in leases)
    assert sorted(drain(queue)) == ["a m2", "b m2", "c m2"]


def test_what_is_acked_is_gone(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m")
    assert queue.ack(take(queue)) is True
    assert_nothing_claimable(queue)
    subject.clock.advance(10 * VISIBILITY_S)
    assert_nothing_claimable(queue)
    assert_empty(queue)


def test_seqs_grow_with_every_publish(subject: Subject) -> None:
    queue = open_queue(subject)
    seqs = []
    for turn in range(12):
        put(queue, f"group {turn % 3}", f"m{turn}")
    for _ in range(12):
        lease = take(queue)
        seqs.append((int(lease.event.kind[1:]), lease.seq))
        assert queue.ack(lease)
    put(queue, "group 0", "m12")  # all was drained; numbers still do not come again
    seqs.append((12, take(queue).seq))
    in_order = [seq for _, seq in sorted(seqs)]
    for some in [in_order] if queue.capabilities.queue_seq else [in_order[group::3] for group in range(3)]:
        assert some == sorted(set(some))
