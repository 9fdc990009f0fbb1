"""Who is measured: each contender with the methods of the contract that the workloads call."""

from __future__ import annotations

import cProfile
import importlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

__all__ = ["BARE", "CONTENDERS", "OURS", "PEER", "Contender", "Environment", "Queue"]

KIND = "order.shipped"
FILE = "queue.db"


class Queue:
    """What a workload needs: methods of the contract, and how to make an event.

    One without batches leaves those for many at once as they are.
    """

    profiler: cProfile.Profile | None = None
    """Sees the timed sections, and nothing else."""

    def event(self, number: int) -> Any:
        raise NotImplementedError

    def publish(self, group_id: str, event: Any) -> object:
        raise NotImplementedError

    def claim(self, worker_id: str, visibility: float, min_priority: int = 0) -> Any:
        raise NotImplementedError

    def ack(self, lease: Any) -> object:
        raise NotImplementedError

    def publish_many(self, messages: Sequence[tuple[str, Any, int]]) -> object:
        raise NotImplementedError

    def claim_many(self, worker_id: str, visibility: float, limit: int) -> Sequence[Any]:
        raise NotImplementedError

    def ack_many(self, leases: Sequence[Any]) -> Sequence[bool]:
        raise NotImplementedError

    def close(self) -> object:
        raise NotImplementedError

    def clock(self) -> float:
        """Return the seconds that the measured code has had: all of them, unless a contender knows better."""
        return time.perf_counter()

    def count_groups(self) -> int | None:
        """Return how many groups there are, if it can be asked."""
        return None


class _Direct(Queue):
    """Hands out a transport's own bound methods, so that no call of ours is measured."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        for name in ("publish", "claim", "ack", "publish_many", "claim_many", "ack_many", "close"):
            if hasattr(transport, name):
                setattr(self, name, getattr(transport, name))


class Harel(_Direct):
    """harel as it lies here, through ``harel.connect``."""

    def __init__(self, url: str) -> None:
        harel = importlib.import_module("harel")
        super().__init__(harel.connect(url))
        self._event = harel.Event

    def event(self, number: int) -> Any:
        return self._event(kind=KIND, payload=_payload(number))

    def count_groups(self) -> int | None:
        return int(self._transport.stats().groups)


class Harel090(_Direct):
    """The peer harel 0.9.0, whose methods have the same names; it has the core five only.

    ``maker`` is the transport's class, or the class method that makes it.
    """

    def __init__(self, maker: str, *arguments: str) -> None:
        transports = importlib.import_module("harel.engine.transport")
        super().__init__(attrgetter(maker)(transports)(*arguments))
        self._event = importlib.import_module("harel.spec.states").Event

    def event(self, number: int) -> Any:
        return self._event(kind=KIND, data=_payload(number))


class _Bare(Queue):
    """The requests of our own operations on a bare driver: the least that they can cost with it.

    Its clock runs only inside the driver. What prepares the requests and reads their replies stands still.
    """

    _ops: Any

    def __init__(self) -> None:
        self._spent = 0.0

    def event(self, number: int) -> Any:
        from harel import Event  # not there in a peer's environment

        return Event(kind=KIND, payload=_payload(number))

    def publish(self, group_id: str, event: Any) -> None:
        self.publish_many([(group_id, event, 0)])

    def claim(self, worker_id: str, visibility: float, min_priority: int = 0) -> Any:
        return self._run(self._ops.claim(worker_id, visibility, 1, min_priority))[0]

    def ack(self, lease: Any) -> bool:
        return self.ack_many([lease])[0]

    def publish_many(self, messages: Sequence[tuple[str, Any, int]]) -> None:
        from harel.engine.queue.contract import Packed
        from harel.events import encode_event

        self._run(self._ops.publish([Packed(group, encode_event(event), rank) for group, event, rank in messages]))

    def claim_many(self, worker_id: str, visibility: float, limit: int) -> Sequence[Any]:
        leases: list[Any] = self._run(self._ops.claim(worker_id, visibility, limit, 0))
        return leases

    def ack_many(self, leases: Sequence[Any]) -> Sequence[bool]:
        answers: list[bool] = self._run(self._ops.ack(leases))
        return answers

    def clock(self) -> float:
        return self._spent

    def count_groups(self) -> int | None:
        return int(self._run(self._ops.stats()).groups)

    def _run(self, operation: Any) -> Any:
        try:
            request = next(operation)
            while True:
                request = operation.send(self._send(request))
        except StopIteration as done:
            return done.value

    def _send(self, request: Any) -> Any:
        raise NotImplementedError


class BareSqlite(_Bare):
    """A bare ``sqlite3`` connection.

    Timed are the statements, ``BEGIN IMMEDIATE``, ``COMMIT``, and the switch of ``synchronous`` where durability
    changes.
    """

    def __init__(self, path: str) -> None:
        from harel.engine.queue.sqlite.ops import SqliteOps

        super().__init__()
        self._synchronous = ""
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL").fetchone()
        self._ops = SqliteOps(path, "transport", fresh_first=True, poll_interval_s=1.0, create_schema=True)
        self._run(self._ops.prepare())

    def close(self) -> None:
        self._connection.close()

    def _send(self, request: Any) -> Any:
        now = {"now": time.time()}
        if not hasattr(request, "steps"):
            return self._connection.execute(request.statement, {**request.values, **now}).fetchall()
        steps = [
            (statement, {**values, **now} if isinstance(values, Mapping) else [{**each, **now} for each in values])
            for statement, values in request.steps
        ]
        synchronous = "FULL" if request.durable else "NORMAL"
        began = time.perf_counter()
        replies = self._transact(steps, synchronous)
        self._spent += time.perf_counter() - began
        return replies

    def _transact(self, steps: Sequence[tuple[str, Any]], synchronous: str) -> list[list[Any]]:
        connection = self._connection
        if synchronous != self._synchronous:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        connection.execute("BEGIN IMMEDIATE")
        replies = []
        for statement, values in steps:
            if isinstance(values, dict):
                replies.append(connection.execute(statement, values).fetchall())
            else:
                connection.executemany(statement, values)
                replies.append([])
        connection.execute("COMMIT")
        return replies


class BarePostgres(_Bare):
    """A bare psycopg connection in autocommit mode, which prepares what it is given often, as it does by default."""

    def __init__(self, url: str) -> None:
        from psycopg import RawCursor, connect

        from harel.engine.queue.postgres.ops import PostgresOps

        super().__init__()
        Harel(url).close()  # it makes the schema
        self._connection = connect(url, autocommit=True, cursor_factory=RawCursor)
        self._ops = PostgresOps(
            url, "public", clock=None, fresh_first=True, poll_interval_s=1.0, create_schema=False, soft=True
        )

    def close(self) -> None:
        self._connection.close()

    def _send(self, request: Any) -> Any:
        began = time.perf_counter()
        rows = self._connection.execute(request.statement, request.values).fetchall()
        self._spent += time.perf_counter() - began
        return rows


class BareRedis(_Bare):
    """A bare redis-py client: its ``evalsha``, with the same scripts, keys and arguments."""

    def __init__(self, url: str) -> None:
        from redis import Redis

        from harel.engine.queue.redis.ops import RedisOps

        super().__init__()
        self._client: Any = Redis.from_url(url)
        self._ops = RedisOps(url, "harel", clock=None, fresh_first=True, poll_interval_s=1.0)
        self._known: set[bytes] = set()
        self._run(self._ops.prepare())

    def close(self) -> None:
        self._client.close()

    def _send(self, request: Any) -> Any:
        script = request.script
        if script.sha not in self._known:
            self._client.script_load(script.text)
            self._known.add(script.sha)
        began = time.perf_counter()
        reply = self._client.evalsha(script.sha, len(request.keys), *request.keys, *request.args)
        self._spent += time.perf_counter() - began
        return reply


def _payload(number: int) -> dict[str, Any]:
    return {"order": number, "carrier": "a small message"}


@dataclass(frozen=True)
class Environment:
    """What a contender runs in: a Python of its own, or a folder of Node packages and the Node that runs them."""

    name: str
    requirements: tuple[str, ...] = ()
    """What pip installs, each pinned."""
    packages: tuple[str, ...] = ()
    """What npm installs, each ``name@version``; those that ask for more bring it themselves."""
    node: Environment | None = None
    """Where Node and npm are, for one with packages."""

    @property
    def wanted(self) -> tuple[str, ...]:
        return (*self.requirements, *self.packages)


PEER_090 = Environment("harel-0.9.0", ("harel[postgres,redis]==0.9.0", "hiredis==3.5.0"))
"""With hiredis, which its extra leaves out: the same drivers for both, so that the difference is not theirs."""


@dataclass(frozen=True)
class Contender:
    """One that is measured on one backend."""

    key: str
    name: str
    """What the tables call it."""
    backend: str
    open: Callable[[str], Queue]
    """From a place of its own, a folder or the URL of a server's database, to the queue there."""
    role: str
    """``ours``, ``peer``, or ``limit`` for what ours is held against."""
    durable: str
    """What it says, or is known, to be durable to."""
    batches: bool = True
    environment: Environment | None = None
    """Where it runs; ``None`` is this Python."""
    program: str = ""
    """The Node program beside ``benchmarks/peers`` that is its worker; empty for one in Python."""
    concurrency: int = 0
    """How many groups at once its worker handles where it did best, or as its own documentation advises."""
    about: str = ""
    """How it orders a group, and what it does differently."""
    unable: str = ""
    """Why it cannot do the work, or cannot be had; empty for one that is measured."""


OURS = "harel"
PEER = "harel 0.9.0"
BARE = {"sqlite": "bare sqlite3", "postgres": "bare psycopg", "redis": "bare EVALSHA"}


def _ours(backend: str, url: Callable[[str], str], durable: str) -> Contender:
    return Contender(f"harel-{backend}", OURS, backend, lambda place: Harel(url(place)), "ours", durable)


def _peer(backend: str, open_: Callable[[str], Queue], durable: str = "as far as its syncs tell") -> Contender:
    return Contender(
        f"peer-{backend}", PEER, backend, open_, "peer", durable, batches=False, environment=PEER_090, about=_ABOUT_090
    )


def _bare(backend: str, open_: Callable[[str], Queue], durable: str) -> Contender:
    return Contender(f"bare-{backend}", BARE[backend], backend, open_, "limit", durable)


_ABOUT_090 = (
    "Another implementation of this design: a record for each group, which a claim leases. Messages are published, "
    "claimed and acked one by one. Its worker drives a state machine for each group, and stores it with every message."
)
_IN_THE_PROCESS = "nothing: it ends with its process"
_IN_THE_SERVER = "nothing: the server writes to no disk"

CONTENDERS = (
    _ours("memory", lambda _: "memory://", _IN_THE_PROCESS),
    _peer("memory", lambda _: Harel090("InMemoryTransport"), _IN_THE_PROCESS),
    _ours(
        "sqlite",
        lambda place: f"sqlite:///{place}/{FILE}",
        "publish and ack to a power cut (synchronous=FULL); claim to a crash of the process (NORMAL)",
    ),
    _peer("sqlite", lambda place: Harel090("SqliteTransport", f"{place}/{FILE}")),
    _bare(
        "sqlite",
        lambda place: BareSqlite(f"{place}/{FILE}"),
        "as harel: the same statements and the same switching of synchronous",
    ),
    _ours(
        "postgres",
        lambda place: place,
        "publish and ack to a power cut; a crash of the server may forget a claim (synchronous_commit=off for it)",
    ),
    _peer("postgres", lambda place: Harel090("PostgresTransport.from_dsn", place)),
    _bare("postgres", BarePostgres, "as harel: the same calls of the same functions"),
    _ours("redis", lambda place: place, _IN_THE_SERVER),
    _peer("redis", lambda place: Harel090("RedisTransport.from_url", place), _IN_THE_SERVER),
    _bare("redis", BareRedis, _IN_THE_SERVER),
)
