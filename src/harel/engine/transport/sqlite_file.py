"""A SQLite file: its connections, and how a request is carried out on them.

One connection writes and one reads, each behind a lock of this process: SQLite lets one writer through
at a time in any case, and a thread that waits for a lock is woken at once, where a connection that waits
for the file has to poll.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from harel.engine.queue.sqlite.ops import Read, Values, Write
from harel.errors import ConfigError, HarelError, InvalidArgument, TransportUnavailable

__all__ = ["OLDEST_SQLITE", "Abandoned", "SqliteFile"]

T = TypeVar("T")

OLDEST_SQLITE = (3, 38, 0)
_SHORTEST_PAUSE_S = 0.000_2
_LONGEST_PAUSE_S = 0.010
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNAVAILABLE = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
)

_left_to_the_parent: list[sqlite3.Connection | None] = []
"""Connections that a fork copied. They are neither used nor closed here: both would harm the parent's."""


class Abandoned(HarelError):
    """Whoever asked for this transaction is gone, and it was rolled back."""


def _never() -> bool:
    return False


class SqliteFile:
    """The connections of one transport to one file.

    Parameters
    ----------
    path : str, Path or sqlite3.Connection
        The file; or the caller's own connection, which serves alone and is not closed.
    busy_timeout_s : float
        How long to wait, in seconds, for another process's transaction.
    synchronous : str
        SQLite's ``synchronous`` for what has to be durable.
    clock : callable
        Returns epoch seconds.
    """

    def __init__(
        self,
        path: str | Path | sqlite3.Connection,
        *,
        busy_timeout_s: float,
        synchronous: str,
        clock: Callable[[], float],
    ) -> None:
        self._own = path if isinstance(path, sqlite3.Connection) else None
        self.name: str = "a connection of the caller's" if isinstance(path, sqlite3.Connection) else str(path)
        self._busy_timeout_s = busy_timeout_s
        self._synchronous = synchronous
        self._clock = clock
        self._closed = threading.Event()
        self._link()

    def _link(self) -> None:
        self._pid = os.getpid()
        self._writer = _Link(self._own)
        self._reader = self._writer if self._own is not None else _Link(None)

    def send(self, request: Write | Read, abandoned: Callable[[], bool] = _never) -> Any:
        """Carry out a request.

        Parameters
        ----------
        request : Write or Read
        abandoned : callable
            Asked just before the commit; if it says ``True`` the transaction is rolled back.

        Returns
        -------
        list
            For a ``Write`` a list of rows a statement, for a ``Read`` its rows.
        """
        self._leave_the_parents_connections()
        link = self._writer if isinstance(request, Write) else self._reader
        with link.lock:
            try:
                connection = link.connection or self._connect(link)
                if isinstance(request, Write):
                    return self._write(link, connection, request, abandoned)
                return self._read(connection, request, abandoned)
            except sqlite3.Error as error:
                raise self._explained(error) from error

    def pause(self, seconds: float) -> float:
        """Sleep, unless the file is closed meanwhile; return how long it was."""
        began = time.monotonic()
        self._closed.wait(seconds)
        return time.monotonic() - began

    def close(self) -> None:
        """Close the connections, after what runs on them."""
        self._closed.set()
        self._leave_the_parents_connections()
        for link in (self._writer, self._reader):
            with link.lock:
                if link.connection is not None and link.connection is not self._own:
                    link.connection.close()
                    link.connection = None

    def _read(self, connection: sqlite3.Connection, request: Read, abandoned: Callable[[], bool]) -> list[Any]:
        now = {"now": self._clock()}
        return self._patiently(lambda: _execute(connection, request.statement, request.values, now), abandoned)

    def _write(
        self, link: _Link, connection: sqlite3.Connection, request: Write, abandoned: Callable[[], bool]
    ) -> list[list[Any]]:
        if self._own is None:
            self._set_durability(link, connection, request.durable)
        elif connection.in_transaction:
            raise InvalidArgument("The connection that was handed in is inside a transaction; commit it first.")
        self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"), abandoned)
        try:
            now = {"now": self._clock()}
            replies = [_execute(connection, statement, values, now) for statement, values in request.steps]
            if abandoned():
                raise Abandoned("The task was cancelled; nothing was changed.")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return replies

    def _set_durability(self, link: _Link, connection: sqlite3.Connection, durable: bool) -> None:
        wanted = self._synchronous if durable else "NORMAL"
        if self._synchronous != "OFF" and link.synchronous != wanted:
            connection.execute(f"PRAGMA synchronous = {wanted}")
            link.synchronous = wanted

    def _connect(self, link: _Link) -> sqlite3.Connection:
        if self._closed.is_set():
            raise InvalidArgument("This transport is closed; open a new one.")
        if not self._parent().is_dir():
            raise ConfigError(f"The folder of the SQLite file {self.name} does not exist; make it first.")
        connection = sqlite3.connect(self.name, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        link.synchronous = self._synchronous
        link.connection = connection
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        (mode,) = self._patiently(lambda: connection.execute("PRAGMA journal_mode").fetchone())
        if mode != "wal":
            self._patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone())
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")

    def _parent(self) -> Path:
        return Path(self.name).resolve().parent

    def _patiently(self, action: Callable[[], T], abandoned: Callable[[], bool] = _never) -> T:
        """Do it again while another process has the file, until the timeout.

        SQLite's own busy handler is not used: it sleeps for up to 100 ms between its tries, so that a process that
        works all the time hardly ever lets one through that waits; and it gives up at once where it fears a deadlock.
        """
        deadline = time.monotonic() + self._busy_timeout_s
        pause = _SHORTEST_PAUSE_S
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                if _kind(error) not in _BUSY or time.monotonic() >= deadline:
                    raise
            if abandoned():
                raise Abandoned("The task was cancelled while it waited; nothing was changed.")
            time.sleep(pause * random.uniform(0.5, 1.0))  # so that waiting processes do not keep step
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _explained(self, error: sqlite3.Error) -> HarelError:
        kind = _kind(error)
        if kind in _BUSY:
            return TransportUnavailable(
                f"Another process kept {self.name} locked for {self._busy_timeout_s:g} s. Look for a transaction that "
                "is left open, or raise busy_timeout."
            )
        if kind == sqlite3.SQLITE_NOTADB:
            return ConfigError(f"{self.name} is not a SQLite database.")
        if kind == sqlite3.SQLITE_READONLY:
            return ConfigError(f"{self.name} cannot be written by this user, or lies on a read-only disk.")
        if kind == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
            return InvalidArgument(
                f"SQLite takes no value this large ({error}); publish fewer or smaller events at once."
            )
        if kind in _UNAVAILABLE:
            return TransportUnavailable(f"{self.name} cannot be used just now: {error}.")
        return HarelError(f"SQLite refused an operation on {self.name}: {error}.")

    def _leave_the_parents_connections(self) -> None:
        if self._pid != os.getpid():
            _left_to_the_parent.extend((self._writer.connection, self._reader.connection))
            self._link()


class _Link:
    """A connection, made on first use, and the lock that keeps a transaction to one thread."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self.lock = threading.Lock()
        self.connection = connection
        self.synchronous = ""


def _execute(connection: sqlite3.Connection, statement: str, values: Values | list[Values], now: Values) -> list[Any]:
    if isinstance(values, list):
        connection.executemany(statement, [{**each, **now} for each in values])
        return []
    return connection.execute(statement, {**values, **now}).fetchall()


def _kind(error: sqlite3.Error) -> int:
    """Return the primary result code, or 0 where the error came from the Python module."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
