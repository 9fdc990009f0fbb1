"""From publish to handled: what the worker runtimes make of a queue, harel's beside its peers'.

Every round checks that each message was handled once, its group's in order and one at a time. Our own must; a peer that
does not stays in the tables, marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import Any

from benchmarks.contenders import CONTENDERS, OURS, Contender
from benchmarks.crews import WORKERS, Broken, Crew, Load, Work, crew_of
from benchmarks.folders import Folders
from benchmarks.limits import Limit, limits_of
from benchmarks.peers import PEERS
from benchmarks.results import Cell, Results
from benchmarks.servers import Server

__all__ = [
    "FEW_GROUPS",
    "FIGURE",
    "MANY_WORKERS",
    "ONE_WORKER",
    "PAUSES",
    "PUBLISHED",
    "SCENES",
    "SINGLES",
    "Handled",
    "Handling",
    "Messages",
    "Steady",
    "measure_workers",
    "profile_worker",
    "runtimes_of",
    "scenes_of",
    "try_concurrencies",
]

Say = Callable[[str], None]

FIGURE = "handled"
PUBLISHED = "published in batches"
ONE_WORKER = "one worker"
MANY_WORKERS = "four workers"
SINGLES = "groups of one"
FEW_GROUPS = "few groups"
PAUSES = "handlers that take time"
SCENES = (ONE_WORKER, MANY_WORKERS, SINGLES, FEW_GROUPS, PAUSES)
TROUBLE = (RuntimeError, OSError, LookupError, ValueError)
"""What a peer's failure raises here: it is told, and the run goes on without that figure."""
TRIED = (16, 64, 256, 1_000)


@dataclass(frozen=True)
class Messages:
    """What is published."""

    many: Load
    few: Load
    singles: Load
    paused: Load
    """For handlers that take time."""
    delays: int
    """How many messages are published one by one, in every round."""
    pause_s: float
    """And how long the pauses between them are, in the mean."""
    handler_ms: float
    """How long the handlers take that take time."""
    steady_s: float
    """For how long messages flow at half of what a worker can do."""
    peer_s: float
    """How long a round of a peer is to take at most; a peer that is slower has fewer messages."""

    def load(self, scene: str) -> Load:
        return {FEW_GROUPS: self.few, SINGLES: self.singles, PAUSES: self.paused}.get(scene, self.many)

    def cell(self, contender: str, backend: str, scene: str, figure: str = FIGURE) -> Cell:
        """Return where rates are found."""
        return Cell(contender, backend, scene, figure, self.load(scene).groups)


@dataclass(frozen=True)
class Handling:
    """How much of this is measured."""

    rounds: int
    messages: Messages


@dataclass
class Steady:
    """What a worker made of a flow of half of what it can do, round by round."""

    wanted: int
    """Messages a second."""
    offered: list[float] = field(default_factory=list)
    """Messages a second that were published indeed."""
    median_s: list[float] = field(default_factory=list)
    tail_s: list[float] = field(default_factory=list)
    """Which one in a hundred exceeds."""
    messages: int = 0


@dataclass
class Handled:
    """What was found besides the rates, which are among the others'."""

    handling: Handling
    gaps_s: dict[Cell, list[float]] = field(default_factory=dict)
    """Round by round, the longest time between two messages that were handled one after the other."""
    delays_s: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """By contender and backend: from when a publish returned to when the handler began."""
    loads: dict[Cell, Load] = field(default_factory=dict)
    """What a round had."""
    broken: dict[Cell, Broken] = field(default_factory=dict)
    failed: dict[Cell, str] = field(default_factory=dict)
    """What could not be done, and what was said of it."""
    steady: dict[tuple[str, str], Steady] = field(default_factory=dict)


def runtimes_of(backend: str) -> list[Contender]:
    """Return the contenders of a backend that have a worker."""
    return [each for each in (*CONTENDERS, *PEERS) if each.backend == backend and each.role != "limit"]


def scenes_of(backend: str) -> tuple[str, ...]:
    """Return what can be done on a backend: memory is a single process's."""
    return tuple(scene for scene in SCENES if backend != "memory" or scene != MANY_WORKERS)


def measure_workers(
    backend: str,
    handled: Handled,
    folders: Folders,
    results: Results,
    say: Say,
    server: Server | None = None,
) -> None:
    """Measure the worker runtimes on a backend: a round of every one, then the next round of every one."""
    with ExitStack() as stack:
        crews = list(_crews(backend, handled, folders, results, say, server, stack))
        limits = list(limits_of(backend, folders, server, stack, say))
        for crew in crews:
            say(f"{backend}: {crew.contender.name} warms up")
            _warm_up(crew, handled)
        for number in range(handled.handling.rounds):
            say(f"{backend}, from publish to handled: round {number + 1} of {handled.handling.rounds}")
            for scene in scenes_of(backend):
                _take_rounds(backend, scene, crews, limits, handled, results)
            for crew in crews:
                _take_delays(crew, handled)
        for number in range(handled.handling.rounds if backend != "memory" else 0):
            say(f"{backend}, at half of the capacity: round {number + 1} of {handled.handling.rounds}")
            for crew in crews:
                _take_flow(crew, handled, results)
        for crew in crews:
            if crew.is_ours:
                say(f"{backend}: a profile of the worker")
                _look_closer(crew, handled.handling.messages, results, has_server=server is not None)


def profile_worker(
    contender: Contender, load: Load, folders: Folders, say: Say, server: Server | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Handle a load once, and then once under cProfile; return by figure what had the time."""
    with crew_of(contender, load.groups, folders, server, say) as crew:
        crew.drain(load.sizes)
        found = crew.drain(load.sizes, profile=True).profile
        assert found is not None
        return {FIGURE: found}


def try_concurrencies(
    backend: str, handling: Handling, folders: Folders, results: Results, say: Say, server: Server | None = None
) -> Iterator[tuple[str, str, int, float]]:
    """Handle each load once at several concurrencies; yield contender, load, concurrency and messages a second."""
    handled = Handled(handling)
    for contender in runtimes_of(backend):
        if contender.unable or contender.key in results.missing:
            continue
        with crew_of(contender, handling.messages.singles.groups, folders, server, say) as crew:
            _warm_up(crew, handled)
            for scene in (ONE_WORKER, FEW_GROUPS):
                cell = handling.messages.cell(contender.name, backend, scene)
                for concurrency in TRIED:
                    crew.concurrency = concurrency
                    yield contender.name, scene, concurrency, crew.drain(handled.loads[cell].sizes).rate


def _crews(
    backend: str,
    handled: Handled,
    folders: Folders,
    results: Results,
    say: Say,
    server: Server | None,
    stack: ExitStack,
) -> Iterator[Crew]:
    messages = handled.handling.messages
    groups = max(messages.load(scene).groups for scene in SCENES)
    for contender in runtimes_of(backend):
        if contender.unable or contender.key in results.missing:
            continue
        try:
            yield stack.enter_context(crew_of(contender, groups, folders, server, say))
        except TROUBLE as error:
            if contender.role == "ours":
                raise
            results.missing[contender.key] = _last_line(error)


def _warm_up(crew: Crew, handled: Handled) -> None:
    """Find how many messages a round has; every process handles some."""
    messages = handled.handling.messages
    for scene in scenes_of(crew.contender.backend):
        cell = messages.cell(crew.contender.name, crew.contender.backend, scene)
        full = messages.load(scene)
        if crew.is_ours:
            handled.loads[cell] = full
            continue
        try:
            handled.loads[cell] = _fitting(crew, scene, full, messages)
        except TROUBLE as error:
            _give_up(crew, cell, handled, error)
    if crew.is_ours:
        crew.drain(Load(messages.few.groups, 2 * crew.size).sizes, crew.size)


def _fitting(crew: Crew, scene: str, full: Load, messages: Messages) -> Load:
    """Find the largest part of a load that a peer handles in the time that it has."""
    load = _part(crew, scene, full, 1)
    while True:
        found = _drain(crew, scene, load, messages)
        # The first messages are the slowest, so a peer that could nearly do them all has them all.
        fitting = _part(crew, scene, full, int(2 * found.rate * messages.peer_s))
        if fitting.messages == full.messages:
            return fitting
        if found.seconds > messages.peer_s / 3 or fitting.messages <= load.messages:
            return _part(crew, scene, full, int(found.rate * messages.peer_s))
        load = _part(crew, scene, full, min(fitting.messages, 5 * load.messages))


def _part(crew: Crew, scene: str, full: Load, messages: int) -> Load:
    """Return a load of about so many messages: less to a group, or where a group has one, fewer groups."""
    groups = min(full.groups, crew.most_groups)
    if scene == SINGLES:
        return Load(max(min(groups, messages), min(groups, 100)), 1)
    return Load(groups, max(1, min(full.each, messages // groups)))


def _take_rounds(
    backend: str, scene: str, crews: Sequence[Crew], limits: Sequence[Limit], handled: Handled, results: Results
) -> None:
    """Take a round of every one that there is."""
    messages = handled.handling.messages
    for crew in crews:
        _take_round(crew, scene, handled, results)
    for limit in limits:
        if scene in (MANY_WORKERS if limit.is_server_alone else ONE_WORKER, SINGLES):
            cell = messages.cell(limit.name, backend, scene)
            results.rates.setdefault(cell, []).append(limit.drain(messages.load(scene)))


def _take_round(crew: Crew, scene: str, handled: Handled, results: Results) -> None:
    messages = handled.handling.messages
    name, backend = crew.contender.name, crew.contender.backend
    cell = messages.cell(name, backend, scene)
    if cell in handled.failed:
        return
    try:
        found = _drain(crew, scene, handled.loads[cell], messages)
    except TROUBLE as error:
        _give_up(crew, cell, handled, error)
        return
    results.rates.setdefault(cell, []).append(found.rate)
    results.rates.setdefault(replace(cell, figure=PUBLISHED), []).append(found.published_rate)
    results.client_s.setdefault(cell, []).append(found.client_s / found.messages)
    results.counts[cell] = found.messages
    handled.gaps_s.setdefault(cell, []).append(found.gap_s)
    handled.broken[cell] = handled.broken.get(cell, Broken()) + found.broken


def _drain(crew: Crew, scene: str, load: Load, messages: Messages) -> Work:
    workers = WORKERS if scene in (MANY_WORKERS, PAUSES) else 1
    return crew.drain(load.sizes, workers, pause_ms=messages.handler_ms if scene == PAUSES else 0.0)


def _take_delays(crew: Crew, handled: Handled) -> None:
    messages, key = handled.handling.messages, (crew.contender.name, crew.contender.backend)
    cell = messages.cell(*key, "delays")
    if cell in handled.failed:
        return
    try:
        found = crew.trickle(messages.few.groups, messages.delays, messages.pause_s)
    except TROUBLE as error:
        _give_up(crew, cell, handled, error)
        return
    handled.delays_s.setdefault(key, []).extend(found.delays_s)


def _take_flow(crew: Crew, handled: Handled, results: Results) -> None:
    """Let messages flow at half of what a worker was found to do with a backlog."""
    messages, key = handled.handling.messages, (crew.contender.name, crew.contender.backend)
    cell = messages.cell(*key, "steady")
    rates = results.rates.get(messages.cell(*key, ONE_WORKER))
    if cell in handled.failed or not rates:
        return
    steady = handled.steady.setdefault(key, Steady(_half_of(median(rates))))
    groups = min(messages.many.groups, crew.most_groups)
    try:
        found = crew.flow(groups, steady.wanted, messages.steady_s)
    except TROUBLE as error:
        _give_up(crew, cell, handled, error)
        return
    steady.offered.append(found.offered)
    steady.median_s.append(median(found.delays_s))
    steady.tail_s.append(_tail(found.delays_s))
    steady.messages = len(found.delays_s)
    handled.broken[cell] = handled.broken.get(cell, Broken()) + found.broken


def _tail(delays_s: Sequence[float]) -> float:
    """Return what one in a hundred exceeds; where there is only one, that."""
    return quantiles(delays_s, n=100, method="inclusive")[-1] if len(delays_s) > 1 else max(delays_s)


def _half_of(rate: float) -> int:
    """Return about half, such that a tick of 10 ms has a whole number of messages where there are many."""
    half = rate / 2
    return round(half / 100) * 100 if half >= 500 else max(10, round(half / 10) * 10)


def _give_up(crew: Crew, cell: Cell, handled: Handled, error: Exception) -> None:
    """Write down what a peer could not do, and give it new processes for the rest; our own must do it."""
    if crew.is_ours:
        raise error
    handled.failed[cell] = _last_line(error)
    crew.abandon()
    with suppress(*TROUBLE):  # then it can do none of the rest either
        crew.open()


def _look_closer(crew: Crew, messages: Messages, results: Results, *, has_server: bool) -> None:
    """See where the time goes with one worker."""
    cell = messages.cell(OURS, crew.contender.backend, ONE_WORKER)
    if has_server:
        found = crew.drain(messages.many.sizes)
        results.server_s[cell] = found.server_s / found.messages
    profile = crew.drain(messages.many.sizes, profile=True).profile
    assert profile is not None
    results.profiles[crew.contender.backend, ONE_WORKER] = {FIGURE: profile}


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
