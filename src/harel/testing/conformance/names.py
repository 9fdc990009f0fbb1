"""Whatever a name holds, it is a name and nothing else."""

from __future__ import annotations

import pytest

from harel.events import Event, Message
from harel.testing.conformance.kit import (
    VISIBILITY_S,
    assert_counts,
    assert_empty,
    assert_nothing_claimable,
    drain,
    kinds_in,
    open_queue,
    put,
    put_groups,
    snapshot,
    take,
)
from harel.testing.subject import Subject

NAMES = {
    "quote": "'",
    "double quote": '"',
    "SQL": "'; DROP TABLE transport_messages; --",
    "SQL that is true": "' OR '1'='1",
    "a comment": "/* */ -- #",
    "Lua": "'] = nil; redis.call('FLUSHALL') --[[",
    "an operator": "$where",
    "an operator's object": '{"$gt": ""}',
    "dots": "a.b..c.",
    "a path": "../../etc/passwd",
    "glob": "*?[a-z]",
    "like": "%_\\%",
    "format": "%s %d %(name)s {0} {name} {prefix} {{",
    "parameters": ":group_id $1 ? @now",
    "braces": "{tag}:q:{other}",
    "colons": ":ready:0:",
    "backslashes": "\\ \\\\ \\n \\u0000 \\x00",
    "JSON": '["a", null]',
    "null": "null",
    "a number": "0123",
    "another number": "1e3",
    "a bool": "true",
    "white": " ",
    "lines": "\n",
    "controls": "a\r\n\t\x01\x1b[31m\x7f",
    "separators": "\u2028\u2029\u00a0\ufeff",
    "emoji": "👩‍👩‍👧‍👦 \U0001f418",
    "right to left": "\u202e\u05d0\u0627",
    "the last": "\uffff\U0010ffff",
    "long": "long " * 102 + "ab",
}

ALIKE = [
    "a",
    "A",
    "a ",
    " a",
    "á",
    "a\u0301",
    "\uff41",
    "ß",
    "ss",
    "SS",
    "I",
    "i",
    "İ",
    "\u0131",
    "a\n",
    "a\u200b",
    "1",
    "01",
    "1.0",
]


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_group_may_be_called_anything(subject: Subject, name: str) -> None:
    queue = open_queue(subject)
    put(queue, "bystander", "m")
    put(queue, name, "m1")
    queue.publish_many([Message(name, Event(kind="m2"))])
    leases = {lease.group_id: lease for lease in queue.claim_many("w", VISIBILITY_S, 10)}
    assert set(leases) == {"bystander", name}
    assert leases[name].event.kind == "m1"
    assert queue.extend(leases[name], 60.0)
    assert queue.nack(leases[name])
    assert queue.ack_many([take(queue), leases["bystander"]]) == [True, True]
    assert queue.ack(take(queue))
    assert_empty(queue)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_group_called_anything_can_be_looked_at_held_and_purged(subject: Subject, name: str) -> None:
    queue = open_queue(subject, "groups", "peek", "hold", "purge", "dead_letters")
    put(queue, "bystander", "m")
    put(queue, name, "m1", "m2")
    first, last = sorted(["bystander", name])
    assert [info.group_id for info in queue.groups()] == [first, last]
    assert [info.group_id for info in queue.groups(after=first)] == [last]
    assert kinds_in(queue, name) == ["m1", "m2"]
    assert queue.hold(name)
    assert take(queue).group_id == "bystander"
    assert_nothing_claimable(queue)
    assert queue.release(name)
    lease = take(queue)
    assert queue.reject(lease, "a reason")
    assert [letter.group_id for letter in queue.dead_letters(group_id=name)] == [name]
    assert queue.redrive(lease.seq)
    assert queue.purge(name) == 2
    assert_counts(queue, groups=1, messages=1)


def test_a_worker_may_be_called_anything(subject: Subject) -> None:
    queue = open_queue(subject)
    for name in (name[:100] for name in NAMES.values()):
        put(queue, "g", "m1", "m2")
        lease = take(queue, name)
        assert lease.worker_id == name
        if queue.capabilities.groups:
            assert queue.groups()[0].holder == name
        assert queue.extend(lease, 60.0), name
        assert queue.ack(lease), name
        (lease,) = queue.claim_many(name, VISIBILITY_S, 5)
        assert lease.worker_id == name
        assert queue.ack_many([lease]) == [True], name


def test_events_and_reasons_may_hold_anything(subject: Subject) -> None:
    queue = open_queue(subject)
    for text in NAMES.values():
        event = Event(kind=text, payload={text: text}, id=text, headers={text: text})
        queue.publish("g", event)
        lease = take(queue)
        assert lease.event == event
        assert queue.reject(lease, text), text
        if queue.capabilities.dead_letters:
            letter = queue.dead_letters()[-1]
            assert (letter.event, letter.reason) == (event, text)


def test_asking_for_a_group_that_is_not_there_finds_no_other(subject: Subject) -> None:
    queue = open_queue(subject, "peek", "hold", "purge", "dead_letters")
    put_groups(queue, "a", "b", "transport_messages")
    before = snapshot(queue)
    for name in NAMES.values():
        assert queue.peek(name) == [], name
        assert queue.hold(name) is False, name
        assert queue.release(name) is False, name
        assert queue.purge(name) == 0, name
        assert queue.dead_letters(group_id=name) == [], name
    assert snapshot(queue) == before


def test_names_that_look_alike_are_different_groups(subject: Subject) -> None:
    queue = open_queue(subject)
    put_groups(queue, *ALIKE)
    put_groups(queue, *NAMES.values())
    came = queue.claim_many("w", VISIBILITY_S, 1_000)
    assert sorted(lease.group_id for lease in came) == sorted([*ALIKE, *NAMES.values()])
    assert all(queue.ack_many(came))
    assert drain(queue) == []


def test_names_of_all_kinds_are_listed_in_the_order_of_their_characters(subject: Subject) -> None:
    queue = open_queue(subject, "groups")
    names = [*ALIKE, *NAMES.values()]
    put_groups(queue, *names)
    listed: list[str] = []
    while page := queue.groups(limit=7, after=listed[-1] if listed else None):
        listed.extend(info.group_id for info in page)
    assert listed == sorted(names)
