"""The worker's loop, once for both workers: one task claims, one settles, one renews, and slots handle.

Claiming and settling go on side by side, so that the server's answer to one is not waited for by the other, and batches
form by themselves: what finishes during a call goes into the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from harel.engine.queue.contract import Lease
from harel.engine.worker.claiming import Claimer
from harel.engine.worker.hand import Hand
from harel.engine.worker.job import Job, Revoked
from harel.engine.worker.log import WorkerLog, which
from harel.engine.worker.outage import Outage
from harel.engine.worker.policy import DONE, Again, Dead, Reject, RetryLater, Verdict
from harel.engine.worker.port import Port
from harel.engine.worker.renewal import Renewal
from harel.engine.worker.settings import Settings
from harel.engine.worker.settling import Settler
from harel.engine.worker.slots import Slots
from harel.engine.worker.timing import Bell
from harel.engine.worker.watchdog import Watchdog
from harel.engine.worker.watchers import Watchers
from harel.errors import HarelError, InvalidMessage, LeaseLost, TransportUnavailable
from harel.events import Event

__all__ = ["Loop"]

_LAST_S = 5.0
"""At the end, cancelled handlers have so long to clean up, and what they held so long to be given back."""


class Loop:
    """Drains a port.

    Parameters
    ----------
    port : Port
    hand : Hand
        Calls the handler.
    settings : Settings
    log : WorkerLog
    watchers : Watchers
    """

    def __init__(self, port: Port, hand: Hand, settings: Settings, log: WorkerLog, watchers: Watchers) -> None:
        self._port = port
        self._hand = hand
        self._settings = settings
        self._retry = settings.retry
        self._timing = timing = settings.timing
        self._log = log
        self._watchers = watchers
        self._running: dict[Job, None] = {}
        self._crew: list[asyncio.Task[None]] = []
        self._claiming: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._runner: asyncio.Task[Any] | None = None
        self._stopping = False
        self._progress = Bell(timing)
        self._outage = Outage(timing, log, watchers, settings.give_up_after, self._work_may_go_on)
        self._settler = Settler(
            port,
            timing,
            log,
            watchers,
            self._outage,
            self._running,
            visibility=settings.visibility,
            longest_delay_s=settings.longest_delay_s,
            settled=self._some_settled,
        )
        self._watchdog = Watchdog(log, self._running, handler=settings.handler, visibility=settings.visibility)
        self._renewal = Renewal(
            port,
            timing,
            self._outage,
            self._watchdog,
            self._running,
            self._revoke,
            visibility=settings.visibility,
            keeps_leases=settings.keeps_leases,
        )
        self._slots = Slots(settings.concurrency, self._carry_out, self._fail, timing)
        self._claimer = Claimer(port, settings, self._outage, self._free_slots, self._is_busy, self._take_on)

    def stop(self, why: str = "") -> None:
        """Claim nothing more; finish what is held."""
        if self._stopping:
            return
        self._stopping = True
        if why and self._running:
            self._log(
                logging.INFO,
                "%s: finishing %s, for %g s at most; a second signal ends that at once.",
                why,
                _messages(len(self._running)),
                self._settings.drain_timeout,
            )
        self._claimer.stop()
        self._outage.hurry()
        self._progress.ring()

    async def step(self) -> bool:
        """Claim one message, handle it, settle it; what goes wrong with the server is raised.

        Returns
        -------
        bool
            Whether there was one.
        """
        self._runner = asyncio.current_task() if self._hand.cancellable else None
        for lease, until in await self._claimer.claim(1):
            job = self._job(lease, until)
            self._running[job] = None
            try:
                async with self._kept():
                    await self._handle(job, self._runner)
            except BaseException:
                await self._give_back(job)
                raise
            finally:
                self._running.pop(job, None)
            if job.revoked is None:
                await self._settler.settle([job])
            return True
        return False

    async def run(self) -> None:
        """Work until stopped. Cancelled, it cancels its handlers and gives back what it holds."""
        self._runner = asyncio.current_task()
        self._watchdog.start()
        try:
            self._begin()
            while not self._stopping and self._failure is None:
                await self._progress.wait()
            await self._drain()
        finally:
            self._watchdog.stop()
            await self._close()
        if self._failure is not None:
            raise self._failure

    def _begin(self) -> None:
        self._claiming = asyncio.create_task(self._claimer.run(), name="harel-claim")
        self._settling = asyncio.create_task(self._settler.run(), name="harel-settle")
        self._crew = [
            self._claiming,
            self._settling,
            asyncio.create_task(self._renewal.run(), name="harel-renew"),
        ]
        for task in self._crew:
            task.add_done_callback(self._ended)

    # Claimed, handled, settled

    def _free_slots(self) -> int:
        if self._stopping or self._outage.lasts(but="claim"):
            return 0
        if self._settler.unsettled >= 2 * self._settings.concurrency:
            return 0
        return self._settings.concurrency - len(self._running)

    def _is_busy(self) -> bool:
        return bool(self._running or self._settler.unsettled)

    def _take_on(self, leases: Sequence[tuple[Lease, float]]) -> None:
        for lease, _ in leases:
            if lease.attempt > 1:
                self._lose_older(lease)
        jobs = [self._job(lease, until) for lease, until in leases]
        self._running.update(dict.fromkeys(jobs))
        self._renewal.wake()
        self._slots.give(jobs)

    def _lose_older(self, lease: Lease) -> None:
        """Lose the lease of the same group that is being handled here, if there is one: this one took its place."""
        for job in list(self._running):
            if job.lease.group_id == lease.group_id:
                self._revoke(job, "lost")

    def _job(self, lease: Lease, until: float) -> Job:
        return Job(lease, until, until - self._settings.visibility + self._renewal.first_after_s)

    async def _carry_out(self, job: Job, slot: asyncio.Task[Any]) -> None:
        try:
            await self._handle(job, slot)
        except asyncio.CancelledError:
            job.revoked = job.revoked or "stopped"
        except BaseException:
            job.revoked = job.revoked or "stopped"
            raise
        finally:
            if job in self._running:  # or it was taken away at the end
                del self._running[job]
                self._finished(job)

    def _finished(self, job: Job) -> None:
        if job.revoked == "stopped":
            job.verdict = DONE if job.committed else Again(0.0)
        if job.revoked != "lost":
            self._settler.add(job)
        self._claimer.news()
        if self._stopping:
            self._progress.ring()

    async def _handle(self, job: Job, task: asyncio.Task[Any] | None) -> None:
        """Have a job handled in this task, and decide what becomes of it."""
        verdict, event = self._looked_at(job)
        if event is None:
            job.verdict = verdict
            return
        if self._retry.holds and self._retry.is_last(job.lease.attempt):
            await self._hold_first(job)
        if job.revoked:
            return
        job.began = self._timing.now()
        if self._watchers:
            self._watchers.began(job)
        if self._hand.cancellable:
            job.task = task
        try:
            job.error = await self._hand.call(job, event)
        except asyncio.CancelledError as error:
            if self._is_from_outside(job):
                raise
            job.error = error
        finally:
            cancelled, job.task = job.task, None
            job.handled_s = self._timing.now() - job.began
        if job.revoked:
            if cancelled is not None:
                cancelled.uncancel()
        else:
            self._decide(job)

    def _looked_at(self, job: Job) -> tuple[Verdict | None, Event | None]:
        verdict = self._retry.before(job.lease.attempt)
        if verdict is None:
            try:
                return None, job.lease.event
            except InvalidMessage as error:
                job.error = error
                verdict = Dead(str(error))
        if isinstance(verdict, Dead):
            self._say(logging.ERROR, job, "%s is given up: %s", verdict.reason)
        return verdict, None

    def _is_from_outside(self, job: Job) -> bool:
        """Say whether a cancellation is neither ours nor one that the handler caught from what it awaited.

        The handler's own task does not tell: a handler may cancel it too, and not all that do take it back. But
        whoever wants to end the worker cancels the task that runs it.
        """
        ours = 1 if job.revoked and self._runner is job.task else 0
        return self._runner is not None and self._runner.cancelling() > ours

    def _decide(self, job: Job) -> None:
        error = job.error
        if error is None:
            job.verdict = DONE
            return
        if isinstance(error, LeaseLost) and job.told_lost:
            self._revoke(job, "lost")
            return
        verdict = job.verdict = self._retry.after(job.lease.attempt, error)
        if isinstance(error, RetryLater):
            self._say(logging.INFO, job, "%s is put off by its handler, for %g s.", error.after)
        elif isinstance(error, Reject):
            self._say(logging.WARNING, job, "%s is rejected by its handler: %s", error.reason)
        elif isinstance(verdict, Again):
            self._say(logging.WARNING, job, "%s failed, and is tried again in %.3g s.", verdict.delay, error=error)
        elif isinstance(verdict, Dead):
            self._say(logging.ERROR, job, "%s failed, and goes to the dead letters.", error=error)
        else:
            self._say(logging.ERROR, job, "%s failed, and its group is held until it is released.", error=error)

    async def _hold_first(self, job: Job) -> None:
        """Hold a group before the last attempt at its first message.

        Should this worker die in it, the group is held, and a claim after this attempt says that it was released.
        """
        what = f"hold {job.lease.token}"
        while not job.revoked:
            try:
                job.holds_group = True
                await self._port.hold(job.lease.group_id)
                break
            except TransportUnavailable as error:
                if not self._crew:
                    raise
                await self._outage.pause(what, error)
        self._outage.over(what)

    def _revoke(self, job: Job, why: Revoked) -> None:
        """Have a job's result not count, and cancel its handler if that can be."""
        if job.revoked or (job.settling and why == "lost" and not job.told_lost):
            return
        job.revoked = why
        if job.task is not None and not job.settling:  # a commit that is under way is left to end
            job.task.cancel()
        if why == "lost":
            if job.began and not job.handled_s:
                job.handled_s = self._timing.now() - job.began
            self._settler.lose(job)

    def _some_settled(self) -> None:
        self._claimer.look_again()
        if self._stopping:
            self._progress.ring()

    def _work_may_go_on(self) -> None:
        self._claimer.news()

    # The end

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.stop()
        self._progress.ring()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._progress.ring()

    async def _drain(self) -> None:
        """Let handlers finish, and settle what they did, as long as there is time and nothing has failed."""
        await self._until(self._is_drained, self._settings.drain_timeout)

    def _is_drained(self) -> bool:
        claiming = self._claiming is not None and not self._claiming.done()
        return self._failure is not None or not (claiming or self._is_busy())

    async def _close(self) -> None:
        """End everything, and give back what is held."""
        self.stop()
        try:
            await self._until(lambda: self._claiming is None or self._claiming.done(), _LAST_S)
            await self._take_away()
            await self._settle_the_rest()
        finally:
            for task in self._crew:
                task.cancel()
            await asyncio.gather(self._slots.close(), self._claimer.close(), *self._crew, return_exceptions=True)

    async def _take_away(self) -> None:
        left = list(self._running)
        for job in left:
            self._revoke(job, "stopped")
        if self._hand.cancellable:
            await self._until(lambda: not self._running, _LAST_S)
        for job in list(self._running):
            self._say(
                logging.WARNING, job, "%s is still being handled as the worker ends; it is given back all the same."
            )
            del self._running[job]
            self._finished(job)

    async def _settle_the_rest(self) -> None:
        settling = self._settling
        if settling is not None and not isinstance(self._failure, TransportUnavailable):
            await self._until(lambda: settling.done() or not self._settler.unsettled, _LAST_S)
            if settling.done():
                with contextlib.suppress(HarelError):
                    await self._settler.flush()
        if left := self._settler.unsettled:
            self._log(
                logging.WARNING,
                "%s could not be settled as the worker ended, and can be claimed again when %s.",
                _messages(left),
                "its lease ends" if left == 1 else "their leases end",
            )

    async def _until(self, condition: Callable[[], bool], at_most_s: float) -> None:
        deadline = self._timing.now() + at_most_s
        while not condition() and (left := deadline - self._timing.now()) > 0.0:
            await self._progress.wait(left)

    # One step

    @contextlib.asynccontextmanager
    async def _kept(self) -> AsyncIterator[None]:
        """Renew while a step handles. Where the handler is called in this very thread, its hand sees to that."""
        if not self._hand.cancellable:
            yield
            return
        renewing = asyncio.create_task(self._renewal.run(), name="harel-renew")
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _give_back(self, job: Job) -> None:
        if job.verdict is None and job.revoked != "lost":
            job.verdict = Again(0.0)
            with contextlib.suppress(HarelError):
                await self._settler.settle([job])

    def _say(self, level: int, job: Job, text: str, *args: object, error: BaseException | None = None) -> None:
        self._log(level, text, f"Handling {which(job.lease)}", *args, lease=job.lease, error=error)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"
