"""The two drivers of one dialect, for tests that run on both."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libsql  # type: ignore[import-untyped]

from harel.engine.aio_transport import AsyncLibsqlTransport, AsyncSqliteTransport
from harel.engine.transport import LibsqlTransport, SqliteTransport
from harel.engine.transport.libsql import LibsqlFile
from harel.engine.transport.sqlite_file import DatabaseFile, SqliteFile


@dataclass(frozen=True)
class Driver:
    """One driver, and what harel makes of it."""

    scheme: str
    transport: Callable[..., Any]
    async_transport: Callable[..., Any]
    file: type[DatabaseFile]
    error: type[Exception]
    """What it raises when a file is locked."""
    connect: Callable[[Path], Any]
    """Opens a connection that commits each statement and waits for no lock."""

    def url(self, folder: Path) -> str:
        return f"{self.scheme}:///{folder}/queue.db"


def _sqlite(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0.0, isolation_level=None)


def _libsql(path: Path) -> Any:
    return libsql.connect(str(path), timeout=0.0, isolation_level=None)


DRIVERS = (
    Driver("sqlite", SqliteTransport, AsyncSqliteTransport, SqliteFile, sqlite3.OperationalError, _sqlite),
    Driver("libsql", LibsqlTransport, AsyncLibsqlTransport, LibsqlFile, ValueError, _libsql),
)
