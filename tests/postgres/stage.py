"""Actors on a stage: connections that are stepped by hand, and what the server says of who waits for whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

from harel import Event
from harel.engine.queue.postgres.schema import advisory_key, function_ddl
from harel.engine.queue.schedule import FRESH
from harel.engine.transport import PostgresTransport
from harel.events import encode_event

T = TypeVar("T")

PATIENCE_S = 30.0
"""After this long something that has to happen did not."""


class Actor:
    """A session of its own, which steps through a transaction and stops wherever the test likes.

    Parameters
    ----------
    url : str
    schema : str
    """

    def __init__(self, url: str, schema: str) -> None:
        self.connection: psycopg.Connection[Any] = psycopg.connect(url, application_name=f"actor of {schema}")
        self.connection.execute("SET statement_timeout = '20s'")
        self.connection.commit()
        self.queue = PostgresTransport(self.connection, schema=schema, create_schema=False)
        self.connection.commit()

    @property
    def pid(self) -> int:
        return self.connection.info.backend_pid

    def begin(self) -> None:
        """Open a transaction, which takes in what follows."""
        self.connection.execute("SELECT 1")

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()


class Stage:
    """A server and a schema, and those who act on them.

    Parameters
    ----------
    url : str
    schema : str
    """

    def __init__(self, url: str, schema: str) -> None:
        # Other processes may test on the same server: sessions tell by their name whose they are.
        self.url = f"{url}{'&' if '?' in url else '?'}application_name={schema}"
        self.schema = schema
        self._names = {
            "{schema}": f'"{schema}"',
            "{sessions}": f"(SELECT * FROM pg_stat_activity WHERE application_name LIKE '%{schema}') AS sessions",
            "{locks}": "(SELECT l.* FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) "
            f"WHERE l.locktype = 'advisory' AND a.application_name LIKE '%{schema}') AS locks",
        }
        self._watcher: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True, application_name="watcher")
        self._opened: list[Any] = []

    def open(self, **options: Any) -> PostgresTransport:
        return self._keep(PostgresTransport(self.url, schema=self.schema, **options))

    def actor(self) -> Actor:
        return self._keep(Actor(self.url, self.schema))

    def ask(self, statement: str, *values: Any) -> list[Any]:
        """Ask the server something, in a session that has no part in the play.

        ``{sessions}`` and ``{locks}`` are those of this stage, and of no other on the same server.
        """
        return psycopg.RawCursor(self._watcher).execute(self._named(statement), values).fetchall()

    def do(self, statement: str) -> None:
        self._watcher.execute(self._named(statement).encode())

    def _named(self, statement: str) -> str:
        for name, meaning in self._names.items():
            statement = statement.replace(name, meaning)
        return statement

    def groups(self) -> list[str]:
        """Name the groups that have a row, messages or not."""
        both = "SELECT group_id FROM {schema}.transport_groups UNION SELECT group_id FROM {schema}.transport_names"
        return [name for (name,) in self.ask(f"{both} ORDER BY group_id")]

    def until(self, statement: str, *values: Any) -> None:
        """Look until a statement returns a row."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.ask(statement, *values):
            assert time.monotonic() < deadline, f"never came true: {statement}"
            time.sleep(0.002)

    def until_blocked(self, pid: int) -> None:
        """Look until a session waits for a lock."""
        self.until("SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'", pid)

    def sessions(self) -> list[tuple[int, str]]:
        """Say which sessions the transports have, and in what state each is."""
        return self.ask("SELECT pid, state FROM {sessions}")

    @contextmanager
    def pause(self, function: str, before: str) -> Iterator[None]:
        """Make a function stop before a line, in whoever calls it, until this block ends.

        The line, which is there once, and then the rest of the function, go on after the block.
        """
        text = function_ddl(self.schema, function).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)
        before = before.replace("{schema}", self.schema)
        assert text.count(before) == 1, f"{before!r} is there {text.count(before)} times"
        key = advisory_key(self.schema, "pause")
        with psycopg.connect(self.url, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", (key,))
            stop = f"PERFORM pg_advisory_lock_shared({key}); PERFORM pg_advisory_unlock_shared({key});\n"
            self._watcher.execute(text.replace(before, stop + before).encode())
            yield

    def close(self) -> None:
        for opened in reversed(self._opened):
            opened.close()
        self._watcher.close()

    def _keep(self, opened: T) -> T:
        self._opened.append(opened)
        return opened


class Doing(threading.Thread):
    """Something that is done meanwhile, and what came of it."""

    def __init__(self, action: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._action = action
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._action()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        """Wait for its end; return its result, or raise what it raised."""
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it never ended"
        if self._error is not None:
            raise self._error
        return self._result


def event(kind: str) -> Event:
    return Event(kind=kind, id=kind)


def publish_call(schema: str, group_id: str, kind: str) -> tuple[str, tuple[Any, ...]]:
    """Return the call of a publish as a statement with its values."""
    values = (group_id, encode_event(event(kind)), 0, FRESH)
    return f'SELECT "{schema}".harel_publish(%s, %s, %s::smallint, %s, NULL)', values
