"""The queue in a file of libSQL, for sync code: a local one, or a replica of a primary."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import libsql  # type: ignore[import-untyped]

from harel.engine.queue.assets import check_identifier
from harel.engine.queue.libsql.ops import PRIMARYS_CLOCK, check_token, place_values, primary_of
from harel.engine.queue.sqlite.ops import SqliteOps, Values
from harel.engine.transport.sqlite import FileFace, SyncFileFace, Synchronous, check_path, check_waits
from harel.engine.transport.sqlite_file import DatabaseFile, Kind
from harel.errors import ConfigError, HarelError

__all__ = ["LibsqlBase", "LibsqlFile", "LibsqlTransport"]

_MOST_BYTES = 1_000_000_000
"""SQLite's limit of a value. The driver stores NULL in place of a longer one, and says nothing."""

_EXACT = 2**53
"""From here on the driver rounds: it hands over every int that does not fit 32 bits as a float."""

_KINDS = (
    ("is locked", Kind.BUSY),
    ("SQLITE_BUSY", Kind.BUSY),
    ("file is not a database", Kind.NOT_A_DATABASE),
    ("readonly database", Kind.READ_ONLY),
    ("too big", Kind.TOO_LARGE),
    ("disk is full", Kind.UNAVAILABLE),
    ("disk I/O error", Kind.UNAVAILABLE),
    ("unable to open", Kind.UNAVAILABLE),
    ("Unable to open", Kind.UNAVAILABLE),
    ("out of memory", Kind.UNAVAILABLE),
    ("locking protocol", Kind.UNAVAILABLE),
    ("Option::unwrap()", Kind.CLOSED),
)
"""The driver has one exception, ``ValueError``; what it means is in SQLite's text for the result code."""


class LibsqlFile(DatabaseFile):
    """A file over the ``libsql`` driver.

    It differs from ``sqlite3`` in this: values are handed over by place, never by name; an int beyond 32 bits becomes
    a float; text longer than SQLite takes becomes NULL; a statement without rows has ``None`` for its rows; every error
    is a ``ValueError``, and what is closed panics; and no other thread of the process runs while a statement does, nor
    while a primary takes its time to answer.

    Parameters
    ----------
    primary : dict, optional
        Whatever the driver's ``connect`` takes to make the file a replica.
    """

    engine = "libsql"
    connection_class: ClassVar[type[Any]] = libsql.Connection

    def __init__(self, path: Any, *, primary: dict[str, Any] | None = None, **options: Any) -> None:
        self._primary = primary or {}
        self._secret: str = self._primary.get("auth_token") or ""
        self._host = primary_of(self._primary["sync_url"]) if self._primary else ""
        # Two connections would each replicate into the file.
        self.alone = bool(self._primary)
        super().__init__(path, **options)
        if self._host:
            self.name = f"{self.name}, a replica of {self._host}"

    def address(self) -> str:
        return self._host or super().address()

    def _open(self) -> Any:
        return libsql.connect(self._path, timeout=0.0, isolation_level=None, _check_same_thread=False, **self._primary)

    def _set_up(self, connection: Any) -> None:
        if not self._primary:  # a replica's journal and durability are the driver's
            super()._set_up(connection)

    def _refresh(self, connection: Any) -> None:
        if self._primary and not connection.in_transaction:
            connection.sync()

    def _execute(self, connection: Any, statement: str, values: Values, now: Values) -> list[Any]:
        return connection.execute(statement, _placed(statement, {**values, **now})).fetchall() or []

    def _execute_many(self, connection: Any, statement: str, values: list[Values], now: Values) -> None:
        connection.executemany(statement, [_placed(statement, {**each, **now}) for each in values])

    def kind_of(self, error: BaseException) -> Kind | None:
        panicked = type(error).__name__ == "PanicException"
        if isinstance(error, HarelError) or not (panicked or isinstance(error, ValueError)):
            return None
        text = str(error)
        known = next((kind for part, kind in _KINDS if part in text), None)
        return known or (Kind.UNAVAILABLE if self._primary else Kind.OTHER)

    def explained(self, error: BaseException) -> HarelError:
        explained = super().explained(error)
        if self._tells(error):
            return type(explained)(str(explained).replace(self._secret, "***"))
        return explained

    def cause_of(self, error: BaseException) -> BaseException | None:
        return None if self._tells(error) else error

    def _tells(self, error: BaseException) -> bool:
        """Say whether a primary has put the token into its answer."""
        return bool(self._secret) and self._secret in str(error)


class LibsqlBase(FileFace):
    """How both twins are made.

    Parameters
    ----------
    path : str, Path or libsql.Connection
        The file, made if it is not there. Or the caller's own connection, which is then used as it is and not closed.
    sync_url : str, optional
        The URL of a primary (Turso or sqld); the file is then a replica of it. Experimental.
    auth_token : str
        What the primary knows this client by.
    sync_interval : float, optional
        Seconds after which the driver fetches what the primary has that the file has not.
    prefix, clock, fresh_first, busy_timeout, synchronous, create_schema
        As for :class:`~harel.engine.transport.sqlite.SqliteBase`. A replica's clock is its primary's.
    poll_interval : float, optional
        Seconds between the looks of ``wait``; unless given 0.05, and 1.0 for a replica, which asks its primary then.
    """

    def __init__(
        self,
        path: str | Path | Any,
        *,
        sync_url: str | None = None,
        auth_token: str = "",
        sync_interval: float | None = None,
        prefix: str = "transport",
        clock: Callable[[], float] | None = None,
        fresh_first: bool = True,
        busy_timeout: float = 30.0,
        poll_interval: float | None = None,
        synchronous: Synchronous = "FULL",
        create_schema: bool = True,
    ) -> None:
        check_path(path, LibsqlFile, synchronous)
        check_waits(busy_timeout, 1.0 if poll_interval is None else poll_interval)
        prefix = check_identifier("prefix", prefix)
        primary = _primary(sync_url, auth_token, sync_interval)
        file = LibsqlFile(
            path, primary=primary, busy_timeout_s=busy_timeout, synchronous=synchronous, clock=clock or time.time
        )
        super().__init__(
            file,
            SqliteOps(
                f"{'' if primary else 'libsql:///'}{file.address()}#{prefix}",
                prefix,
                fresh_first=fresh_first,
                poll_interval_s=poll_interval or (1.0 if primary else 0.05),
                create_schema=create_schema,
                now=PRIMARYS_CLOCK if primary and clock is None else ":now",
            ),
        )


class LibsqlTransport(LibsqlBase, SyncFileFace):
    """A queue in a file of libSQL, for sync code; threads and processes may share the file, not a replica.

    ``bind`` takes a ``libsql.Connection``, and ``transaction()`` gives one that has the write lock.

    See :class:`LibsqlBase` for the parameters.
    """


def _primary(sync_url: str | None, auth_token: str, sync_interval: float | None) -> dict[str, Any] | None:
    if not sync_url:
        if auth_token or sync_interval is not None:
            raise ConfigError("auth_token and sync_interval are for a replica: they need sync_url, its primary's URL.")
        return None
    check_token(auth_token)
    return {"sync_url": sync_url, "auth_token": auth_token, "sync_interval": sync_interval}


def _placed(statement: str, values: Values) -> tuple[Any, ...]:
    return tuple(_held(values[name]) for name in place_values(statement))


def _held(value: Any) -> Any:
    """Return what the driver hands to SQLite as this value, and not as something near it."""
    if isinstance(value, int) and abs(value) > _EXACT:
        return str(value)  # where a number is wanted SQLite reads one, to the last digit
    if isinstance(value, str) and len(value) * 4 > _MOST_BYTES and len(value.encode()) > _MOST_BYTES:
        raise ValueError("string or blob too big")
    return value
