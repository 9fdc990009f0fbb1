"""Claiming as much as can start at once, and sleeping while there is nothing to claim."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from harel.engine.queue.contract import Lease
from harel.engine.worker.outage import Outage
from harel.engine.worker.port import Port
from harel.engine.worker.settings import Settings
from harel.engine.worker.timing import Bell
from harel.errors import HarelError, TransportUnavailable

__all__ = ["Claimer"]

_QUIET_S = 0.005
"""While others are handled or settled, which soon makes more claimable, a wait begins only after so long."""

_WORTH_HALVING = 32
"""With so many slots a claim is for half of them at most: the server looks for the next half while this one is handled.
With fewer, what a round trip costs weighs more."""

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05
"""Between claims that find nothing though the transport said that there is something: others were faster."""


class Claimer:
    """Claims for free slots.

    Parameters
    ----------
    port : Port
    settings : Settings
    outage : Outage
    free_slots : callable
        Returns how many messages can start now.
    is_busy : callable
        Returns whether messages are being handled or settled.
    take_on : callable
        Called with what was claimed: each lease, and until when it runs at least, by the worker's own clock.
    """

    def __init__(
        self,
        port: Port,
        settings: Settings,
        outage: Outage,
        free_slots: Callable[[], int],
        is_busy: Callable[[], bool],
        take_on: Callable[[Sequence[tuple[Lease, float]]], None],
    ) -> None:
        self._port = port
        self._settings = settings
        self._timing = settings.timing
        self._outage = outage
        self._free_slots = free_slots
        self._is_busy = is_busy
        self._take_on = take_on
        self._news = Bell(settings.timing)
        halves = settings.claims_ahead and settings.concurrency >= _WORTH_HALVING
        self._at_most = settings.concurrency // 2 if halves else settings.concurrency
        self._stopping = False
        self._may_find = True
        self._in_vain = 0
        self._waiting: asyncio.Task[bool] | None = None

    def news(self) -> None:
        """Note that a slot may be free."""
        self._news.ring()

    def look_again(self) -> None:
        """Note that more may be claimable."""
        self._may_find = True
        self._news.ring()

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopping = True
        self._news.ring()

    async def close(self) -> None:
        """End the wait for messages."""
        if self._waiting is not None:
            self._waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, HarelError):
                await self._waiting

    async def run(self) -> None:
        """Claim until stopped."""
        while not self._stopping:
            free = self._free_slots()
            try:
                if not free:
                    await self._news.wait()
                elif self._may_find:
                    await self._claim_for(min(free, self._at_most))
                else:
                    await self._rest()
            except TransportUnavailable as error:
                self._may_find = True
                if not self._stopping:
                    await self._outage.pause("claim", error)

    async def claim(self, limit: int) -> list[tuple[Lease, float]]:
        """Claim up to so many: of the share of claims that is due, the urgent first."""
        settings = self._settings
        until = self._timing.now() + settings.visibility
        leases: list[Lease] = []
        if settings.share.asks_for_floor():
            leases = await self._port.claim_many(
                settings.worker_id, settings.visibility, limit, settings.priority_threshold
            )
        if len(leases) < limit:
            try:
                leases += await self._port.claim_many(settings.worker_id, settings.visibility, limit - len(leases))
            except TransportUnavailable:
                if not leases:
                    raise
        return [(lease, until) for lease in leases]

    async def _claim_for(self, slots: int) -> None:
        self._may_find = False  # what is settled or published meanwhile makes it true again
        claimed = await self.claim(slots)
        self._outage.over("claim")
        if len(claimed) == slots:
            self._may_find = True
        if claimed:
            self._in_vain = 0
            self._take_on(claimed)

    async def _rest(self) -> None:
        """Wait until something may be claimable, or a slot is free."""
        if self._waiting is not None and self._waiting.done():
            waited, self._waiting = self._waiting, None
            found = waited.result()
            if self._settings.watches:
                self._outage.over("claim")
            self._may_find = found or not self._settings.watches
            if self._may_find:
                self._in_vain += 1
                return
        if self._waiting is None:
            if self._is_busy() and await self._news.wait(_QUIET_S):
                return
            if self._in_vain > 1 and await self._news.wait(self._pause()):
                return
            self._waiting = asyncio.create_task(self._port.wait(self._settings.wait_s), name="harel-wait")
            self._waiting.add_done_callback(lambda _: self._news.ring())
        await self._news.wait()

    def _pause(self) -> float:
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._in_vain - 2, 16))
