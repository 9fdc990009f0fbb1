"""One worker process of ``harel demo``: settings come as a line on standard input, and its end is the order to stop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import cast

import msgspec

from harel.cli.demo_record import Scribe
from harel.config import connect_async
from harel.engine.queue.contract import AsyncTransport
from harel.engine.worker import AsyncContext, AsyncWorker, RetryPolicy
from harel.events import Event
from harel.testing.history import Recorder, Recording

__all__ = ["Settings"]

_STEPS = 20
_MANY_ATTEMPTS = 1_000
"""The demo is about delivery: no message is given up."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker of the demo is told."""

    url: str
    worker_id: str
    visibility: float
    concurrency: int
    stops_at: int | None
    """At which of its handlings it stops itself, in the middle, to be killed or resumed."""
    handlings: str
    """The file for what it handled."""
    history: str
    """The file for what it did to the queue."""


async def _run(settings: Settings) -> None:
    scribe = Scribe(Path(settings.handlings), settings.worker_id)

    async def handle(event: Event, context: AsyncContext) -> None:
        handling = scribe.begin(context.lease.group_id, event.id, context.attempt)
        digest = hashlib.sha256()
        for step in range(_STEPS):  # a little work, and a chance for the others of this process to come in between
            if step == _STEPS // 2 and handling.number == settings.stops_at:
                os.kill(os.getpid(), signal.SIGSTOP)
            digest.update(msgspec.json.encode(event.payload))
            await asyncio.sleep(0)
        scribe.end(handling)

    transport = await connect_async(settings.url)
    worker = AsyncWorker(
        cast("AsyncTransport", Recording(transport, Recorder(settings.history, settings.worker_id))),
        handle,
        worker_id=settings.worker_id,
        visibility=settings.visibility,
        concurrency=settings.concurrency,
        retry=RetryPolicy(max_attempts=_MANY_ATTEMPTS),
    )
    threading.Thread(target=_stop_at_the_end_of_input, args=(worker,), daemon=True).start()
    try:
        await worker.run()
    finally:
        await transport.close()


def _stop_at_the_end_of_input(worker: AsyncWorker) -> None:
    """Wait for the parent to close the pipe, or to die."""
    while os.read(0, 1):
        pass
    with contextlib.suppress(RuntimeError):  # it stopped by itself meanwhile, and its loop is closed
        worker.stop()


if __name__ == "__main__":
    asyncio.run(_run(msgspec.json.decode(sys.stdin.buffer.readline(), type=Settings)))
