"""What is measured, written once against the contract.

A round takes messages from the queue and puts as many back, to the very groups that they came from: each half is
timed, and the queue is after the round what it was before. So every round meets the same number of groups.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Protocol

from benchmarks.contenders import Queue

__all__ = ["BATCH", "FIGURES", "WORKLOADS", "Workload", "fill"]

BATCH = 50
FIGURES = ("publish", "claim+ack")
WORKER = "bench-worker"
VISIBILITY_S = 3600.0


@dataclass
class Timed:
    """How long a section took, in seconds of the queue's own clock."""

    seconds: float = 0.0


@contextmanager
def timed(queue: Queue) -> Iterator[Timed]:
    """Time a section, with the collector of cycles off and nothing left over for it."""
    gc.collect()
    gc.disable()
    section = Timed()
    if queue.profiler is not None:
        queue.profiler.enable()
    began = queue.clock()
    try:
        yield section
    finally:
        section.seconds = queue.clock() - began
        if queue.profiler is not None:
            queue.profiler.disable()
        gc.enable()


class Workload(Protocol):
    name: str
    size: int
    """How many messages go into one operation."""

    def take(self, queue: Queue, count: int) -> tuple[float, list[str]]:
        """Claim, read and settle this many messages; return the seconds and the groups that they were of."""
        ...

    def give(self, queue: Queue, messages: Sequence[tuple[str, Any, int]]) -> float:
        """Publish these; return the seconds."""
        ...


class OneByOne(Workload):
    name = "one by one"
    size = 1

    def take(self, queue: Queue, count: int) -> tuple[float, list[str]]:
        groups = []
        claim, ack = queue.claim, queue.ack
        with timed(queue) as section:
            for _ in range(count):
                lease = claim(WORKER, VISIBILITY_S)
                lease.event  # noqa: B018  # a worker reads it, and here that may be what decodes it
                groups.append(lease.group_id)
                if ack(lease) is False:
                    raise RuntimeError(f"A lease of {lease.group_id} was lost.")
        return section.seconds, groups

    def give(self, queue: Queue, messages: Sequence[tuple[str, Any, int]]) -> float:
        publish = queue.publish
        with timed(queue) as section:
            for group_id, event, _ in messages:
                publish(group_id, event)
        return section.seconds


class InBatches(Workload):
    name = f"batches of {BATCH}"
    size = BATCH

    def take(self, queue: Queue, count: int) -> tuple[float, list[str]]:
        groups = []
        with timed(queue) as section:
            for _ in range(count // BATCH):
                leases = queue.claim_many(WORKER, VISIBILITY_S, BATCH)
                for lease in leases:
                    lease.event  # noqa: B018
                    groups.append(lease.group_id)
                if not all(queue.ack_many(leases)):
                    raise RuntimeError("A lease was lost.")
        if len(groups) != count:
            raise RuntimeError(f"{len(groups)} of {count} messages could be claimed.")
        return section.seconds, groups

    def give(self, queue: Queue, messages: Sequence[tuple[str, Any, int]]) -> float:
        batches = [messages[start : start + BATCH] for start in range(0, len(messages), BATCH)]
        with timed(queue) as section:
            for batch in batches:
                queue.publish_many(batch)
        return section.seconds


WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in (OneByOne(), InBatches())}


def messages_for(queue: Queue, groups: Sequence[str], count: int) -> list[tuple[str, Any, int]]:
    """Make messages for these groups, over and over until there are enough."""
    return [(group_id, queue.event(number), 0) for number, group_id in enumerate(islice(cycle(groups), count))]


def fill(queue: Queue, groups: int, messages: int, *, batches: bool) -> None:
    """Publish so many messages, one to every group and then the next to every group."""
    at_once = 5_000
    numbers = iter(range(messages))
    while chunk := list(islice(numbers, at_once)):
        batch = [(f"order-{number % groups:07}", queue.event(number), 0) for number in chunk]
        if batches:
            queue.publish_many(batch)
        else:
            for group_id, event, _ in batch:
                queue.publish(group_id, event)
