"""A large backlog of harel's: over few groups, over many, and over groups as uneven as the flights of the demo."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from benchmarks.contenders import CONTENDERS
from benchmarks.crews import WORKERS, Crew, crew_of
from benchmarks.folders import ROOT, Folders
from benchmarks.servers import Server

__all__ = ["Backlog", "Drained", "Draining", "drain_backlogs", "even", "skewed"]

FLIGHTS = ROOT / "src" / "harel" / "cli" / "data" / "flights-2013-week1.jsonl.gz"
MANY = 100
"""Fewer groups than this are few."""
LARGEST_S = 2.0
"""How long the largest group may take where its handlers take time and go one after the other."""


@dataclass(frozen=True)
class Backlog:
    """What is drained, and how."""

    groups: int
    is_skewed: bool
    workers: int
    handler_ms: float = 0.0

    @property
    def shape(self) -> str:
        return f"{self.groups:,} groups{', skewed' if self.is_skewed else ''}"


@dataclass(frozen=True)
class Draining:
    """How much of this is measured."""

    rounds: int
    messages: int
    groups: tuple[int, ...]
    few: int
    """Messages where groups are so few that draining all would take minutes."""
    paused: int
    """Messages whose handlers take time."""
    handler_ms: float

    def backlogs(self, backend: str) -> Iterator[Backlog]:
        """Yield what is measured on a backend."""
        workers = (1,) if backend == "memory" else (1, 2, WORKERS)
        for groups in self.groups:
            for is_skewed in (False, True):
                yield from (Backlog(groups, is_skewed, count) for count in workers)
        for groups in self.groups:
            yield from (Backlog(groups, False, count, self.handler_ms) for count in workers)
            yield Backlog(groups, True, workers[-1], self.handler_ms)

    def sizes(self, backlog: Backlog) -> list[int]:
        """Return how many messages each group has."""
        shape = skewed if backlog.is_skewed else even
        messages = self.paused if backlog.handler_ms else self.messages
        if backlog.groups < MANY:
            messages = min(messages, self.few)
        sizes = shape(backlog.groups, max(messages, backlog.groups))
        # A group's handlers go one after the other, so the largest group says how long it takes at least.
        too_long = max(sizes) * backlog.handler_ms / 1e3 / LARGEST_S
        return sizes if too_long <= 1 else shape(backlog.groups, max(backlog.groups, int(sum(sizes) / too_long)))


@dataclass
class Drained:
    """What was found: messages a second, round by round."""

    draining: Draining
    rates: dict[tuple[str, Backlog], list[float]] = field(default_factory=dict)
    counts: dict[tuple[str, Backlog], tuple[int, int]] = field(default_factory=dict)
    """Messages, and how many of them the largest group has."""


def drain_backlogs(
    backend: str, drained: Drained, folders: Folders, say: Callable[[str], None], server: Server | None = None
) -> None:
    """Drain every backlog on a backend, then every one again."""
    (ours,) = (each for each in CONTENDERS if each.key == f"harel-{backend}")
    draining = drained.draining
    with crew_of(ours, max(draining.groups), folders, server, say) as crew:
        for number in range(draining.rounds):
            say(f"{backend}, a large backlog: round {number + 1} of {draining.rounds}")
            for backlog in draining.backlogs(backend):
                _take_round(crew, backend, backlog, drained)


def _take_round(crew: Crew, backend: str, backlog: Backlog, drained: Drained) -> None:
    sizes = drained.draining.sizes(backlog)
    found = crew.drain(sizes, backlog.workers, pause_ms=backlog.handler_ms)
    drained.rates.setdefault((backend, backlog), []).append(found.rate)
    drained.counts[backend, backlog] = (sum(sizes), max(sizes))


def even(groups: int, messages: int) -> list[int]:
    """Return how many messages each group has, if all have as many as can be."""
    each, more = divmod(messages, groups)
    return [each + (group < more) for group in range(groups)]


def skewed(groups: int, messages: int) -> list[int]:
    """Return how many messages each group has, if they are as uneven as the flights of a week are by aircraft.

    Each group is like the aircraft at its place in the order of how much they fly; all have one message at least.
    """
    flights = _flights()
    like = [flights[len(flights) * (2 * group + 1) // (2 * groups)] for group in range(groups)]
    scale = (messages - groups) / sum(like)
    sizes = [1 + int(each * scale) for each in like]
    for group in range(messages - sum(sizes)):  # what rounding left out
        sizes[group % groups] += 1
    return _shuffled(sizes)


def _shuffled(sizes: Sequence[int]) -> list[int]:
    """Put them in an order that has nothing to do with their sizes, and that is always the same."""
    step = next(step for step in range(len(sizes) * 5 // 8 + 1, 2 * len(sizes) + 2) if _are_coprime(step, len(sizes)))
    return [sizes[place * step % len(sizes)] for place in range(len(sizes))]


def _are_coprime(one: int, other: int) -> bool:
    while other:
        one, other = other, one % other
    return one == 1


@cache
def _flights() -> list[int]:
    """Return how many flights each aircraft had, those first that had most."""
    with gzip.open(FLIGHTS, "rt", encoding="utf-8") as lines:
        found = Counter(json.loads(line)["group_id"] for line in lines)
    return sorted(found.values(), reverse=True)
