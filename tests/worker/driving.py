"""One text for both workers: a sync handler, driven over whichever twin the subject has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from harel import AsyncWorker, Transport, Worker
from harel.testing import Blocking


class Driver:
    """A worker over a transport of either kind, stepped and run from sync code."""

    def __init__(self, queue: Transport, handler: Callable[[Any, Any], object], **options: Any) -> None:
        self._blocking = queue if isinstance(queue, Blocking) else None
        if self._blocking is None:
            self.worker: Any = Worker(queue, handler, worker_id="worker", **options)
        else:

            @functools.wraps(handler)
            async def awaiting(event: Any, context: Any) -> None:
                handler(event, context)

            self.worker = AsyncWorker(self._blocking.inner, awaiting, worker_id="worker", **options)

    def step(self) -> bool:
        return bool(self._run(self.worker.step))

    def run(self) -> None:
        self._run(self.worker.run)

    def _run(self, method: Callable[[], Any]) -> Any:
        return method() if self._blocking is None else self._blocking.runner.run(method())
