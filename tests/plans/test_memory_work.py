"""How much the in-memory queue does for an operation: promise 10, without a clock.

A step is a bytecode instruction or a comparison of two of the clock's numbers. The first counts what Python
code does, loops included; the second what a heap or a sort does in C.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import log2
from types import FrameType
from typing import Any, Self, TypeVar

import pytest

from harel import Event, Message
from harel.engine.transport import InMemoryTransport
from tests.plans.rounds import (
    DEEP,
    FEW,
    MANY,
    SHALLOW,
    Counting,
    a_round_among,
    a_round_on_a_backlog,
    claims_at,
    fresh,
    leased,
    parked_and_held,
)

T = TypeVar("T")


class Number(float):
    """A time whose comparisons are counted, and those of what is reckoned from it."""

    compared = 0

    def __add__(self, other: float) -> Self:
        return type(self)(float(self) + other)

    def __sub__(self, other: float) -> Self:
        return type(self)(float(self) - other)

    def __eq__(self, other: object) -> bool:
        Number.compared += 1
        return float(self) == other

    def __lt__(self, other: float) -> bool:
        Number.compared += 1
        return float(self) < other

    def __le__(self, other: float) -> bool:
        Number.compared += 1
        return float(self) <= other

    def __gt__(self, other: float) -> bool:
        Number.compared += 1
        return float(self) > other

    def __ge__(self, other: float) -> bool:
        Number.compared += 1
        return float(self) >= other

    __hash__ = float.__hash__


class Bench(Counting):
    """An in-memory queue whose steps are counted."""

    def __init__(self) -> None:
        self.now = Number(1_700_000_000.0)
        self.queue: InMemoryTransport = InMemoryTransport(clock=lambda: self.now)

    def counted(self, call: Callable[[], T]) -> tuple[T, int]:
        """Make a call, and count its steps."""
        steps = 0

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal steps
            if frame.f_code.co_filename == __file__:
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            steps += event == "opcode"
            return trace

        compared = Number.compared
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            answer = call()
        finally:
            sys.settrace(before)
        return answer, steps + Number.compared - compared


def _no_worse_than_log(less: dict[str, int], more: dict[str, int], growth: float) -> None:
    """``growth`` is by how many levels the heap is higher; a level costs a few comparisons and a call each."""
    grown = {name: (less[name], more[name]) for name in more if more[name] > less[name] + 40 * growth}
    assert not grown, grown


def _rounds(less: int, more: int, measure: Callable[[Bench, int], dict[str, int]]) -> None:
    _no_worse_than_log(measure(Bench(), less), measure(Bench(), more), log2(more / less))


@pytest.mark.parametrize("crowd", [fresh, leased, parked_and_held], ids=lambda crowd: crowd.__name__)
def test_the_work_grows_as_the_logarithm_of_the_groups(crowd: Callable[[Counting, int], None]) -> None:
    """Promise 10, with 100 groups and with 20,000."""
    _rounds(FEW, MANY, a_round_among(crowd))


def test_the_work_does_not_grow_with_the_backlog() -> None:
    """Promise 10, with 10 messages in every group that is touched and with 10,000."""
    assert a_round_on_a_backlog(Bench(), DEEP) == a_round_on_a_backlog(Bench(), SHALLOW)


@pytest.mark.parametrize("floor", [1, 2, 3, 4])
def test_a_floor_does_not_pass_over_what_lies_below(floor: int) -> None:
    """Promises 8 and 10: one group at the floor behind 100 lower ones, and behind 20,000."""
    _rounds(FEW, MANY, claims_at(floor))


@pytest.mark.parametrize("visibility", [0.5, 30.0], ids=["that run out", "that are settled"])
def test_on_the_average_too_when_the_line_is_tidied_up_now_and_then(visibility: float) -> None:
    """Promise 10, over as many turns as it takes for everything that is put off to come due."""

    def average(bench: Bench, groups: int) -> dict[str, int]:
        bench.queue.publish_many(Message(f"g{number % groups}", Event("k")) for number in range(4 * groups))

        def turns() -> None:
            for _ in range(3 * groups):
                lease = bench.queue.claim("w", visibility)
                bench.now = bench.now + 1.0
                if lease is not None and visibility > 1.0:
                    bench.queue.extend(lease, 2 * visibility)
                    bench.queue.ack(lease)

        return {"a turn": bench.steps(turns) // (3 * groups)}

    _rounds(64, 1_024, average)


def test_nothing_remains_of_groups_that_come_and_go() -> None:
    """Promise 10: the line's memory is bounded by the groups that exist."""
    bench = Bench()
    for number in range(5_000):
        bench.queue.publish(f"g{number}", Event("k"))
        assert bench.queue.ack(bench.claim())
    shared = bench.queue._shared
    assert not shared._groups
    assert sum(len(line._heap) for line in shared._lines) < 100


def test_the_count_of_steps_finds_a_scan() -> None:
    """What is measured grows where the work does."""

    def measure(bench: Bench, groups: int) -> dict[str, int]:
        bench.fill(groups)
        return {"stats": bench.steps(bench.queue.stats), "groups": bench.steps(bench.queue.groups)}

    with pytest.raises(AssertionError, match="stats"):
        _rounds(FEW, MANY, measure)
