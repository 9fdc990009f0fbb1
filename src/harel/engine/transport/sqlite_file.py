"""A database file of SQLite or libSQL: its connections, and how a request is carried out on them.

One connection writes and one reads: SQLite lets one writer through at a time in any case, and a thread that waits for
its turn in this process is woken at once, where a connection that waits for the file has to poll.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from harel.engine.queue.sqlite.ops import Read, Values, Write
from harel.engine.transport.sqlite_place import Abandoned, Asker, Place, opened
from harel.errors import ConfigError, HarelError, InvalidArgument, TransportUnavailable

__all__ = ["OLDEST_SQLITE", "Abandoned", "DatabaseFile", "Kind", "Pauses", "SqliteFile"]

T = TypeVar("T")

OLDEST_SQLITE = (3, 38, 0)
_SHORTEST_PAUSE_S = 0.000_2
_LONGEST_PAUSE_S = 0.010

_left_to_the_parent: list[Any] = []
"""Connections that a fork copied. They are neither used nor closed here: both would harm the parent's."""


class Kind(Enum):
    """What a driver's error says."""

    BUSY = auto()
    """Another connection has the lock; trying again may help."""
    STALE = auto()
    """This transaction has read what another one changed since; only a new one can write."""
    CLOSED = auto()
    NOT_A_DATABASE = auto()
    READ_ONLY = auto()
    TOO_LARGE = auto()
    UNAVAILABLE = auto()
    OTHER = auto()


class DatabaseFile(ABC):
    """The connections of one transport to one file, whatever the driver.

    Parameters
    ----------
    path : str, Path or connection
        The file; or the caller's own connection, which serves alone and is not closed.
    busy_timeout_s : float
        How long to wait, in seconds, for another connection's transaction.
    synchronous : str
        SQLite's ``synchronous`` for what has to be durable.
    clock : callable
        Returns epoch seconds.
    """

    engine: ClassVar[str]
    """The driver's name."""
    connection_class: ClassVar[type[Any]]
    alone = False
    """Whether one connection does everything."""

    def __init__(
        self,
        path: Any,
        *,
        busy_timeout_s: float,
        synchronous: str,
        clock: Callable[[], float],
    ) -> None:
        self._own = path if isinstance(path, self.connection_class) else None
        self._path = str(path)
        self.name: str = self._path if self._own is None else "a connection of the caller's"
        self.busy_timeout_s = busy_timeout_s
        self._synchronous = synchronous
        self._clock = clock
        self._closed = threading.Event()
        self.explaining = _Explaining(self)
        self._link()

    def _link(self) -> None:
        self._pid = os.getpid()
        self._place: Place | None = None
        self._writer = _Link()
        self._reader = self._writer if self._is_alone else _Link()

    @property
    def _is_alone(self) -> bool:
        return self.alone or self._own is not None

    # What a driver does in its own way.

    @abstractmethod
    def _open(self) -> Any:
        """Return a new connection in autocommit mode, which waits for no lock."""

    @abstractmethod
    def _execute(self, connection: Any, statement: str, values: Values, now: Values) -> list[Any]:
        """Run a statement, and return its rows."""

    @abstractmethod
    def _execute_many(self, connection: Any, statement: str, values: list[Values], now: Values) -> None: ...

    @abstractmethod
    def kind_of(self, error: BaseException) -> Kind | None:
        """Say what an error means, or ``None`` for one that is not the driver's."""

    def _set_up(self, connection: Any) -> None:
        """Make a new connection ready."""
        ((mode,),) = self._patiently(lambda: self._execute(connection, "PRAGMA journal_mode", {}, {}))
        if mode != "wal":
            self._patiently(lambda: self._execute(connection, "PRAGMA journal_mode = WAL", {}, {}))
        self._execute(connection, f"PRAGMA synchronous = {self._synchronous}", {}, {})

    def _refresh(self, connection: Any) -> None:  # noqa: ARG002 - for a driver where others write elsewhere
        """Make what others have written visible to a read."""
        return

    # Requests.

    def send(self, request: Write | Read, asker: Asker | None = None) -> Any:
        """Carry out a request.

        Parameters
        ----------
        request : Write or Read
        asker : Asker, optional
            Who asks, unless it is this thread. If nobody waits for the answer just before the commit, the
            transaction is rolled back.

        Returns
        -------
        list
            For a ``Write`` a list of rows a statement, for a ``Read`` its rows.
        """
        self._leave_the_parents_connections()
        asker = asker or Asker(threading.get_ident())
        with self.explaining:
            if isinstance(request, Write):
                return self._write(request, asker)
            return self._read(request, asker)

    def address(self) -> str:
        """Return what the database is called, the same for everyone who opens it."""
        path = self._path if self._own is None else self._path_of(self._own)
        return str(Path(path).resolve()) if path else f":memory:{id(self._own):x}"

    def must_not_wait_for_itself(self, who: object) -> None:
        """Raise if this thread or task has a transaction open itself."""
        if self._place is not None:
            self._place.turn.must_not_belong_to(who)

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
                if link.connection is not None:
                    self._disconnect(link.connection)
                    link.connection = None

    def _read(self, request: Read, asker: Asker) -> list[Any]:
        with self._reader.lock:
            connection = self._reader.connection or self._connect(self._reader)
            now = {"now": self._clock()}
            self._refresh(connection)
            return self._patiently(lambda: self._execute(connection, request.statement, request.values, now), asker)

    def _write(self, request: Write, asker: Asker) -> list[list[Any]]:
        link = self._writer
        turn = self._placed(asker).turn
        turn.take(asker, limit_s=self.busy_timeout_s, name=self.name)
        try:
            with link.lock:
                connection = link.connection or self._connect(link)
                self._set_durability(link, connection, request.durable)
                self._begin(connection, asker)
                try:
                    replies = self._steps(connection, request)
                    asker.must_be_there()
                    self._execute(connection, "COMMIT", {}, {})
                except BaseException:
                    self._undo(connection)
                    raise
                return replies
        finally:
            turn.pass_on()

    def _begin(self, connection: Any, asker: Asker) -> None:
        if self._own is not None and connection.in_transaction:
            raise InvalidArgument("The connection that was handed in is inside a transaction; commit it first.")
        try:
            self._patiently(lambda: self._execute(connection, "BEGIN IMMEDIATE", {}, {}), asker)
        except BaseException:
            self._undo(connection)  # an interrupt may come right behind it
            raise

    def _undo(self, connection: Any) -> None:
        if connection.in_transaction:
            self._execute(connection, "ROLLBACK", {}, {})

    def _steps(self, connection: Any, request: Write) -> list[list[Any]]:
        now = {"now": self._clock()}
        replies: list[list[Any]] = []
        for statement, values in request.steps:
            if isinstance(values, list):
                self._execute_many(connection, statement, values, now)
                replies.append([])
            else:
                replies.append(self._execute(connection, statement, values, now))
        return replies

    # Transactions of the caller's.

    def begin(self, asker: Asker) -> Any:
        """Open a connection for a transaction of the caller's, which has the write lock; :meth:`end` takes it back."""
        self._leave_the_parents_connections()
        with self.explaining:
            turn = self._placed(asker).turn
            turn.take(asker, limit_s=self.busy_timeout_s, name=self.name, owns=True)
            try:
                return self._begun(asker)
            except BaseException:
                turn.pass_on()
                raise

    def _begun(self, asker: Asker) -> Any:
        connection = self._only() if self._is_alone else self._opened()[1]
        try:
            self._begin(connection, asker)
        except BaseException:
            self._let_go(connection)
            raise
        return connection

    def _only(self) -> Any:
        with self._writer.lock:
            return self._writer.connection or self._connect(self._writer)

    def end(self, connection: Any, *, commit: bool) -> None:
        """Commit or undo a transaction of the caller's, and let the next one have its turn."""
        if self._pid != os.getpid():
            _left_to_the_parent.append(connection)
            return
        assert self._place is not None
        try:
            with self.explaining:
                if commit:
                    self._commit(connection)
        finally:
            try:
                self._undo_quietly(connection)
                self._let_go(connection)
            finally:
                self._place.turn.pass_on()

    def _commit(self, connection: Any) -> None:
        if not connection.in_transaction:
            raise InvalidArgument(
                "The transaction was ended inside its block, by commit, rollback or executescript; leave that to the "
                "block, or what was done in it does not happen as one."
            )
        self._execute(connection, "COMMIT", {}, {})

    def _let_go(self, connection: Any) -> None:
        if not self._is_alone:
            self._disconnect(connection)

    def must_be_in_a_transaction(self, connection: Any) -> None:
        """Raise unless this connection is inside a transaction, and the transport is open."""
        self._must_be_open()
        with self.explaining:
            inside = connection.in_transaction
        if not inside:
            raise InvalidArgument(
                "The connection is in no transaction, so nothing could be undone together: execute BEGIN IMMEDIATE on "
                "it first, or use transaction()."
            )

    def must_be_of_this_file(self, connection: Any) -> None:
        """Raise unless this connection's database is the one that the transport serves."""
        if connection is self._own:
            return
        with self.explaining:
            path = self._path_of(connection)
        if self._place is None or not path or not self._place.is_at(path):
            raise InvalidArgument(
                f"The connection is to {path or 'a database in memory'}, and the queue is in {self.name}: one "
                "transaction cannot span both. Hand in a connection to the queue's own file."
            )

    def send_inside(self, connection: Any, request: Write, lock: str) -> Any:
        """Carry out a request inside the transaction that is open on a caller's connection, whole or not at all.

        Parameters
        ----------
        connection : connection
        request : Write
        lock : str
            A statement that changes nothing and takes the write lock, where the transaction has not.

        Raises
        ------
        sqlite3.Error or ValueError
            The driver's own; of the kind ``BUSY`` when the lock could not be had, and nothing was done.
        """
        self.must_be_in_a_transaction(connection)
        self._execute(connection, lock, {}, {})
        self._execute(connection, "SAVEPOINT harel", {}, {})
        try:
            replies = self._steps(connection, request)
        except BaseException:
            if connection.in_transaction:
                self._execute(connection, "ROLLBACK TO harel", {}, {})
                self._execute(connection, "RELEASE harel", {}, {})
            raise
        self._execute(connection, "RELEASE harel", {}, {})
        return replies

    def bound(self, connection: Any, lock: str) -> Callable[[Any], Any]:
        """Return what carries out requests inside the transaction that is open on a caller's connection."""
        self.must_be_in_a_transaction(connection)
        self.must_be_of_this_file(connection)

        def send(request: Write) -> Any:
            with self.explaining:
                return self._patiently(lambda: self.send_inside(connection, request, lock), again=(Kind.BUSY,))

        return send

    def explained(self, error: BaseException) -> HarelError:
        """Return what an error of the driver's is to the caller."""
        kind = self.kind_of(error)
        if kind is Kind.BUSY:
            return TransportUnavailable(
                f"Another connection kept {self.name} locked for {self.busy_timeout_s:g} s. Look for a transaction "
                "that is left open, or raise busy_timeout. (One that began with BEGIN and has read before another "
                "wrote is never let through: begin it with BEGIN IMMEDIATE.)"
            )
        if kind is Kind.STALE:
            return TransportUnavailable(
                f"This transaction on {self.name} has read what another one changed since, so it cannot write any "
                "more: roll it back, and begin it with BEGIN IMMEDIATE."
            )
        if kind is Kind.CLOSED:
            return InvalidArgument(f"The connection cannot be used, because it is closed or another thread's: {error}")
        if kind is Kind.NOT_A_DATABASE:
            return ConfigError(f"{self.name} is not a SQLite database.")
        if kind is Kind.READ_ONLY:
            return ConfigError(f"{self.name} cannot be written by this user, or lies on a read-only disk.")
        if kind is Kind.TOO_LARGE:
            return InvalidArgument(
                f"SQLite takes no value this large ({error}); publish fewer or smaller events at once."
            )
        if kind is Kind.UNAVAILABLE:
            return TransportUnavailable(f"{self.name} cannot be used just now: {error}.")
        return HarelError(f"SQLite refused an operation on {self.name}: {error}.")

    def cause_of(self, error: BaseException) -> BaseException | None:
        """Return what may be shown as an error's cause."""
        return error

    # Connections.

    def _placed(self, asker: Asker) -> Place:
        if self._place is None:
            with self._writer.lock:
                asker.must_be_there()
                if self._writer.connection is None:
                    self._connect(self._writer)
        assert self._place is not None
        return self._place

    def _connect(self, link: _Link) -> Any:
        self._place, connection = self._opened()
        link.synchronous = self._synchronous
        link.connection = connection
        return connection

    def _opened(self) -> tuple[Place, Any]:
        self._must_be_open()
        if self._own is not None:
            own = self._own
            return opened(self._path_of(own), self.engine, lambda: own)
        if not Path(self._path).resolve().parent.is_dir():
            raise ConfigError(f"The folder of the SQLite file {self._path} does not exist; make it first.")
        place, connection = opened(self._path, self.engine, self._open)
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            place.left()
            raise
        return place, connection

    def _must_be_open(self) -> None:
        if self._closed.is_set():
            raise InvalidArgument("This transport is closed; open a new one.")

    def _disconnect(self, connection: Any) -> None:
        if connection is not self._own:
            connection.close()
        if self._place is not None:
            self._place.left()

    def _path_of(self, connection: Any) -> str:
        (path,) = (row[2] for row in self._execute(connection, "PRAGMA database_list", {}, {}) if row[1] == "main")
        return path or ""

    def _set_durability(self, link: _Link, connection: Any, durable: bool) -> None:
        wanted = self._synchronous if durable else "NORMAL"
        if not self._is_alone and self._synchronous != "OFF" and link.synchronous != wanted:
            self._execute(connection, f"PRAGMA synchronous = {wanted}", {}, {})
            link.synchronous = wanted

    def _patiently(
        self,
        action: Callable[[], T],
        asker: Asker | None = None,
        again: tuple[Kind, ...] = (Kind.BUSY, Kind.STALE),
    ) -> T:
        """Do it again while another connection has the file, until the timeout.

        SQLite's own busy handler is not used: it sleeps for up to 100 ms between its tries, so that a process that
        works all the time hardly ever lets one through that waits; and it gives up at once where it fears a deadlock.
        """
        pauses = Pauses(self.busy_timeout_s)
        while True:
            try:
                return action()
            except BaseException as error:
                if self.kind_of(error) not in again or pauses.over:
                    raise
            if asker is not None:
                asker.must_be_there()
            time.sleep(pauses.next())

    def _undo_quietly(self, connection: Any) -> None:
        try:
            self._undo(connection)
        except BaseException as error:
            if not self.kind_of(error):
                raise

    def _leave_the_parents_connections(self) -> None:
        if self._pid != os.getpid():
            _left_to_the_parent.extend((self._writer.connection, self._reader.connection))
            self._link()


class _Explaining:
    """Turns the driver's errors into ours where they leave a block."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._file.kind_of(error) is not None:
            raise self._file.explained(error) from self._file.cause_of(error)


class Pauses:
    """How long to sleep between the tries to get a lock: ever longer, and not in step with other processes.

    Parameters
    ----------
    timeout_s : float
        For how many seconds to go on.
    """

    def __init__(self, timeout_s: float) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._pause_s = _SHORTEST_PAUSE_S

    @property
    def over(self) -> bool:
        """Whether it has been long enough."""
        return time.monotonic() >= self._deadline

    def next(self) -> float:
        """Return the next pause, seconds."""
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s


class _Link:
    """A connection, made on first use, and the lock that keeps a transaction to one thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Any = None
        self.synchronous = ""


class SqliteFile(DatabaseFile):
    """A file over Python's own driver."""

    engine = "sqlite3"
    connection_class = sqlite3.Connection

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=0.0, isolation_level=None, check_same_thread=False)

    def _execute(self, connection: sqlite3.Connection, statement: str, values: Values, now: Values) -> list[Any]:
        cursor = connection.cursor()
        cursor.row_factory = None  # a caller's connection may have one
        return cursor.execute(statement, {**values, **now}).fetchall()

    def _execute_many(
        self, connection: sqlite3.Connection, statement: str, values: list[Mapping[str, Any]], now: Values
    ) -> None:
        connection.executemany(statement, [{**each, **now} for each in values])

    def kind_of(self, error: BaseException) -> Kind | None:
        if not isinstance(error, sqlite3.Error):
            return None
        if isinstance(error, sqlite3.DataError):
            return Kind.TOO_LARGE
        code: int = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
            return Kind.STALE
        if code == 0 and isinstance(error, sqlite3.ProgrammingError):
            return Kind.CLOSED
        return _KINDS.get(code & 0xFF, Kind.OTHER)


_KINDS = {
    sqlite3.SQLITE_BUSY: Kind.BUSY,
    sqlite3.SQLITE_LOCKED: Kind.BUSY,
    sqlite3.SQLITE_NOTADB: Kind.NOT_A_DATABASE,
    sqlite3.SQLITE_READONLY: Kind.READ_ONLY,
    sqlite3.SQLITE_TOOBIG: Kind.TOO_LARGE,
    sqlite3.SQLITE_IOERR: Kind.UNAVAILABLE,
    sqlite3.SQLITE_FULL: Kind.UNAVAILABLE,
    sqlite3.SQLITE_CANTOPEN: Kind.UNAVAILABLE,
    sqlite3.SQLITE_NOMEM: Kind.UNAVAILABLE,
    sqlite3.SQLITE_PROTOCOL: Kind.UNAVAILABLE,
}
