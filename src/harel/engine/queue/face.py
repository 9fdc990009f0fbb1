"""The public methods, once for the sync classes and once for the async ones.

A backend's class inherits one of these and adds how to connect, how to send a request, and how to close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from harel.engine.queue.bound import AsyncBoundFace, BoundFace
from harel.engine.queue.checked import Checked
from harel.engine.queue.contract import (
    AsyncTransport,
    Capabilities,
    DeadLetter,
    GroupInfo,
    GroupState,
    Lease,
    Operations,
    QueueStats,
    StoredMessage,
    Transport,
)
from harel.engine.queue.op import Op, arun, run
from harel.events import Event, Message

__all__ = ["AsyncFace", "Face", "SyncFace"]

T = TypeVar("T")


class Face:
    """What both twins of a backend have in common. A backend derives its constructor from this."""

    def __init__(self, ops: Operations) -> None:
        self._ops = ops
        self._checked = Checked(ops)

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""
        return self._ops.capabilities

    @property
    def max_transactions(self) -> int:
        """How many ``transaction()`` blocks can be open at once; another one waits."""
        return 1

    def __repr__(self) -> str:
        closed = ", closed" if self._checked.closed else ""
        return f"<{type(self).__name__} {self._ops.queue}{closed}>"


class SyncFace(Face, Transport):
    """Every method of :class:`Transport`, over a blocking ``_send``."""

    def __init__(self, ops: Operations) -> None:
        super().__init__(ops)
        try:
            self._run(ops.prepare())
        except BaseException:
            self.close()
            raise

    def _run(self, op: Op[T]) -> T:
        return run(op, self._send)

    def _send(self, request: Any) -> Any:
        raise NotImplementedError

    def _shut(self) -> None:
        raise NotImplementedError

    def _bound(self, connection: Any) -> tuple[Operations, Callable[[Any], Any]]:
        """Return the operations for a caller's transaction, and how to send their requests on its connection."""
        raise NotImplementedError

    def _transaction(self) -> AbstractContextManager[Any]:
        raise NotImplementedError

    def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        return self._run(self._checked.publish(group_id, event, priority))

    def publish_many(self, messages: Iterable[Message]) -> None:
        return self._run(self._checked.publish_many(messages))

    def claim(self, worker_id: str, visibility: float, min_priority: int = 0) -> Lease | None:
        return self._run(self._checked.claim(worker_id, visibility, min_priority))

    def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> list[Lease]:
        return self._run(self._checked.claim_many(worker_id, visibility, limit, min_priority))

    def ack(self, lease: Lease) -> bool:
        return self._run(self._checked.ack(lease))

    def ack_many(self, leases: Iterable[Lease]) -> list[bool]:
        return self._run(self._checked.ack_many(leases))

    def nack(self, lease: Lease, delay: float = 0.0) -> bool:
        return self._run(self._checked.nack(lease, delay))

    def extend(self, lease: Lease, visibility: float) -> bool:
        return self._run(self._checked.extend(lease, visibility))

    def extend_many(self, leases: Iterable[Lease], visibility: float) -> list[bool]:
        return self._run(self._checked.extend_many(leases, visibility))

    def reject(self, lease: Lease, reason: str) -> bool:
        return self._run(self._checked.reject(lease, reason))

    def wait(self, timeout: float) -> bool:
        return self._run(self._checked.wait(timeout))

    def stats(self) -> QueueStats:
        return self._run(self._checked.stats())

    def groups(self, *, state: GroupState | None = None, limit: int = 100, after: str | None = None) -> list[GroupInfo]:
        return self._run(self._checked.groups(state, limit, after))

    def peek(self, group_id: str, limit: int = 10) -> list[StoredMessage]:
        return self._run(self._checked.peek(group_id, limit))

    def hold(self, group_id: str) -> bool:
        return self._run(self._checked.hold(group_id))

    def release(self, group_id: str) -> bool:
        return self._run(self._checked.release(group_id))

    def purge(self, group_id: str) -> int:
        return self._run(self._checked.purge(group_id))

    def dead_letters(
        self, *, group_id: str | None = None, limit: int = 100, after: int | None = None
    ) -> list[DeadLetter]:
        return self._run(self._checked.dead_letters(group_id, limit, after))

    def redrive(self, dead_letter_id: int) -> bool:
        return self._run(self._checked.redrive(dead_letter_id))

    def bind(self, connection: Any) -> BoundFace:
        self._checked.must_bind()
        return BoundFace(*self._bound(connection))

    def transaction(self) -> AbstractContextManager[Any]:
        self._checked.must_bind()
        return self._transaction()

    def close(self) -> None:
        if not self._checked.closed:
            self._checked.closed = True
            self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


class AsyncFace(Face, AsyncTransport):
    """Every method of :class:`AsyncTransport`, over an awaiting ``_send``."""

    def __init__(self, ops: Operations) -> None:
        super().__init__(ops)
        self._opening = asyncio.Lock()
        self._opened = False

    async def _run(self, op: Op[T]) -> T:
        if not self._opened:
            await self.open()
        return await arun(op, self._send)

    def _once_open(self, send: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """Return what opens the transport, unless it is open, and then sends."""

        async def opened(request: Any) -> Any:
            if not self._opened:
                await self.open()
            return await send(request)

        return opened

    async def _send(self, request: Any) -> Any:
        raise NotImplementedError

    async def _shut(self) -> None:
        raise NotImplementedError

    def _bound(self, connection: Any) -> tuple[Operations, Callable[[Any], Awaitable[Any]]]:
        """Return the operations for a caller's transaction, and how to send their requests on its connection."""
        raise NotImplementedError

    def _transaction(self) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError

    async def open(self) -> Self:
        """Connect now; without this the first operation does."""
        async with self._opening:
            if not self._opened:
                await arun(self._ops.prepare(), self._send)
                self._opened = True
        return self

    async def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        return await self._run(self._checked.publish(group_id, event, priority))

    async def publish_many(self, messages: Iterable[Message]) -> None:
        return await self._run(self._checked.publish_many(messages))

    async def claim(self, worker_id: str, visibility: float, min_priority: int = 0) -> Lease | None:
        return await self._run(self._checked.claim(worker_id, visibility, min_priority))

    async def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> list[Lease]:
        return await self._run(self._checked.claim_many(worker_id, visibility, limit, min_priority))

    async def ack(self, lease: Lease) -> bool:
        return await self._run(self._checked.ack(lease))

    async def ack_many(self, leases: Iterable[Lease]) -> list[bool]:
        return await self._run(self._checked.ack_many(leases))

    async def nack(self, lease: Lease, delay: float = 0.0) -> bool:
        return await self._run(self._checked.nack(lease, delay))

    async def extend(self, lease: Lease, visibility: float) -> bool:
        return await self._run(self._checked.extend(lease, visibility))

    async def extend_many(self, leases: Iterable[Lease], visibility: float) -> list[bool]:
        return await self._run(self._checked.extend_many(leases, visibility))

    async def reject(self, lease: Lease, reason: str) -> bool:
        return await self._run(self._checked.reject(lease, reason))

    async def wait(self, timeout: float) -> bool:
        return await self._run(self._checked.wait(timeout))

    async def stats(self) -> QueueStats:
        return await self._run(self._checked.stats())

    async def groups(
        self, *, state: GroupState | None = None, limit: int = 100, after: str | None = None
    ) -> list[GroupInfo]:
        return await self._run(self._checked.groups(state, limit, after))

    async def peek(self, group_id: str, limit: int = 10) -> list[StoredMessage]:
        return await self._run(self._checked.peek(group_id, limit))

    async def hold(self, group_id: str) -> bool:
        return await self._run(self._checked.hold(group_id))

    async def release(self, group_id: str) -> bool:
        return await self._run(self._checked.release(group_id))

    async def purge(self, group_id: str) -> int:
        return await self._run(self._checked.purge(group_id))

    async def dead_letters(
        self, *, group_id: str | None = None, limit: int = 100, after: int | None = None
    ) -> list[DeadLetter]:
        return await self._run(self._checked.dead_letters(group_id, limit, after))

    async def redrive(self, dead_letter_id: int) -> bool:
        return await self._run(self._checked.redrive(dead_letter_id))

    def bind(self, connection: Any) -> AsyncBoundFace:
        self._checked.must_bind()
        ops, send = self._bound(connection)
        return AsyncBoundFace(ops, self._once_open(send))

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        self._checked.must_bind()
        return self._transaction()

    async def close(self) -> None:
        if not self._checked.closed:
            self._checked.closed = True
            await self._shut()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()
