"""A flood of new groups beside old ones: how long the old ones wait, with ``fresh_first`` and without.

What runs in the worker's process is plain standard library at the top, as all that ``worker.py`` imports.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.contenders import CONTENDERS, FILE
from benchmarks.folders import Folders
from benchmarks.processes import worker
from benchmarks.servers import Server

__all__ = ["Flood", "Flooded", "flood", "flood_queues"]


@dataclass(frozen=True)
class Flood:
    """How large it is. A step claims a batch and acks it."""

    old: int
    """Groups that always have messages waiting."""
    batch: int
    calm: int
    """Steps before the flood."""
    steps: int
    """Steps of it."""
    arriving: int
    """New groups of one message that come in each: more than a batch, so that they cannot all be served."""
    rounds: int


@dataclass
class Flooded:
    """What was found, of one backend and one setting."""

    backend: str
    fresh_first: bool
    points: list[tuple[float, float]] = field(default_factory=list)
    """Of one round: seconds since the flood began, and how long the old group that has waited longest waits."""
    flood_s: float = 0.0
    """How long the flood came, in that round."""
    old_s: list[float] = field(default_factory=list)
    """The longest wait of an old group, round by round."""
    new_s: list[float] = field(default_factory=list)
    """The median wait of a new one."""
    before_s: list[float] = field(default_factory=list)
    """The longest wait of an old group before the flood."""


def flood_queues(
    backend: str, size: Flood, folders: Folders, say: Callable[[str], None], server: Server | None = None
) -> list[Flooded]:
    """Flood a queue of each kind, in turn."""
    (ours,) = (each for each in CONTENDERS if each.key == f"harel-{backend}")
    found = [Flooded(backend, fresh_first) for fresh_first in (True, False)]
    numbers = iter(range(2 * size.rounds))
    for number in range(size.rounds):
        say(f"{backend}, a flood of new groups: round {number + 1} of {size.rounds}")
        for each in found:
            with worker(ours, folders.cache) as process:
                url = _url(backend, next(numbers), folders, server)
                how = {"old": size.old, "batch": size.batch, "calm": size.calm, "steps": size.steps}
                answer = process.ask("flood", url=url, fresh_first=each.fresh_first, arriving=size.arriving, **how)
            _note(each, answer)
    return found


def _url(backend: str, number: int, folders: Folders, server: Server | None) -> str:
    if server is not None:
        return server.place()
    if backend == "memory":
        return "memory://"
    folder = folders.data / f"flood-{backend}-{number}"
    folder.mkdir()
    return f"sqlite:///{folder}/{FILE}"


def _note(found: Flooded, answer: dict[str, Any]) -> None:
    began, ended = answer["flood"]
    found.points = [(at - began, wait) for at, wait in answer["points"]]
    found.flood_s = ended - began
    found.before_s.append(max(wait for at, wait in found.points if at < 0))
    found.old_s.append(max(wait for at, wait in found.points if at >= 0))
    found.new_s.append(median(answer["new"]))


def flood(url: str, *, fresh_first: bool, old: int, batch: int, calm: int, steps: int, arriving: int) -> dict[str, Any]:
    """Serve old groups, which never run out of messages, while new ones come, until the new ones are served.

    Returns when the flood began and ended, at every step how long the old group that waits longest has waited, and how
    long each new group waited.
    """
    harel: Any = importlib.import_module("harel")
    with harel.connect(url, fresh_first=fresh_first) as queue:
        return _Service(harel, queue, old, batch).run(calm, steps, arriving)


class _Service:
    """One claimant, always busy."""

    def __init__(self, harel: Any, queue: Any, old: int, batch: int) -> None:
        self._harel = harel
        self._queue = queue
        self._batch = batch
        self._served = {f"old-{number}": 0.0 for number in range(old)}
        self._came: dict[str, float] = {}
        self._points: list[tuple[float, float]] = []
        self._waits: list[float] = []

    def run(self, calm: int, steps: int, arriving: int) -> dict[str, Any]:
        """Serve, flood, and serve until all that is new has been served and all that is old a few times more."""
        self._publish([*self._served, *self._served])
        self._served = dict.fromkeys(self._served, time.perf_counter())
        for _ in range(calm):
            self._step(())
        began = time.perf_counter()
        names = (f"new-{number}" for number in range(steps * arriving))
        for _ in range(steps):
            self._step([next(names) for _ in range(arriving)])
        ended = time.perf_counter()
        while self._came:
            self._step(())
        for _ in range(calm):
            self._step(())
        return {"flood": (began, ended), "points": self._points, "new": self._waits}

    def _step(self, new: Any) -> None:
        now = time.perf_counter()
        self._came.update(dict.fromkeys(new, now))
        if new:
            self._publish(new)
        leases = self._queue.claim_many("bench-worker", 3600.0, self._batch)
        now = time.perf_counter()
        again = []
        for group in (lease.group_id for lease in leases):
            if group in self._served:
                self._served[group] = now
                again.append(group)
            else:
                self._waits.append(now - self._came.pop(group))
        self._points.append((now, now - min(self._served.values())))
        self._queue.ack_many(leases)
        if again:
            self._publish(again)

    def _publish(self, groups: Any) -> None:
        message, event = self._harel.Message, self._harel.Event
        self._queue.publish_many([message(group, event(kind="order.shipped", payload={})) for group in groups])
