"""Figures of workers and queues for Prometheus.

Needs the extra ``metrics``; ``prometheus_client`` is imported when something here is used, not before.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, get_args
from weakref import WeakKeyDictionary

from harel.engine.queue.contract import AsyncTransport, GroupState, Lease, QueueStats, Transport
from harel.engine.worker.observer import Observer
from harel.engine.worker.policy import Again, Dead, Done, Held, RetryLater, Verdict
from harel.errors import ConfigError, InvalidArgument

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

__all__ = ["QueueMetrics", "Server", "WorkerMetrics", "serve"]

log: logging.Logger = logging.getLogger("harel.metrics")

_COUNTERS = {
    "harel_messages_handled": "Messages whose handler returned, and that were settled.",
    "harel_messages_failed": "Times that a handler raised.",
    "harel_messages_retried": "Times that a message was given back, to be tried again.",
    "harel_messages_dead": "Messages that went to the dead letters.",
    "harel_messages_held": "Times that a message had its group held for a person.",
    "harel_leases_lost": "Leases that were lost, so that what their handlers did was not settled.",
}
_GAUGES = {
    "harel_messages_in_flight": "Messages that are being handled, or settled.",
    "harel_worker_up": "Whether the worker reaches its queue.",
}
_SECONDS = "harel_handler_seconds"
_SECONDS_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class WorkerMetrics(Observer):
    """Counts what becomes of the messages that a worker handles; give it to a worker as an observer.

    ``harel_messages_handled_total``, ``…_failed_total`` (the handler raised), ``…_retried_total``, ``…_dead_total``,
    ``…_held_total``, ``harel_leases_lost_total``, ``harel_messages_in_flight``, ``harel_handler_seconds`` (a
    histogram) and ``harel_worker_up`` (0 while the queue cannot be reached), each with the label ``queue``. No group
    and no kind is a label, because nothing bounds how many there are.

    Parameters
    ----------
    queue : str
        What the queue is called.
    registry : CollectorRegistry, optional
        Where they are registered; prometheus_client's own unless given.
    """

    def __init__(self, queue: str = "default", *, registry: CollectorRegistry | None = None) -> None:
        client = _client()
        families = _families_in(client.REGISTRY if registry is None else registry)
        self._handled, self._failed, self._retried, self._dead, self._held, self._lost = (
            families[name].labels(queue) for name in _COUNTERS
        )
        self._in_flight, self._up = (families[name].labels(queue) for name in _GAUGES)
        self._seconds = families[_SECONDS].labels(queue)
        self._up.set(1)
        self._begun: set[str] = set()

    def began(self, lease: Lease) -> None:
        self._begun.add(lease.token)
        self._in_flight.inc()

    def settled(self, lease: Lease, verdict: Verdict, handled_s: float, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, RetryLater):
            self._failed.inc()
        for kind, count in ((Done, self._handled), (Again, self._retried), (Dead, self._dead), (Held, self._held)):
            if isinstance(verdict, kind):
                count.inc()
        self._ended(lease, handled_s)

    def lost(self, lease: Lease, handled_s: float) -> None:
        self._lost.inc()
        self._ended(lease, handled_s)

    def unreachable(self, error: Exception) -> None:  # noqa: ARG002
        self._up.set(0)

    def reachable(self) -> None:
        self._up.set(1)

    def _ended(self, lease: Lease, handled_s: float) -> None:
        if lease.token in self._begun:  # not one that was given up before its handler was called
            self._begun.discard(lease.token)
            self._in_flight.dec()
            self._seconds.observe(handled_s)


class QueueMetrics:
    """Queues in figures, asked for when they are scraped.

    ``harel_queue_messages``, ``harel_queue_groups`` by ``state``, ``harel_queue_dead_letters`` and
    ``harel_queue_oldest_ready_seconds``, each with the label ``queue``; and ``harel_queue_up``, which is 0, and alone,
    when the queue does not answer. A queue whose backend has no ``stats`` has none of them.

    Parameters
    ----------
    queues : mapping of str to Transport or AsyncTransport
        From what a queue is called to a transport, which is not closed. With an async one this must be made in a task
        of the event loop that it lives on.
    registry : CollectorRegistry, optional
        Where they are registered; prometheus_client's own unless given.
    cached_s : float
        For how many seconds figures are used again: on a large queue counting costs something.
    timeout_s : float
        After how many seconds a queue counts as one that does not answer.
    clock : callable
        Returns seconds.
    """

    def __init__(
        self,
        queues: Mapping[str, Transport | AsyncTransport],
        *,
        registry: CollectorRegistry | None = None,
        cached_s: float = 5.0,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        client = _client()
        self._queues = [
            _Queue(name, _asks(transport), cached_s, clock)
            for name, transport in queues.items()
            if transport.capabilities.stats
        ]
        self._timeout_s = timeout_s
        self._registry: Any = client.REGISTRY if registry is None else registry
        self._registry.register(self)

    def close(self) -> None:
        """Take them out of the registry."""
        self._registry.unregister(self)

    def describe(self) -> list[Metric]:
        """Return the families without figures, for the registry, which must not ask the queues for their names."""
        return list(_queue_families().values())

    def collect(self) -> list[Metric]:
        """Return the figures."""
        families = _queue_families()
        for queue in self._queues:
            queue.ask()  # all of them, before waiting for any
        deadline = time.monotonic() + self._timeout_s
        for queue in self._queues:
            queue.add(families, queue.answer(max(0.0, deadline - time.monotonic())))
        return list(families.values())


class _Queue:
    """One queue that is asked for its figures."""

    def __init__(
        self, name: str, ask: Callable[[], Future[QueueStats]], cached_s: float, clock: Callable[[], float]
    ) -> None:
        self._name = name
        self._ask = ask
        self._cached_s = cached_s
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: Future[QueueStats] | None = None
        self._asked_at = 0.0
        self._was_up = True

    def ask(self) -> None:
        """Ask, unless an answer is awaited, or there is one that is new enough."""
        with self._lock:
            if self._asked is not None and (not self._asked.done() or self._clock() - self._asked_at < self._cached_s):
                return
            self._asked_at = self._clock()
            self._asked = self._ask()

    def answer(self, timeout_s: float) -> QueueStats | None:
        """Return the figures, or ``None`` when there is no answer in time, or an error."""
        assert self._asked is not None
        try:
            stats = self._asked.result(timeout_s)
        except Exception as error:  # noqa: BLE001  whatever it is, the other figures of the scrape are wanted
            if self._was_up:
                log.warning(
                    "The queue %r gives no figures: %s", self._name, str(error) or "it does not answer in time."
                )
            self._was_up = False
            return None
        self._was_up = True
        return stats

    def add(self, families: Mapping[str, Any], stats: QueueStats | None) -> None:
        """Add the figures to the families."""
        families["up"].add_metric([self._name], float(stats is not None))
        if stats is None:
            return
        for name in ("messages", "dead_letters"):
            families[name].add_metric([self._name], getattr(stats, name))
        families["oldest_ready"].add_metric([self._name], stats.oldest_ready_s)
        for state in get_args(GroupState):
            families["groups"].add_metric([self._name, state], getattr(stats, state))


class Server:
    """Serves figures until it is closed; a context manager.

    Attributes
    ----------
    host : str
    port : int
        The one that it listens on, also when it was asked for any.
    """

    def __init__(self, host: str, server: Any, thread: threading.Thread) -> None:
        self.host = host
        self.port: int = server.server_port
        self._server = server
        self._thread = thread

    def close(self) -> None:
        """Stop, and free the port. Closing twice is fine."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(port: int, host: str = "127.0.0.1", *, registry: CollectorRegistry | None = None) -> Server:
    """Serve figures over HTTP, at ``/metrics``, from a thread.

    Parameters
    ----------
    port : int
        0 is any that is free.
    host : str
        The address to listen on. This machine alone can ask unless it is ``0.0.0.0``, or ``::``, or one of its others.
    registry : CollectorRegistry, optional
        prometheus_client's own unless given.

    Raises
    ------
    ConfigError
        When it cannot listen there.
    """
    client = _client()
    if isinstance(port, bool) or port not in range(2**16):
        raise InvalidArgument(f"port must be from 0 to 65535, not {port!r}.")
    try:
        server, thread = client.start_http_server(port, host, client.REGISTRY if registry is None else registry)
    except OSError as error:
        raise ConfigError(f"Figures cannot be served at {host}, port {port}: {error.strerror or error}.") from error
    return Server(host, server, thread)


_families: WeakKeyDictionary[CollectorRegistry, dict[str, Any]] = WeakKeyDictionary()
"""The families of each registry, which workers share: a registry takes a name once."""


def _families_in(registry: CollectorRegistry) -> dict[str, Any]:
    if registry not in _families:
        client = _client()
        labels = ["queue"]
        _families[registry] = {
            **{name: client.Counter(name, text, labels, registry=registry) for name, text in _COUNTERS.items()},
            **{name: client.Gauge(name, text, labels, registry=registry) for name, text in _GAUGES.items()},
            _SECONDS: client.Histogram(
                _SECONDS, "How long handlers ran.", labels, buckets=_SECONDS_BUCKETS, registry=registry
            ),
        }
    return _families[registry]


def _queue_families() -> dict[str, Any]:
    gauge = importlib.import_module("prometheus_client.core").GaugeMetricFamily
    one = ["queue"]
    return {
        "messages": gauge("harel_queue_messages", "Messages not settled.", labels=one),
        "groups": gauge("harel_queue_groups", "Groups, by state.", labels=["queue", "state"]),
        "dead_letters": gauge("harel_queue_dead_letters", "Dead letters.", labels=one),
        "oldest_ready": gauge(
            "harel_queue_oldest_ready_seconds",
            "For how long the ready group has waited that waits longest.",
            labels=one,
        ),
        "up": gauge("harel_queue_up", "Whether the queue gave its figures.", labels=one),
    }


def _client() -> Any:
    try:
        return importlib.import_module("prometheus_client")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"harel.metrics needs {error.name}, which is not installed: pip install 'harel[metrics]'."
        ) from error


def _asks(transport: Any) -> Callable[[], Future[QueueStats]]:
    """Return what asks for the figures, in another thread or on the transport's loop."""
    if inspect.iscoroutinefunction(transport.stats):
        return partial(_ask_on, asyncio.get_running_loop(), transport)
    return partial(_ask_in_a_thread, transport)


def _ask_on(loop: asyncio.AbstractEventLoop, transport: AsyncTransport) -> Future[QueueStats]:
    if loop.is_closed():
        answer: Future[QueueStats] = Future()
        answer.set_exception(InvalidArgument("The event loop that its transport lives on is closed."))
        return answer
    return asyncio.run_coroutine_threadsafe(transport.stats(), loop)


def _ask_in_a_thread(transport: Transport) -> Future[QueueStats]:
    answer: Future[QueueStats] = Future()
    # A daemon, so that a server which never answers keeps no process from ending.
    threading.Thread(target=_answer, args=(transport, answer), name="harel-stats", daemon=True).start()
    return answer


def _answer(transport: Transport, answer: Future[QueueStats]) -> None:
    try:
        answer.set_result(transport.stats())
    except BaseException as error:  # noqa: BLE001  who waits for the answer is to see it
        answer.set_exception(error)
