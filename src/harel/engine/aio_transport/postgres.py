"""The queue in PostgreSQL, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from typing import Any, Self

from harel.engine.aio_transport.postgres_links import AsyncLinks
from harel.engine.queue.face import AsyncFace
from harel.engine.queue.postgres.ops import PostgresOps
from harel.engine.transport.postgres import PostgresBase
from harel.errors import TransportUnavailable

__all__ = ["AsyncPostgresTransport"]


class AsyncPostgresTransport(PostgresBase, AsyncFace):
    """A queue in PostgreSQL, for asyncio.

    See :class:`~harel.engine.transport.postgres.PostgresBase` for the parameters. ``bind`` takes a
    ``psycopg.AsyncConnection``.
    """

    @classmethod
    async def from_dsn(cls, dsn: str, *, attempts: int = 15, retry_delay: float = 1.0, **options: Any) -> Self:
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
        transport = cls(dsn, **options)
        for _ in range(attempts - 1):
            try:
                return await transport.open()
            except TransportUnavailable:
                await asyncio.sleep(retry_delay)
        return await transport.open()

    @cached_property
    def _links(self) -> AsyncLinks:
        return AsyncLinks(self._server, self._given)

    async def _send(self, request: Any) -> Any:
        return await self._links.send(request)

    def _bound(self, connection: Any) -> tuple[PostgresOps, Callable[[Any], Awaitable[Any]]]:
        return self._ops_in_transactions, self._links.bound(connection)

    def _transaction(self) -> AbstractAsyncContextManager[Any]:
        return self._links.transaction()

    async def _shut(self) -> None:
        await self._links.close()
