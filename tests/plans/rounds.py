"""What is counted alike on every queue whose work can be counted: crowds of groups, and a round of operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from harel import Event, Message, Transport
from harel.engine.queue.contract import Lease

T = TypeVar("T")

FEW, MANY = 100, 20_000
SHALLOW, DEEP = 10, 10_000


class Counting(ABC):
    """A queue whose steps are counted."""

    queue: Transport

    @abstractmethod
    def counted(self, call: Callable[[], T]) -> tuple[T, int]:
        """Make a call, and count its steps."""

    def steps(self, call: Callable[[], object]) -> int:
        return self.counted(call)[1]

    def fill(self, groups: int, priority: int = 0, prefix: str = "filler") -> None:
        self.queue.publish_many(Message(f"{prefix}{number}", Event("k"), priority) for number in range(groups))

    def claim(self, floor: int = 0) -> Lease:
        lease = self.queue.claim("w", 30.0, floor)
        assert lease is not None
        return lease

    def ack_next(self) -> None:
        assert self.queue.ack(self.claim())


def fresh(bench: Counting, groups: int) -> None:
    """Groups that wait, all of them claimable."""
    bench.fill(groups)


def leased(bench: Counting, groups: int) -> None:
    """Groups that are leased, and a few that are not."""
    bench.fill(groups)
    bench.queue.claim_many("w", 300.0, groups)
    bench.fill(5, prefix="free")


def parked_and_held(bench: Counting, groups: int) -> None:
    """Groups that nobody can claim, and a few that somebody can."""
    bench.fill(groups)
    for number, lease in enumerate(bench.queue.claim_many("w", 30.0, groups)):
        if number % 2:
            bench.queue.nack(lease, 1_000.0)
        else:
            bench.queue.hold(lease.group_id)
    bench.fill(5, prefix="free")


SETTLES: dict[str, Callable[[Counting, Lease], object]] = {
    "ack": lambda bench, lease: bench.queue.ack(lease),
    "nack": lambda bench, lease: bench.queue.nack(lease, 5.0),
    "extend": lambda bench, lease: bench.queue.extend(lease, 5.0),
    "reject": lambda bench, lease: bench.queue.reject(lease, "why"),
}


def a_round(bench: Counting, group_id: str) -> dict[str, int]:
    """Count the steps of every operation whose work is bounded; ``group_id`` gets one message more than it had."""
    steps = {
        "publish": bench.steps(lambda: bench.queue.publish(group_id, Event("k"))),
        "publish to a new group": bench.steps(lambda: bench.queue.publish("new", Event("k"))),
    }
    for name, settle in SETTLES.items():
        lease, steps[f"claim before {name}"] = bench.counted(bench.claim)
        steps[name] = bench.steps(partial(settle, bench, lease))
    steps["wait"] = bench.steps(lambda: bench.queue.wait(0.0))
    steps["peek"] = bench.steps(lambda: bench.queue.peek(group_id, 1))
    steps["hold"] = bench.steps(lambda: bench.queue.hold(group_id))
    steps["release"] = bench.steps(lambda: bench.queue.release(group_id))
    return steps


def a_round_among(crowd: Callable[[Counting, int], None]) -> Callable[[Counting, int], dict[str, int]]:
    """Return what counts a round beside a crowd of so many groups."""

    def measure(bench: Counting, groups: int) -> dict[str, int]:
        crowd(bench, groups)
        return a_round(bench, "filler7")

    return measure


def a_round_on_a_backlog(bench: Counting, messages: int) -> dict[str, int]:
    """Count a round in which every group that is touched has so many messages."""
    for group_id in ("a", "b", "c", "d"):
        bench.queue.publish_many(Message(group_id, Event("k")) for _ in range(messages))
    return a_round(bench, "a")


def claims_at(floor: int) -> Callable[[Counting, int], dict[str, int]]:
    """Return what counts a claim that finds a group at the floor behind so many lower ones, and one that finds none."""

    def measure(bench: Counting, groups: int) -> dict[str, int]:
        bench.fill(groups, priority=floor - 1)
        bench.queue.publish("high", Event("k"), floor)
        lease, found = bench.counted(partial(bench.claim, floor))
        assert lease.group_id == "high"
        return {"found": found, "nothing": bench.steps(lambda: bench.queue.claim("w", 30.0, floor))}

    return measure
