"""The queue on Amazon SQS FIFO, for asyncio."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from aiobotocore.session import AioSession  # type: ignore[import-untyped]

from harel.engine.queue.face import AsyncFace
from harel.engine.queue.op import Sleep
from harel.engine.queue.sqs.asking import Call, Together
from harel.engine.queue.sqs.refusals import Refused, Unanswered
from harel.engine.transport.sqs import SqsBase, client_options, making_failed, shared_loader
from harel.engine.transport.sqs_errors import FAILED, failure_of

__all__ = ["AsyncSqsTransport"]


class AsyncSqsTransport(SqsBase, AsyncFace):
    """A queue on Amazon SQS FIFO, for asyncio; the tasks of one event loop may share it.

    See :class:`SqsBase` for the parameters.
    """

    def _begin(self, *settings: Any) -> None:
        self._held = AsyncExitStack()
        super()._begin(*settings)

    async def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            await asyncio.sleep(request.seconds)
            return request.seconds
        assert isinstance(request, Together), "a request of another backend"
        if self._line.client is None:
            await self._connect()
        if len(request.calls) == 1:
            return [await self._called(request.calls[0])]
        return await asyncio.gather(*map(self._called, request.calls))

    async def _called(self, call: Call) -> dict[str, Any] | Refused | Unanswered:
        try:
            reply: dict[str, Any] = await getattr(self._line.client, call.action)(**call.params)
        except FAILED as error:
            return failure_of(error)
        return reply

    async def _connect(self) -> None:
        session = self._line.session
        if session is None:
            session = AioSession()
            session.register_component("data_loader", shared_loader())
        try:
            making = session.create_client("sqs", **client_options(self._line, AioConfig))
            self._use(await self._held.enter_async_context(making))
        except (*FAILED, ValueError, TypeError) as error:
            raise making_failed(error) from error

    async def _shut(self) -> None:
        await self._held.aclose()
