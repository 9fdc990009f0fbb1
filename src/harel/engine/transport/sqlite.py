"""The queue in a SQLite file, for sync code."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from harel.engine.queue.assets import check_identifier, check_timeout
from harel.engine.queue.face import Face, SyncFace
from harel.engine.queue.op import Sleep
from harel.engine.queue.sqlite.ops import SqliteOps
from harel.engine.transport.sqlite_file import OLDEST_SQLITE, DatabaseFile, SqliteFile
from harel.engine.transport.sqlite_place import Asker
from harel.errors import ConfigError, InvalidArgument

__all__ = ["FileFace", "SqliteBase", "SqliteTransport", "SyncFileFace", "Synchronous", "check_path"]

Synchronous = Literal["OFF", "NORMAL", "FULL", "EXTRA"]


class FileFace(Face):
    """What the transports over a file have in common.

    Parameters
    ----------
    file : DatabaseFile
    ops : SqliteOps
    """

    def __init__(self, file: DatabaseFile, ops: SqliteOps) -> None:
        self._file = file
        self._lock = ops.lock
        super().__init__(ops)


class SyncFileFace(SyncFace):
    """How requests are sent to a file, by sync code."""

    _file: DatabaseFile
    _lock: str

    def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            return self._file.pause(request.seconds)
        return self._file.send(request)

    def _shut(self) -> None:
        self._file.close()

    def _bound(self, connection: Any) -> tuple[Any, Callable[[Any], Any]]:
        if not isinstance(connection, self._file.connection_class):
            raise InvalidArgument(
                f"bind takes a {self._file.engine}.Connection, such as transaction() gives, "
                f"not {type(connection).__name__}."
            )
        return self._ops, self._file.bound(connection, self._lock)

    def _transaction(self) -> AbstractContextManager[Any]:
        return self._in_transaction()

    @contextmanager
    def _in_transaction(self) -> Iterator[Any]:
        connection = self._file.begin(Asker(threading.get_ident()))
        try:
            yield connection
        except BaseException:
            self._file.end(connection, commit=False)
            raise
        self._file.end(connection, commit=True)


class SqliteBase(FileFace):
    """How both twins are made.

    Parameters
    ----------
    path : str, Path or sqlite3.Connection
        The file, made if it is not there. Or the caller's own connection, which is then used as it is,
        from one thread at a time, and not closed.
    prefix : str
        What the names of the tables begin with.
    clock : callable, optional
        Returns epoch seconds; ``None`` is the machine's clock.
    fresh_first : bool
        Whether groups that were never served go before those that were.
    busy_timeout : float
        Seconds to wait for another connection's transaction before :exc:`~harel.TransportUnavailable`.
    poll_interval : float
        Seconds between the looks of ``wait``.
    synchronous : str
        SQLite's setting for publish and settle. ``"FULL"``: what returned survives a power cut.
        ``"NORMAL"``: it survives a crash of the process, and a power cut may take the latest.
    create_schema : bool
        Whether to make the tables if they are missing.
    """

    def __init__(
        self,
        path: str | Path | sqlite3.Connection,
        *,
        prefix: str = "transport",
        clock: Callable[[], float] | None = None,
        fresh_first: bool = True,
        busy_timeout: float = 30.0,
        poll_interval: float = 0.05,
        synchronous: Synchronous = "FULL",
        create_schema: bool = True,
    ) -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise ConfigError(f"harel needs SQLite 3.38 or later; this Python has {sqlite3.sqlite_version}.")
        check_path(path, SqliteFile, synchronous)
        check_waits(busy_timeout, poll_interval)
        prefix = check_identifier("prefix", prefix)
        file = SqliteFile(path, busy_timeout_s=busy_timeout, synchronous=synchronous, clock=clock or time.time)
        super().__init__(
            file,
            SqliteOps(
                f"sqlite:///{file.address()}#{prefix}",
                prefix,
                fresh_first=fresh_first,
                poll_interval_s=poll_interval,
                create_schema=create_schema,
            ),
        )


class SqliteTransport(SqliteBase, SyncFileFace):
    """A queue in a SQLite file, for sync code; threads and processes may share the file.

    ``bind`` takes a :class:`sqlite3.Connection`, and ``transaction()`` gives one that has the write lock.

    See :class:`SqliteBase` for the parameters.
    """


def check_waits(busy_timeout: float, poll_interval: float) -> None:
    """Raise unless a file's locks and looks can be waited for so long."""
    if isinstance(busy_timeout, bool) or busy_timeout != 0:
        check_timeout("busy_timeout", busy_timeout)
    check_timeout("poll_interval", poll_interval)


def check_path(path: object, file: type[DatabaseFile], synchronous: str) -> None:
    """Raise unless this can be the file of a queue, and that a durability."""
    if synchronous not in get_args(Synchronous):
        raise ConfigError(f"synchronous must be one of {', '.join(get_args(Synchronous))}, not {synchronous!r}.")
    if not isinstance(path, file.connection_class) and (not str(path) or str(path).startswith((":memory:", "file:"))):
        raise ConfigError(f"SQLite needs the path of a file, not {str(path)!r}. For a queue in memory use memory://.")
