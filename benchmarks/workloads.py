"""What is measured, written once against the contract.

A round takes messages from the queue and puts as many back, to the very groups that they came from: each half is
timed, and the queue is after the round what it was before. So every round meets the same number of groups.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from types import MappingProxyType
from typing import Any, Protocol

from benchmarks.contenders import Queue

__all__ = [
    "CLAIMS",
    "DEEP",
    "FLOOR",
    "LARGE_BATCHES",
    "ONE",
    "SMALL_BATCHES",
    "URGENT",
    "WITH_FLOOR",
    "WORKLOADS",
    "Timed",
    "Workload",
    "claim_times",
    "drain",
    "fill",
    "in_words",
    "messages_for",
]

BATCH = 50
LARGE_BATCH = 500
FLOOR = 3
URGENT = 100
"""How many groups have the priority that a claim with a floor looks for."""
WORKER = "bench-worker"
VISIBILITY_S = 3600.0


@dataclass
class Timed:
    """How long a section took, in seconds of the queue's own clock and of this process's processors."""

    seconds: float = 0.0
    client_s: float = 0.0


@contextmanager
def timed(queue: Queue) -> Iterator[Timed]:
    """Time a section, with the collector of cycles off and nothing left over for it."""
    gc.collect()
    gc.disable()
    section = Timed()
    if queue.profiler is not None:
        queue.profiler.enable()
    busy = time.process_time()
    began = queue.clock()
    try:
        yield section
    finally:
        section.seconds = queue.clock() - began
        section.client_s = time.process_time() - busy
        if queue.profiler is not None:
            queue.profiler.disable()
        gc.enable()


class Workload(Protocol):
    name: str
    figures: tuple[str, ...]
    """What it measures: ``claim`` or ``claim+ack`` of the messages taken, ``publish`` of those given."""
    batches: Mapping[str, int]
    """By figure, how many messages go into one operation."""

    @property
    def size(self) -> int:
        """What a round's count has to be a multiple of."""
        return max(self.batches.values())

    def take(self, queue: Queue, count: int) -> tuple[Timed, list[str]]:
        """Claim, read and settle this many messages; return the time, and the groups that they were of."""
        ...

    def give(self, queue: Queue, messages: Sequence[tuple[str, Any, int]]) -> Timed:
        """Publish these; return the time."""
        ...


class OneByOne(Workload):
    def __init__(self, name: str) -> None:
        self.name = name

    figures = ("publish", "claim+ack")
    batches = MappingProxyType({"publish": 1, "claim+ack": 1})

    def take(self, queue: Queue, count: int) -> tuple[Timed, list[str]]:
        groups = []
        claim, ack = queue.claim, queue.ack
        with timed(queue) as section:
            for _ in range(count):
                lease = claim(WORKER, VISIBILITY_S)
                lease.event  # noqa: B018  # a worker reads it, and here that may be what decodes it
                groups.append(lease.group_id)
                if ack(lease) is False:
                    raise RuntimeError(f"A lease of {lease.group_id} was lost.")
        return section, groups

    def give(self, queue: Queue, messages: Sequence[tuple[str, Any, int]]) -> Timed:
        publish = queue.publish
        with timed(queue) as section:
            for group_id, event, _ in messages:
                publish(group_id, event)
        return section


class InBatches(Workload):
    figures = ("publish", "claim+ack")

    def __init__(self, name: str, claimed: int, published: int) -> None:
        self.name = name
        self.batches = {"publish": published, "claim+ack": claimed}

    def take(self, queue: Queue, count: int) -> tuple[Timed, list[str]]:
        groups = []
        batch = self.batches["claim+ack"]
        with timed(queue) as section:
            for _ in range(count // batch):
                leases = queue.claim_many(WORKER, VISIBILITY_S, batch)
                for lease in leases:
                    lease.event  # noqa: B018
                    groups.append(lease.group_id)
                if not all(queue.ack_many(leases)):
                    raise RuntimeError("A lease was lost.")
        if len(groups) != count:
            raise RuntimeError(f"{len(groups)} of {count} messages could be claimed.")
        return section, groups

    def give(self, queue: Queue, messages: Sequence[tuple[str, Any, int]]) -> Timed:
        size = self.batches["publish"]
        batches = [messages[start : start + size] for start in range(0, len(messages), size)]
        with timed(queue) as section:
            for batch in batches:
                queue.publish_many(batch)
        return section


class Claims(Workload):
    """Times the claims alone, one by one; what else there is comes in batches, so that it is over soon."""

    figures = ("claim",)
    batches = MappingProxyType({"claim": BATCH})

    def __init__(self, name: str, floor: int) -> None:
        self.name = name
        self._floor = floor

    def take(self, queue: Queue, count: int) -> tuple[Timed, list[str]]:
        with timed(queue) as section:
            seconds, groups = claim_times(queue, count, self._floor)
        section.seconds = sum(seconds)
        return section, groups

    def give(self, queue: Queue, messages: Sequence[tuple[str, Any, int]]) -> Timed:
        with timed(queue) as section:
            queue.publish_many(messages)
        return section


def claim_times(queue: Queue, count: int, floor: int) -> tuple[list[float], list[str]]:
    """Claim one by one and settle in batches; return how long each claim took, and the groups."""
    seconds, groups = [], []
    clock, claim = queue.clock, queue.claim
    for _ in range(count // BATCH):
        leases = []
        for _ in range(BATCH):
            began = clock()
            lease = claim(WORKER, VISIBILITY_S, floor)
            seconds.append(clock() - began)
            leases.append(lease)
        groups += [lease.group_id for lease in leases]
        if not all(queue.ack_many(leases)):
            raise RuntimeError("A lease was lost.")
    return seconds, groups


def drain(queue: Queue, batch: int) -> dict[str, float]:
    """Claim and ack so many at once until there is nothing; return how many messages that were, and the seconds."""
    count = 0
    with timed(queue) as section:
        while leases := queue.claim_many(WORKER, VISIBILITY_S, batch):
            count += len(leases)
            if not all(queue.ack_many(leases)):
                raise RuntimeError("A lease was lost.")
    return {"messages": count, "seconds": section.seconds}


ONE = "one by one"
DEEP = "one by one, from groups of some depth"
SMALL_BATCHES = "small batches"
LARGE_BATCHES = "large batches"
CLAIMS = "claims"
WITH_FLOOR = f"claims with floor {FLOOR}"
WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        OneByOne(ONE),
        OneByOne(DEEP),
        InBatches(SMALL_BATCHES, BATCH, BATCH),
        InBatches(LARGE_BATCHES, BATCH, LARGE_BATCH),
        Claims(CLAIMS, 0),
        Claims(WITH_FLOOR, FLOOR),
    )
}


def in_words(workload: str, figure: str) -> str:
    """Say how many messages go into one operation."""
    size = WORKLOADS[workload].batches[figure]
    return f"in batches of {size}" if size > 1 else ONE


def messages_for(queue: Queue, groups: Sequence[str], count: int) -> list[tuple[str, Any, int]]:
    """Make messages for these groups, over and over until there are enough."""
    return [(group_id, queue.event(number), 0) for number, group_id in enumerate(islice(cycle(groups), count))]


def fill(queue: Queue, groups: int, messages: int, *, urgent: int, batches: bool) -> None:
    """Publish so many messages, one to every group and then the next to every group; then the urgent ones."""
    at_once = 5_000
    numbers = iter(range(messages))
    while chunk := list(islice(numbers, at_once)):
        _publish(queue, [(f"order-{number % groups:07}", queue.event(number), 0) for number in chunk], batches=batches)
    named = [(f"urgent-{number % URGENT:07}", queue.event(number), FLOOR) for number in range(urgent)]
    if named:
        queue.publish_many(named)


def _publish(queue: Queue, messages: Sequence[tuple[str, Any, int]], *, batches: bool) -> None:
    if batches:
        queue.publish_many(messages)
        return
    for group_id, event, _ in messages:
        queue.publish(group_id, event)
