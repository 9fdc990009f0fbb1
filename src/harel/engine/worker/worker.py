"""The two workers: for async handlers on the event loop, and for sync ones in threads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from harel.config import default_worker_id
from harel.engine.queue.contract import HIGHEST_PRIORITY, AsyncTransport, Transport
from harel.engine.queue.schedule import SHORTEST_S
from harel.engine.worker.hand import AsyncHand, Hand, SyncHand, must_have_transactions
from harel.engine.worker.job import Job
from harel.engine.worker.log import WorkerLog
from harel.engine.worker.loop import Loop
from harel.engine.worker.observer import Observer
from harel.engine.worker.policy import RetryPolicy, Share
from harel.engine.worker.port import Lift, Lifted, Port, at_once
from harel.engine.worker.renewal import RenewalInThread
from harel.engine.worker.settings import Settings
from harel.engine.worker.signals import signals_stop
from harel.engine.worker.threads import DaemonThreads
from harel.engine.worker.watchers import Watchers
from harel.errors import InvalidArgument, NotSupported, shown

__all__ = ["AsyncWorker", "Worker", "WorkerBase", "is_async_handler"]

T = TypeVar("T")
TransportT = TypeVar("TransportT", bound=Transport | AsyncTransport)
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])

_TRANSPORT_THREADS = 4
"""One claims, one settles, one renews, one waits."""

_ASYNC_WAIT_S = 30.0
"""How long an idle worker's wait lasts; one that can be cancelled keeps no stop waiting."""

_THREAD_WAIT_S = 1.0
"""A wait in a thread cannot be cancelled. Nor does one look longer that is only a pause."""

_LEAVING_THREADS_S = 2.0


class WorkerBase(Generic[TransportT, HandlerT]):
    """What both workers take.

    Parameters
    ----------
    transport : Transport or AsyncTransport
        What to drain. It is not closed.
    handler : callable
        Takes ``(event)`` or ``(event, context)``. Returning settles the message; an exception is a retry.
    worker_id : str, optional
        Who claims; this host's name and process number unless given.
    visibility : float
        Seconds that a lease lasts. While a handler runs its lease is renewed at a third of that, so a
        handler may take longer; the group of a worker that died is claimable again after it.
    concurrency : int
        How many groups at once.
    retry : RetryPolicy, optional
        How often and when a message that failed is tried again, and what becomes of it in the end.
    high_ratio : float
        0 to 1: the share of claims that ask for ``priority_threshold`` first, and then for any.
    priority_threshold : int
        The floor of those claims.
    drain_timeout : float
        Seconds that handlers have to finish after a stop. What is left then is cancelled and given back.
    give_up_after : float, optional
        Seconds without the server after which ``run`` raises :exc:`~harel.TransportUnavailable`; never unless given.
    observers : sequence of Observer
        What sees what becomes of each message.
    transactional : bool
        Whether a handler gets a connection with an open transaction, ``context.connection``, in which its message is
        settled too: what it writes and the settlement happen together or not at all. No more than
        ``transport.max_transactions`` run at once.

    Raises
    ------
    InvalidArgument
        When an option or the handler makes no sense.
    NotSupported
        When the transport's capabilities lack what an option needs: ``hold``, ``priority`` or ``bind``.
    """

    def __init__(
        self,
        transport: TransportT,
        handler: HandlerT,
        *,
        worker_id: str | None = None,
        visibility: float = 30.0,
        concurrency: int = 16,
        retry: RetryPolicy | None = None,
        high_ratio: float = 0.0,
        priority_threshold: int = 1,
        drain_timeout: float = 30.0,
        give_up_after: float | None = None,
        observers: Sequence[Observer] = (),
        transactional: bool = False,
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidArgument(f"concurrency must be an int of at least 1, not {shown(concurrency)}.")
        if isinstance(priority_threshold, bool) or priority_threshold not in range(HIGHEST_PRIORITY + 1):
            raise InvalidArgument(
                f"priority_threshold must be from 0 to {HIGHEST_PRIORITY}, not {shown(priority_threshold)}."
            )
        self._policy = RetryPolicy() if retry is None else retry
        if not isinstance(self._policy, RetryPolicy):
            raise InvalidArgument(f"retry must be a harel.RetryPolicy, not {shown(retry)}.")
        can = transport.capabilities
        _check_seconds("visibility", visibility, SHORTEST_S, can.max_visibility_s)
        _check_seconds("drain_timeout", drain_timeout, 0.0)
        if give_up_after is not None:
            _check_seconds("give_up_after", give_up_after, 0.0)
        if self._policy.holds and not can.hold:
            raise NotSupported(
                'This backend cannot hold a group (capabilities.hold is False), so on_exhausted="hold" cannot be.'
            )
        if high_ratio and not can.priority:
            raise NotSupported(
                "This backend has no priorities (capabilities.priority is False); leave high_ratio at 0."
            )
        if transactional:
            must_have_transactions(can)
        self._transport = transport
        self._handler = handler
        self._with_context = _takes_context(handler)
        most_transactions = int(getattr(transport, "max_transactions", 1))
        self._transactional = transactional
        self._concurrency = min(concurrency, most_transactions) if transactional else concurrency
        # Where there is one transaction at a time it keeps out every claim, so that its lease cannot be lost.
        self._keeps_lease = transactional and most_transactions == 1
        self._settings = Settings(
            worker_id=default_worker_id() if worker_id is None else worker_id,
            visibility=visibility,
            concurrency=self._concurrency,
            retry=self._policy,
            share=Share(high_ratio),
            priority_threshold=priority_threshold,
            drain_timeout=drain_timeout,
            give_up_after=give_up_after,
            observers=tuple(observers),
            handler=_name_of(handler),
            keeps_leases=self._keeps_lease,
            claims_ahead=can.remote,
            watches=can.watch,
            wait_s=self._longest_wait_s() if can.watch else _THREAD_WAIT_S,
            longest_delay_s=can.max_visibility_s,
        )
        self._log = WorkerLog(self._settings.worker_id)
        self._watchers = Watchers(self._settings.observers, self._log)
        self._wake_up: Callable[[str], object] = lambda _: None
        self._stopped = False
        self._check_handler()

    def stop(self) -> None:
        """Have :meth:`run` claim nothing more, finish what is held, and return. May be called from any thread."""
        self._stop("")

    def _stop(self, why: str) -> None:
        self._stopped = True
        with contextlib.suppress(RuntimeError):  # it has ended by itself meanwhile, and its loop is closed
            self._wake_up(why)

    def _start_loop(self, port: Port, hand: Hand) -> Loop:
        loop = self._make_loop(port, hand)
        running = asyncio.get_running_loop()
        self._wake_up = lambda why: running.call_soon_threadsafe(loop.stop, why)
        if self._stopped:
            loop.stop()
        return loop

    def _make_loop(self, port: Port, hand: Hand) -> Loop:
        return Loop(port, hand, self._settings, self._log, self._watchers)

    def _longest_wait_s(self) -> float:
        raise NotImplementedError

    def _check_handler(self) -> None:
        raise NotImplementedError


class AsyncWorker(WorkerBase[AsyncTransport, Callable[..., Awaitable[object]]]):
    """Drains an async transport with an async handler.

    See :class:`WorkerBase` for the parameters.
    """

    async def run(self) -> None:
        """Work until :meth:`stop`, SIGTERM or SIGINT; then finish what is held, and return.

        A second signal ends the process at once. Cancelled instead, it cancels its handlers and gives back what they
        had, for others to claim at once.
        """
        loop = self._start_loop(self._transport, self._hand())
        with signals_stop(self._stop, self._log):
            await loop.run()

    async def step(self) -> bool:
        """Handle exactly one message. What goes wrong with the server is raised.

        Returns
        -------
        bool
            Whether there was one.
        """
        return await self._make_loop(self._transport, self._hand()).step()

    def _hand(self) -> AsyncHand:
        return AsyncHand(
            self._handler,
            self._with_context,
            self._transport,
            self._settings.visibility,
            self._watchers,
            transactional=self._transactional,
            keeps_lease=self._keeps_lease,
        )

    def _longest_wait_s(self) -> float:
        return _ASYNC_WAIT_S

    def _check_handler(self) -> None:
        if not is_async_handler(self._handler):
            raise InvalidArgument("AsyncWorker needs an async handler (async def); for a sync one use Worker.")


class Worker(WorkerBase[Transport, Callable[..., object]]):
    """Drains a sync transport with a sync handler, each message in a thread.

    See :class:`WorkerBase` for the parameters.
    """

    def run(self) -> None:
        """Work until :meth:`stop`, SIGTERM or SIGINT; then finish what is held, and return.

        A second signal ends the process at once. A handler that hangs keeps neither this from returning, once
        ``drain_timeout`` is over, nor the process from ending.
        """
        handlers = DaemonThreads(self._concurrency, "harel-handler")
        calls = DaemonThreads(_TRANSPORT_THREADS, "harel-transport")
        try:
            asyncio.run(self._run(handlers, calls))
        finally:
            handlers.stop(0.0)
            calls.stop(_LEAVING_THREADS_S)

    def step(self) -> bool:
        """Handle exactly one message, in this thread. What goes wrong with the server is raised.

        Returns
        -------
        bool
            Whether there was one.
        """
        hand = self._hand(at_once, contextlib.nullcontext if self._keeps_lease else self._renewal)
        return _without_a_loop(self._make_loop(Lifted(self._transport, at_once), hand).step())

    async def _run(self, handlers: Lift, calls: Lift) -> None:
        loop = self._start_loop(Lifted(self._transport, calls), self._hand(handlers, contextlib.nullcontext))
        with signals_stop(self._stop, self._log):
            await loop.run()

    def _hand(self, lift: Lift, keeping: Callable[[Job], contextlib.AbstractContextManager[object]]) -> SyncHand:
        return SyncHand(
            self._handler,
            self._with_context,
            self._transport,
            self._settings.visibility,
            self._watchers,
            lift,
            transactional=self._transactional,
            keeps_lease=self._keeps_lease,
            keeping=keeping,
        )

    def _renewal(self, job: Job) -> RenewalInThread:
        return RenewalInThread(self._transport, job, self._settings.visibility)

    def _longest_wait_s(self) -> float:
        return _THREAD_WAIT_S

    def _check_handler(self) -> None:
        if is_async_handler(self._handler):
            raise InvalidArgument("Worker needs a sync handler (def); for an async one use AsyncWorker.")


def _without_a_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("A coroutine suspended that was not meant to.")


def is_async_handler(handler: Callable[..., Any]) -> bool:
    """Say whether a handler is for :class:`AsyncWorker`."""
    says = getattr(handler, "is_async", None)  # a Router's
    if isinstance(says, bool):
        return says
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _takes_context(handler: Callable[..., Any]) -> bool:
    """Say whether a handler takes ``(event, context)`` and not ``(event)`` alone."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return True
    for arguments in (("event", "context"), ("event",)):
        with contextlib.suppress(TypeError):
            signature.bind(*arguments)
            return len(arguments) == 2
    raise InvalidArgument(f"A handler takes (event) or (event, context); this one takes {signature}.")


def _name_of(handler: Callable[..., Any]) -> str:
    while isinstance(handler, partial):
        handler = handler.func
    named = handler if hasattr(handler, "__qualname__") else type(handler)
    return f"{named.__module__}.{named.__qualname__}"


def _check_seconds(name: str, value: float, least: float, most: float = math.inf) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most or value == math.inf:
        limits = f"from {least:g} to {most:,.0f}" if most < math.inf else f"of at least {least:g}"
        raise InvalidArgument(f"{name} must be a finite number of seconds {limits}, not {shown(value)}.")
