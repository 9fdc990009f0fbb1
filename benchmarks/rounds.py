"""The rounds that are taken from the workers in turn."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.contenders import CONTENDERS, OURS, Contender
from benchmarks.drains import Draining
from benchmarks.flood import Flood
from benchmarks.folders import Folders
from benchmarks.handled import Handling
from benchmarks.processes import Process, worker
from benchmarks.results import Cell, Results
from benchmarks.servers import Server
from benchmarks.workloads import URGENT, WORKLOADS

__all__ = ["DEEP_GROUPS", "Effort", "Scene", "Snapshot", "depth", "measure", "set_up"]

Say = Callable[[str], None]

DEEP_GROUPS = 100


@dataclass(frozen=True)
class Scene:
    """What is measured together on one backend: a round of everything, then the next round of everything."""

    title: str
    sizes: tuple[int, ...]
    """Numbers of groups; where it is deep, of messages in each of ``DEEP_GROUPS``."""
    workloads: tuple[str, ...]
    seconds: float
    """How long the claims of a round are to take."""
    most: int
    """How many messages a round takes at most."""
    ours_only: bool = False
    urgent: bool = False
    """Whether there are some groups of a higher priority too."""
    deep: bool = False

    def filled(self, size: int) -> tuple[int, int]:
        """Return how many groups there are at a size, and how many messages in all."""
        return (DEEP_GROUPS, DEEP_GROUPS * size) if self.deep else (size, size * depth(size, self.most))

    @property
    def figures(self) -> tuple[str, ...]:
        return WORKLOADS[self.workloads[0]].figures


@dataclass(frozen=True)
class Snapshot:
    """For how long claims go on beside an old snapshot."""

    claims: int
    minutes: float = 0.0
    """Instead of so many claims, if not 0."""


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    scenes: dict[str, tuple[Scene, ...]]
    """By backend."""
    grown: int
    """Messages that the in-memory queue is filled with."""
    lines: tuple[int, int]
    """Lines of the small and of the large file that are published."""
    snapshot: Snapshot
    handling: Handling
    draining: Draining
    flood: Flood


@dataclass(frozen=True)
class _Seat:
    """A contender at one size."""

    contender: Contender
    size: int
    groups: int
    extra: int
    """Groups besides."""
    process: Process
    place: str


@dataclass(frozen=True)
class _Part:
    """What a seat does in every round."""

    seat: _Seat
    workload: str
    count: int


def measure(
    backend: str, effort: Effort, folders: Folders, results: Results, say: Say, server: Server | None = None
) -> None:
    """Measure all contenders of a backend.

    In a scene a comparison of contenders, of sizes or of workloads is one of rounds that lie side by side.
    """
    for scene in effort.scenes[backend]:
        with ExitStack() as stack:
            seats = list(_seats(backend, scene, folders, results, say, server, stack))
            parts = [
                _Part(seat, name, _calibrate(seat, name, scene))
                for seat in seats
                for name in scene.workloads
                if WORKLOADS[name].size == 1 or seat.contender.batches
            ]
            for number in range(effort.rounds):
                say(f"{backend}, {scene.title}: round {number + 1} of {effort.rounds}")
                if backend not in ("memory", "redis"):
                    results.sync_s.append(_sync_seconds(folders.data))
                for part in parts:
                    _take_round(part, results)
            _look_closer(parts, scene, results, server)
            for seat in seats:
                _check(seat)


def _seats(
    backend: str,
    scene: Scene,
    folders: Folders,
    results: Results,
    say: Say,
    server: Server | None,
    stack: ExitStack,
) -> Iterator[_Seat]:
    for size in scene.sizes:
        groups, messages = scene.filled(size)
        for contender in CONTENDERS:
            if contender.backend != backend or contender.key in results.missing:
                continue
            if scene.ours_only and contender.role != "ours":
                continue
            say(f"{backend}: {contender.name} gets {messages:,} messages in {groups:,} groups")
            process = stack.enter_context(worker(contender, folders.cache))
            place = set_up(
                process,
                contender,
                folders,
                server,
                name=f"{contender.key}-{scene.title}-{size}".replace(" ", "-"),
                groups=groups,
                messages=messages,
                urgent=URGENT * depth(URGENT, scene.most) if scene.urgent else 0,
            )
            yield _Seat(contender, size, groups, URGENT if scene.urgent else 0, process, place)


def set_up(
    process: Process,
    contender: Contender,
    folders: Folders,
    server: Server | None,
    *,
    name: str,
    groups: int,
    messages: int,
    urgent: int = 0,
) -> str:
    """Have a contender open a queue that is filled; return its place.

    Where it has to be durable it is filled where or when that costs nothing, closed, and opened again: a peer without
    batches would spend minutes waiting for the disk, and all of them begin with a queue that is settled.
    """
    much = {"groups": groups, "messages": messages}
    if contender.backend == "memory":
        process.ask("open", place="")
        process.ask("grow", urgent=urgent, **much)
        return ""
    if server is not None:
        place = server.place()
        with server.filling(place):
            process.ask("fill", place=place, urgent=urgent, **much)
    else:
        place = str(folders.data / name)
        scratch = folders.scratch / name
        scratch.mkdir()
        process.ask("fill", place=scratch, urgent=urgent, **much)
        shutil.copytree(scratch, place)
        shutil.rmtree(scratch)
    process.ask("open", place=place)
    return place


def depth(groups: int, most: int) -> int:
    """Return how many messages a group needs, so that none drains in a round."""
    return 1 + max(1, -(-most // groups))


def _calibrate(seat: _Seat, workload: str, scene: Scene) -> int:
    """Find how many messages make a round of about the time wanted. Also warms up."""
    chosen = WORKLOADS[workload]
    step = chosen.size
    count = 10 if step == 1 else min(2 * step, scene.most)
    while True:
        taken_s = count * seat.process.ask("round", workload=workload, count=count)[chosen.figures[-1]]["seconds"]
        fitting = int(min(scene.most, max(count, count * scene.seconds / taken_s))) // step * step
        if fitting < 3 * count:
            return max(fitting, step)
        count = min(fitting, 20 * count)


def _take_round(part: _Part, results: Results) -> None:
    halves = part.seat.process.ask("round", workload=part.workload, count=part.count)
    for figure, half in halves.items():
        cell = _cell(part, figure)
        results.rates.setdefault(cell, []).append(1 / half["seconds"])
        results.client_s.setdefault(cell, []).append(half["client_s"])
        results.counts[cell] = part.count


def _cell(part: _Part, figure: str) -> Cell:
    contender = part.seat.contender
    return Cell(contender.name, contender.backend, part.workload, figure, part.seat.size)


def _look_closer(parts: Sequence[_Part], scene: Scene, results: Results, server: Server | None) -> None:
    """See where the time of our own goes, at the largest size."""
    for part in parts:
        seat = part.seat
        if seat.contender.name != OURS or seat.size != max(scene.sizes) or scene.ours_only:
            continue
        count = scene.most // 5 // 500 * 500 or part.count
        results.profiles[seat.contender.backend, part.workload] = seat.process.ask(
            "profile", workload=part.workload, count=count
        )
        if server is not None:
            for figure, do in (("claim+ack", "take"), ("publish", "give")):
                before = server.busy_s(seat.place)
                seat.process.ask(do, workload=part.workload, count=count)
                results.server_s[_cell(part, figure)] = (server.busy_s(seat.place) - before) / count


def _check(seat: _Seat) -> None:
    """See that every round met as many groups as it says."""
    found = seat.process.ask("count_groups")["groups"]
    if found not in (None, seat.groups + seat.extra):
        raise RuntimeError(f"{seat.contender.key} ended with {found} groups, not {seat.groups}: the rates are void.")
    seat.process.ask("close")


def _sync_seconds(folder: Path, times: int = 51) -> float:
    """Return how long this disk takes to write 4 KiB where a file has room already, and sync: the middle of many.

    That is what a commit does to a write-ahead log, which is written over and over.
    """
    page = 4096
    file = os.open(folder / "sync.probe", os.O_CREAT | os.O_WRONLY)
    took = []
    try:
        os.pwrite(file, bytes(page * times), 0)
        os.fsync(file)
        for place in range(times):
            began = time.perf_counter()
            os.pwrite(file, bytes(page), page * place)
            os.fdatasync(file)
            took.append(time.perf_counter() - began)
    finally:
        os.close(file)
    return median(took)
