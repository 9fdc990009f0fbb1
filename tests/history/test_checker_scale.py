"""The history checker on long histories: its work, which is counted and not timed, grows as they do."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from harel.testing.history import Kind, Operation, check

NO_ANSWER: dict[str, Any] = {"returned": None, "result": None}


class Chronicle:
    """A long history that breaks no promise, by a number of groups; one thing after another, or leases that overlap."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.now = 0.0
        self._numbers = count(1)

    def add(self, kind: Kind, lasts: float = 0.5, **known: Any) -> Operation:
        self.now += 1.0
        known = {"returned": self.now + lasts, "result": 1, "process": kind, **known}
        operation = Operation(number=next(self._numbers), kind=kind, called=self.now, **known)
        self.operations.append(operation)
        return operation

    def settle(self, kind: Kind, claim: Operation, **known: Any) -> None:
        self.add(kind, group_id=claim.group_id, event_id=claim.event_id, seq=claim.seq, token=claim.token, **known)


def one_group(rounds: int) -> list[Operation]:
    """Everything that can be done to a group, over and over, with leases that run out and calls without an answer."""
    told = Chronicle()
    for turn in range(rounds):
        event, group = f"e{turn}", "g"
        told.add("publish", group_id=group, event_id=event, priority=turn % 5)
        claim = told.add(
            "claim", group_id=group, event_id=event, seq=turn, token=f"w:{turn}", visibility=5.0, attempt=1
        )
        told.settle("extend", claim, visibility=3.0)
        told.settle("extend", claim, visibility=3.0, **(NO_ANSWER if turn % 7 == 0 else {}))
        told.add("hold", group_id=group)
        told.add("release", group_id=group)
        told.now += 5.0
        told.settle("ack", claim, **(NO_ANSWER if turn % 5 == 0 else {}))
        told.add("purge", group_id=group)
        told.add("claim", result=0, min_priority=turn % 5)
    told.add("drained")
    return told.operations


def many_groups(rounds: int) -> list[Operation]:
    """As many groups as rounds, all of which wait for long; claims with every floor; and lost claims."""
    told = Chronicle()
    for turn in range(rounds):
        told.add("publish", group_id=f"g{turn}", event_id=f"e{turn}", priority=turn % 5)
    for turn in range(rounds):
        known: dict[str, Any] = {"group_id": f"g{turn}", "event_id": f"e{turn}", "seq": turn, "token": f"w:{turn}"}
        claim = told.add("claim", visibility=100.0, attempt=1, min_priority=turn % 5, **known)
        if turn % 10 == 0:
            told.add("claim", **NO_ANSWER)
        told.settle("ack", claim)
    return told.operations


def served_in_turn(rounds: int) -> list[Operation]:
    """A hundred groups that take turns, with a chance of a nack; the server is restarted now and then."""
    told = Chronicle()
    chance = random.Random("served in turn")
    for turn in range(100):
        told.add("publish", group_id=f"g{turn}", event_id=f"e{turn}")
    attempts = [0] * 100
    for turn in range(rounds):
        place = turn % 100
        attempts[place] += 1
        known: dict[str, Any] = {"group_id": f"g{place}", "event_id": f"e{place}", "seq": place, "token": f"w:{turn}"}
        claim = told.add("claim", visibility=50.0, attempt=attempts[place], **known)
        if chance.random() < 0.5:
            told.settle("nack", claim)
        else:
            told.now += 60.0
    return told.operations


HISTORIES = [one_group, many_groups, served_in_turn]


@pytest.mark.parametrize("tell", HISTORIES)
def test_the_work_grows_no_faster_than_the_history(tell: Callable[[int], list[Operation]]) -> None:
    def steps(rounds: int) -> int:
        operations = tell(rounds)
        restarts = [(float(at), at + 0.5) for at in range(0, 100 * rounds, 5_000)]
        terms: dict[str, Any] = {"late_settle": True, "overlook_s": 0.0}
        return _lines_run(lambda: [check(operations, fair=True, restarts=some, **terms) for some in ((), restarts)])

    assert steps(1_200) < 5 * steps(300)


@pytest.mark.parametrize("tell", HISTORIES)
def test_what_the_work_is_measured_on_breaks_no_promise(tell: Callable[[int], list[Operation]]) -> None:
    assert [str(violation) for violation in check(tell(300), fair=True, late_settle=True, overlook_s=0.0)] == []


@pytest.mark.parametrize("tell", [one_group, served_in_turn])
def test_few_violations_are_told_of_many(tell: Callable[[int], list[Operation]]) -> None:
    """A queue that grants every lease twice, and loses what it settles."""
    operations = tell(300)
    again = [
        Operation(
            process="thief",
            number=number,
            kind="claim",
            called=claim.called,
            returned=claim.called + 0.25,
            result=1,
            group_id=claim.group_id,
            event_id=claim.event_id,
            seq=claim.seq,
            token=f"thief:{number}",
            visibility=50.0,
        )
        for number, claim in enumerate(operations)
        if claim.kind == "claim" and claim.token
    ]
    found = check([*operations, *again], fair=True, most=2)
    first = [violation for violation in found if violation.promise == 1]
    assert len(first) == 2
    assert first[0].more == 0
    assert first[1].more > 50
    assert max(sum(other.promise == violation.promise for other in found) for violation in found) == 2


def _lines_run(call: Callable[[], object]) -> int:
    lines = 0

    def trace(frame: object, event: str, argument: object) -> Any:
        nonlocal lines
        lines += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines
