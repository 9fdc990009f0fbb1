"""PostgreSQL's operations for the explorer: one in a transaction that stays open, and others at every moment of it.

On PostgreSQL an operation is one function, and what may come between its statements is stepped by hand in
``tests/postgres/test_races.py``. Here an operation is a part of a longer transaction of its caller's, which ends with
another step or with its client's death. Who would have to wait for it is let wait: it goes on when the transaction has
ended, and the order is counted as one of those in which it comes later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import psycopg
from psycopg.errors import LockNotAvailable

from harel.engine.queue.checked import Checked
from harel.engine.queue.op import Op
from harel.engine.transport import PostgresTransport
from harel.testing import ManualClock
from harel.testing.explorer import Actor, Scene
from tests.interleavings.test_pairs import VISIBILITY_S, Setting

_TABLES = ("messages", "names", "groups", "dead_letters")


class Commit:
    """A request: end the transaction."""


class InTransaction:
    """Operations that are a transaction with a commit of its own."""

    def __init__(self, ops: Any, connection: psycopg.Connection[Any]) -> None:
        self._ops = ops
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ops, name)
        return wraps(value)(lambda *args: self._committed(value(*args))) if callable(value) else value

    def _committed(self, op: Op[Any]) -> Op[Any]:
        try:
            reply = yield from op
            yield Commit()
        except GeneratorExit:
            self._connection.rollback()  # as the server does when its client is gone
            raise
        return reply


class Stage:
    """A schema with two connections to it: one whose operations are its own transactions, one that keeps them open.

    Parameters
    ----------
    url : str
    schema : str
        The transport's; it is made if it is not there.
    """

    def __init__(self, url: str, schema: str) -> None:
        self._schema = schema
        PostgresTransport(url, schema=schema, max_size=1).close()
        self.plain: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        self.open: psycopg.Connection[Any] = psycopg.connect(url)
        self.plain.execute("SET lock_timeout = 1; SET synchronous_commit = off")
        self.open.execute("SET synchronous_commit = off")
        self.open.commit()
        self.waits = 0
        """How often one would have had to wait."""
        self.actors: list[Actor] = []

    def close(self) -> None:
        self.plain.close()
        self.open.close()

    def clear(self) -> None:
        """Empty the queue."""
        self.open.rollback()
        tables = ", ".join(f'"{self._schema}".transport_{table}' for table in _TABLES)
        self.plain.execute(f"TRUNCATE {tables} RESTART IDENTITY".encode())

    def at(self, connection: psycopg.Connection[Any], clock: ManualClock) -> PostgresTransport:
        return PostgresTransport(connection, schema=self._schema, clock=clock, create_schema=False)

    def send_in_transaction(self, transport: PostgresTransport) -> Callable[[Any], Any]:
        def send(request: Any) -> Any:
            if isinstance(request, Commit):
                return self.open.commit()
            self.open.execute("SELECT 1")  # which opens it
            return transport._send(request)

        return send

    def send_or_wait(self, transport: PostgresTransport) -> Callable[[Any], Any]:
        """Carry out a request; if it has to wait for the open transaction, let that end first."""

        def send(request: Any) -> Any:
            try:
                return transport._send(request)
            except Exception as error:
                if not isinstance(error.__cause__, LockNotAvailable):
                    raise
            self.waits += 1
            holder = self.actors[0]
            while not holder.ended:
                holder.step()
            return transport._send(request)

        return send


class PostgresScene(Scene):
    """A scene in which an operation may be a part of an open transaction."""

    def meet_in_transaction(self, method: str, *args: Any, ops: Any, send: Callable[[Any], Any]) -> None:
        name = f"{method} {len(self.actors) + 1}, in a transaction"
        self.actors.append(Actor(name, self._op(name, method, args, Checked(ops)), send))


class PostgresSetting(Setting):
    """The same setting on PostgreSQL; the first that is met has its transaction open."""

    def __init__(self, stage: Stage, clock: ManualClock) -> None:
        stage.clear()
        plain = stage.at(stage.plain, clock)
        held = stage.at(stage.open, clock)
        stage.open.commit()
        self.scene: PostgresScene = PostgresScene(plain._ops, stage.send_or_wait(plain), clock)
        stage.actors = self.scene.actors
        self.clock = clock
        self.send = None
        self._events = 0
        self._inside: dict[str, Any] = {
            "ops": InTransaction(held._ops, stage.open),
            "send": stage.send_in_transaction(held),
        }
        self.dead = self._dead_letter()
        self.lease = self.scene.do("claim", "w", VISIBILITY_S, 0)

    def meet(self, method: str, *args: Any) -> None:
        if self.scene.actors:
            self.scene.meet(method, *args)
        else:
            self.scene.meet_in_transaction(method, *args, **self._inside)
