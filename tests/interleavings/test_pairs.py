"""Every two operations that may meet on one group, and chosen threes, in every order, on the backends of one request.

Promises 1 to 6 and 10 hold after each; so that a request is really all that there is, the number of orders is
counted too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from itertools import combinations_with_replacement
from math import factorial
from typing import Any, TypeAlias

import pytest

from harel import Event, Message
from harel.engine.queue.contract import Lease, Operations
from harel.engine.queue.memory.ops import MemoryOps
from harel.engine.queue.memory.shared import SharedMemoryQueue
from harel.engine.queue.op import run
from harel.engine.queue.sqlite.ops import SqliteOps, Write
from harel.engine.transport.sqlite_file import SqliteFile
from harel.testing import ManualClock
from harel.testing.explorer import Crashed, Scene, explore

VISIBILITY_S = 30.0


Send: TypeAlias = Callable[[Any], Any]
Make: TypeAlias = Callable[[ManualClock], AbstractContextManager[tuple[Operations, Send]]]
"""Makes an empty queue: its operations, and what carries their requests out."""

SQLITE_OPS = SqliteOps("sqlite://", "transport", fresh_first=True, poll_interval_s=1.0, create_schema=True)


@contextmanager
def memory(clock: ManualClock) -> Iterator[tuple[Operations, Send]]:
    queue = SharedMemoryQueue(clock)
    yield MemoryOps(queue), queue.call


@contextmanager
def sqlite(clock: ManualClock, path: str = ":memory:") -> Iterator[tuple[Operations, Send]]:
    with closing(sqlite3.connect(path, uri=True, isolation_level=None)) as connection:
        file = SqliteFile(connection, busy_timeout_s=0.0, synchronous="OFF", clock=clock)
        run(SQLITE_OPS.prepare(), file.send)
        yield SQLITE_OPS, file.send


class Setting:
    """A queue with something on it: a group ``g`` with a lease on its head, and a dead letter of it."""

    def __init__(self, ops: Operations, send: Send, clock: ManualClock) -> None:
        self.scene = Scene(ops, send, clock)
        self.clock = clock
        self.dead = self._dead_letter()
        self._events = 0
        self.send: Send | None = None
        """How the next operation to meet the others sends its requests, if in its own way."""
        self.lease: Lease = self.scene.do("claim", "w", VISIBILITY_S, 0)

    def _dead_letter(self) -> int:
        for name in ("d", "a", "b"):
            self.scene.do("publish", "g", Event("k", id=name), 0)
        lease: Lease = self.scene.do("claim", "w", VISIBILITY_S, 0)
        self.scene.do("reject", lease, "why")
        return lease.seq

    def meet(self, method: str, *args: Any) -> None:
        self.scene.meet(method, *args, send=self.send)

    def event(self) -> Event:
        self._events += 1
        return Event("k", id=f"new {self._events}")


def live(setting: Setting) -> None:
    """Leased, and another message waits."""


def draining(setting: Setting) -> None:
    """Leased, and the head is the last message."""
    setting.scene.do("ack", setting.lease)
    setting.lease = setting.scene.do("claim", "w", VISIBILITY_S, 0)


def expired(setting: Setting) -> None:
    """The lease has run out, and another message waits."""
    setting.clock.advance(VISIBILITY_S + 1.0)


def expired_draining(setting: Setting) -> None:
    draining(setting)
    expired(setting)


def replaced(setting: Setting) -> None:
    """The lease has run out, and somebody else has claimed."""
    expired(setting)
    setting.scene.do("claim", "v", VISIBILITY_S, 0)


def settled(setting: Setting) -> None:
    """The lease is settled, and the group is gone."""
    setting.scene.do("ack", setting.lease)
    setting.lease = setting.scene.do("claim", "w", VISIBILITY_S, 0)
    setting.scene.do("ack", setting.lease)


def held(setting: Setting) -> None:
    """Held while leased."""
    setting.scene.do("hold", "g")


def held_draining(setting: Setting) -> None:
    draining(setting)
    held(setting)


def held_and_drained(setting: Setting) -> None:
    """Held, settled meanwhile, and empty."""
    held_draining(setting)
    setting.scene.do("ack", setting.lease)


SETTINGS = (live, draining, expired, expired_draining, replaced, settled, held, held_draining, held_and_drained)

Enter: TypeAlias = Callable[[Setting], None]


ENTRANTS: dict[str, Enter] = {
    "publish": lambda at: at.meet("publish", "g", at.event(), 0),
    "publish elsewhere": lambda at: at.meet("publish", "h", at.event(), 0),
    "publish_many": lambda at: at.meet("publish_many", [Message(group, at.event()) for group in ("g", "h", "g")]),
    "claim": lambda at: at.meet("claim", "c", VISIBILITY_S, 0),
    "claim_many": lambda at: at.meet("claim_many", "c", VISIBILITY_S, 5, 0),
    "ack": lambda at: at.meet("ack", at.lease),
    "ack_many": lambda at: at.meet("ack_many", [at.lease, at.lease]),
    "nack": lambda at: at.meet("nack", at.lease, 0.0),
    "park": lambda at: at.meet("nack", at.lease, 60.0),
    "extend": lambda at: at.meet("extend", at.lease, VISIBILITY_S),
    "reject": lambda at: at.meet("reject", at.lease, "why"),
    "hold": lambda at: at.meet("hold", "g"),
    "release": lambda at: at.meet("release", "g"),
    "purge": lambda at: at.meet("purge", "g"),
    "redrive": lambda at: at.meet("redrive", at.dead),
    "worker": lambda at: at.scene.meet_worker(VISIBILITY_S),
}

THREES = (
    ("publish", "publish", "claim"),
    ("publish", "ack", "claim"),
    ("publish", "ack", "worker"),
    ("publish", "reject", "worker"),
    ("publish", "purge", "worker"),
    ("publish", "release", "worker"),
    ("redrive", "redrive", "worker"),
    ("redrive", "ack", "purge"),
    ("worker", "worker", "ack"),
    ("worker", "worker", "publish_many"),
    ("claim", "claim", "claim"),
    ("ack", "nack", "claim"),
    ("extend", "claim", "ack"),
    ("hold", "ack", "publish"),
    ("hold", "release", "worker"),
    ("hold", "purge", "release"),
)


@pytest.fixture(params=[memory, sqlite], ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Make:
    chosen: Make = request.param
    return chosen


class Worlds:
    """Makes the same scene again and again, each on a new queue."""

    def __init__(
        self,
        make: Make,
        prepare: Enter,
        names: tuple[str, ...],
        first_sends: Callable[[ManualClock], Send] | None = None,
    ) -> None:
        self._make = make
        self._prepare = prepare
        self._names = names
        self._first_sends = first_sends
        self._open = ExitStack()

    def __call__(self) -> Scene:
        clock = ManualClock()
        self.close()
        setting = Setting(*self._open.enter_context(self._make(clock)), clock)
        self._prepare(setting)
        setting.send = self._first_sends(clock) if self._first_sends else None
        for name in self._names:
            ENTRANTS[name](setting)
            setting.send = None
        return setting.scene

    def close(self) -> None:
        self._open.close()


def _no_order_breaks_a_promise(make: Make, prepare: Enter, names: tuple[str, ...]) -> None:
    worlds = Worlds(make, prepare, names)
    exploration = explore(worlds)
    worlds.close()
    assert not exploration.failures, exploration
    least = factorial(len(names))
    assert exploration.schedules >= least
    assert "worker" in names or exploration.schedules == least


@pytest.mark.parametrize("prepare", SETTINGS, ids=lambda prepare: prepare.__name__)
@pytest.mark.parametrize("one", ENTRANTS)
def test_no_two_operations_break_a_promise(make: Make, prepare: Enter, one: str) -> None:
    for first, second in combinations_with_replacement(ENTRANTS, 2):
        if first == one:
            _no_order_breaks_a_promise(make, prepare, (first, second))


@pytest.mark.parametrize("prepare", SETTINGS, ids=lambda prepare: prepare.__name__)
@pytest.mark.parametrize("names", THREES, ids=", ".join)
def test_no_three_operations_break_a_promise(make: Make, prepare: Enter, names: tuple[str, ...]) -> None:
    _no_order_breaks_a_promise(make, prepare, names)


def test_two_first_publishes_make_one_group(make: Make) -> None:
    _no_order_breaks_a_promise(make, settled, ("publish elsewhere", "publish elsewhere", "worker"))


class Torn:
    """Clients of one SQLite database that die when they have sent so many statements of their transaction.

    The database lies in memory and is shared by its connections; one that is closed in a transaction has it undone.
    """

    def __init__(self, statements: int) -> None:
        self._statements = statements
        self._databases = 0
        self.whole = 0
        """How many statements the transaction would have had."""

    def open(self, clock: ManualClock) -> AbstractContextManager[tuple[Operations, Send]]:
        self._databases += 1
        return sqlite(clock, self._path)

    def client(self, clock: ManualClock) -> Send:
        def send(request: Write) -> None:
            steps = list(_flat(request))
            self.whole = len(steps)
            with closing(sqlite3.connect(self._path, uri=True, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                for statement, values in steps[: self._statements]:
                    connection.execute(statement, {**values, "now": clock()}).fetchall()
            raise Crashed

        return send

    @property
    def _path(self) -> str:
        return f"file:torn-{id(self)}-{self._databases}?mode=memory&cache=shared"


def _flat(request: Write) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for statement, values in request.steps:
        yield from ((statement, each) for each in ([values] if isinstance(values, Mapping) else values))


@pytest.mark.parametrize("prepare", SETTINGS, ids=lambda prepare: prepare.__name__)
@pytest.mark.parametrize("name", [name for name in ENTRANTS if name != "worker"])
def test_dying_in_a_transaction_breaks_no_promise(name: str, prepare: Enter) -> None:
    """Promise 4 on SQLite: however many statements an operation has sent, others never notice."""
    statements = 0
    while True:
        torn = Torn(statements)
        worlds = Worlds(torn.open, prepare, (name, "worker"), torn.client)
        exploration = explore(worlds)
        worlds.close()
        assert not exploration.failures, exploration
        assert exploration.schedules > 1
        if statements == torn.whole:
            break
        statements += 1
    assert statements >= 1
