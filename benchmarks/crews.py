"""The processes of one contender's workers on one queue, and what they are seen to do with its messages."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.contenders import OURS, PEER, Contender
from benchmarks.folders import Folders
from benchmarks.handler import SLOT_BYTES
from benchmarks.processes import Process, worker
from benchmarks.servers import Server

__all__ = ["CONCURRENCY", "WORKERS", "Broken", "Crew", "Load", "OutOfOrder", "Seen", "Work", "check_order", "crew_of"]

Seen = tuple[float, int, int, float]
"""When a handler began, of which group, its message's number there, and when it ended."""

WORKERS = 4

CONCURRENCY = {
    OURS: {"memory": 256, "sqlite": 256, "postgres": 256, "redis": 256},
    PEER: {"memory": 64, "sqlite": 16, "postgres": 16, "redis": 64},
}
"""How many groups at once: by contender and backend what ``python -m benchmarks workers --trial`` found best.

Other peers say it themselves.
"""

GROUPS_AT_MOST = {PEER: 2_000}
"""Contenders whose groups have to be made before anything is published to them, one by one."""


@dataclass(frozen=True)
class Load:
    """A backlog."""

    groups: int
    each: int
    """Messages in each group."""

    @property
    def messages(self) -> int:
        return self.groups * self.each

    @property
    def sizes(self) -> list[int]:
        return [self.each] * self.groups


@dataclass(frozen=True)
class Broken:
    """What went wrong with how many messages; false if nothing did."""

    late: int = 0
    """Came after a later one of their group."""
    twice: int = 0
    lost: int = 0
    """Never came."""
    strange: int = 0
    """Came of a group, or with a number, that there is not."""
    together: int = 0
    """Began while another of their group was being handled."""

    def __bool__(self) -> bool:
        return any((self.late, self.twice, self.lost, self.strange, self.together))

    def __add__(self, other: Broken) -> Broken:
        return Broken(*(mine + its for mine, its in zip(self.counts, other.counts, strict=True)))

    def __str__(self) -> str:
        names = ("out of order", "twice", "lost", "of no group", "beside another of their group")
        return ", ".join(f"{count:,} {name}" for count, name in zip(self.counts, names, strict=True) if count)

    @property
    def counts(self) -> tuple[int, ...]:
        return self.late, self.twice, self.lost, self.strange, self.together

    @classmethod
    def found(cls, seen: Sequence[Seen], wanted: Mapping[int, int]) -> Broken:
        """Find it in what was handled, ordered by when; ``wanted`` is how many messages each group had."""
        late = twice = strange = together = 0
        come: defaultdict[int, set[int]] = defaultdict(set)
        highest: dict[int, int] = {}
        ended: dict[int, float] = {}
        for began, group, number, until in seen:
            if number >= wanted.get(group, 0):
                strange += 1
                continue
            if number in come[group]:
                twice += 1
            elif number < highest.get(group, -1):
                late += 1
            together += began < ended.get(group, began)
            come[group].add(number)
            highest[group] = max(number, highest.get(group, -1))
            ended[group] = max(until, ended.get(group, until))
        lost = sum(wanted.values()) - sum(map(len, come.values()))
        return cls(late, twice, lost, strange, together)


class OutOfOrder(Exception):
    """A group's messages were not handled each once, in order, one at a time."""


def check_order(key: str, seen: Sequence[Seen], load: Load | Mapping[int, int]) -> None:
    """See that every message was handled once, those of a group in order, and one of them at a time.

    Parameters
    ----------
    key : str
        Whose they are.
    seen : sequence of (float, int, int, float)
        Ordered by time.
    load : Load or mapping
        How many messages there were in each group.

    Raises
    ------
    OutOfOrder
    """
    wanted = dict(enumerate(load.sizes)) if isinstance(load, Load) else load
    broken = Broken.found(seen, wanted)
    if broken:
        raise OutOfOrder(f"{key}, of {sum(wanted.values()):,} messages: {broken}.")


@dataclass(frozen=True)
class Work:
    """What a backlog took."""

    messages: int
    seconds: float
    gap_s: float
    """The longest time between two messages that were handled one after the other."""
    publish_s: float
    """What publishing it took."""
    client_s: float
    broken: Broken
    server_s: float = 0.0
    profile: list[dict[str, Any]] | None = None

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def published_rate(self) -> float:
        return self.messages / self.publish_s


@dataclass(frozen=True)
class Flowed:
    """What became of messages that were published while they were handled."""

    delays_s: list[float]
    """From when a publish returned to when the handler began."""
    offered: float
    """Messages a second that were published."""
    broken: Broken


class Crew:
    """The processes of one contender on one queue; some of them work, or all do."""

    def __init__(self, contender: Contender, groups: int, folders: Folders, server: Server | None) -> None:
        self.contender = contender
        self.concurrency = contender.concurrency or CONCURRENCY[contender.name][contender.backend]
        self.most_groups = GROUPS_AT_MOST.get(contender.name, groups)
        self._folders = folders
        self._server = server
        self._tally = folders.scratch / f"{contender.key}.tally"
        self._stack = ExitStack()
        self._processes: list[Process] = []
        self._opened = 0

    @property
    def is_ours(self) -> bool:
        return self.contender.role == "ours"

    @property
    def size(self) -> int:
        """How many processes there are."""
        return len(self._processes)

    def open(self) -> None:
        """Start the processes on a place that nobody had before."""
        self._opened += 1
        self._place = self._new_place()
        self._processes = [
            self._stack.enter_context(worker(self.contender, self._folders.cache, module="benchmarks.handler"))
            for _ in range(1 if self.contender.backend == "memory" else WORKERS)
        ]
        for process in self._processes:
            process.ask("open", place=self._place)
        self._processes[0].ask("prepare", groups=self.most_groups)

    def close(self) -> None:
        for process in self._processes:
            process.ask("close")
        self._stack.close()
        self._processes = []

    def abandon(self) -> None:
        """End the processes, whatever they are in the middle of."""
        for process in self._processes:
            if process._process.poll() is None:
                _kill(process._process.pid)
        with suppress(OSError):  # there may be something that was to be sent
            self._stack.close()
        self._stack = ExitStack()
        self._processes = []

    def drain(self, sizes: Sequence[int], workers: int = 1, *, pause_ms: float = 0.0, profile: bool = False) -> Work:
        """Publish so many messages to each group, then have them handled by so many processes.

        Raises
        ------
        OutOfOrder
            For our own, if that is not how they were handled, or not all. Of others it is told.
        """
        published_s = self._publish(sizes)
        if self._server is not None:
            self._server.settle(self._place)
        before_s = self._server_s()
        working = self._processes[:workers]
        common = {"count": sum(sizes), "tally": self._new_tally(), "concurrency": self.concurrency}
        if pause_ms:
            common["pause_ms"] = pause_ms
        for slot, process in enumerate(working):
            process.tell("handle", slot=slot, profile=profile, **common)
        answers = [process.answer() for process in working]
        seen = sorted(message for answer in answers for message in _messages(answer["seen"]))
        began = min(answer["began"] for answer in answers)
        return Work(
            messages=len(seen),
            seconds=seen[-1][0] - began,
            gap_s=max((later[0] - earlier[0] for earlier, later in pairwise(seen)), default=0.0),
            publish_s=published_s,
            client_s=sum(answer["client_s"] for answer in answers),
            broken=self._checked(seen, dict(enumerate(sizes))),
            server_s=self._server_s() - before_s,
            profile=answers[0].get("profile"),
        )

    def trickle(self, groups: int, count: int, pause_s: float) -> Flowed:
        """Publish one by one with pauses to a worker that waits."""
        how = {"groups": groups, "count": count, "pause_s": pause_s}
        work = {"tally": self._new_tally(), "concurrency": self.concurrency}
        if len(self._processes) == 1:
            both = self._processes[0].ask("handle_trickle", **how, **work)
            return self._flowed(both["handled"], both["published"])
        return self._beside(count, "trickle", how)

    def flow(self, groups: int, rate: int, seconds: float) -> Flowed:
        """Publish at this rate, in batches every 10 ms, while a worker handles."""
        return self._beside(round(rate * seconds), "flow", {"groups": groups, "rate": rate, "seconds": seconds})

    def _beside(self, count: int, do: str, how: Mapping[str, Any]) -> Flowed:
        worker_, publisher = self._processes[:2]
        worker_.tell("handle", count=count, slot=0, tally=self._new_tally(), concurrency=self.concurrency)
        published = publisher.ask(do, **how)
        return self._flowed(worker_.answer(), published)

    def _flowed(self, handled: Mapping[str, Any], published: Mapping[str, Any]) -> Flowed:
        seen = sorted(_messages(handled["seen"]))
        sent = _messages(published["published"])
        began: dict[tuple[int, int], float] = {}
        for when, group, number, _ in seen:
            began.setdefault((group, number), when)
        first = min(when for when, *_ in sent)
        took_s = max(when for when, *_ in sent) - first
        return Flowed(
            # A handler may begin while the publisher's process is still to learn that its publish is done.
            [max(0.0, began[group, number] - when) for when, group, number, _ in sent if (group, number) in began],
            sum(when > first for when, *_ in sent) / took_s if took_s else 0.0,
            self._checked(seen, Counter(group for _, group, _, _ in sent)),
        )

    def _publish(self, sizes: Sequence[int]) -> float:
        even = len(set(sizes)) == 1
        load = {"groups": len(sizes), "each": sizes[0]} if even else {"sizes": list(sizes)}
        began = time.perf_counter()
        self._processes[0].ask("backlog", **load)
        return time.perf_counter() - began

    def _checked(self, seen: Sequence[Seen], wanted: Mapping[int, int]) -> Broken:
        if self.is_ours:
            check_order(self.contender.key, seen, wanted)
        broken = Broken.found(seen, wanted)
        left = self._processes[0].ask("waiting")["messages"]
        if left and self.is_ours:
            raise OutOfOrder(f"{self.contender.key}: {left} messages are left of those that were handled.")
        if left or broken.lost:  # whatever comes of it yet is not to come later
            self.abandon()
            self.open()
        return broken

    def _server_s(self) -> float:
        """Return how long the server has worked for this queue; of a peer, whose connections come and go, nothing."""
        return self._server.busy_s(self._place) if self._server is not None and self.is_ours else 0.0

    def _new_tally(self) -> str:
        self._tally.write_bytes(bytes(SLOT_BYTES * len(self._processes)))
        return str(self._tally)

    def _new_place(self) -> str:
        if self._server is not None:
            return self._server.place()
        folder = self._folders.data / f"{self.contender.key}-workers-{self._opened}"
        folder.mkdir(exist_ok=True)
        return str(folder)


@contextmanager
def crew_of(
    contender: Contender, groups: int, folders: Folders, server: Server | None, say: Callable[[str], None]
) -> Iterator[Crew]:
    """Have a contender's processes, opened; ``groups`` is how many groups there will be at most."""
    say(f"{contender.backend}: {contender.name} sets up its workers")
    crew = Crew(contender, groups, folders, server)
    try:
        crew.open()
        yield crew
        crew.close()
    finally:
        crew.abandon()


def _kill(pid: int) -> None:
    """Kill a process, and those that it started: what starts Node may go on beside it."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    with suppress(OSError):
        for child in listed.read_text().split():
            _kill(int(child))
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _messages(listed: Sequence[Sequence[Any]]) -> list[Seen]:
    return [(when, group, number, rest[0] if rest else when) for when, group, number, *rest in listed]
