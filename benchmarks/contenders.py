"""Who is measured: each contender with the methods of the contract that the workloads call."""

from __future__ import annotations

import cProfile
import importlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CONTENDERS", "OURS", "PEER", "Contender", "Environment", "Queue"]

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

    def claim(self, worker_id: str, visibility: float) -> Any:
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
    """The peer harel 0.9.0, whose methods have the same names; it has the core five only."""

    def __init__(self, class_name: str, *arguments: str) -> None:
        transports = importlib.import_module("harel.engine.transport")
        super().__init__(getattr(transports, class_name)(*arguments))
        self._event = importlib.import_module("harel.spec.states").Event

    def event(self, number: int) -> Any:
        return self._event(kind=KIND, data=_payload(number))


class BareSqlite(Queue):
    """The requests of our SQLite operations on a bare ``sqlite3`` connection: the least that they can cost.

    Its clock runs only inside ``sqlite3``: the statements, ``BEGIN IMMEDIATE``, ``COMMIT``, and the switch of
    ``synchronous`` where durability changes. What prepares and reads them stands still.
    """

    def __init__(self, path: str) -> None:
        from harel.engine.queue.sqlite.ops import SqliteOps  # not there in a peer's environment

        self._spent = 0.0
        self._synchronous = ""
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL").fetchone()
        self._ops = SqliteOps(path, "transport", fresh_first=True, poll_interval_s=1.0, create_schema=True)
        self._run(self._ops.prepare())

    def event(self, number: int) -> Any:
        from harel import Event

        return Event(kind=KIND, payload=_payload(number))

    def publish(self, group_id: str, event: Any) -> None:
        self.publish_many([(group_id, event, 0)])

    def claim(self, worker_id: str, visibility: float) -> Any:
        return self.claim_many(worker_id, visibility, 1)[0]

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

    def close(self) -> None:
        self._connection.close()

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


def _payload(number: int) -> dict[str, Any]:
    return {"order": number, "carrier": "a small message"}


@dataclass(frozen=True)
class Environment:
    """A Python of its own, made with what pip calls ``requirement``."""

    name: str
    requirement: str


PEER_090 = Environment("harel-0.9.0", "harel==0.9.0")


@dataclass(frozen=True)
class Contender:
    """One that is measured on one backend."""

    key: str
    name: str
    """What the tables call it."""
    backend: str
    open: Callable[[Path], Queue]
    """From a folder of its own to the queue there, an existing one if there is one."""
    role: str
    """``ours``, ``peer``, or ``limit`` for what ours is held against."""
    batches: bool = True
    environment: Environment | None = None
    """Where it runs; ``None`` is this Python."""
    durable: str = ""
    """What it says, or is known, to be durable to."""

    @property
    def on_disk(self) -> bool:
        return self.backend != "memory"


OURS = "harel"
PEER = "harel 0.9.0"
BARE = "bare sqlite3"

_IN_THE_PROCESS = "nothing: it ends with its process"

CONTENDERS = (
    Contender("harel-memory", OURS, "memory", lambda _: Harel("memory://"), "ours", durable=_IN_THE_PROCESS),
    Contender(
        "peer-memory",
        PEER,
        "memory",
        lambda _: Harel090("InMemoryTransport"),
        "peer",
        batches=False,
        environment=PEER_090,
        durable=_IN_THE_PROCESS,
    ),
    Contender(
        "harel-sqlite",
        OURS,
        "sqlite",
        lambda folder: Harel(f"sqlite:///{folder / FILE}"),
        "ours",
        durable="publish and ack to a power cut (synchronous=FULL); claim to a crash of the process (NORMAL)",
    ),
    Contender(
        "peer-sqlite",
        PEER,
        "sqlite",
        lambda folder: Harel090("SqliteTransport", str(folder / FILE)),
        "peer",
        batches=False,
        environment=PEER_090,
        durable="as far as its syncs tell",
    ),
    Contender(
        "bare-sqlite",
        BARE,
        "sqlite",
        lambda folder: BareSqlite(str(folder / FILE)),
        "limit",
        durable="as harel: the same statements and the same switching of synchronous",
    ),
)
