"""The queue inside a caller's own transaction: the methods of ``Bound``, once for sync and once for async code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from harel.engine.queue.checked import Checked
from harel.engine.queue.contract import AsyncBound, Bound, Lease, Operations
from harel.engine.queue.op import Op, arun, run
from harel.errors import LeaseLost
from harel.events import Event, Message

__all__ = ["AsyncBoundFace", "BoundFace"]


class BoundFace(Bound):
    """Every method of :class:`Bound`.

    Parameters
    ----------
    ops : Operations
        For a transaction of the caller's.
    send : callable
        Carries out a request on the caller's connection.
    """

    def __init__(self, ops: Operations, send: Callable[[Any], Any]) -> None:
        self._checked = Checked(ops)
        self._send = send

    def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        run(self._checked.publish(group_id, event, priority), self._send)

    def publish_many(self, messages: Iterable[Message]) -> None:
        run(self._checked.publish_many(messages), self._send)

    def ack(self, lease: Lease) -> None:
        run(_or_raise(lease, self._checked.ack(lease)), self._send)

    def nack(self, lease: Lease, delay: float = 0.0) -> None:
        run(_or_raise(lease, self._checked.nack(lease, delay)), self._send)

    def reject(self, lease: Lease, reason: str) -> None:
        run(_or_raise(lease, self._checked.reject(lease, reason)), self._send)


class AsyncBoundFace(AsyncBound):
    """Every method of :class:`AsyncBound`.

    Parameters
    ----------
    ops : Operations
        For a transaction of the caller's.
    send : callable
        Carries out a request on the caller's connection, awaiting.
    """

    def __init__(self, ops: Operations, send: Callable[[Any], Awaitable[Any]]) -> None:
        self._checked = Checked(ops)
        self._send = send

    async def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        await arun(self._checked.publish(group_id, event, priority), self._send)

    async def publish_many(self, messages: Iterable[Message]) -> None:
        await arun(self._checked.publish_many(messages), self._send)

    async def ack(self, lease: Lease) -> None:
        await arun(_or_raise(lease, self._checked.ack(lease)), self._send)

    async def nack(self, lease: Lease, delay: float = 0.0) -> None:
        await arun(_or_raise(lease, self._checked.nack(lease, delay)), self._send)

    async def reject(self, lease: Lease, reason: str) -> None:
        await arun(_or_raise(lease, self._checked.reject(lease, reason)), self._send)


def _or_raise(lease: Lease, op: Op[bool]) -> Op[None]:
    if not (yield from op):
        raise LeaseLost(
            f"The lease of group {lease.group_id!r}, seq {lease.seq}, attempt {lease.attempt} was lost; "
            "roll this transaction back, whoever has the message now does its work."
        )
