"""Ids of groups that look like parts of keys, fields or members: a group is known by its id and nothing else."""

from __future__ import annotations

from itertools import groupby

import pytest

from harel import Event, Message, Transport
from harel.testing import ManualClock
from tests.redis.conftest import Twin

HOSTILE = [
    "a",
    "a\x01",
    "a\x01b",
    "aa",
    "@a",
    "#a",
    "@@a",
    "1:a",
    "2:a",
    "1:1:a",
    "0000000000000001",
    "0000000000000001a",
    "{",
    "}",
    "{}",
    "}:meta{",
    "{x}",
    ":q:",
    "[a",
    "(a",
    "-",
    "+",
    "-inf",
    "$fresh",
    "%d%s%%",
    "a\r\n$1\r\nb",
    "'; redis.call('FLUSHALL') --",
    "\u007f",
    "ü",
    "\uffff",
    "\U0010ffff",
    "\U0001f600" * 128,
]


@pytest.fixture
def queue(twin: Twin) -> Transport:
    return twin.open(clock=ManualClock())


def test_each_group_has_its_own_messages_in_order_promise_2(queue: Transport) -> None:
    queue.publish_many(Message(name, Event(f"m{n}", {"of": name})) for n in range(3) for name in HOSTILE)
    for n in range(3):
        leases = queue.claim_many("w", 60.0, 1_000)
        assert sorted(lease.group_id for lease in leases) == sorted(HOSTILE)
        for lease in leases:
            assert lease.event.payload == {"of": lease.group_id}
            assert lease.event.kind == f"m{n}"
        assert all(queue.ack_many(leases))
    assert queue.stats().groups == 0


def test_each_group_is_looked_at_and_operated_alone(queue: Transport) -> None:
    queue.publish_many(Message(name, Event("m", {"of": name})) for name in HOSTILE for _ in range(2))
    for name in HOSTILE:
        assert [message.event.payload for message in queue.peek(name)] == [{"of": name}] * 2
        assert queue.hold(name)
        assert [info.group_id for info in queue.groups(state="held")] == [name]
        assert queue.release(name)
        assert queue.purge(name) == 2
        queue.publish_many(Message(name, Event("m", {"of": name})) for _ in range(2))
    assert queue.stats().messages == 2 * len(HOSTILE)


def test_pages_of_groups_come_by_code_points(queue: Transport) -> None:
    queue.publish_many(Message(name, Event("m")) for name in HOSTILE)
    found: list[str] = []
    while page := queue.groups(limit=3, after=found[-1] if found else None):
        found += [info.group_id for info in page]
    assert found == sorted(HOSTILE)


def test_a_groups_dead_letters_are_its_own(queue: Transport) -> None:
    queue.publish_many(Message(name, Event(f"m{n}")) for n in range(2) for name in HOSTILE)
    for _ in range(2):
        for lease in queue.claim_many("w", 60.0, 1_000):
            assert queue.reject(lease, lease.group_id)
    letters = queue.dead_letters(limit=1_000)
    assert [letter.seq for letter in letters] == list(range(1, 2 * len(HOSTILE) + 1))
    by_name = sorted(letters, key=lambda letter: letter.group_id)
    for name, own in groupby(by_name, key=lambda letter: letter.group_id):
        seqs = [letter.seq for letter in own]
        assert [letter.seq for letter in queue.dead_letters(group_id=name)] == seqs
        assert [letter.seq for letter in queue.dead_letters(group_id=name, after=seqs[0])] == seqs[1:]
        assert all(queue.redrive(seq) for seq in seqs)
        assert queue.dead_letters(group_id=name) == []


def test_names_starve_nobody_when_numbers_are_equal_promise_7(twin: Twin) -> None:
    queue = twin.open(clock=ManualClock(tick=0.0))
    names = [*reversed(HOSTILE), "z", "b"]
    queue.publish_many(Message(name, Event("m"), priority % 5) for priority, name in enumerate(names))
    assert [lease.group_id for lease in queue.claim_many("w", 60.0, 1_000)] == names
