"""``harel worker --processes N``: the process that starts the others, replaces one that ends, and ends them all.

It holds the writing end of a pipe to each: over it they are told to finish what they hold, and its end tells them that
this process is gone, however it went. A signal is not passed on as a signal: what manages services may send one to all
of them at once, and to a worker a second one means to leave now.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import msgspec

from harel.cli.failure import GAVE_UP, WRONG
from harel.cli.work import WorkerSettings

__all__ = ["DRAIN", "Crew", "Member", "MemberProcess", "reap_orphans", "signals_to"]

log: logging.Logger = logging.getLogger("harel.crew")

DRAIN = b"drain"

MEMBER = (sys.executable, "-P", "-m", "harel.cli.crew_member")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0
"""Who lived as long as this is replaced without the pauses that came before."""
_LOOK_S = 1.0
_ORDERS = (signal.SIGTERM, signal.SIGINT)


class Member(Protocol):
    """A worker process, as the crew sees it."""

    pid: int

    def poll(self) -> int | None:
        """Return its exit status, or ``None`` while it runs."""
        ...

    def tell(self, order: bytes) -> None:
        """Send it an order, a line; one that is gone does not mind."""
        ...

    def kill(self) -> None:
        """Kill it."""
        ...


class MemberProcess:
    """A worker process in a fresh interpreter.

    Parameters
    ----------
    settings : WorkerSettings
        Sent over the pipe: its URL may hold a password, which a command line would show.
    command : sequence of str
        Gets the number of the pipe's reading end as its last argument.
    """

    def __init__(self, settings: WorkerSettings, command: Sequence[str] = MEMBER) -> None:
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)  # one that does not read must not stop this process
        try:
            # In a session of its own, so that Ctrl-C reaches this process alone.
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter
                [*command, str(reading)], pass_fds=(reading,), start_new_session=True
            )
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)
        self.pid = self._process.pid
        self.tell(msgspec.json.encode(settings))

    def poll(self) -> int | None:
        status = self._process.poll()
        if status is not None and self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
        return status

    def tell(self, order: bytes) -> None:
        if self._writing >= 0:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._writing, order + b"\n")

    def kill(self) -> None:
        self._process.kill()


class _Seat:
    """A place in the crew, and who has it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.member: Member | None = None
        self.started_at = 0.0
        self.pause_s = 0.0
        self.start_at: float | None = 0.0
        """When it is to be filled; ``None`` while it is, or when it is not to be."""


class Crew:
    """Keeps worker processes running until it is told to stop.

    One that ends by itself is replaced, after a pause that doubles from half a second up to 30 seconds; who lived for a
    minute is replaced as if it were the first time.

    Parameters
    ----------
    size : int
    start : callable
        Starts the worker process with a number, from 0.
    clock : callable
        Returns seconds.
    take : callable, optional
        Waits for some seconds at most, and returns the number of a signal that came, or ``None``.
    tidy : callable, optional
        Called with the numbers of the crew's processes after each look at them.
    """

    def __init__(
        self,
        size: int,
        start: Callable[[int], Member],
        *,
        clock: Callable[[], float] = time.monotonic,
        take: Callable[[float], int | None] | None = None,
        tidy: Callable[[Collection[int]], object] | None = None,
    ) -> None:
        self._start = start
        self._clock = clock
        self._inbox: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._take = take or self._take_from_inbox
        self._tidy = tidy
        self._seats = [_Seat(number) for number in range(size)]
        self._signals: list[int] = []
        self._status = 0

    def notify(self, number: int) -> None:
        """Pass a signal on to :meth:`run`. May be called from a signal handler."""
        self._inbox.put(number)  # SimpleQueue's is reentrant, which Event's and Queue's are not

    def run(self) -> int:
        """Work until all have left after a signal.

        The first has them finish what they hold; the second has them leave now.

        Returns
        -------
        int
            The exit status: 0 when all finished in order, 128 and the signal's number when they were made to leave, 2
            when one gave up, or failed at its end.
        """
        try:
            while True:
                self._fill_seats()
                if not any(seat.member or seat.start_at is not None for seat in self._seats):
                    return self._status
                number = self._take(self._time_to_wait())
                if number in _ORDERS:
                    self._obey(number)
                self._look()
                if self._tidy is not None:
                    self._tidy([seat.member.pid for seat in self._seats if seat.member is not None])
        finally:
            for seat in self._seats:
                if seat.member is not None:
                    seat.member.kill()

    def _take_from_inbox(self, timeout: float) -> int | None:
        with contextlib.suppress(queue.Empty):
            return self._inbox.get(timeout=timeout)
        return None

    def _fill_seats(self) -> None:
        for seat in self._seats:
            if seat.start_at is not None and seat.start_at <= self._clock():
                seat.start_at = None
                seat.started_at = self._clock()
                seat.member = self._start(seat.number)

    def _time_to_wait(self) -> float:
        starts = [seat.start_at - self._clock() for seat in self._seats if seat.start_at is not None]
        return max(0.0, min((_LOOK_S, *starts)))

    def _obey(self, number: int) -> None:
        self._let_go(number)
        if len(self._signals) == 1:
            log.info("%s: no more messages are claimed; what is held is finished.", _name(number))
            self._tell(DRAIN)
            return
        log.warning("%s again: all leave now. What is held can be claimed when its leases end.", _name(number))
        self._status = 128 + number
        for seat in self._seats:
            if seat.member is not None:
                seat.member.kill()

    def _tell(self, order: bytes) -> None:
        for seat in self._seats:
            if seat.member is not None:
                seat.member.tell(order)

    def _look(self) -> None:
        for seat in self._seats:
            if seat.member is None:
                continue
            status = seat.member.poll()
            if status is not None:
                seat.member = None
                self._ended(seat, status)

    def _ended(self, seat: _Seat, status: int) -> None:
        if self._signals:
            if status and not self._status:
                log.error("Worker process %d failed at its end: %s.", seat.number, _described(status))
                self._status = WRONG
        elif status == GAVE_UP:
            log.error("Worker process %d gave up; the others finish what they hold.", seat.number)
            self._status = WRONG
            self._let_go(signal.SIGTERM)
            self._tell(DRAIN)
        else:
            self._replace(seat, status)

    def _let_go(self, number: int) -> None:
        """Replace nobody from now on."""
        self._signals.append(number)
        for seat in self._seats:
            seat.start_at = None

    def _replace(self, seat: _Seat, status: int) -> None:
        now = self._clock()
        again = now - seat.started_at < _STEADY_S
        seat.pause_s = min(_LONGEST_PAUSE_S, 2 * seat.pause_s) if again and seat.pause_s else _FIRST_PAUSE_S
        seat.start_at = now + seat.pause_s
        log.error(
            "Worker process %d ended by itself: %s. Another one is started in %g s.",
            seat.number,
            _described(status),
            seat.pause_s,
        )


@contextmanager
def signals_to(crew: Crew) -> Iterator[None]:
    """Have SIGTERM, SIGINT and SIGCHLD reach a crew."""
    before = {
        number: signal.signal(number, lambda number, _: crew.notify(number))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def reap_orphans(own: Collection[int]) -> None:
    """Reap the children that ended and are none of one's own: process 1 of a container inherits those of others."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in own:
                return
            os.waitpid(ended.si_pid, 0)


def _name(number: int) -> str:
    return signal.Signals(number).name


def _described(status: int) -> str:
    return f"{_name(-status)} ended it" if status < 0 else f"exit status {status}"
