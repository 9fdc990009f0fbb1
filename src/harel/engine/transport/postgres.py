"""The queue in PostgreSQL, for sync code."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any, Self

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from harel.engine.queue.assets import check_identifier, check_timeout
from harel.engine.queue.face import Face, SyncFace
from harel.engine.queue.postgres.ops import PostgresOps
from harel.engine.transport.postgres_links import Links
from harel.engine.transport.postgres_server import Server
from harel.errors import ConfigError, TransportUnavailable

__all__ = ["PostgresBase", "PostgresTransport"]


class PostgresBase(Face):
    """How both twins are made.

    Parameters
    ----------
    connection : str, psycopg connection or pool
        A connection string, as libpq takes it: ``postgresql://user@host/database?sslmode=require``. Or the caller's own
        psycopg connection or pool, which is not closed. Inside a transaction of the caller's connection an operation
        takes part in it; otherwise it is one of its own.
    schema : str
        The PostgreSQL schema that the tables and functions are in.
    clock : callable, optional
        Returns epoch seconds; ``None`` is the server's clock.
    fresh_first : bool
        Whether groups that were never served go before those that were.
    min_size, max_size : int
        How many connections are kept open, and how many there are at most; each ``wait`` has one more of its own.
    max_transactions : int
        How many ``transaction()`` blocks can be open at once. They have connections of their own, so that what they do
        keeps no claim waiting; those of a caller's pool come out of that.
    connect_timeout : float
        Seconds to wait for a connection before :exc:`~harel.TransportUnavailable`.
    statement_timeout : float, optional
        Seconds after which the server gives up an operation, or a statement inside a ``transaction()``.
    application_name : str, optional
        What the connections are called in ``pg_stat_activity``; ``harel`` unless the connection string says.
    pgbouncer : bool
        Whether PgBouncer stands between, in transaction mode. Then nothing is prepared, and ``wait`` only polls.
    poll_interval : float
        Seconds between the looks of ``wait`` when nothing wakes it.
    create_schema : bool
        Whether to make what is missing of the schema.
    """

    def __init__(
        self,
        connection: Any,
        *,
        schema: str = "public",
        clock: Callable[[], float] | None = None,
        fresh_first: bool = True,
        min_size: int = 1,
        max_size: int = 10,
        max_transactions: int = 5,
        connect_timeout: float = 10.0,
        statement_timeout: float | None = None,
        application_name: str | None = None,
        pgbouncer: bool = False,
        poll_interval: float = 1.0,
        create_schema: bool = True,
    ) -> None:
        schema = check_identifier("schema", schema)
        if not 0 <= min_size <= max_size or max_size < 1:
            raise ConfigError(
                f"min_size is 0 to max_size, and max_size at least 1; they are {min_size} and {max_size}."
            )
        if max_transactions < 1:
            raise ConfigError(f"max_transactions is at least 1; it is {max_transactions}.")
        check_timeout("poll_interval", poll_interval)
        check_timeout("connect_timeout", connect_timeout)
        if statement_timeout is not None:
            check_timeout("statement_timeout", statement_timeout)
        if pgbouncer and statement_timeout is not None:
            raise ConfigError("PgBouncer passes no statement_timeout on; set it for the role: ALTER ROLE ... SET.")
        self._given = None if isinstance(connection, str) else connection
        self._server = Server(
            connection,
            schema,
            min_size=min_size,
            max_size=max_size,
            max_transactions=max_transactions,
            connect_timeout_s=connect_timeout,
            statement_timeout_s=statement_timeout,
            application_name=application_name,
            pgbouncer=pgbouncer,
        )
        make_ops = partial(
            PostgresOps,
            self._server.queue,
            schema,
            clock=clock,
            fresh_first=fresh_first,
            poll_interval_s=poll_interval,
            create_schema=create_schema,
        )
        self._ops_in_transactions = make_ops(soft=False)
        super().__init__(make_ops(soft=not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection)))

    @property
    def max_transactions(self) -> int:
        """How many ``transaction()`` blocks can be open at once; another one waits, up to ``connect_timeout``."""
        most = self._server.max_transactions
        if isinstance(self._given, ConnectionPool | AsyncConnectionPool):
            # One is left, so that what goes on in all of them can still claim and settle.
            return max(1, min(most, self._given.max_size - 1))
        return most


class PostgresTransport(PostgresBase, SyncFace):
    """A queue in PostgreSQL, for sync code; threads may share it, and a forked process makes its own connections.

    See :class:`PostgresBase` for the parameters. ``bind`` takes a ``psycopg.Connection``.
    """

    @classmethod
    def from_dsn(cls, dsn: str, *, attempts: int = 15, retry_delay: float = 1.0, **options: Any) -> Self:
        """Open a queue whose server may still be starting.

        Parameters
        ----------
        dsn : str
            A connection string.
        attempts : int
            How often to try.
        retry_delay : float
            Seconds between two tries.
        **options
            Those of the class.
        """
        for _ in range(attempts - 1):
            try:
                return cls(dsn, **options)
            except TransportUnavailable:
                time.sleep(retry_delay)
        return cls(dsn, **options)

    @cached_property
    def _links(self) -> Links:
        return Links(self._server, self._given)

    def _send(self, request: Any) -> Any:
        return self._links.send(request)

    def _bound(self, connection: Any) -> tuple[PostgresOps, Callable[[Any], Any]]:
        return self._ops_in_transactions, self._links.bound(connection)

    def _transaction(self) -> AbstractContextManager[Any]:
        return self._links.transaction()

    def _shut(self) -> None:
        self._links.close()
