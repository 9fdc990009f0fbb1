"""One worker process of several: settings come over a pipe from the crew's, and so does the order to stop."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator

import msgspec

from harel.cli.crew import DRAIN
from harel.cli.failure import GAVE_UP, WRONG, Failure
from harel.cli.handlers import load
from harel.cli.logs import log_to_stderr
from harel.cli.work import Stopper, WorkerSettings, work
from harel.errors import HarelError, TransportUnavailable

__all__ = ["main"]

log: logging.Logger = logging.getLogger("harel.crew")

_LEAVING_S = 10.0
"""When the crew's process is gone, a worker that has not ended so long after its drain timeout is ended."""


def main() -> int:
    """Work until ordered to stop; return the exit status."""
    stopper = Stopper()
    with stopper.on_signals():
        orders = _lines(int(sys.argv[1]))
        settings = msgspec.json.decode(next(orders), type=WorkerSettings)
        log_to_stderr(settings.log_format, settings.worker_id)
        begun = threading.Event()
        threading.Thread(
            target=_listen, args=(orders, stopper, settings.drain_timeout), name="harel-orders", daemon=True
        ).start()
        try:
            work(settings, load(settings.target), stopper, begun.set)
        except TransportUnavailable as error:
            log.error("%s", error)
            return GAVE_UP if begun.is_set() else WRONG
        except (HarelError, Failure) as error:
            log.error("%s", error)
            return WRONG
    return 0


def _lines(pipe: int) -> Iterator[bytes]:
    """Yield what comes over a pipe. Without a buffered file, whose lock a thread that waits would hold at the end."""
    rest = b""
    while chunk := os.read(pipe, 65_536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _listen(orders: Iterator[bytes], stopper: Stopper, drain_timeout: float) -> None:
    for order in orders:
        if order == DRAIN:
            stopper()
            log.info("Told to finish: nothing more is claimed.")
    stopper()
    log.warning("The process that started this one is gone: what is held is finished, and nothing more is claimed.")
    time.sleep(drain_timeout + _LEAVING_S)
    log.warning("Leaving now. What is held can be claimed when its leases end.")
    os._exit(WRONG)


if __name__ == "__main__":
    sys.exit(main())
