"""The queue on Redis or Valkey, for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import redis.asyncio
from redis.exceptions import NoScriptError, ResponseError

from harel.engine.queue.face import AsyncFace
from harel.engine.queue.op import arun
from harel.engine.queue.redis.ops import Script
from harel.engine.transport.redis import RedisBase
from harel.engine.transport.redis_errors import FAILED, explained

__all__ = ["MOST_AT_ONCE", "AsyncRedisTransport"]

MOST_AT_ONCE = 50
"""How many operations of one transport are under way at once, each on a connection of its own; more take turns."""

_NEWS_AFTER_S = 0.000_1
"""After an operation the loop has just looked at the connections; after this long it looks again."""


class AsyncRedisTransport(RedisBase, AsyncFace):
    """A queue on Redis 6.2 or later, or Valkey, for asyncio; the tasks of one event loop may share it.

    See :class:`RedisBase` for the parameters.
    """

    _package = redis.asyncio

    def __init__(self, client: Any, **options: Any) -> None:
        self._last_used = 0.0
        super().__init__(client, **options)
        self._turns = asyncio.Semaphore(min(MOST_AT_ONCE, getattr(self._pool, "max_connections", MOST_AT_ONCE)))

    @classmethod
    def _timeouts(cls, timeout: float) -> dict[str, Any]:
        # Ours, in _run_on_pool, needs no task for each command, and loses no cancellation to one that just ended.
        return {"socket_connect_timeout": timeout, "socket_timeout": None}

    async def _send(self, request: Any) -> Any:
        if not isinstance(request, Script):
            return await arun(self._ears_op(request), _call)
        self._must_be_open()
        async with self._turns:
            return await (self._run_in_cluster(request) if self._pool is None else self._run_on_pool(request))

    async def _run_on_pool(self, request: Script) -> Any:
        """Run a script on a connection: the client itself would send it again when a reply is lost."""
        sent = False
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connection()
                sent = True
                try:
                    reply = await self._evaluated(connection, request)
                except BaseException as error:
                    if not isinstance(error, ResponseError):
                        await connection.disconnect(nowait=True)  # its reply may be unread
                    await self._pool.release(connection)
                    raise
        except FAILED as error:
            raise explained(error, self._address, sent=sent) from error
        await self._give_back(connection)
        return reply

    async def _evaluated(self, connection: Any, request: Script) -> Any:
        try:
            return await _asked(connection, self._packer.by_hash(request))
        except NoScriptError:
            return await _asked(connection, self._packer.by_text(request))

    async def _connection(self) -> Any:
        if time.monotonic() - self._last_used > _NEWS_AFTER_S:
            # Two rounds of the loop, so that it has seen what came meanwhile: the end of a connection, say.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        while (connection := self._spare.take()) is not None:
            try:
                if not await _can_read(connection):
                    return connection
            except FAILED:
                pass
            await connection.disconnect(nowait=True)  # the server closed it, or sent what nobody asked for
            await self._pool.release(connection)
        return await self._pool.get_connection()

    async def _give_back(self, connection: Any) -> None:
        self._last_used = time.monotonic()
        if self._checked.closed:
            await connection.disconnect(nowait=True)
        elif self._close_client:
            self._spare.keep(connection)
            return
        await self._pool.release(connection)

    async def _run_in_cluster(self, request: Script) -> Any:
        """Run a script on the keys' node. Given a node, the client follows redirections, and sends nothing again."""
        try:
            await self._client.initialize()
            options = {"target_nodes": self._client.get_node_from_key(request.keys[0].decode()), "NEVER_DECODE": True}
            try:
                return await self._client.execute_command("EVALSHA", *request.by_hash()[1:], **options)
            except NoScriptError:
                return await self._client.execute_command("EVAL", *request.by_text()[1:], **options)
        except FAILED as error:
            raise explained(error, self._address, sent=not isinstance(error, ResponseError)) from error

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _shut(self) -> None:
        await arun(self._ears.close(), _call)
        if self._close_client:
            await self._client.aclose()


async def _can_read(connection: Any) -> bool:
    look = getattr(connection, "can_read", None) or connection.can_read_destructive  # its name before redis-py 8
    return bool(await look())


async def _asked(connection: Any, command: bytes) -> Any:
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    await connection.send_packed_command((command,))
    if task is not None and task.cancelling() > cancels:
        # With a socket_timeout redis-py sends inside wait_for, which may swallow a cancellation.
        raise asyncio.CancelledError
    return await connection.read_response(disable_decoding=True)


async def _call(request: Callable[[], Any]) -> Any:
    return await request()
