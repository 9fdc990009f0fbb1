"""The connections of an async transport to its PostgreSQL server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool

from harel.engine.queue.op import Sleep, arun
from harel.engine.queue.postgres.ops import Call, Listening, Script, Transaction
from harel.engine.transport.postgres_server import (
    ISOLATION,
    TRIES,
    Server,
    is_quiet,
    may_be_tried_again,
    must_be_in_a_transaction,
    must_be_read_committed,
    must_have_transactions,
)
from harel.engine.transport.postgres_wire import ArrayDumper
from harel.errors import HarelError

__all__ = ["AsyncConnection", "AsyncLinks", "AsyncPool"]

AsyncConnection: TypeAlias = psycopg.AsyncConnection[Any]
AsyncPool: TypeAlias = AsyncConnectionPool[Any]


class AsyncLinks:
    """Connections, and how a request is carried out on them.

    A task that is cancelled in the middle has its statement cancelled on the server, and its connection is closed.

    Parameters
    ----------
    server : Server
    given : connection or pool, optional
        The caller's own; it serves alone, or with listeners only, and is not closed.
    """

    def __init__(self, server: Server, given: AsyncConnection | AsyncPool | None) -> None:
        self._server = server
        self._given = given
        self._pool: AsyncPool | None = given if isinstance(given, AsyncConnectionPool) else None
        self._transactions = self._pool
        self._lock = asyncio.Lock()
        self._closing = asyncio.Event()
        self._listeners: list[_Listener] = []

    async def send(self, request: Any) -> Any:
        """Carry out a request; see the requests for their replies.

        Raises
        ------
        HarelError
            In place of what the driver raises, which is its cause.
        """
        for tries_left in reversed(range(TRIES)):
            try:
                if isinstance(request, Listening):
                    async with self._listening() as listener:
                        return await arun(request.op, partial(self._send_or_sleep, listener))
                async with self._connection() as connection:
                    return await _perform(connection, request)
            except psycopg.Error as error:
                if not tries_left or not isinstance(request, Call) or not self._may_try_again(error):
                    raise self._server.explained(error) from error
        raise AssertionError("the last try returns or raises")

    def bound(self, connection: Any) -> Callable[[Any], Awaitable[Any]]:
        """Return how to send requests as a part of the transaction of a caller's connection."""
        must_be_in_a_transaction(connection, psycopg.AsyncConnection)
        return _Bound(self._server, connection)

    def transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Give a connection with an open transaction, which ends with the block."""
        must_have_transactions(self._given)
        return self._in_transaction()

    @asynccontextmanager
    async def _in_transaction(self) -> AsyncIterator[AsyncConnection]:
        pool = self._transactions or await self._open_transactions()
        try:
            connection = await self._quiet_connection(pool)
        except psycopg.Error as error:
            raise self._server.explained(error) from error
        its_own_error = False
        try:
            async with connection.transaction():
                its_own_error = True
                yield connection
                its_own_error = False
        except psycopg.Error as error:
            if its_own_error:
                raise
            raise self._server.explained(error) from error
        finally:
            await pool.putconn(connection)

    async def close(self) -> None:
        """Close what was opened here; what is under way ends first."""
        self._closing.set()
        while self._listeners:
            await self._listeners.pop().close()
        for pool in (self._pool, self._transactions):
            if pool is not None and pool is not self._given:
                await pool.close()

    def _may_try_again(self, error: psycopg.Error) -> bool:
        return may_be_tried_again(error) and not isinstance(self._given, psycopg.AsyncConnection)

    async def _send_or_sleep(self, listener: _Listener, request: Any) -> Any:
        return await (listener.sleep(request.seconds) if isinstance(request, Sleep) else self.send(request))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        if isinstance(self._given, psycopg.AsyncConnection):
            async with self._lock:
                yield self._given
            return
        pool = self._pool or await self._open_pool()
        connection = await self._quiet_connection(pool)
        try:
            yield connection
        except psycopg.Error:
            raise
        except BaseException:
            # The driver has told the server, and waited for its answer. Without one, nobody knows what it is doing.
            if connection.info.transaction_status != TransactionStatus.IDLE:
                await connection.close()
            raise
        finally:
            await pool.putconn(connection)

    async def _quiet_connection(self, pool: AsyncPool) -> AsyncConnection:
        deadline = time.monotonic() + self._server.connect_timeout_s
        while True:
            connection: AsyncConnection = await pool.getconn(deadline - time.monotonic())
            if is_quiet(connection):
                return connection
            await connection.close()
            await pool.putconn(connection)  # which replaces it

    async def _open_pool(self) -> AsyncPool:
        async with self._lock:
            if self._pool is None:
                self._pool = await self._opened(self._server.min_size, self._server.max_size)
            return self._pool

    async def _open_transactions(self) -> AsyncPool:
        async with self._lock:
            if self._transactions is None:
                self._transactions = await self._opened(0, self._server.max_transactions)
            return self._transactions

    async def _opened(self, min_size: int, max_size: int) -> AsyncPool:
        assert self._server.conninfo is not None
        # A pool keeps trying in the background; this one says at once what is wrong.
        await (await self._connect()).close()
        pool: AsyncPool = AsyncConnectionPool(
            self._server.conninfo,
            kwargs=self._server.arguments,
            timeout=self._server.connect_timeout_s,
            # A pool tries less and less often. The sooner it gives up, the sooner an operation begins anew.
            reconnect_timeout=self._server.connect_timeout_s,
            num_workers=1,
            open=False,
            min_size=min_size,
            max_size=max_size,
        )
        await pool.open()
        return pool

    async def _connect(self) -> AsyncConnection:
        assert self._server.conninfo is not None
        try:
            return await psycopg.AsyncConnection.connect(self._server.conninfo, **self._server.arguments)
        except psycopg.Error as error:
            raise self._server.not_connected(error) from error

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[_Listener]:
        listener = self._listeners.pop() if self._listeners else _Listener(self._server, self._connect, self._closing)
        try:
            await listener.attend()
            yield listener
        except BaseException:
            await listener.close()
            raise
        await listener.rest()
        if self._listeners or self._closing.is_set():
            await listener.close()
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
    closing : asyncio.Event
        Ends a sleep too.
    """

    def __init__(
        self, server: Server, connect: Callable[[], Awaitable[AsyncConnection]], closing: asyncio.Event
    ) -> None:
        self._server = server
        self._connect = connect
        self._closing = closing
        self._connection: AsyncConnection | None = None
        self._attends = False

    async def attend(self) -> bool:
        """Listen, and be seen to; return whether that came about."""
        if not self._server.may_listen:
            return False
        try:
            if self._connection is None or not is_quiet(self._connection):
                await self.close()
                self._connection = await self._connect()
            await self._connection.execute(self._server.listen, prepare=False)
        except (psycopg.Error, HarelError):
            await self.close()
            return False
        self._attends = True
        return True

    async def sleep(self, seconds: float) -> float:
        """Sleep until something is published, ``seconds`` at most; return how long it was."""
        began = time.monotonic()
        if self._attends:
            assert self._connection is not None
            try:
                async for _ in self._connection.notifies(timeout=seconds, stop_after=1):
                    pass
            except psycopg.Error:
                await self.close()
        elif not await self.attend():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._closing.wait()
        return time.monotonic() - began

    async def rest(self) -> None:
        """Listen no longer, and let nobody think that someone did."""
        if self._attends and self._connection is not None:
            self._attends = False
            try:
                await self._connection.execute(self._server.unlisten, prepare=False)
            except psycopg.Error:
                await self.close()

    async def close(self) -> None:
        """Close the connection."""
        self._attends = False
        if self._connection is not None:
            with suppress(psycopg.Error):
                await self._connection.close()
            self._connection = None


class _Bound:
    """Carries requests out as a part of the transaction of a caller's connection.

    Parameters
    ----------
    server : Server
    connection : psycopg.AsyncConnection
    """

    def __init__(self, server: Server, connection: AsyncConnection) -> None:
        self._server = server
        self._connection = connection
        self._has_looked = False

    async def __call__(self, request: Call) -> list[Any]:
        must_be_in_a_transaction(self._connection, psycopg.AsyncConnection)
        try:
            if not self._has_looked:
                must_be_read_committed(await _execute(self._connection, ISOLATION))
                self._has_looked = True
            return await _execute(self._connection, request)
        except psycopg.Error as error:
            raise self._server.explained(error) from error


async def _perform(connection: AsyncConnection, request: Any) -> Any:
    if isinstance(request, Transaction):
        async with connection.transaction():
            return await arun(request.op, partial(_perform, connection))
    if connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE:
        return await _execute(connection, request)
    async with connection.transaction():
        return await _execute(connection, request)


async def _execute(connection: AsyncConnection, request: Call | Script) -> list[Any]:
    if isinstance(request, Script):
        await connection.execute(request.text, prepare=False)
        return []
    cursor = psycopg.AsyncRawCursor(connection, row_factory=tuple_row)
    cursor.adapters.register_dumper(list, ArrayDumper)
    await cursor.execute(request.statement, request.values, binary=True)
    return await cursor.fetchall()
