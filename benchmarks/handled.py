"""From publish to handled: what the worker runtimes make of a queue. Every round checks that groups kept order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, OURS, PEER, Contender
from benchmarks.folders import Folders
from benchmarks.handler import SLOT_BYTES
from benchmarks.processes import Process, worker
from benchmarks.results import Cell, Results
from benchmarks.servers import Server

__all__ = [
    "CONCURRENCY",
    "FEW_GROUPS",
    "FIGURE",
    "MANY_WORKERS",
    "ONE_WORKER",
    "Handled",
    "Handling",
    "Load",
    "Messages",
    "check_order",
    "measure_workers",
    "profile_worker",
    "try_concurrencies",
]

Say = Callable[[str], None]
Message = tuple[float, int, int]
"""When, of which group, and its number in the group."""

FIGURE = "handled"
ONE_WORKER = "one worker"
MANY_WORKERS = "four workers"
FEW_GROUPS = "few groups"
WORKERS = 4

CONCURRENCY = {
    OURS: {"memory": 256, "sqlite": 256, "postgres": 256, "redis": 256},
    PEER: {"memory": 64, "sqlite": 16, "postgres": 16, "redis": 64},
}
"""How many groups at once: by contender and backend what ``python -m benchmarks workers --trial`` found best."""
TRIED = (16, 64, 256, 1_000)


@dataclass(frozen=True)
class Load:
    """A backlog."""

    groups: int
    each: int
    """Messages in each group."""

    @property
    def messages(self) -> int:
        return self.groups * self.each


@dataclass(frozen=True)
class Messages:
    """What is published."""

    many: Load
    few: Load
    few_for_peer: Load
    many_for_peer: Mapping[str, int]
    """By backend, how many messages each of the many groups has for the peer: it would take minutes for all."""
    delays: int
    """How many messages are published one by one, in every round."""
    pause_s: float
    """And how long the pauses between them are, in the mean."""

    def load(self, contender: Contender, scene: str) -> Load:
        ours = contender.role == "ours"
        if scene == FEW_GROUPS:
            return self.few if ours else self.few_for_peer
        return self.many if ours else Load(self.many.groups, self.many_for_peer[contender.backend])

    def cell(self, contender: str, backend: str, scene: str) -> Cell:
        """Return where rates are found."""
        groups = self.few.groups if scene == FEW_GROUPS else self.many.groups
        return Cell(contender, backend, scene, FIGURE, groups)


@dataclass(frozen=True)
class Handling:
    """How much of this is measured."""

    rounds: int
    messages: Messages


@dataclass
class Handled:
    """What was found besides the rates, which are among the others'."""

    handling: Handling
    gaps_s: dict[Cell, list[float]] = field(default_factory=dict)
    """Round by round, the longest time between two messages that were handled one after the other."""
    delays_s: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """By contender and backend: from when a publish returned to when the handler began."""


class OutOfOrder(Exception):
    """A group's messages were not handled each once and in order."""


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
        crews = [
            stack.enter_context(_crew(contender, handled.handling.messages, folders, server, say))
            for contender in _contenders(backend, results)
        ]
        for number in range(-1, handled.handling.rounds):
            what = "warm-up" if number < 0 else f"round {number + 1} of {handled.handling.rounds}"
            say(f"{backend}, from publish to handled: {what}")
            for crew in crews:
                if number < 0:
                    crew.warm_up()
                else:
                    crew.take_round(handled, results)
        for crew in crews:
            if crew.contender.role == "ours":
                say(f"{backend}: a profile of the worker")
                crew.look_closer(results)


def profile_worker(
    contender: Contender, load: Load, handling: Handling, folders: Folders, say: Say, server: Server | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Handle a load once, and then once under cProfile; return by figure what had the time."""
    messages = replace(handling.messages, many=load)
    with _crew(contender, messages, folders, server, say) as crew:
        crew.work(ONE_WORKER)
        found = crew.work(ONE_WORKER, profile=True).profile
        assert found is not None
        return {FIGURE: found}


def try_concurrencies(
    backend: str, handling: Handling, folders: Folders, results: Results, say: Say, server: Server | None = None
) -> Iterator[tuple[str, str, int, float]]:
    """Handle each load once at several concurrencies; yield contender, load, concurrency and messages a second."""
    for contender in _contenders(backend, results):
        with _crew(contender, handling.messages, folders, server, say) as crew:
            crew.warm_up()
            for scene in (ONE_WORKER, FEW_GROUPS):
                for concurrency in TRIED:
                    crew.concurrency = concurrency
                    yield contender.name, scene, concurrency, crew.work(scene).rate


def _contenders(backend: str, results: Results) -> list[Contender]:
    return [
        each
        for each in CONTENDERS
        if each.backend == backend and each.role != "limit" and each.key not in results.missing
    ]


@dataclass(frozen=True)
class _Work:
    """What a load took."""

    messages: int
    seconds: float
    gap_s: float
    client_s: float
    server_s: float = 0.0
    profile: list[dict[str, Any]] | None = None

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


class _Crew:
    """The processes of one contender on one queue; one of them works, or all do."""

    def __init__(
        self,
        contender: Contender,
        messages: Messages,
        processes: Sequence[Process],
        place: str,
        tally: Path,
        server: Server | None,
    ) -> None:
        self.contender = contender
        self.concurrency = CONCURRENCY[contender.name][contender.backend]
        self._messages = messages
        self._processes = processes
        self._place = place
        self._tally = tally
        self._server = server

    def warm_up(self) -> None:
        for process in self._processes:
            process.ask("backlog", groups=self._messages.few.groups, each=2)
            self._handle([process], Load(self._messages.few.groups, 2))

    def take_round(self, handled: Handled, results: Results) -> None:
        for scene in (ONE_WORKER, MANY_WORKERS, FEW_GROUPS):
            if scene == MANY_WORKERS and len(self._processes) == 1:
                continue
            found = self.work(scene)
            cell = self._messages.cell(self.contender.name, self.contender.backend, scene)
            results.rates.setdefault(cell, []).append(found.rate)
            results.client_s.setdefault(cell, []).append(found.client_s / found.messages)
            results.counts[cell] = found.messages
            handled.gaps_s.setdefault(cell, []).append(found.gap_s)
        key = (self.contender.name, self.contender.backend)
        handled.delays_s.setdefault(key, []).extend(self._delays())

    def work(self, scene: str, *, profile: bool = False) -> _Work:
        """Publish a load, and handle it."""
        load = self._messages.load(self.contender, scene)
        self._processes[0].ask("backlog", groups=load.groups, each=load.each)
        before_s = 0.0
        if self._server is not None:
            self._server.settle(self._place)
            before_s = self._server.busy_s(self._place)
        working = self._processes if scene == MANY_WORKERS else self._processes[:1]
        found = self._handle(working, load, profile=profile)
        if self._server is not None:
            found = replace(found, server_s=self._server.busy_s(self._place) - before_s)
        left = self._processes[0].ask("waiting")["messages"]
        if left:
            raise OutOfOrder(f"{self.contender.key}: {left} messages are left of those that were handled.")
        return found

    def look_closer(self, results: Results) -> None:
        """See where the time goes with one worker."""
        backend = self.contender.backend
        cell = self._messages.cell(self.contender.name, backend, ONE_WORKER)
        if self._server is not None:
            found = self.work(ONE_WORKER)
            results.server_s[cell] = found.server_s / found.messages
        profile = self.work(ONE_WORKER, profile=True).profile
        assert profile is not None
        results.profiles[backend, ONE_WORKER] = {FIGURE: profile}

    def _handle(self, processes: Sequence[Process], load: Load, *, profile: bool = False) -> _Work:
        self._new_tally()
        common = {"count": load.messages, "tally": self._tally, "concurrency": self.concurrency}
        for slot, process in enumerate(processes):
            process.tell("handle", slot=slot, profile=profile, **common)
        answers = [process.answer() for process in processes]
        seen = sorted(message for answer in answers for message in _messages(answer["seen"]))
        check_order(self.contender.key, seen, load)
        began = min(answer["began"] for answer in answers)
        return _Work(
            messages=len(seen),
            seconds=seen[-1][0] - began,
            gap_s=max(later[0] - earlier[0] for earlier, later in pairwise(seen)),
            client_s=sum(answer["client_s"] for answer in answers),
            profile=answers[0].get("profile"),
        )

    def _delays(self) -> list[float]:
        groups, count = self._messages.few.groups, self._messages.delays
        self._new_tally()
        how = {"groups": groups, "count": count, "pause_s": self._messages.pause_s}
        work = {"tally": self._tally, "concurrency": self.concurrency}
        if len(self._processes) == 1:
            both = self._processes[0].ask("handle_trickle", **how, **work)
            handled, published = both["handled"], both["published"]
        else:
            worker_, publisher = self._processes[:2]
            worker_.tell("handle", count=count, slot=0, **work)
            published = publisher.ask("trickle", **how)
            handled = worker_.answer()
        seen = sorted(_messages(handled["seen"]))
        sent = _messages(published["published"])
        check_order(self.contender.key, seen, Counter(group for _, group, _ in sent))
        began = {(group, number): when for when, group, number in seen}
        # A handler may begin while the publisher's process is still to learn that its publish is done.
        return [max(0.0, began[group, number] - when) for when, group, number in sent]

    def _new_tally(self) -> None:
        self._tally.write_bytes(bytes(SLOT_BYTES * len(self._processes)))


@contextmanager
def _crew(
    contender: Contender, messages: Messages, folders: Folders, server: Server | None, say: Say
) -> Iterator[_Crew]:
    say(f"{contender.backend}: {contender.name} sets up its workers")
    if server is not None:
        place = server.place()
    else:
        folder = folders.data / f"{contender.key}-workers"
        folder.mkdir(exist_ok=True)
        place = str(folder)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(worker(contender, folders.cache, module="benchmarks.handler"))
            for _ in range(1 if contender.backend == "memory" else WORKERS)
        ]
        for process in processes:
            process.ask("open", place=place)
        processes[0].ask("prepare", groups=max(messages.many.groups, messages.few.groups))
        yield _Crew(contender, messages, processes, place, folders.scratch / f"{contender.key}.tally", server)
        for process in processes:
            process.ask("close")


def check_order(key: str, seen: Sequence[Message], load: Load | Mapping[int, int]) -> None:
    """See that every message was handled once, and those of a group in order.

    Parameters
    ----------
    key : str
        Whose they are.
    seen : sequence of (float, int, int)
        Ordered by time.
    load : Load or mapping
        How many messages there were in each group.

    Raises
    ------
    OutOfOrder
    """
    next_of: Counter[int] = Counter()
    for _, group, number in seen:
        if number != next_of[group]:
            raise OutOfOrder(f"{key}: of group {group} message {number} came where {next_of[group]} was to come.")
        next_of[group] += 1
    wanted = dict.fromkeys(range(load.groups), load.each) if isinstance(load, Load) else load
    for group, each in wanted.items():
        if next_of[group] != each:
            raise OutOfOrder(f"{key}: of group {group} {next_of[group]} of {each} messages were handled.")
    if len(next_of) != len(wanted):
        raise OutOfOrder(f"{key}: messages came of {len(next_of)} groups; there are {len(wanted)}.")


def _messages(listed: Sequence[Sequence[Any]]) -> list[Message]:
    return [(when, group, number) for when, group, number in listed]
