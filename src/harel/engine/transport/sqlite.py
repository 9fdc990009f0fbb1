"""The queue in a SQLite file, for sync code."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from harel.engine.queue.face import Face, SyncFace
from harel.engine.queue.op import Sleep
from harel.engine.queue.sqlite.ops import SqliteOps
from harel.engine.transport.sqlite_file import OLDEST_SQLITE, SqliteFile
from harel.errors import ConfigError

__all__ = ["SqliteBase", "SqliteTransport", "Synchronous"]

Synchronous = Literal["OFF", "NORMAL", "FULL", "EXTRA"]


class SqliteBase(Face):
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
        Seconds to wait for another process's transaction before :exc:`~harel.TransportUnavailable`.
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
        if synchronous not in get_args(Synchronous):
            raise ConfigError(f"synchronous must be one of {', '.join(get_args(Synchronous))}, not {synchronous!r}.")
        if not isinstance(path, sqlite3.Connection) and (not str(path) or str(path).startswith((":memory:", "file:"))):
            raise ConfigError(
                f"SQLite needs the path of a file, not {str(path)!r}. For a queue in memory use memory://."
            )
        self._file = SqliteFile(path, busy_timeout_s=busy_timeout, synchronous=synchronous, clock=clock or time.time)
        super().__init__(
            SqliteOps(
                _queue_name(path, prefix),
                prefix,
                fresh_first=fresh_first,
                poll_interval_s=poll_interval,
                create_schema=create_schema,
            )
        )


class SqliteTransport(SqliteBase, SyncFace):
    """A queue in a SQLite file, for sync code; threads and processes may share the file.

    See :class:`SqliteBase` for the parameters.
    """

    def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            return self._file.pause(request.seconds)
        return self._file.send(request)

    def _shut(self) -> None:
        self._file.close()


def _queue_name(path: str | Path | sqlite3.Connection, prefix: str) -> str:
    file = path.execute("PRAGMA database_list").fetchone()[2] if isinstance(path, sqlite3.Connection) else path
    return f"sqlite:///{Path(file).resolve() if file else f':memory:{id(path):x}'}#{prefix}"
