"""What claims cost beside an old snapshot, which keeps every dead entry of the index that they walk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from benchmarks.contenders import CONTENDERS
from benchmarks.folders import Folders
from benchmarks.processes import worker
from benchmarks.rounds import Effort, depth, set_up
from benchmarks.servers import Postgres

__all__ = ["Beside", "Times", "claim_beside_snapshot"]

GROUPS_FOR_MINUTES = 1_000
GROUPS_FOR_SECONDS = 100
"""Fewer, so that in each as many messages and versions of its row die as do in minutes where there are more."""
AT_ONCE = 1_000


@dataclass(frozen=True)
class Times:
    """What the claims of one stretch took, in seconds."""

    middle: float
    mean: float
    tail: float
    """Which one in a hundred exceeds."""

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        return cls(median(seconds), fmean(seconds), quantiles(seconds, n=100)[-1])


@dataclass(frozen=True)
class Beside:
    """A run of claims: what the first and the last stretch of it took."""

    held: bool
    """Whether there was an old snapshot beside it."""
    groups: int
    claims: int
    minutes: float
    stretch: str
    first: Times
    last: Times


def claim_beside_snapshot(
    effort: Effort, folders: Folders, server: Postgres, say: Callable[[str], None]
) -> list[Beside]:
    """Claim for long, without an old snapshot for comparison and then with one."""
    (ours,) = (each for each in CONTENDERS if each.key == "harel-postgres")
    groups = GROUPS_FOR_MINUTES if effort.snapshot.minutes else GROUPS_FOR_SECONDS
    found = []
    for held in (False, True):
        with worker(ours, folders.cache) as process:
            place = set_up(
                process, ours, folders, server, name="", groups=groups, messages=groups * depth(groups, AT_ONCE)
            )
            say(f"postgres: claims {'beside an old snapshot' if held else 'for long'}")
            with server.old_snapshot(place) if held else nullcontext():
                found.append(_claim(effort, groups, lambda: process.ask("load", count=AT_ONCE)["seconds"], held=held))
            process.ask("close")
    return found


def _claim(effort: Effort, groups: int, load: Callable[[], list[float]], *, held: bool) -> Beside:
    wanted_s = effort.snapshot.minutes * 60
    began = time.monotonic()
    seconds: list[float] = []
    first_minute = 0
    minute_before_the_end = 0
    load()  # prepares the statements
    while True:
        gone = time.monotonic() - began
        if gone < 60:
            first_minute = len(seconds) + AT_ONCE
        if gone < wanted_s - 60:
            minute_before_the_end = len(seconds)
        if gone >= wanted_s and (wanted_s or len(seconds) >= effort.snapshot.claims):
            break
        seconds += load()
    if not wanted_s:
        first_minute = len(seconds) // 10
        minute_before_the_end = len(seconds) - first_minute
    return Beside(
        held,
        groups,
        len(seconds),
        (time.monotonic() - began) / 60,
        "minute" if wanted_s else "tenth",
        Times.of(seconds[:first_minute]),
        Times.of(seconds[minute_before_the_end:]),
    )
