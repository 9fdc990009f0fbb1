"""One worker process: from its settings to its end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from harel.cli.logs import HandledNow, LogFormat
from harel.cli.options import open_queue
from harel.config import connect_async
from harel.engine.worker import AsyncWorker, RetryPolicy, Worker, is_async_handler
from harel.engine.worker.observer import Observer

__all__ = ["Stopper", "WorkerSettings", "try_out", "work"]

log: logging.Logger = logging.getLogger("harel.cli")


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker process is told.

    Attributes
    ----------
    target : str
        ``MODULE:HANDLER``.
    url : str
    options, retry : dict
        The worker's, and its policy's.
    log_format : str
        ``"text"`` or ``"json"``.
    queue_name : str
        What metrics and traces call the queue.
    metrics_host : str
    metrics_port : int or None
        Where to serve metrics; ``None`` is nowhere.
    queue_metrics : bool
        Whether the queue's own figures are among them: of several processes one is enough.
    tracing : bool
    """

    target: str
    url: str
    options: dict[str, Any]
    retry: dict[str, Any]
    log_format: LogFormat = "text"
    queue_name: str = "default"
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    queue_metrics: bool = True
    tracing: bool = False

    @property
    def worker_id(self) -> str:
        """Who claims."""
        return str(self.options["worker_id"])

    @property
    def drain_timeout(self) -> float:
        """How long handlers have to finish, in seconds."""
        return float(self.options["drain_timeout"])


class Stopper:
    """Stops the worker, also if it was called before there was one."""

    def __init__(self) -> None:
        self._stop: Callable[[], object] | None = None
        self._called = False

    def __call__(self) -> None:
        self._called = True
        if self._stop is not None:
            self._stop()

    def passes_to(self, stop: Callable[[], object]) -> None:
        """Have it call this."""
        self._stop = stop
        if self._called:
            stop()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Have SIGTERM and SIGINT call it, also before the worker looks for them itself and after it has ended."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, lambda *_: self()) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def try_out(settings: WorkerSettings, handler: Callable[..., Any]) -> None:
    """Find out whether there could be such a worker: connect, check the settings, and claim nothing.

    Raises
    ------
    HarelError
        What is wrong.
    """
    with open_queue(settings.url) as queue:
        _make(queue, settings, handler, ())
        if settings.metrics_port is not None:
            _observers(settings)


def work(settings: WorkerSettings, handler: Callable[..., Any], stopper: Stopper, begin: Callable[[], object]) -> None:
    """Work until stopped.

    Parameters
    ----------
    settings : WorkerSettings
    handler : callable
    stopper : Stopper
    begin : callable
        Called when all is ready.
    """
    if is_async_handler(handler):
        asyncio.run(_work_async(settings, handler, stopper, begin))
        return
    with open_queue(settings.url) as queue, ExitStack() as stack:
        runner = _make(queue, settings, handler, _observers(settings))
        _serve_metrics(settings, queue, stack)
        stopper.passes_to(runner.stop)
        begin()
        runner.run()


async def _work_async(
    settings: WorkerSettings, handler: Callable[..., Any], stopper: Stopper, begin: Callable[[], object]
) -> None:
    async with await connect_async(settings.url) as queue:
        with ExitStack() as stack:
            runner = _make(queue, settings, handler, _observers(settings))
            _serve_metrics(settings, queue, stack)
            stopper.passes_to(runner.stop)
            begin()
            await runner.run()


def _make(queue: Any, settings: WorkerSettings, handler: Callable[..., Any], observers: tuple[Observer, ...]) -> Any:
    if settings.tracing:
        from harel.tracing import traced

        queue = traced(queue, settings.queue_name)
    kind: Any = AsyncWorker if is_async_handler(handler) else Worker
    return kind(queue, handler, retry=RetryPolicy(**settings.retry), observers=observers, **settings.options)


def _observers(settings: WorkerSettings) -> tuple[Observer, ...]:
    observers: list[Observer] = []
    if settings.log_format == "json":
        observers.append(HandledNow())
    if settings.metrics_port is not None:
        from harel.metrics import WorkerMetrics

        observers.append(WorkerMetrics(settings.queue_name))
    if settings.tracing:
        from harel.tracing import Tracing

        observers.append(Tracing(settings.queue_name))
    return tuple(observers)


def _serve_metrics(settings: WorkerSettings, queue: Any, stack: ExitStack) -> None:
    if settings.metrics_port is None:
        return
    from harel.metrics import QueueMetrics, serve

    if settings.queue_metrics:
        stack.callback(QueueMetrics({settings.queue_name: queue}).close)
    server = stack.enter_context(serve(settings.metrics_port, settings.metrics_host))
    host = f"[{server.host}]" if ":" in server.host else server.host
    log.info("Metrics are at http://%s:%d/metrics.", host, server.port)
