"""The queue in a file of libSQL, for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from harel.engine.aio_transport.sqlite import AsyncFileFace
from harel.engine.transport.libsql import LibsqlBase

__all__ = ["AsyncLibsqlTransport"]

T = TypeVar("T")


class AsyncLibsqlTransport(LibsqlBase, AsyncFileFace):
    """A queue in a file of libSQL, for asyncio; tasks and processes may share the file, not a replica.

    ``bind`` takes a ``libsql.Connection``, and ``transaction()`` gives an
    :class:`~harel.engine.aio_transport.sqlite_connection.AsyncConnection` that has the write lock.

    See :class:`~harel.engine.transport.libsql.LibsqlBase` for the parameters.
    """

    _takes = "a libsql.Connection"

    def _guest(self, connection: Any) -> tuple[Any, Callable[[Callable[[], Any]], Awaitable[Any]]]:
        if isinstance(connection, self._file.connection_class):
            return connection, _at_once
        return super()._guest(connection)


async def _at_once(function: Callable[[], T]) -> T:
    """Call a function here: the driver lets no other thread run meanwhile in any case."""
    return function()
