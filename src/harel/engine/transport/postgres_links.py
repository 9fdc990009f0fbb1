"""The connections of a sync transport to its PostgreSQL server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

from harel.engine.queue.op import Sleep, run
from harel.engine.queue.postgres.ops import Call, Listening, Script, Transaction
from harel.engine.transport.postgres_server import (
    CANCEL_S,
    ISOLATION,
    TRIES,
    Server,
    is_quiet,
    may_be_tried_again,
    must_be_in_a_transaction,
    must_be_read_committed,
    must_have_transactions,
)
from harel.engine.transport.postgres_wire import ArrayDumper, Wire
from harel.errors import HarelError

__all__ = ["Connection", "Links", "Pool"]

Connection: TypeAlias = psycopg.Connection[Any]
Pool: TypeAlias = ConnectionPool[Any]

_left_to_the_parent: list[object] = []
"""Connections that a fork copied. They are neither used nor closed here: both would harm the parent's."""


class Links:
    """Connections, and how a request is carried out on them.

    Parameters
    ----------
    server : Server
    given : connection or pool, optional
        The caller's own; it serves alone, or with listeners only, and is not closed.
    """

    def __init__(self, server: Server, given: Connection | Pool | None) -> None:
        self._server = server
        self._given = given
        self._closing = threading.Event()
        self._wire = Wire() if given is None and server.may_prepare else None
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._pool: Pool | None = self._given if isinstance(self._given, ConnectionPool) else None
        self._transactions = self._pool
        self._listeners: list[_Listener] = []

    def send(self, request: Any) -> Any:
        """Carry out a request; see the requests for their replies.

        Raises
        ------
        HarelError
            In place of what the driver raises, which is its cause.
        """
        if isinstance(request, Listening):
            with self._listening() as listener:
                return run(request.op, partial(self._send_or_sleep, listener))
        tries_left = TRIES
        while True:
            try:
                return self._try(request)
            except psycopg.Error as error:
                tries_left -= 1
                if not tries_left or not isinstance(request, Call) or not self._may_try_again(error):
                    raise self._server.explained(error) from error

    def bound(self, connection: Any) -> Callable[[Any], Any]:
        """Return how to send requests as a part of the transaction of a caller's connection."""
        must_be_in_a_transaction(connection, psycopg.Connection)
        return _Bound(self._server, connection)

    def transaction(self) -> AbstractContextManager[Connection]:
        """Give a connection with an open transaction, which ends with the block."""
        must_have_transactions(self._given)
        return self._in_transaction()

    @contextmanager
    def _in_transaction(self) -> Iterator[Connection]:
        pool = self._transactions_of_this_process()
        try:
            connection = self._quiet_connection(pool)
        except psycopg.Error as error:
            raise self._server.explained(error) from error
        its_own_error = False
        try:
            with connection.transaction():
                its_own_error = True
                yield connection
                its_own_error = False
        except psycopg.Error as error:
            if its_own_error:
                raise
            raise self._server.explained(error) from error
        finally:
            pool.putconn(connection)

    def close(self) -> None:
        """Close what was opened here; what is under way ends first."""
        self._closing.set()
        if self._pid != os.getpid():
            return
        while self._listeners:
            self._listeners.pop().close()
        for pool in (self._pool, self._transactions):
            if pool is not None and pool is not self._given:
                pool.close()

    def _may_try_again(self, error: psycopg.Error) -> bool:
        return may_be_tried_again(error) and not isinstance(self._given, psycopg.Connection)

    def _send_or_sleep(self, listener: _Listener, request: Any) -> Any:
        return listener.sleep(request.seconds) if isinstance(request, Sleep) else self.send(request)

    def _try(self, request: Any) -> Any:
        if isinstance(self._given, psycopg.Connection):
            with self._lock:
                return _perform(self._given, request)
        pool = self._pool_of_this_process()
        connection = self._quiet_connection(pool)
        try:
            if self._wire is not None and isinstance(request, Call):
                return self._wire.call(connection, request.statement, request.values)
            return _perform(connection, request)
        except psycopg.Error:
            raise
        except BaseException:
            # Interrupted, nobody knows where. The server may be at it still, and must not go on.
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=CANCEL_S)
            connection.close()
            raise
        finally:
            pool.putconn(connection)

    def _quiet_connection(self, pool: Pool) -> Connection:
        deadline = time.monotonic() + self._server.connect_timeout_s
        while True:
            connection: Connection = pool.getconn(deadline - time.monotonic())
            if is_quiet(connection):
                return connection
            connection.close()
            pool.putconn(connection)  # which replaces it

    def _pool_of_this_process(self) -> Pool:
        self._leave_the_parents_connections()
        if self._pool is None:
            with self._lock:
                if self._pool is None:
                    self._pool = self._open_pool(self._server.min_size, self._server.max_size)
        return self._pool

    def _transactions_of_this_process(self) -> Pool:
        self._leave_the_parents_connections()
        if self._transactions is None:
            with self._lock:
                if self._transactions is None:
                    self._transactions = self._open_pool(0, self._server.max_transactions)
        return self._transactions

    def _leave_the_parents_connections(self) -> None:
        if self._pid != os.getpid():
            _left_to_the_parent.append((self._pool, self._transactions, self._listeners))
            self._start()

    def _open_pool(self, min_size: int, max_size: int) -> Pool:
        assert self._server.conninfo is not None
        # A pool keeps trying in the background; this one says at once what is wrong.
        self._connect().close()
        return ConnectionPool(
            self._server.conninfo,
            kwargs=self._server.arguments,
            timeout=self._server.connect_timeout_s,
            # A pool tries less and less often. The sooner it gives up, the sooner an operation begins anew.
            reconnect_timeout=self._server.connect_timeout_s,
            num_workers=1,
            open=True,
            min_size=min_size,
            max_size=max_size,
        )

    def _connect(self) -> Connection:
        assert self._server.conninfo is not None
        try:
            return psycopg.connect(self._server.conninfo, **self._server.arguments)
        except psycopg.Error as error:
            raise self._server.not_connected(error) from error

    @contextmanager
    def _listening(self) -> Iterator[_Listener]:
        try:
            listener = self._listeners.pop()
        except IndexError:
            listener = _Listener(self._server, self._connect, self._closing)
        try:
            listener.attend()
            yield listener
        except BaseException:
            listener.close()
            raise
        listener.rest()
        if self._listeners or self._closing.is_set():
            listener.close()
        else:
            self._listeners.append(listener)


class _Listener:
    """Sleeps, and wakes up when something is published; it has a connection of its own.

    Without one (there is none, or it broke) it only sleeps, and tries to have one the next time.

    Parameters
    ----------
    server : Server
    connect : callable
        Makes a connection.
    closing : threading.Event
        Ends a sleep too.
    """

    def __init__(self, server: Server, connect: Callable[[], Connection], closing: threading.Event) -> None:
        self._server = server
        self._connect = connect
        self._closing = closing
        self._connection: Connection | None = None
        self._attends = False

    def attend(self) -> bool:
        """Listen, and be seen to; return whether that came about."""
        if not self._server.may_listen:
            return False
        try:
            if self._connection is None or not is_quiet(self._connection):
                self.close()
                self._connection = self._connect()
            self._connection.execute(self._server.listen, prepare=False)
        except (psycopg.Error, HarelError):
            self.close()
            return False
        self._attends = True
        return True

    def sleep(self, seconds: float) -> float:
        """Sleep until something is published, ``seconds`` at most; return how long it was."""
        began = time.monotonic()
        if self._attends:
            assert self._connection is not None
            try:
                for _ in self._connection.notifies(timeout=seconds, stop_after=1):
                    pass
            except psycopg.Error:
                self.close()
        elif not self.attend():
            self._closing.wait(seconds)
        return time.monotonic() - began

    def rest(self) -> None:
        """Listen no longer, and let nobody think that someone did."""
        if self._attends and self._connection is not None:
            self._attends = False
            try:
                self._connection.execute(self._server.unlisten, prepare=False)
            except psycopg.Error:
                self.close()

    def close(self) -> None:
        """Close the connection."""
        self._attends = False
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None


class _Bound:
    """Carries requests out as a part of the transaction of a caller's connection.

    Parameters
    ----------
    server : Server
    connection : psycopg.Connection
    """

    def __init__(self, server: Server, connection: Connection) -> None:
        self._server = server
        self._connection = connection
        self._has_looked = False

    def __call__(self, request: Call) -> list[Any]:
        must_be_in_a_transaction(self._connection, psycopg.Connection)
        try:
            if not self._has_looked:
                must_be_read_committed(_execute(self._connection, ISOLATION))
                self._has_looked = True
            return _execute(self._connection, request)
        except psycopg.Error as error:
            raise self._server.explained(error) from error


def _perform(connection: Connection, request: Any) -> Any:
    if isinstance(request, Transaction):
        with connection.transaction():
            return run(request.op, partial(_perform, connection))
    if connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE:
        return _execute(connection, request)
    with connection.transaction():
        return _execute(connection, request)


def _execute(connection: Connection, request: Call | Script) -> list[Any]:
    if isinstance(request, Script):
        connection.execute(request.text, prepare=False)
        return []
    cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
    cursor.adapters.register_dumper(list, ArrayDumper)
    cursor.execute(request.statement, request.values, binary=True)
    return cursor.fetchall()
