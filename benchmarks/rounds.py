"""Workers, and the rounds that are taken from them in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders import CONTENDERS, Contender, Environment
from benchmarks.workloads import FIGURES, WORKLOADS

__all__ = [
    "ROOT",
    "Cell",
    "Effort",
    "Folders",
    "Process",
    "Results",
    "Spread",
    "depth",
    "measure",
    "python_of",
    "worker",
]

ROOT = Path(__file__).resolve().parent.parent

Say = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    sizes: tuple[int, ...]
    """Numbers of groups."""
    rounds: int
    seconds: dict[str, float]
    """How long the claims of a round are to take, by backend."""
    most: dict[str, int]
    """How many messages a round takes at most, by backend."""
    grown: int
    """Messages that the in-memory queue is filled with."""
    lines: tuple[int, int]
    """Lines of the small and of the large file that are published."""


@dataclass(frozen=True)
class Folders:
    cache: Path
    """Keeps the peers' environments."""
    data: Path
    """On the disk that is measured."""
    scratch: Path
    """In memory, if there is such a folder."""


@dataclass(frozen=True)
class Cell:
    """What one series of rates is about."""

    contender: str
    backend: str
    workload: str
    figure: str
    groups: int


@dataclass(frozen=True)
class Spread:
    """The middle and both ends of what the rounds gave."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass
class Results:
    """Messages a second, round by round; the same place in two series is the same round."""

    rates: dict[Cell, list[float]] = field(default_factory=dict)
    counts: dict[Cell, int] = field(default_factory=dict)
    """How many messages a round has."""
    profiles: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    """By backend and workload, of our own."""
    sync_s: list[float] = field(default_factory=list)
    """Seconds to write 4 KiB and sync, probed in every round."""
    missing: dict[str, str] = field(default_factory=dict)
    """Contenders that could not be had, and why."""

    def spread(self, cell: Cell) -> Spread | None:
        rates = self.rates.get(cell)
        return Spread.of(rates) if rates else None

    def ratio(self, over: Cell, under: Cell) -> Spread | None:
        """Return how many times faster one is than another, round by round."""
        pairs = zip(self.rates.get(over, ()), self.rates.get(under, ()), strict=False)
        ratios = [one / other for one, other in pairs]
        return Spread.of(ratios) if ratios else None


class Process:
    """A worker's process."""

    def __init__(self, contender: Contender, python: str, before: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*before, python, "-m", "benchmarks.worker", contender.key],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._name = f"{contender.name} ({contender.backend})"

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have a command carried out, and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"do": do, **arguments}, default=str), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"The worker of {self._name} ended while it was to {do}.")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._name} could not {do}:\n{answer['error']}")
        return answer

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def worker(contender: Contender, cache: Path, before: Sequence[str] = ()) -> Iterator[Process]:
    """Start a contender's process in its environment."""
    with Process(contender, python_of(contender.environment, cache), before) as process:
        yield process


def python_of(environment: Environment | None, cache: Path) -> str:
    """Return the Python of an environment, which is made if it is not there yet."""
    if environment is None:
        return sys.executable
    folder = cache / f"{environment.name}-py{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    finished = folder / "finished"
    if not finished.exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "-qq", environment.requirement], check=True)
        finished.touch()
    return str(python)


@dataclass(frozen=True)
class _Seat:
    """A contender at one number of groups."""

    contender: Contender
    groups: int
    process: Process


@dataclass(frozen=True)
class _Part:
    """What a seat does in every round."""

    seat: _Seat
    workload: str
    count: int


def measure(backend: str, effort: Effort, folders: Folders, results: Results, say: Say) -> None:
    """Measure all contenders of a backend: a round of everything, then the next round of everything.

    So a comparison of contenders, of sizes or of workloads is one of rounds that lie side by side.
    """
    with ExitStack() as stack:
        seats = list(_seats(backend, effort, folders, results, say, stack))
        parts = [_Part(seat, name, _calibrate(seat, name, effort)) for seat in seats for name in _workloads(seat)]
        for number in range(effort.rounds):
            say(f"{backend}: round {number + 1} of {effort.rounds}")
            if backend != "memory":
                results.sync_s.append(_sync_seconds(folders.data))
            for part in parts:
                _take_round(part, results)
        _profile(seats, results, effort, backend)
        for seat in seats:
            _check(seat)


def _seats(
    backend: str, effort: Effort, folders: Folders, results: Results, say: Say, stack: ExitStack
) -> Iterator[_Seat]:
    for groups in effort.sizes:
        for contender in CONTENDERS:
            if contender.backend != backend or contender.key in results.missing:
                continue
            say(f"{backend}: {contender.name} gets {groups:,} groups")
            process = stack.enter_context(worker(contender, folders.cache))
            at = f"{contender.key}-{groups}"
            process.ask(
                "open",
                folder=folders.data / at,
                scratch=folders.scratch / at,
                groups=groups,
                messages=groups * depth(groups, effort.most[backend]),
            )
            yield _Seat(contender, groups, process)


def _workloads(seat: _Seat) -> list[str]:
    return [name for name, workload in WORKLOADS.items() if workload.size == 1 or seat.contender.batches]


def depth(groups: int, most: int) -> int:
    """Return how many messages a group needs, so that none drains in a round."""
    return 1 + max(1, -(-most // groups))


def _calibrate(seat: _Seat, workload: str, effort: Effort) -> int:
    """Find how many messages make a round of about the time wanted. Also warms up."""
    wanted, most = effort.seconds[seat.contender.backend], effort.most[seat.contender.backend]
    step = WORKLOADS[workload].size
    count = 10 if step == 1 else 2 * step
    while True:
        taken_s = seat.process.ask("round", workload=workload, count=count)["taken_s"]
        fitting = int(min(most, max(count, count * wanted / taken_s))) // step * step
        if fitting < 3 * count:
            return max(fitting, step)
        count = min(fitting, 20 * count)


def _take_round(part: _Part, results: Results) -> None:
    contender = part.seat.contender
    rates = part.seat.process.ask("round", workload=part.workload, count=part.count)
    for figure in FIGURES:
        cell = Cell(contender.name, contender.backend, part.workload, figure, part.seat.groups)
        results.rates.setdefault(cell, []).append(rates[figure])
        results.counts[cell] = part.count


def _profile(seats: Sequence[_Seat], results: Results, effort: Effort, backend: str) -> None:
    for seat in seats:
        if seat.contender.role == "ours" and seat.groups == max(effort.sizes):
            for name in WORKLOADS:
                count = effort.most[backend] // 5 // 50 * 50
                results.profiles[backend, name] = seat.process.ask("profile", workload=name, count=count)


def _check(seat: _Seat) -> None:
    """See that every round met as many groups as it says."""
    found = seat.process.ask("count_groups")["groups"]
    if found not in (None, seat.groups):
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
