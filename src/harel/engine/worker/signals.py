"""SIGTERM and SIGINT: the first lets a worker finish, the second ends it now."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from harel.engine.worker.log import WorkerLog

__all__ = ["signals_stop"]

_LEAVING = "%s came a second time: leaving now. What is held can be claimed when its leases end."
_SAYING_TAKES_AT_MOST_S = 1.0


@contextlib.contextmanager
def signals_stop(stop: Callable[[str], object], log: WorkerLog) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop a worker, where this is the main thread, which alone may say so.

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

    before = {number: signal.signal(number, arrived) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: it was not set from Python
                signal.signal(number, handler)


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
