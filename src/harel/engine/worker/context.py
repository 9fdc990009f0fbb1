"""What a handler gets beside its event."""

from __future__ import annotations

from typing import ClassVar

from harel.engine.queue.contract import AsyncTransport, Lease, Transport
from harel.events import Event

__all__ = ["AsyncContext", "Context"]


class _Context:
    def __init__(self, lease: Lease, visibility: float) -> None:
        self.lease = lease
        self.lost: bool = False
        self._visibility = visibility

    @property
    def attempt(self) -> int:
        """Which attempt this is; the first is 1."""
        return self.lease.attempt


class Context(_Context):
    """What a sync handler gets beside its event.

    Attributes
    ----------
    lease : Lease
    attempt : int
    lost : bool
        Whether the lease is known to be lost. Then the group may be someone else's: stop.
    """

    cancellable: ClassVar[bool] = False

    def __init__(self, lease: Lease, visibility: float, transport: Transport) -> None:
        super().__init__(lease, visibility)
        self._transport = transport

    def extend(self, visibility: float | None = None) -> bool:
        """Renew the lease from now, by the worker's visibility unless given, in seconds."""
        kept = self._transport.extend(self.lease, visibility or self._visibility)
        self.lost = self.lost or not kept
        return kept

    def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        """Publish on the same transport."""
        self._transport.publish(group_id, event, priority)


class AsyncContext(_Context):
    """What an async handler gets beside its event.

    Attributes
    ----------
    lease : Lease
    attempt : int
    lost : bool
        Whether the lease is known to be lost. Then the group may be someone else's: stop.
    """

    cancellable: ClassVar[bool] = True

    def __init__(self, lease: Lease, visibility: float, transport: AsyncTransport) -> None:
        super().__init__(lease, visibility)
        self._transport = transport

    async def extend(self, visibility: float | None = None) -> bool:
        """Renew the lease from now, by the worker's visibility unless given, in seconds."""
        kept = await self._transport.extend(self.lease, visibility or self._visibility)
        self.lost = self.lost or not kept
        return kept

    async def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        """Publish on the same transport."""
        await self._transport.publish(group_id, event, priority)
