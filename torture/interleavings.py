"""Every interleaving, counted: operations that meet on one group, step by step in every order, whoever dies on the way.

The scenes are those of the tests in ``tests/interleavings``; here more of them are tried, and each backend says how
many orders there were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import redis

from harel.engine.queue.contract import Operations
from harel.engine.transport import LibsqlTransport, RedisTransport
from harel.testing import ManualClock
from harel.testing.explorer import World, explore
from tests.interleavings import test_mongo, test_pairs, test_rqlite, test_sqs
from tests.interleavings.postgres_steps import PostgresSetting, Stage
from tests.interleavings.test_pairs import ENTRANTS, THREES, Enter, draining, expired_draining, live
from tests.servers.postgres import postgres_url
from tests.servers.redis import keys_of, redis_url
from torture.part import Options, Report, table

__all__ = ["run"]

Names: TypeAlias = tuple[str, ...]
MakeWorlds: TypeAlias = Callable[[Enter, Names], Any]

PAIRS = tuple(combinations_with_replacement(ENTRANTS, 2))


@dataclass
class Course:
    """One line of the report: scenes of one kind on one backend."""

    backend: str
    what: str
    settings: tuple[Enter, ...]
    scenes: tuple[Names, ...]
    worlds: MakeWorlds
    crashes: int = 0
    mishaps: int = 0
    schedules: int = 0
    took_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Try all orders of all scenes in all settings."""
        began = time.monotonic()
        for prepare, names in product(self.settings, self.scenes):
            worlds: Callable[[], World] = self.worlds(prepare, names)
            exploration = explore(worlds, crashes=self.crashes, mishaps=self.mishaps)
            if hasattr(worlds, "close"):
                worlds.close()
            self.schedules += exploration.schedules
            told = f"{self.backend}, {prepare.__name__}, {' and '.join(names)}"
            self.failures += [f"{told}: {failure}" for failure in exploration.failures]
        self.took_s = time.monotonic() - began

    def row(self) -> tuple[object, ...]:
        """Return what it came to, for a table."""
        return (
            self.backend,
            self.what,
            f"{len(self.scenes):,} in {len(self.settings)} settings",
            self.crashes or "none",
            self.mishaps or "none",
            f"{self.schedules:,}",
            len(self.failures) or "none",
            f"{self.took_s:.0f} s",
        )


def run(options: Options) -> Report:
    """Explore backend by backend."""
    full = options.size == "full"
    rows: list[tuple[object, ...]] = []
    failures: list[str] = []
    for backend in ("memory", *options.backends):
        with ExitStack() as stack:
            for course in _COURSES[backend](full, options.folder, stack):
                course.run()
                rows.append(course.row())
                failures += course.failures
    heads = ("Backend", "Steps", "Scenes", "Deaths", "Mishaps", "Orders", "Failures", "Time")
    return Report(title="Every interleaving", text=f"{table(heads, rows)}\n\n{_NOTE}", failures=failures)


_NOTE = """A scene is two or three operations that meet on a group, or two and the moment at which all leases run out.
Deaths: so many of them, in each order, die between any two of their steps. Mishaps: so many requests, in each order,
are not heard, or their replies are lost, or they come late, or twice."""


def _of_one_step(
    backend: str, make: test_pairs.Make, full: bool, threes: tuple[Names, ...] = THREES
) -> Iterator[Course]:
    """Return the courses of a backend whose operations are one request each."""
    settings = test_pairs.SETTINGS if full else (draining,)
    worlds = partial(test_pairs.Worlds, make)
    yield Course(backend, "an operation", settings, PAIRS, worlds)
    yield Course(backend, "an operation", settings, threes, worlds)


def _memory(full: bool, folder: Path, stack: ExitStack) -> Iterator[Course]:
    return _of_one_step("memory", test_pairs.memory, full)


def _sqlite(full: bool, folder: Path, stack: ExitStack) -> Iterator[Course]:
    return _of_one_step("sqlite", test_pairs.sqlite, full)


@contextmanager
def _libsql_queue(folder: Path, clock: ManualClock) -> Iterator[tuple[Operations, test_pairs.Send]]:
    path = folder / f"{uuid4().hex}.db"
    with LibsqlTransport(path, clock=clock, synchronous="OFF") as transport:
        yield transport._ops, transport._send
    for left in folder.glob(f"{path.name}*"):
        left.unlink()


def _libsql(full: bool, folder: Path, stack: ExitStack) -> Iterator[Course]:
    settings = (draining, expired_draining) if full else (draining,)
    scenes = PAIRS if full else test_rqlite.DANGEROUS
    yield Course("libsql", "an operation", settings, scenes, partial(test_pairs.Worlds, partial(_libsql_queue, folder)))


@contextmanager
def _redis_queue(client: Any, clock: ManualClock) -> Iterator[tuple[Operations, test_pairs.Send]]:
    prefix = f"t{uuid4().hex[:12]}"
    with RedisTransport(client, prefix=prefix, clock=clock) as transport:
        yield transport._ops, transport._send
    client.unlink(*keys_of(client, prefix))


def _redis(full: bool, folder: Path, stack: ExitStack) -> Iterator[Course]:
    client = stack.enter_context(closing(redis.Redis.from_url(redis_url())))
    return _of_one_step("redis", partial(_redis_queue, client), full, THREES if full else THREES[:4])


class _InTransactions:
    """Makes the same scene again and again, the first of those that meet in an open transaction."""

    def __init__(self, stage: Stage, prepare: Enter, names: Names) -> None:
        self._stage = stage
        self._prepare = prepare
        self._names = names

    def __call__(self) -> World:
        setting = PostgresSetting(self._stage, ManualClock())
        self._prepare(setting)
        for name in self._names:
            ENTRANTS[name](setting)
        return setting.scene


def _postgres(full: bool, folder: Path, stack: ExitStack) -> Iterator[Course]:
    schema = f"t{uuid4().hex[:12]}"
    stage = Stage(postgres_url(), schema)
    stack.callback(stage.close)
    stack.callback(_drop, stage, schema)
    firsts = [name for name in ENTRANTS if name != "worker"] if full else ["publish", "ack"]
    settings = (live, draining, expired_draining, test_pairs.settled) if full else (draining,)
    scenes = tuple(product(firsts, ENTRANTS))
    what = "an operation and its commit; another operation"
    yield Course("postgres", what, settings, scenes, partial(_InTransactions, stage), crashes=1)


def _drop(stage: Stage, schema: str) -> None:
    stage.open.rollback()
    stage.plain.execute("SET client_min_messages = warning")
    stage.plain.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())


def _mongo(full: bool, folder: Path, stack: ExitStack) -> Iterator[Course]:
    what = "a document"
    pairs = tuple(combinations_with_replacement(test_mongo.CORE, 2))
    short = tuple(pair for pair in pairs if not test_mongo.LONG.issuperset(pair))
    if not full:
        scenes = (("publish", "ack"), ("ack", "claim"), ("nack", "claim"), ("hold", "ack"))
        yield Course("mongo", what, (draining,), scenes, test_mongo.Worlds, crashes=1)
        return
    yield Course("mongo", what, test_mongo.FOUGHT_OVER, short, test_mongo.Worlds, crashes=1)
    yield Course("mongo", what, test_pairs.SETTINGS, short, test_mongo.Worlds)
    yield Course("mongo", what, (draining,), (("reject", "reject"), ("redrive", "redrive")), test_mongo.Worlds)
    yield Course("mongo", what, (draining,), test_mongo.THREES[:6], test_mongo.Worlds)


def _rqlite(full: bool, folder: Path, stack: ExitStack) -> Iterator[Course]:
    what = "an HTTP request"
    settings = test_pairs.SETTINGS if full else (draining,)
    lossy = (draining, expired_draining) if full else (draining,)
    yield Course("rqlite", what, settings, PAIRS if full else test_rqlite.DANGEROUS, test_rqlite.Worlds)
    yield Course("rqlite", what, lossy, PAIRS if full else test_rqlite.DANGEROUS[:4], test_rqlite.Worlds, mishaps=1)
    if full:
        doubtful = test_rqlite.DANGEROUS
        yield Course("rqlite", what, (live,), doubtful, test_rqlite.Worlds, crashes=1, mishaps=1)


def _sqs(full: bool, folder: Path, stack: ExitStack) -> Iterator[Course]:
    what = "an entry of a call"
    settings: Iterable[Enter] = test_sqs.SETTINGS if full else (draining,)
    pairs = test_sqs.PAIRS if full else test_sqs.SHORT_PAIRS
    timed = tuple((*pair, test_sqs.TIME) for pair in test_sqs.SHORT_PAIRS)
    every = tuple(settings)
    yield Course("sqs", what, every, pairs, test_sqs.Worlds, crashes=1)
    yield Course("sqs", what, every, pairs, test_sqs.Worlds, mishaps=1)
    yield Course("sqs", what, every, timed, test_sqs.Worlds, crashes=1)
    if full:
        yield Course("sqs", what, (live, draining), timed, test_sqs.Worlds, mishaps=1)
        yield Course("sqs", what, (draining, expired_draining), test_sqs.THREES, test_sqs.Worlds)


_COURSES: dict[str, Callable[[bool, Path, ExitStack], Iterator[Course]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "libsql": _libsql,
    "redis": _redis,
    "postgres": _postgres,
    "mongo": _mongo,
    "rqlite": _rqlite,
    "sqs": _sqs,
}
