"""The part of a transport that a worker uses, with ``await``; a sync transport is lifted to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar

from harel.engine.queue.contract import Lease, Transport

__all__ = ["Lift", "Lifted", "Port", "at_once"]

T = TypeVar("T")


class Port(Protocol):
    """The part of a transport that a worker uses."""

    async def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> list[Lease]: ...
    async def ack_many(self, leases: Iterable[Lease]) -> list[bool]: ...
    async def nack(self, lease: Lease, delay: float = 0.0) -> bool: ...
    async def extend_many(self, leases: Iterable[Lease], visibility: float) -> list[bool]: ...
    async def reject(self, lease: Lease, reason: str) -> bool: ...
    async def hold(self, group_id: str) -> bool: ...
    async def release(self, group_id: str) -> bool: ...
    async def wait(self, timeout: float) -> bool: ...


class Lift(Protocol):
    """Makes a blocking call awaitable."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


async def at_once(call: Callable[[], T], /) -> T:
    """Make the call here and now, blocking."""
    return call()


class Lifted:
    """A sync transport with the methods that a worker awaits.

    Parameters
    ----------
    transport : Transport
    lift : callable
        Makes its blocking calls awaitable.
    """

    def __init__(self, transport: Transport, lift: Lift) -> None:
        self._transport = transport
        self._lift = lift

    async def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> list[Lease]:
        return await self._lift(partial(self._transport.claim_many, worker_id, visibility, limit, min_priority))

    async def ack_many(self, leases: Iterable[Lease]) -> list[bool]:
        return await self._lift(partial(self._transport.ack_many, leases))

    async def nack(self, lease: Lease, delay: float = 0.0) -> bool:
        return await self._lift(partial(self._transport.nack, lease, delay))

    async def extend_many(self, leases: Iterable[Lease], visibility: float) -> list[bool]:
        return await self._lift(partial(self._transport.extend_many, leases, visibility))

    async def reject(self, lease: Lease, reason: str) -> bool:
        return await self._lift(partial(self._transport.reject, lease, reason))

    async def hold(self, group_id: str) -> bool:
        return await self._lift(partial(self._transport.hold, group_id))

    async def release(self, group_id: str) -> bool:
        return await self._lift(partial(self._transport.release, group_id))

    async def wait(self, timeout: float) -> bool:
        return await self._lift(partial(self._transport.wait, timeout))
