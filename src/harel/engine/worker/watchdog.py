"""A thread that tells when a handler blocks the event loop for so long that its lease runs out."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable

from harel.engine.worker.job import Job
from harel.engine.worker.log import WorkerLog, which

__all__ = ["Watchdog"]

_SHOWN_FRAMES = 12


class Watchdog:
    """Asks the event loop for a sign of life, at a third of the visibility, while something runs on it.

    A loop that gives none for a whole visibility renews no lease either. What blocks it is named.

    Parameters
    ----------
    log : WorkerLog
    jobs : dict of Job
        Those whose handlers run.
    handler : str
        The handler's name.
    visibility : float
        Seconds.
    clock : callable
        Returns seconds.
    """

    def __init__(
        self,
        log: WorkerLog,
        jobs: Iterable[Job],
        *,
        handler: str,
        visibility: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._jobs = jobs
        self._handler = handler
        self._visibility = visibility
        self._clock = clock
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._watching = False
        self._ended = False
        self._asked_at: float | None = None
        self._said = False

    def start(self) -> None:
        """Watch the running loop from now on, in a thread of its own."""
        self.attach()
        threading.Thread(target=self._run, name="harel-watchdog", daemon=True).start()

    def attach(self) -> None:
        """Take the running loop as the one to watch."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    def watch(self) -> None:
        """Note that something runs on the loop."""
        self._set_watching(True)

    def rest(self) -> None:
        """Note that nothing does."""
        self._set_watching(False)

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def look(self) -> float | None:
        """Look once.

        Returns
        -------
        float or None
            After how many seconds to look again; ``None`` when there is nothing to watch.
        """
        now = self._clock()
        if not self._watching:
            self._asked_at = None
            return None
        if self._asked_at is None:
            self._asked_at = now
            self._said = False
            self._ask()
            return self._visibility / 3
        silent_s = now - self._asked_at
        if silent_s >= self._visibility and not self._said:
            self._said = True
            self._say(silent_s)
        return self._visibility / 3

    def _ask(self) -> None:
        assert self._loop is not None, "attach comes first"
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:  # the loop is closed
            self._ended = True

    def _answer(self) -> None:
        self._asked_at = None

    def _set_watching(self, watching: bool) -> None:
        if self._loop is None or watching == self._watching:
            return
        with self._changed:
            self._watching = watching
            self._asked_at = None
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._ended:
                self._changed.wait(self.look())

    def _say(self, silent_s: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - it has no other name
        stack = traceback.extract_stack(frame)[-_SHOWN_FRAMES:] if frame is not None else []
        place = f"{stack[-1].filename}:{stack[-1].lineno} in {stack[-1].name}" if stack else "an unknown place"
        job = self._current_job()
        who = f"The handler {self._handler}, at {which(job.lease)}," if job is not None else "Something"
        self._log(
            logging.ERROR,
            "%s has blocked the event loop for %.1f s, longer than a lease lasts (%g s): no lease is renewed, and "
            "others may handle its messages again. Await what takes time, or use harel.Worker. It is at %s\n%s",
            who,
            silent_s,
            self._visibility,
            place,
            "".join(traceback.format_list(stack)),
            lease=job.lease if job is not None else None,
        )

    def _current_job(self) -> Job | None:
        current = asyncio.current_task(self._loop)
        return next((job for job in list(self._jobs) if job.task is not None and job.task is current), None)
