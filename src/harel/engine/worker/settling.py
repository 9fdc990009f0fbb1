"""Settling what was handled: gathered for a moment, together where they can be, each once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harel.engine.worker.job import Job
from harel.engine.worker.log import WorkerLog, which
from harel.engine.worker.outage import Outage
from harel.engine.worker.policy import Again, Dead, Done, Held
from harel.engine.worker.port import Port
from harel.engine.worker.timing import Bell, Timing
from harel.engine.worker.watchers import Watchers
from harel.errors import TransportUnavailable

__all__ = ["Pace", "Settler"]

_GRACE_S = 0.002
"""A message that was handled waits at most so long for others to be settled with."""

_GRACE_SHARE = 0.125
"""And at most this part of the time that handlers take, so that waiting does not slow a group down noticeably."""


class Pace:
    """How long handlers take, and so whether some are about to finish."""

    def __init__(self) -> None:
        self._mean_s = 0.0

    def took(self, seconds: float) -> None:
        """Count one."""
        self._mean_s += (seconds - self._mean_s) * 0.125

    def patience(self, begins: Iterator[float], now: float) -> float:
        """Return for how many seconds it pays to wait for others.

        Parameters
        ----------
        begins : iterator of float
            When those began that are running.
        now : float
        """
        grace = min(_GRACE_S, self._mean_s * _GRACE_SHARE)
        if any(abs(began + self._mean_s - now) <= grace for began in begins):
            return grace
        return 0.0


class Settler:
    """Settles jobs.

    Parameters
    ----------
    port : Port
    timing : Timing
    log : WorkerLog
    watchers : Watchers
    outage : Outage
    running : dict of Job
        Those whose handlers run.
    visibility : float
        Seconds.
    longest_delay_s : float
        What the transport takes at most.
    settled : callable
        Called when some were settled, or found lost.
    """

    def __init__(
        self,
        port: Port,
        timing: Timing,
        log: WorkerLog,
        watchers: Watchers,
        outage: Outage,
        running: dict[Job, None],
        *,
        visibility: float,
        longest_delay_s: float,
        settled: Callable[[], object],
    ) -> None:
        self._port = port
        self._timing = timing
        self._log = log
        self._watchers = watchers
        self._outage = outage
        self._running = running
        self._visibility = visibility
        self._longest_delay_s = longest_delay_s
        self._settled = settled
        self._bell = Bell(timing)
        self._finished: list[Job] = []
        self._taken: list[Job] = []
        self._pace = Pace()
        self.unsettled: int = 0
        """How many were handled and are not settled."""

    def add(self, job: Job) -> None:
        """Have this one settled soon, as its verdict says."""
        if job.began:
            self._pace.took(job.handled_s)
        self._finished.append(job)
        self.unsettled += 1
        self._bell.ring()

    async def run(self) -> None:
        """Settle what is added, for ever."""
        while True:
            await self._gather()
            while self._finished or self._taken:
                try:
                    await self.flush()
                except TransportUnavailable as error:
                    await self._outage.pause("settle", error)
            self._outage.over("settle")
            self._settled()

    async def flush(self) -> None:
        """Settle what was added, and what an error or a cancellation left over."""
        self._taken += self._finished
        self._finished = []
        await self.settle(self._taken)

    async def settle(self, jobs: list[Job]) -> None:
        """Settle these, and take off the list what is settled: after an error the rest is still to be."""
        acks = [job for job in jobs if _is_plain_ack(job)]
        if acks:
            with _asking(acks):
                answers = await self._port.ack_many([job.lease for job in acks])
            jobs[:] = [job for job in jobs if not _is_plain_ack(job)]
            for job, answer in zip(acks, answers, strict=True):
                self._answered(job, answer)
        while jobs:
            job = jobs[0]
            with _asking([job]):
                answer = await self._settle_one(job)
            del jobs[0]
            self._answered(job, answer)

    def lose(self, job: Job) -> None:
        """Say, once, that a lease was lost."""
        self._log(
            logging.WARNING,
            "The lease of %s was lost; what its handler did is not settled.",
            which(job.lease),
            lease=job.lease,
        )
        self._watchers.lost(job)

    async def _gather(self) -> None:
        while not self._finished:
            await self._bell.wait()
        if not self._running:
            return
        patience = self._pace.patience((job.began for job in self._running), self._timing.now())
        deadline = self._timing.now() + patience
        while patience > 0.0 and self._running and await self._bell.wait(patience):
            patience = deadline - self._timing.now()

    def _answered(self, job: Job, answer: bool) -> None:
        self.unsettled -= 1
        # If the answer to an earlier try was lost and the lease still ran, it can only be that try which settled it.
        if answer or (job.asked and self._timing.now() < job.until):
            self._watchers.settled(job)
        else:
            self.lose(job)

    async def _settle_one(self, job: Job) -> bool:
        lease = job.lease
        verdict = job.verdict
        if job.committed:
            if job.holds_group:
                await self._port.release(lease.group_id)
            return True
        # Holding and releasing need no lease, so they come after a call that says whether it is still ours.
        if isinstance(verdict, Held):
            if not await self._extended(job):
                return False
            await self._port.hold(lease.group_id)
            return await self._port.nack(lease)
        if job.holds_group:
            if not await self._extended(job):
                return False
            await self._port.release(lease.group_id)
        if isinstance(verdict, Again):
            return await self._port.nack(lease, min(verdict.delay, self._longest_delay_s))
        if isinstance(verdict, Dead):
            return await self._port.reject(lease, verdict.reason)
        (answer,) = await self._port.ack_many([lease])
        return answer

    async def _extended(self, job: Job) -> bool:
        asked_at = self._timing.now()
        (kept,) = await self._port.extend_many([job.lease], self._visibility)
        if kept:
            job.until = asked_at + self._visibility
        return kept


def _is_plain_ack(job: Job) -> bool:
    return isinstance(job.verdict, Done) and not job.holds_group and not job.committed


@contextmanager
def _asking(jobs: list[Job]) -> Iterator[None]:
    try:
        yield
    except (TransportUnavailable, asyncio.CancelledError):
        for job in jobs:
            job.asked = True
        raise
