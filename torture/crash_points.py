"""Every operation, harmed at every message: a connection that breaks there, or a process that dies there.

What the client is told and what is in the queue afterwards have to fit; see :func:`torture.crash_bench.judged`. The
number of places comes from an undisturbed run of the operation.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from torture.crash_bench import ALLOWED, Bench, Link, judged
from torture.crash_files import File
from torture.crash_scenes import CORE, SCENES, VISIBILITY_S, Scene, event
from torture.part import Options, Report, table

__all__ = ["Trial", "bench_of", "run"]

T = TypeVar("T")

_FILES = ("sqlite", "libsql")
_DEADLINE_S = 1_200.0
_MOST_IN_SHORT = 24
"""A short run chooses so many points of an operation by the seed, if it has more; a full one tries all."""

_MAKE_A_SCHEMA = ("postgres", "mongo", "rqlite")
_STALE_ONCE = ("redis-async",)
"""Where a connection that was cut while idle is only found out about by the next operation, which then says so."""


def run(options: Options) -> Report:
    """Harm every operation of every backend, sync and async; a short run, the core five of the sync ones."""
    rows: list[tuple[object, ...]] = []
    failures: list[str] = []
    for backend in options.backends:
        for flavour in ("sync", "async") if options.size == "full" else ("sync",):
            folder = options.folder / f"{backend}-{flavour}"
            folder.mkdir()
            trial = Trial(backend, flavour, folder, options.seed)
            failures += trial.try_all() if options.size == "full" else trial.try_all(CORE, _MOST_IN_SHORT)
            rows += trial.rows
    heads = (
        "Backend",
        "Operation",
        "Messages",
        "Points",
        "Returned",
        "Raised",
        "Took effect",
        "Did not",
        "Not reached",
    )
    return Report(title="Crash points", text=table(heads, rows), failures=failures)


def bench_of(backend: str, flavour: str, folder: Path, seed: int) -> Any:
    """Open a queue to be harmed."""
    return (File if backend in _FILES else Link)(backend, flavour, folder, seed)


class Trial:
    """All points of one backend in one flavour.

    Parameters
    ----------
    backend, flavour : str
    folder : Path
        An empty one.
    seed : int
        What says which side is reset and which closed, and which points are chosen where there are many.
    make : callable
        Makes the bench.
    """

    def __init__(
        self, backend: str, flavour: str, folder: Path, seed: int, make: Callable[..., Bench] = bench_of
    ) -> None:
        self._name = f"{backend}-{flavour}"
        self._seed = seed
        self._folder = folder
        self._make = lambda: make(backend, flavour, folder, seed)
        self.rows: list[tuple[object, ...]] = []

    def try_all(self, names: Sequence[str] | None = None, most: int | None = None) -> list[str]:
        """Try the operations of these names, or all, at so many points each; return what was wrong, to be repeated."""
        failures: list[str] = []
        with ThreadPoolExecutor(1) as thread:  # in which something may hang

            def within(what: Callable[..., T], *args: Any) -> T:
                return thread.submit(what, *args).result(_DEADLINE_S)

            bench = within(self._make)
            try:
                for scene in SCENES:
                    if self._is_tried(bench, scene, names):
                        failures += within(self._try, bench, scene, most)
                if names is None and isinstance(bench, Link):
                    failures += within(self._try_opening, bench, "open", itertools.repeat(self._folder))
                    if bench.backend in _MAKE_A_SCHEMA:
                        failures += within(self._try_opening, bench, "open a new queue", self._new_folders())
            except TimeoutError:
                # Its thread cannot be ended.
                return [*failures, f"{self._name}: an operation hangs; seed {self._seed}"]
            failures += [f"{self._name}: {complaint}" for complaint in within(bench.close)]
        return failures

    def _is_tried(self, bench: Bench, scene: Scene, names: Sequence[str] | None) -> bool:
        if names is not None and scene.name not in names:
            return False
        if scene.reconnects and (not isinstance(bench, Link) or self._name in _STALE_ONCE):
            return False
        return all(getattr(bench.observer.capabilities, capability) for capability in scene.needs)

    def _try(self, bench: Bench, scene: Scene, most: int | None) -> list[str]:
        messages, points = bench.points(scene)
        points = self._some(points, scene.name, most)
        tally: Counter[str] = Counter()
        for point in points:
            groups = bench.groups()
            arranged = scene.arrange(bench.harmed, groups)
            outcome = bench.strike(scene, point, groups, arranged)
            complaints, happened = judged(bench, scene, groups, outcome, arranged)
            if complaints:
                # What it left would be blamed on the next one.
                return [self._sentence(scene.name, point, complaint) for complaint in complaints]
            if not outcome.reached:
                tally["not reached"] += 1
                continue
            tally["returned" if outcome.failure is None else "raised"] += 1
            tally[{True: "did", False: "did not", None: "nothing shows"}[happened]] += 1
        self._note(scene.name, messages, len(points), tally)
        return []

    def _try_opening(self, link: Link, name: str, folders: Iterator[Path]) -> list[str]:
        """Open a queue, harmed; then open it undisturbed, and use it."""
        link.proxy.watch()
        link.open(next(folders)).close()
        seen = link.proxy.seen
        points = list(link.harms(seen.requests, seen.replies, name))
        tally: Counter[str] = Counter()
        for point in points:
            folder = next(folders)
            link.proxy.do(point)
            try:
                link.open(folder).close()
                tally["returned"] += 1
            except ALLOWED:
                tally["raised"] += 1
            except Exception as error:
                return [self._sentence(name, point, f"it raised {type(error).__name__}: {error}")]
            link.proxy.watch()
            queue = link.open(folder)
            group = link.groups()[0]
            queue.publish(group, event(group))
            lease = queue.claim("opened", VISIBILITY_S)
            if lease is None or not queue.ack(lease):
                return [self._sentence(name, point, "what was opened afterwards does not work")]
            queue.close()
        self._note(name, f"{seen.requests} + {seen.replies}", len(points), tally)
        return []

    def _new_folders(self) -> Iterator[Path]:
        for number in itertools.count():
            folder = self._folder / f"new-{number}"
            folder.mkdir()
            yield folder

    def _some(self, points: list[Any], name: str, most: int | None) -> list[Any]:
        if most is None or len(points) <= most:
            return points
        chosen = random.Random(f"{self._seed}/{self._name}/{name}").sample(range(len(points)), most)
        return [points[index] for index in sorted(chosen)]

    def _note(self, name: str, messages: str, points: int, tally: Counter[str]) -> None:
        columns = ("returned", "raised", "did", "did not", "not reached")
        self.rows.append((self._name, name, messages, points, *(tally[column] for column in columns)))

    def _sentence(self, name: str, point: object, complaint: str) -> str:
        return f"{self._name}, {name}, {point}, seed {self._seed}: {complaint}"
