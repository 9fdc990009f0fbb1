"""``harel hold``, ``release``, ``purge`` and ``redrive``."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

from harel import Event, Transport
from tests.cli.conftest import COMMAND, Harel


def letters(queue: Transport, *groups: str) -> None:
    """Make a dead letter of each of these groups, with the seqs 1, 2, …"""
    for group in groups:
        queue.publish(group, Event("k", {}, f"of {group}"))
        lease = queue.claim("w", 60.0)
        assert lease is not None
        queue.reject(lease, "no")


def test_hold_and_release(harel: Harel, queue: Transport) -> None:
    queue.publish("g", Event("k"))
    assert harel("hold", "g").succeeded() == "Group g is held.\n"
    assert queue.claim("w", 60.0) is None
    assert harel("hold", "g", "--json").json == [{"group_id": "g", "held": True}]
    assert harel("release", "g").succeeded() == "Group g is released.\n"
    assert queue.claim("w", 60.0) is not None


def test_release_for_programs(harel: Harel, queue: Transport) -> None:
    queue.publish("g", Event("k"))
    queue.hold("g")
    assert harel("release", "g", "--json").json == [{"group_id": "g", "released": True}]


@pytest.mark.parametrize(
    ("arguments", "printed", "said"),
    [
        (("hold",), {"held": False}, "There is no group 'g' to hold; a group exists while it has messages."),
        (("release",), {"released": False}, "Group 'g' is not held."),
        (("purge", "--yes"), {"purged": 0}, "Group 'g' has no messages that can be deleted."),
    ],
)
def test_no_is_a_sentence_and_exit_status_1(
    harel: Harel, queue: Transport, arguments: tuple[str, ...], printed: dict[str, object], said: str
) -> None:
    assert harel(*arguments, "g").failed(1) == said
    outcome = harel(*arguments, "g", "--json")
    assert outcome.failed(1) == said
    assert outcome.json == [{"group_id": "g", **printed}]


def test_purge_with_yes(harel: Harel, queue: Transport) -> None:
    for _ in range(2):
        queue.publish("g", Event("k"))
    queue.publish("other", Event("k"))
    assert harel("purge", "g", "--yes").succeeded() == "2 messages of group g are deleted.\n"
    assert harel("purge", "other", "-y", "--json").json == [{"group_id": "other", "purged": 1}]
    assert queue.stats().messages == 0


def test_purge_leaves_what_a_worker_is_handling(harel: Harel, queue: Transport) -> None:
    queue.publish("g", Event("k"))
    lease = queue.claim("w", 60.0)
    assert lease is not None
    assert harel("purge", "g", "--yes").failed(1) == "Group 'g' has no messages that can be deleted."
    assert queue.ack(lease)


def test_purge_needs_yes_where_nobody_can_be_asked(process: Harel, queue: Transport) -> None:
    queue.publish("g", Event("k"))
    assert process("purge", "g", stdin=b"y\n").failed().startswith("Nobody is there to confirm this: add --yes")
    assert queue.stats().messages == 1


@pytest.mark.parametrize(
    ("answer", "status", "left"), [(b"y\n", 0, 0), (b"n\n", 1, 1), (b"\n", 1, 1), (b"\x04", 130, 1)]
)
def test_purge_asks_a_person(queue: Transport, answer: bytes, status: int, left: int) -> None:
    queue.publish("g", Event("k"))
    person, terminal = pty.openpty()
    try:
        with subprocess.Popen(
            [*COMMAND, "purge", "g"], stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as command:
            os.write(person, answer)
            _, err = command.communicate(timeout=60)
    finally:
        os.close(person)
        os.close(terminal)
    assert command.returncode == status
    assert b"Delete all messages of group g? [y/N]" in err
    assert queue.stats().messages == left


def test_redrive_by_seq(harel: Harel, queue: Transport) -> None:
    letters(queue, "a", "b", "c")
    assert harel("redrive", "1", "3").succeeded() == "2 dead letters redriven.\n"
    assert [message.event.id for message in queue.peek("a")] == ["of a"]
    assert [letter.seq for letter in queue.dead_letters()] == [2]


def test_redrive_by_group_and_all(harel: Harel, queue: Transport) -> None:
    letters(queue, "a", "b", "a", "c")
    assert harel("redrive", "--group", "b").succeeded() == "1 dead letter redriven.\n"
    assert harel("redrive", "--all", "--json").json == [
        {"seq": 1, "redriven": True},
        {"seq": 3, "redriven": True},
        {"seq": 4, "redriven": True},
    ]
    assert queue.stats().dead_letters == 0
    assert queue.stats().messages == 4
    assert harel("redrive", "--all").succeeded() == "0 dead letters redriven.\n"


def test_redrive_takes_all_pages(harel: Harel, queue: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harel.cli.operate._PAGE", 2)
    letters(queue, *"abcde")
    assert harel("redrive", "--all").succeeded() == "5 dead letters redriven.\n"
    assert queue.stats().dead_letters == 0


def test_redrive_of_a_letter_that_is_gone_says_no_and_does_the_others(harel: Harel, queue: Transport) -> None:
    letters(queue, "a", "b")
    outcome = harel("redrive", "7", "1", "1", "--json")
    assert outcome.failed(1) == "There is no dead letter (any more) with the seq 7, 1."
    assert outcome.json == [
        {"seq": 7, "redriven": False},
        {"seq": 1, "redriven": True},
        {"seq": 1, "redriven": False},
    ]
    assert queue.stats().messages == 1


@pytest.mark.parametrize("arguments", [(), ("1", "--all"), ("--all", "--group", "g"), ("1", "--group", "g")])
def test_redrive_wants_to_know_which(harel: Harel, queue: Transport, arguments: tuple[str, ...]) -> None:
    letters(queue, "g")
    assert harel("redrive", *arguments).failed().startswith("Say which dead letters to redrive")
    assert queue.stats().dead_letters == 1
