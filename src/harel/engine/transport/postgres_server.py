"""A PostgreSQL server: how to connect to it, what to call it in messages, and what its errors mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from harel.engine.queue.postgres.ops import Call
from harel.engine.queue.postgres.schema import advisory_key, channel
from harel.engine.transport.postgres_wire import readable
from harel.errors import (
    ConfigError,
    HarelError,
    InvalidArgument,
    NotSupported,
    SchemaMismatch,
    TransportUnavailable,
)

__all__ = [
    "CANCEL_S",
    "ISOLATION",
    "TRIES",
    "Server",
    "is_quiet",
    "may_be_tried_again",
    "must_be_in_a_transaction",
    "must_be_read_committed",
    "must_have_transactions",
]

TRIES = 4
"""How often an operation is tried that the server undid because it met another one."""

CANCEL_S = 2.0
"""How long to wait, in seconds, until the server was told that nobody waits for an operation any more."""

ISOLATION = Call("SELECT current_setting('transaction_isolation')")
"""Asks for the isolation level of a caller's transaction."""

_UNDONE = ("40001", "40P01")  # serialization failure, deadlock
_UNAVAILABLE = ("08", "53", "57", "58", "25006", "55P03", *_UNDONE)
_NO_SCHEMA = ("3F000", "42P01", "42883")
_NOT_STORABLE = ("22", "54")
_REFUSED_FOR_GOOD = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "permission denied for database",
)


class Server:
    """Where a transport's connections go.

    Parameters
    ----------
    target : str, connection or pool
        A connection string, as libpq takes it; or the caller's own.
    schema : str
    min_size, max_size : int
        Of the pool.
    max_transactions : int
        How many connections there are at most for transactions with statements of the caller's.
    connect_timeout_s : float
        How long to wait for a connection, in seconds.
    statement_timeout_s : float, optional
        How long the server works on an operation, in seconds.
    application_name : str, optional
    pgbouncer : bool
        Whether PgBouncer stands between, in transaction mode.

    Attributes
    ----------
    conninfo : str or None
        What to connect to, if connections may be made.
    arguments : dict
        What to connect with.
    where, queue : str
        What the server and the queue on it are called, without a password.
    listen, unlisten : str
        Statements that begin and end to listen, and to be seen as one who listens.
    """

    def __init__(
        self,
        target: Any,
        schema: str,
        *,
        min_size: int,
        max_size: int,
        max_transactions: int,
        connect_timeout_s: float,
        statement_timeout_s: float | None,
        application_name: str | None,
        pgbouncer: bool,
    ) -> None:
        self.conninfo, parameters = _target(target)
        self.min_size = min_size
        self.max_size = max_size
        self.max_transactions = max_transactions
        self.connect_timeout_s = connect_timeout_s
        self.may_listen = self.conninfo is not None and not pgbouncer
        self.may_prepare = not pgbouncer
        self.arguments: dict[str, Any] = {
            "autocommit": True,
            "client_encoding": "UTF8",
            "prepare_threshold": None if pgbouncer else 0,
            "connect_timeout": max(1, math.ceil(connect_timeout_s)),
        }
        if application_name is not None:
            self.arguments["application_name"] = application_name
        else:
            self.arguments["fallback_application_name"] = "harel"
        if not pgbouncer:
            self.arguments["options"] = _startup(parameters.get("options"), statement_timeout_s)
        self._name(parameters, schema)

    def _name(self, parameters: Mapping[str, str], schema: str) -> None:
        host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
        port = parameters.get("port") or "5432"
        database = parameters.get("dbname") or parameters.get("user") or ""
        waiters = advisory_key(schema, "waiters")
        self.where = f"PostgreSQL at {host}, port {port}"
        self.queue = f"postgresql://{host}:{port}/{database}#{schema}"
        self.listen = f'LISTEN "{channel(schema)}"; SELECT pg_advisory_lock_shared({waiters})'
        self.unlisten = f'UNLISTEN "{channel(schema)}"; SELECT pg_advisory_unlock_shared({waiters})'

    def explained(self, error: Exception) -> HarelError:
        """Say in harel's words what a driver's error means."""
        if isinstance(error, PoolClosed):
            return InvalidArgument("This transport is closed; open a new one.")
        if isinstance(error, PoolTimeout | TooManyRequests):
            return TransportUnavailable(
                f"No connection to {self.where} became free in time. Look whether the server is up, or raise max_size, "
                "for transactions max_transactions, or connect_timeout."
            )
        state = getattr(error, "sqlstate", None) or ""
        text = _said(error) or type(error).__name__
        if state.startswith(_NO_SCHEMA):
            return SchemaMismatch(f"The harel schema in {self.queue} is missing or not whole: {text}.")
        if state == "42501":
            return ConfigError(
                f"This role may not use {self.queue}: {text}. It needs USAGE on the schema and its sequence, EXECUTE "
                "on the functions, and SELECT, INSERT, UPDATE and DELETE on the tables."
            )
        if state.startswith(_NOT_STORABLE):
            return InvalidArgument(f"{self.where} cannot store this: {text}.")
        if state == "57014":
            return TransportUnavailable(f"{self.where} did not finish within the statement timeout.")
        if state.startswith(_UNAVAILABLE) or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return TransportUnavailable(f"{self.where} cannot be used just now: {text}")
        return HarelError(f"{self.where} refused an operation: {text}.")

    def not_connected(self, error: Exception) -> HarelError:
        """Say why a connection could not be made."""
        text = _said(error)
        if any(reason in text for reason in _REFUSED_FOR_GOOD):
            return ConfigError(f"{self.where} does not let this client in: {text}")
        return TransportUnavailable(f"{self.where} cannot be reached: {text}")


def _said(error: Exception) -> str:
    """Return a driver's text as a person can read it: it repeats what it was given, whatever that is."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in str(error).strip())


def is_quiet(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Say whether an idle connection still seems to be there, without a round trip.

    An idle server says nothing. If there is something to read, it is its farewell, or the end of the stream.
    """
    return not connection.closed and not readable(connection.pgconn)(0)


def must_be_in_a_transaction(
    connection: Any, kind: type[psycopg.Connection[Any] | psycopg.AsyncConnection[Any]]
) -> None:
    """Raise unless operations can take part in a transaction of a caller's connection.

    One that does not commit by itself need not be in a transaction yet: the first statement begins one.
    """
    if not isinstance(connection, kind):
        raise InvalidArgument(
            f"bind takes a psycopg.{kind.__name__}, such as transaction() gives, not {type(connection).__name__}."
        )
    if connection.closed:
        raise InvalidArgument("The connection that was given to bind is closed.")
    status = connection.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise InvalidArgument("The transaction of the connection that was given to bind has failed; roll it back.")
    if status == TransactionStatus.IDLE:
        if connection.autocommit:
            raise InvalidArgument(
                "The connection that was given to bind is in no transaction, and commits each statement by itself "
                "(autocommit). Begin one, with connection.transaction()."
            )
        if connection.isolation_level is not None:
            must_be_read_committed([(connection.isolation_level.name.replace("_", " ").lower(),)])


def must_be_read_committed(rows: list[tuple[Any, ...]]) -> None:
    """Raise unless a transaction sees what others commit; ``rows`` is the reply to :data:`ISOLATION`."""
    ((isolation,),) = rows
    if isolation != "read committed":
        raise InvalidArgument(
            f"bind takes a transaction that is READ COMMITTED, and this one is {isolation.upper()}: it does not see "
            "what others commit, and so cannot tell whether a group has messages. Set the connection's isolation_level."
        )


def must_have_transactions(given: Any) -> None:
    """Raise if the transport has but the one connection that its caller gave it."""
    if isinstance(given, psycopg.Connection | psycopg.AsyncConnection):
        raise NotSupported(
            "This transport was made on a single connection, and has no other for transaction(). Begin a transaction "
            "on that one and give it to bind, or make the transport on a connection string or a pool."
        )


def may_be_tried_again(error: Exception) -> bool:
    """Say whether the server undid an operation only because another one was in its way."""
    return getattr(error, "sqlstate", None) in _UNDONE


def _target(target: Any) -> tuple[str | None, dict[str, str]]:
    """Return what to connect to, if connections may be made, and the parameters in it."""
    if isinstance(target, str):
        return target, {**_defaults(), **_parsed(target)}
    if isinstance(target, psycopg.Connection | psycopg.AsyncConnection):
        return None, {**_defaults(), **target.info.get_parameters()}
    if isinstance(target, ConnectionPool | AsyncConnectionPool):
        if not isinstance(target.conninfo, str) or not isinstance(target.kwargs, dict | None):
            return None, _defaults()
        conninfo = make_conninfo(target.conninfo, **_of_libpq(target.kwargs or {}))
        return conninfo, {**_defaults(), **_parsed(conninfo)}
    raise ConfigError(
        "PostgreSQL needs a connection string such as postgresql://user:password@host:5432/database, or a psycopg "
        f"connection or pool, not {type(target).__name__}."
    )


def _parsed(conninfo: str) -> dict[str, str]:
    try:
        parsed = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except (psycopg.ProgrammingError, UnicodeError):
        parsed = None  # and the driver's message may quote a part of it, and a password with that
    if parsed is None or ("://" in conninfo and _holds_a_password(parsed)):
        raise ConfigError(
            "This is not a PostgreSQL connection string. It is a URL such as "
            "postgresql://user:password@host:5432/database (with what is special in a password percent-encoded), or "
            "keywords such as 'host=... dbname=...'."
        )
    return parsed


def _holds_a_password(parsed: Mapping[str, str]) -> bool:
    """Say whether a host or database has a piece of a password: to libpq one ends at its first ``@`` or ``/``."""
    return "@" in parsed.get("host", "")[1:] or "@" in parsed.get("dbname", "")


def _of_libpq(arguments: Mapping[str, Any]) -> dict[str, Any]:
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    return {name: value for name, value in arguments.items() if name in known}


def _defaults() -> dict[str, str]:
    options = psycopg.pq.Conninfo.get_defaults()
    return {option.keyword.decode(): option.val.decode() for option in options if option.val}


def _startup(options: str | None, statement_timeout_s: float | None) -> str:
    """Return the settings that a connection starts with, behind those that the caller gave."""
    settings = [options] if options else []
    settings.append("-c default_transaction_isolation=read\\ committed")
    if statement_timeout_s is not None:
        settings.append(f"-c statement_timeout={max(1, round(statement_timeout_s * 1000))}")
    return " ".join(settings)
