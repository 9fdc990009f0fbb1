"""The queue on rqlite, for asyncio."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx2

from harel.engine.queue.face import AsyncFace
from harel.engine.queue.op import Sleep, arun
from harel.engine.queue.rqlite.cluster import Answer, Post, Unanswered
from harel.engine.transport.rqlite import FAILED, RqliteBase, unanswered

__all__ = ["AsyncRqliteTransport"]


class AsyncRqliteTransport(RqliteBase, AsyncFace):
    """A queue on rqlite 8.33 or later, for asyncio; the tasks of one event loop may share it.

    A task that is cancelled inside an operation may leave it done or undone; a transaction is never left open.

    See :class:`RqliteBase` for the parameters.
    """

    _client_class = httpx2.AsyncClient

    async def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            return await self._pause(request)
        return await arun(self._cluster.carry(request), self._do)

    async def _do(self, request: Post | Sleep) -> Any:
        if isinstance(request, Sleep):
            return await self._pause(request)
        client = self._client_of_this_process()
        try:
            async with asyncio.timeout(request.timeout_s):
                answer = await client.post(
                    request.url, content=request.body, headers=request.headers, timeout=None, follow_redirects=False
                )
        except TimeoutError as error:
            raise Unanswered(f"nothing came within {request.timeout_s:.3g} s") from error
        except FAILED as error:
            raise unanswered(error, request) from error
        except RuntimeError:
            self._must_be_open()  # closed by another task
            raise
        return Answer(answer.status_code, answer.headers, answer.content)

    async def _pause(self, request: Sleep) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(request.seconds)
        return loop.time() - began

    async def _shut(self) -> None:
        client = self._clients.get(os.getpid())
        if client is not None:
            await client.aclose()
