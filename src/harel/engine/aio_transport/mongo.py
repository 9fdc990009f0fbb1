"""The queue on MongoDB, for asyncio."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pymongo

from harel.engine.queue.face import AsyncFace
from harel.engine.queue.op import Sleep, arun
from harel.engine.transport.mongo import MongoBase
from harel.engine.transport.mongo_errors import FAILED

__all__ = ["AsyncMongoTransport"]


class AsyncMongoTransport(MongoBase, AsyncFace):
    """A queue on MongoDB 5.0 or later, for asyncio; the tasks of one event loop may share it.

    pymongo binds a client to the event loop that first uses it. See :class:`MongoBase` for the parameters.
    """

    _client_class = pymongo.AsyncMongoClient

    async def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            began = time.monotonic()
            await asyncio.sleep(request.seconds)
            return time.monotonic() - began
        try:
            return await arun(self._op(request), _call)
        except FAILED as error:
            raise self._explained(error) from error

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
