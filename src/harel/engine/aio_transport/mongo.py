"""The queue on MongoDB, for asyncio."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import pymongo
from pymongo.asynchronous.client_session import AsyncClientSession

from harel.engine.queue.contract import Operations
from harel.engine.queue.face import AsyncFace
from harel.engine.queue.op import Op, Sleep, arun
from harel.engine.transport.mongo import MongoBase
from harel.engine.transport.mongo_errors import FAILED
from harel.errors import HarelError

__all__ = ["AsyncMongoTransport"]


class AsyncMongoTransport(MongoBase, AsyncFace):
    """A queue on MongoDB 5.0 or later, for asyncio; the tasks of one event loop may share it.

    pymongo binds a client to the event loop that first uses it. See :class:`MongoBase` for the parameters. ``bind``
    takes an ``AsyncClientSession``; else it is as :class:`~harel.engine.transport.mongo.MongoTransport` says.
    """

    _client_class = pymongo.AsyncMongoClient
    _session_class = AsyncClientSession

    async def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            began = time.monotonic()
            await asyncio.sleep(request.seconds)
            return time.monotonic() - began
        return await self._carry_out(self._op(request))

    async def _carry_out(self, calls: Op[Any]) -> Any:
        try:
            return await arun(calls, _call)
        except FAILED as error:
            raise self._explained(error) from error

    def _bound(self, connection: Any) -> tuple[Operations, Callable[[Any], Awaitable[Any]]]:
        async def send(request: Any) -> Any:
            return await self._carry_out(self._bound_op(connection, request))

        return self._bound_ops(connection), send

    def _transaction(self) -> AbstractAsyncContextManager[Any]:
        return self._transacting()

    @asynccontextmanager
    async def _transacting(self) -> AsyncIterator[Any]:
        await self.open()
        self._must_have_transactions()
        calls = self._calls_of_this_process()
        async with self._client.start_session() as session:
            with self._tickets_of(session) as tickets:
                await session.start_transaction(**self._in_a_transaction())
                try:
                    yield session
                except BaseException:
                    if session.in_transaction:
                        await session.abort_transaction()
                    raise
                await self._carry_out(calls.commit(session))
        with suppress(HarelError):  # it has committed; if this fails, the next claim does it
            if tickets:
                await self._run(self._mongo_ops.take_in_these(tickets))

    def _leave_to_parent(self, client: Any) -> None:
        _of_the_parent.append(client)

    async def _shut(self) -> None:
        if self._close_client:
            await self._client.close()


_of_the_parent: list[Any] = []
"""Clients that a fork copied: on the parent's event loop, to be used and closed there."""


async def _call(request: Callable[[], Any]) -> Any:
    if sys.version_info >= (3, 12):
        return await request()
    # Before, wait_for, within which pymongo sends, could swallow a cancellation; a task is cancelled until it is.
    task = asyncio.ensure_future(request())
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        while not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait((task,), timeout=0.01)
        if not task.cancelled():
            task.exception()  # else asyncio would complain that nobody looked
        raise
    return task.result()
