"""One backend on the bench: its queue, queues beside it whose names are nearly the same, and what was seen of both."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harel import Event, HarelError, Transport
from harel.engine.transport import (
    LibsqlTransport,
    MongoTransport,
    PostgresTransport,
    RedisTransport,
    RqliteTransport,
    SqliteTransport,
)
from harel.testing import Subject
from harel.testing.conformance.kit import drain, snapshot
from tests.backends import BACKENDS, Backend
from tests.servers import mongo, postgres, redis, rqlite

__all__ = ["Bench", "Book", "Unkept", "backends_of", "on_bench", "said"]

Wrap = Callable[[Transport], Transport]
"""What a test puts between the fuzz and a backend, to see that a fault is found."""

MOST_FAILURES = 25

BESIDE = ("_", "_messages", "_groups", "_dead", "_dead_letters", "x", "_x")
"""What is added to a name to get one that a wildcard, a separator or a missing one would take for it."""


class Unkept(Exception):
    """Something did not hold: a sentence, with the input."""


@dataclass
class Book:
    """What was tried and what each said."""

    tried: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By backend, and what became of it: ``stored``, ``refused``, ``answered``."""
    says: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """By kind of input and place: of each backend what it said first."""
    failures: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    """How many failures of each backend there were, those that are not kept included."""

    def note(
        self, backend: str, kind: str, where: str, what: Literal["stored", "refused", "answered"], say: str
    ) -> None:
        """Count an attempt, and keep the first of its kind."""
        self.tried[backend, what] += 1
        self.says.setdefault((kind, where), {}).setdefault(backend, say)

    def fail(self, backend: str, sentence: str) -> None:
        """Keep a failure, each once, and no more of a backend than a person reads."""
        self.failed[backend] += 1
        if self.failed[backend] <= MOST_FAILURES and (line := f"{backend}: {sentence}") not in self.failures:
            self.failures.append(line)


class Bench:
    """A backend's queue.

    Attributes
    ----------
    queue : Transport
        What hostile input is given to.
    watcher : Transport
        Another transport on the same queue.
    sent : int
        How many requests the queue's transport has sent.
    world : object or None
        What is in it as it was arranged, as long as nothing has changed it.
    home : Path
        The queue's folder.
    """

    def __init__(self, backend: Backend, folder: Path, book: Book, wrap: Wrap | None = None) -> None:
        self.backend = backend
        self.name = backend.name
        self.book = book
        self.folder = folder
        self._wrap = wrap
        self._begin()

    def _begin(self) -> None:
        self.world: Any = None
        self.home = Path(tempfile.mkdtemp(dir=self.folder))
        self.subject: Subject = self.backend.subject(self.home)
        is_file = self.name.startswith(("sqlite", "libsql"))
        opened = self.subject.open(**({"synchronous": "OFF"} if is_file else {}))
        self.sent = 0
        self._count(opened)
        self.queue: Transport = self._wrap(opened) if self._wrap else opened
        self.watcher: Transport = self.subject.open()
        self.can = opened.capabilities

    def renew(self) -> None:
        """Begin with an empty queue of another name, after what went wrong."""
        with suppress(HarelError):
            self.subject.close()
        self._begin()

    def _count(self, opened: Any) -> None:
        inner = getattr(opened, "inner", opened)
        send = inner._send

        def counted(request: Any) -> Any:
            self.sent += 1
            return send(request)

        inner._send = counted

    def see(self) -> dict[str, object]:
        """Look at the queue from outside."""
        return snapshot(self.watcher)

    def close(self) -> None:
        self.subject.close()


@contextmanager
def on_bench(
    backend: Backend, folder: Path, book: Book, wrap: Wrap | None = None, few: int | None = None
) -> Iterator[Bench]:
    """Open a backend, and queues beside it, all or a few, that have to be as they were in the end."""
    bench = Bench(backend, folder, book, wrap)
    try:
        with _beside(bench, BESIDE[:few]) as neighbours:
            before = [_populated(each.queue) for each in neighbours]
            yield bench
            for each, seen in zip(neighbours, before, strict=True):
                if snapshot(each.queue) != seen or _remains(each) != ["like it a", "like it b", "q:a a"]:
                    book.fail(bench.name, f"{each.name} beside the queue under test did not stay as it was.")
    finally:
        bench.close()


def backends_of(names: tuple[str, ...], *, is_async: bool) -> list[Backend]:
    """Return these backends, and the one in memory, sync and, if wanted, async."""
    wanted = {"memory", *names}
    return [
        backend
        for backend in BACKENDS
        if backend.name.partition("-")[0] in wanted and (is_async or not backend.is_async)
    ]


def said(error: BaseException) -> str:
    """Say an error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _populated(queue: Transport) -> dict[str, object]:
    longest = queue.capabilities.max_visibility_s
    queue.publish("like it", Event(kind="a"))
    queue.publish("like it", Event(kind="b"))
    queue.publish("q:a", Event(kind="a"))
    for lease in queue.claim_many("a neighbour", longest, 10):
        if lease.group_id == "q:a":
            queue.nack(lease, longest)
    if queue.capabilities.dead_letters:
        queue.publish("q:a:b", Event(kind="a"))
        (lease,) = queue.claim_many("a neighbour", longest, 10)
        queue.reject(lease, "a reason")
    return snapshot(queue)


def _remains(neighbour: _Neighbour) -> list[str]:
    """Free and drain a neighbour's groups, which shows what is really left."""
    neighbour.subject.clock.advance(neighbour.queue.capabilities.max_visibility_s + 1.0)
    return sorted(drain(neighbour.queue))


class _Neighbour(NamedTuple):
    name: str
    subject: Subject
    queue: Transport


@contextmanager
def _beside(bench: Bench, suffixes: tuple[str, ...]) -> Iterator[list[_Neighbour]]:
    """Open queues on the same server, or in the same file, whose names are nearly that of the bench's queue."""
    opener = _OPENERS.get(bench.name.partition("-")[0])
    with ExitStack() as stack:
        elsewhere = stack.enter_context(bench.backend.subject(Path(tempfile.mkdtemp(dir=bench.folder))))
        neighbours = [_Neighbour("a queue of another place", elsewhere, elsewhere.open())]
        for suffix in suffixes if opener else ():
            assert opener is not None
            name, open_it, clear = opener(bench, suffix)
            stack.callback(clear)
            subject = stack.enter_context(Subject(open_it))
            neighbours.append(_Neighbour(f"the queue {name!r}", subject, subject.open()))
        yield neighbours


_Opening = tuple[str, Callable[..., Any], Callable[[], None]]


def _in_file(transport: Callable[..., Any]) -> Callable[[Bench, str], _Opening]:
    def opener(bench: Bench, suffix: str) -> _Opening:
        path = bench.home / "queue.db"
        name = f"transport{suffix}"
        return name, lambda **options: transport(path, prefix=name, **options), lambda: None

    return opener


def _on_redis(bench: Bench, suffix: str) -> _Opening:
    name = redis.prefix_in(bench.home) + suffix
    url = redis.redis_url()
    return (
        name,
        lambda **options: RedisTransport.from_url(url, prefix=name, **options),
        lambda: redis.remove(url, name),
    )


def _on_postgres(bench: Bench, suffix: str) -> _Opening:
    name = postgres.schema_in(bench.home) + suffix
    url = postgres.postgres_url()
    return name, lambda **options: PostgresTransport(url, schema=name, **options), lambda: postgres.drop(url, name)


def _on_mongo(bench: Bench, suffix: str) -> _Opening:
    name, database = f"transport{suffix}", mongo.database_in(bench.home)
    url = mongo.mongo_url()
    return (
        f"{database}.{name}",
        lambda **options: MongoTransport.from_url(url, db_name=database, prefix=name, **options),
        lambda: None,
    )


def _on_rqlite(bench: Bench, suffix: str) -> _Opening:
    name = rqlite.prefix_in(bench.home) + suffix
    url = rqlite.rqlite_url()
    return (
        name,
        lambda **options: RqliteTransport(url, prefix=name, timeout=60.0, **options),
        lambda: rqlite.remove(url, name),
    )


_OPENERS: dict[str, Callable[[Bench, str], _Opening]] = {
    "sqlite": _in_file(SqliteTransport),
    "libsql": _in_file(LibsqlTransport),
    "redis": _on_redis,
    "postgres": _on_postgres,
    "mongo": _on_mongo,
    "rqlite": _on_rqlite,
}
