"""What a handler gets beside its event."""

from __future__ import annotations

from typing import Any

from harel.engine.queue.contract import AsyncBound, AsyncTransport, Bound, Lease, Transport
from harel.engine.worker.job import Job
from harel.events import Event

__all__ = ["AsyncContext", "Context"]


class _Context:
    """What both have.

    Parameters
    ----------
    job : Job
    visibility : float
        The worker's, in seconds.
    connection : object or None
        What the handler's transaction is open on.
    keeps_lease : bool
        Whether nobody can take the lease while that transaction is open.
    """

    def __init__(self, job: Job, visibility: float, connection: Any = None, *, keeps_lease: bool = False) -> None:
        self.lease: Lease = job.lease
        self._job = job
        self._visibility = visibility
        self._connection = connection
        self._keeps_lease = keeps_lease

    @property
    def attempt(self) -> int:
        """Which attempt this is; the first is 1."""
        return self.lease.attempt

    @property
    def lost(self) -> bool:
        """Whether the result does not count any more: the lease is lost, or the worker ends and gave it back."""
        return self._job.revoked is not None or self._job.told_lost

    @property
    def connection(self) -> Any:
        """The connection that this handler's transaction is open on, of a worker with ``transactional=True``.

        What is written through it is committed together with the message's settlement, or not at all. ``None`` of
        any other worker.
        """
        return self._connection

    def _lasts(self, visibility: float | None) -> float:
        """Return for how many seconds to renew: no less than the worker does, or its next renewal would be too late."""
        return self._visibility if visibility is None else max(visibility, self._visibility)

    def _heard(self, kept: bool, ended_at: float) -> bool:
        """Note the answer to a renewal of a lease that ran until ``ended_at``, by the server's clock."""
        if kept:
            self._job.until += self.lease.expires_at - ended_at
        else:
            self._job.told_lost = True
        return kept


class Context(_Context):
    """What a sync handler gets beside its event.

    Attributes
    ----------
    lease : Lease
    attempt : int
    lost : bool
        Whether the result does not count any more: the lease is lost, or the worker ends and gave it back. Stop then.
    connection : object or None
        What this handler's transaction is open on, of a worker with ``transactional=True``.
    """

    def __init__(
        self,
        job: Job,
        visibility: float,
        transport: Transport,
        connection: Any = None,
        bound: Bound | None = None,
        *,
        keeps_lease: bool = False,
    ) -> None:
        super().__init__(job, visibility, connection, keeps_lease=keeps_lease)
        self._transport = transport
        self._publishes_to = transport if bound is None else bound

    def extend(self, visibility: float | None = None) -> bool:
        """Renew the lease now. The worker does so by itself; this is for a longer time than it does.

        Parameters
        ----------
        visibility : float, optional
            Seconds from now; the worker's visibility if that is longer.

        Returns
        -------
        bool
            ``False`` when the lease is lost.
        """
        if self._keeps_lease:
            return True
        ended_at = self.lease.expires_at
        return self._heard(self._transport.extend(self.lease, self._lasts(visibility)), ended_at)

    def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        """Publish on the same transport; of a worker with ``transactional=True`` in the handler's transaction."""
        self._publishes_to.publish(group_id, event, priority)


class AsyncContext(_Context):
    """What an async handler gets beside its event.

    Attributes
    ----------
    lease : Lease
    attempt : int
    lost : bool
        Whether the result does not count any more: the lease is lost, or the worker ends and gave it back.
    connection : object or None
        What this handler's transaction is open on, of a worker with ``transactional=True``.
    """

    def __init__(
        self,
        job: Job,
        visibility: float,
        transport: AsyncTransport,
        connection: Any = None,
        bound: AsyncBound | None = None,
        *,
        keeps_lease: bool = False,
    ) -> None:
        super().__init__(job, visibility, connection, keeps_lease=keeps_lease)
        self._transport = transport
        self._publishes_to = transport if bound is None else bound

    async def extend(self, visibility: float | None = None) -> bool:
        """Renew the lease now; see :meth:`Context.extend`."""
        if self._keeps_lease:
            return True
        ended_at = self.lease.expires_at
        return self._heard(await self._transport.extend(self.lease, self._lasts(visibility)), ended_at)

    async def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        """Publish on the same transport; of a worker with ``transactional=True`` in the handler's transaction."""
        await self._publishes_to.publish(group_id, event, priority)
