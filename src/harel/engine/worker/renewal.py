"""Keeping leases while handlers run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from harel.engine.queue.contract import Transport
from harel.engine.worker.job import Job, Revoked
from harel.engine.worker.outage import Outage
from harel.engine.worker.port import Port
from harel.engine.worker.timing import Bell, Timer, Timing
from harel.engine.worker.watchdog import Watchdog
from harel.errors import HarelError, TransportUnavailable

__all__ = ["Renewal", "RenewalInThread"]


class Renewal:
    """Renews the leases of the jobs that run, at a third of the visibility, all that are due in one call.

    Parameters
    ----------
    port : Port
    timing : Timing
    outage : Outage
    watchdog : Watchdog
    running : dict of Job
        Those whose handlers run, the first to be renewed in front.
    revoke : callable
        Called with a job whose lease is lost.
    visibility : float
        Seconds.
    keeps_leases : bool
        Whether leases need no renewing.
    """

    def __init__(
        self,
        port: Port,
        timing: Timing,
        outage: Outage,
        watchdog: Watchdog,
        running: dict[Job, None],
        revoke: Callable[[Job, Revoked], None],
        *,
        visibility: float,
        keeps_leases: bool,
    ) -> None:
        self._port = port
        self._timing = timing
        self._outage = outage
        self._watchdog = watchdog
        self._running = running
        self._revoke = revoke
        self._visibility = visibility
        self._keeps_leases = keeps_leases
        self._bell = Bell(timing)
        self._awake = False
        self._expiry: Timer | None = None

    @property
    def first_after_s(self) -> float:
        """After how many seconds a lease is renewed."""
        return self._visibility / 3

    def wake(self) -> None:
        """Note that something runs."""
        if not self._awake:
            self._awake = True
            self._watchdog.watch()
            self._bell.ring()

    async def run(self) -> None:
        """Renew for ever; sleep while nothing runs."""
        while True:
            if self._running:
                await self._bell.wait(self._pause())
                await self._renew_due()
            else:
                self._awake = False
                self._watchdog.rest()
                self._forget_expiry()
                self._outage.over("renew")
                await self._bell.wait()

    def _pause(self) -> float:
        first = next(iter(self._running))
        return max(0.0, min(first.renew_at - self._timing.now(), self.first_after_s))

    async def _renew_due(self) -> None:
        asked_at = self._timing.now()
        due = self._due(asked_at)
        if not due:
            return
        if self._expiry is None:
            self._expire_later(at_once=False)
        try:
            answers = await self._port.extend_many([job.lease for job in due], self._visibility)
        except TransportUnavailable as error:
            await self._outage.pause("renew", error)
            return
        self._forget_expiry()
        self._outage.over("renew")
        for job, kept in zip(due, answers, strict=True):
            if job not in self._running:
                continue  # it was finished, and perhaps settled, meanwhile
            if kept:
                job.until = max(job.until, asked_at + self._visibility)
                self._put_back(job, asked_at)
            else:
                self._revoke(job, "lost")

    def _due(self, now: float) -> list[Job]:
        """Return those to be renewed now; one that is due soon goes with them."""
        soon = now + self._visibility / 12
        due = []
        for job in list(self._running):
            if job.renew_at > soon:
                break
            if self._keeps_leases or job.revoked or job.settling or job.until > now + self._visibility:
                self._put_back(job, now)  # nothing to renew, or its handler did, for longer
            else:
                due.append(job)
        return due

    def _put_back(self, job: Job, renewed_at: float) -> None:
        del self._running[job]
        job.renew_at = renewed_at + self.first_after_s
        self._running[job] = None

    def _expire_later(self, *, at_once: bool) -> None:
        """See to it that a lease which ends before the server answers counts as lost: somebody else may have it.

        One that ended before it was asked, since the loop was blocked, has as long as a lease is left between two
        renewals: the server knows better.
        """
        ends = [job.until for job in self._running if not (job.revoked or job.settling)]
        if ends:
            left = min(ends) - self._timing.now()
            least = 0.0 if at_once else self.first_after_s
            self._expiry = self._timing.later(left if left > 0.0 else least, self._expire)
        else:
            self._expiry = None

    def _expire(self) -> None:
        now = self._timing.now()
        for job in list(self._running):
            if job.until <= now:
                self._revoke(job, "lost")
        self._expire_later(at_once=True)

    def _forget_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None


class RenewalInThread:
    """Renews one lease while a handler runs in the caller's thread.

    Parameters
    ----------
    transport : Transport
    job : Job
    visibility : float
        Seconds.
    """

    def __init__(self, transport: Transport, job: Job, visibility: float) -> None:
        self._transport = transport
        self._job = job
        self._visibility = visibility
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="harel-renewal", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._done.wait(self._visibility / 3):
            try:
                if not self._transport.extend(self._job.lease, self._visibility):
                    self._job.told_lost = True
                    return
            except TransportUnavailable:
                continue
            except HarelError:
                return  # the settlement will say what is wrong
