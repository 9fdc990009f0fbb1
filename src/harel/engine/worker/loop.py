"""The worker's loop, once for both workers: settle, claim, start, rest.

One task claims and settles; each message is handled in a task of its own. While that task handles
and settles, further handlers finish, and the next turn settles them together: batches form by
themselves under load, and nothing waits for a batch to fill.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar, Protocol, TypeAlias

from harel.engine.queue.contract import Lease
from harel.engine.worker.policy import Ack, Nack, Reject, Retry, Share, Verdict
from harel.errors import HarelError, InvalidMessage, TransportUnavailable
from harel.events import Event

__all__ = ["Begin", "Handling", "Loop", "Port"]

log: logging.Logger = logging.getLogger("harel.worker")

_LOOK_S = 1.0
"""A wait for messages lasts this long at most, so that a stop is not kept waiting by a thread."""

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0


class Port(Protocol):
    """The part of a transport that the loop uses. A sync one is lifted to this."""

    async def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> list[Lease]: ...
    async def ack_many(self, leases: Iterable[Lease]) -> list[bool]: ...
    async def nack(self, lease: Lease, delay: float = 0.0) -> bool: ...
    async def extend(self, lease: Lease, visibility: float) -> bool: ...
    async def reject(self, lease: Lease, reason: str) -> bool: ...
    async def wait(self, timeout: float) -> bool: ...


class Handling(Protocol):
    """One message being handled."""

    lost: bool
    """Whether its lease is known to be lost."""
    cancellable: ClassVar[bool]
    """Whether its handler can be cancelled; a thread cannot."""


Begin: TypeAlias = Callable[[Lease], tuple[Handling, Callable[[Event], Awaitable[None]]]]
"""From a lease to its handling and the call that carries it out."""


class Loop:
    """Drains a port.

    Parameters
    ----------
    port : Port
    begin : Begin
    worker_id : str
    visibility : float
        Seconds that a lease lasts; while its handler runs it is renewed at a third of that.
    concurrency : int
        How many groups at once.
    retry : Retry
    share : Share
        Which claims ask for ``priority_threshold`` first.
    priority_threshold : int
    """

    def __init__(
        self,
        port: Port,
        begin: Begin,
        *,
        worker_id: str,
        visibility: float,
        concurrency: int,
        retry: Retry,
        share: Share,
        priority_threshold: int,
    ) -> None:
        self._port = port
        self._begin = begin
        self._worker_id = worker_id
        self._visibility = visibility
        self._concurrency = concurrency
        self._retry = retry
        self._share = share
        self._priority_threshold = priority_threshold
        self._running: dict[asyncio.Task[None], tuple[Lease, Handling]] = {}
        self._finished: list[tuple[Lease, Verdict]] = []
        self._stopping = False
        self._wake = asyncio.Event()
        self._waiting: asyncio.Task[bool] | None = None

    def stop(self) -> None:
        """Claim nothing more; finish what is held."""
        self._stopping = True
        self._wake.set()

    async def step(self) -> bool:
        """Claim one message, handle it, settle it.

        Returns
        -------
        bool
            Whether there was one.
        """
        for lease in await self._claim(1):
            handling, call = self._begin(lease)
            verdict = await self._handle(lease, call)
            if not handling.lost:
                await self._settle([(lease, verdict)])
            return True
        return False

    async def run(self) -> None:
        """Work until stopped. Cancelled, it cancels its handlers and gives back what it holds."""
        renewing = asyncio.create_task(self._renew_for_ever())
        try:
            await self._work()
        except asyncio.CancelledError:
            await self._give_back()
            raise
        except BaseException:
            await self._finish_what_runs()
            raise
        finally:
            for task in (renewing, self._waiting):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, TransportUnavailable):
                        await task

    async def renew(self) -> None:
        """Extend the lease of every message that is being handled; cancel the handlers of those lost."""
        for task, (lease, handling) in list(self._running.items()):
            if not task.done() and not await self._port.extend(lease, self._visibility) and not task.done():
                handling.lost = True
                if handling.cancellable:
                    task.cancel()
                _log_lost(lease)

    async def _work(self) -> None:
        pause = 0.0
        while not self._stopping or self._running or self._finished:
            try:
                await self._turn()
            except TransportUnavailable as error:
                if not pause:
                    log.warning("The queue cannot be reached; trying again until it can: %s", error)
                pause = min(_LONGEST_PAUSE_S, 2 * pause or _FIRST_PAUSE_S)
                await self._rest(pause)
            else:
                if pause:
                    log.warning("The queue can be reached again.")
                pause = 0.0

    async def _turn(self) -> None:
        self._wake.clear()
        await self._settle_finished()
        free = 0 if self._stopping else self._concurrency - len(self._running)
        leases = await self._claim(free) if free else []
        for lease in leases:
            self._start(lease)
        if len(leases) < free:
            self._watch()
        if not self._finished:
            await self._rest(None)

    async def _rest(self, at_most: float | None) -> None:
        """Until a handler finishes, something may be claimable, or a stop."""
        if self._stopping and not self._running and at_most is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                await self._wake.wait()

    def _watch(self) -> None:
        waited, self._waiting = self._waiting, None
        if waited is not None and not waited.done():
            self._waiting = waited
            return
        if waited is not None:
            waited.result()
        self._waiting = asyncio.create_task(self._port.wait(_LOOK_S))
        self._waiting.add_done_callback(lambda _: self._wake.set())

    async def _claim(self, limit: int) -> list[Lease]:
        if self._share.asks_for_floor():
            leases = await self._port.claim_many(self._worker_id, self._visibility, limit, self._priority_threshold)
            if leases:
                return leases
        return await self._port.claim_many(self._worker_id, self._visibility, limit)

    def _start(self, lease: Lease) -> None:
        handling, call = self._begin(lease)
        task = asyncio.create_task(self._carry_out(lease, handling, call))
        self._running[task] = (lease, handling)
        task.add_done_callback(self._finish)

    async def _carry_out(self, lease: Lease, handling: Handling, call: Callable[[Event], Awaitable[None]]) -> None:
        verdict = await self._handle(lease, call)
        if not handling.lost:
            self._finished.append((lease, verdict))

    def _finish(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._wake.set()

    async def _handle(self, lease: Lease, call: Callable[[Event], Awaitable[None]]) -> Verdict:
        if (verdict := self._retry.before(lease.attempt)) is not None:
            return verdict
        try:
            event = lease.event
        except InvalidMessage as error:
            return Reject(str(error))
        try:
            await call(event)
        except Exception as error:
            log.warning(
                "Handling group %r, seq %d, attempt %d failed.",
                lease.group_id,
                lease.seq,
                lease.attempt,
                exc_info=error,
            )
            return self._retry.after(lease.attempt, error)
        return Ack()

    async def _settle_finished(self) -> None:
        finished, self._finished = self._finished, []
        try:
            await self._settle(finished)
        finally:
            self._finished = finished + self._finished

    async def _settle(self, finished: list[tuple[Lease, Verdict]]) -> None:
        """Settle these, and take off the list what is settled: after an error the rest is still to be."""
        acks = [lease for lease, verdict in finished if isinstance(verdict, Ack)]
        if acks:
            answers = await self._port.ack_many(acks)
            finished[:] = [each for each in finished if not isinstance(each[1], Ack)]
            for lease, still_held in zip(acks, answers, strict=True):
                if not still_held:
                    _log_lost(lease)
        while finished:
            lease, verdict = finished[0]
            if isinstance(verdict, Nack):
                still_held = await self._port.nack(lease, verdict.delay)
            elif isinstance(verdict, Reject):
                still_held = await self._port.reject(lease, verdict.reason)
            del finished[0]
            if not still_held:
                _log_lost(lease)

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._visibility / 3)
            try:
                await self.renew()
            except TransportUnavailable as error:
                log.warning("Leases could not be renewed: %s", error)

    async def _finish_what_runs(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._running, return_exceptions=True)
        with contextlib.suppress(HarelError):
            await self._settle_finished()

    async def _give_back(self) -> None:
        held = list(self._running.items())
        for task, _ in held:
            task.cancel()
        await asyncio.gather(*(task for task, _ in held), return_exceptions=True)
        with contextlib.suppress(HarelError):
            await self._settle_finished()
            for task, (lease, handling) in held:
                if task.cancelled() and not handling.lost:
                    await self._port.nack(lease)


def _log_lost(lease: Lease) -> None:
    log.warning("The lease of %s was lost; what its handler did is not settled.", _which(lease))


def _which(lease: Lease) -> str:
    return f"group {lease.group_id!r}, seq {lease.seq}, attempt {lease.attempt}"
