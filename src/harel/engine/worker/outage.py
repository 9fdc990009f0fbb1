"""When the server cannot be reached: how long to wait before trying again, and saying so once."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from harel.engine.worker.log import WorkerLog
from harel.engine.worker.timing import Bell, Timing
from harel.engine.worker.watchers import Watchers
from harel.errors import TransportUnavailable

__all__ = ["Outage"]

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class Outage:
    """What a worker knows of its server.

    Claims, settlements and renewals fail and succeed each for itself; an outage begins with the first that fails, and
    is over when each that failed has succeeded.

    Parameters
    ----------
    timing : Timing
    log : WorkerLog
    watchers : Watchers
    give_up_after : float or None
        Seconds after which to give up; ``None`` is never.
    on_over : callable
        Called when an outage is over.
    random_number : callable
        Returns a float from 0 to 1.
    """

    def __init__(
        self,
        timing: Timing,
        log: WorkerLog,
        watchers: Watchers,
        give_up_after: float | None,
        on_over: Callable[[], object],
        random_number: Callable[[], float] = random.random,
    ) -> None:
        self._timing = timing
        self._log = log
        self._watchers = watchers
        self._give_up_after = give_up_after
        self._on_over = on_over
        self._random_number = random_number
        self._since = 0.0
        self._failures: dict[str, int] = {}
        self._pausing: dict[str, Bell] = {}

    def lasts(self, but: str = "") -> bool:
        """Say whether something is failing, other than what is named."""
        return bool(self._failures) and any(what != but for what in self._failures)

    async def pause(self, what: str, error: TransportUnavailable) -> None:
        """Note that ``what`` failed, and wait until it may be tried again: longer each time, or till it is back.

        Raises
        ------
        TransportUnavailable
            When it has failed for so long that the worker gives up.
        """
        seconds = self._failed(what, error)
        bell = self._pausing[what] = Bell(self._timing)
        try:
            await bell.wait(seconds)
        finally:
            self._pausing.pop(what, None)

    def _failed(self, what: str, error: TransportUnavailable) -> float:
        now = self._timing.now()
        if not self._failures:
            self._since = now
            self._log(logging.WARNING, "The queue cannot be reached; trying again until it can: %s", error)
            self._watchers.unreachable(error)
        failures = self._failures[what] = self._failures.get(what, 0) + 1
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))
        pause *= 1 - 0.5 * self._random_number()  # so that workers do not come back together
        if self._give_up_after is None:
            return pause
        left = self._since + self._give_up_after - now
        if left <= 0.0:
            raise TransportUnavailable(
                f"The queue could not be reached for {self._give_up_after:g} s, and the worker gives up: {error}"
            ) from error
        return min(pause, left)

    def over(self, what: str) -> None:
        """Note that ``what`` succeeded, or is not wanted any more."""
        if not self._failures:
            return
        if self._failures.pop(what, None) is not None and not self._failures:
            self._log(
                logging.WARNING, "The queue can be reached again, after %.1f s.", self._timing.now() - self._since
            )
            self._watchers.reachable()
            self._on_over()
        self.hurry()

    def hurry(self) -> None:
        """End all pauses."""
        for bell in list(self._pausing.values()):
            bell.ring()
