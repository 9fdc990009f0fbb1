"""SIGTERM and SIGINT: the first lets a worker finish, the second ends it now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from harel.engine.worker.log import WorkerLog

__all__ = ["signals_stop"]

_LEAVING = "%s came a second time: leaving now. What is held can be claimed when its leases end."
_SAYING_TAKES_AT_MOST_S = 1.0
_NOBODYS = -1
_READ_AT_ONCE = 4_096


@contextlib.contextmanager
def signals_stop(stop: Callable[[str], object], log: WorkerLog) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop a worker whose event loop runs here, if this is the main thread, which alone may.

    The handlers are Python's own and not the event loop's, so that the second signal works while something blocks
    the loop; and being set at all they work for process 1 of a container, which ignores signals that it has no
    handler for.

    Parameters
    ----------
    stop : callable
        Called with the first signal's name; may be called at any moment between two steps of the main thread.
    log : WorkerLog
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def arrived(number: int, _: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            _exit_now(number, log)
        stop(signal.Signals(number).name)

    with _signals_wake(asyncio.get_running_loop()):
        before = {number: signal.signal(number, arrived) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                if handler is not None:  # None: it was not set from Python
                    signal.signal(number, handler)


@contextlib.contextmanager
def _signals_wake(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have signals wake an event loop.

    One that comes in the moment in which the loop goes to sleep, or to another thread, does not interrupt that sleep;
    its handler, which runs in the main thread, would wait until something else does.
    """
    awake, waker = socket.socketpair()
    with awake, waker:
        awake.setblocking(False)
        waker.setblocking(False)
        others = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        if others != _NOBODYS:  # the loop's own, if it takes signals itself
            signal.set_wakeup_fd(others)
            yield
            return
        loop.add_reader(awake, awake.recv, _READ_AT_ONCE)
        try:
            yield
        finally:
            others = signal.set_wakeup_fd(_NOBODYS)
            if others != waker.fileno():
                signal.set_wakeup_fd(others)
            loop.remove_reader(awake)


def _exit_now(number: int, log: WorkerLog) -> None:
    # In a thread: the signal may have come while this one held the log's lock, or was in the middle of a write.
    name = signal.Signals(number).name
    saying = threading.Thread(target=log, args=(logging.WARNING, _LEAVING, name), daemon=True)
    saying.start()
    saying.join(_SAYING_TAKES_AT_MOST_S)
    if saying.is_alive():
        with contextlib.suppress(OSError):
            os.write(2, f"{_LEAVING}\n".replace("%s", name).encode())
    os._exit(128 + number)
