"""The two workers: for async handlers on the event loop, and for sync ones in threads."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from harel.config import default_worker_id
from harel.engine.queue.contract import HIGHEST_PRIORITY, AsyncTransport, Lease, Transport
from harel.engine.worker.context import AsyncContext, Context
from harel.engine.worker.loop import Begin, Loop, Port
from harel.engine.worker.policy import Retry, Share
from harel.errors import InvalidArgument
from harel.events import Event

__all__ = ["AsyncWorker", "Worker", "WorkerBase", "is_async_handler"]

T = TypeVar("T")
TransportT = TypeVar("TransportT")
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])

_TRANSPORT_THREADS = 4


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
    max_attempts : int
        After this many a message is rejected to the dead letters.
    backoff : float
        Seconds before the second attempt; each further one waits twice as long.
    max_backoff : float
        The longest wait, in seconds.
    jitter : float
        0 to 1: the part of the wait that is random.
    high_ratio : float
        0 to 1: the share of claims that ask for ``priority_threshold`` first, and then for any.
    priority_threshold : int
        The floor of those claims.
    """

    def __init__(
        self,
        transport: TransportT,
        handler: HandlerT,
        *,
        worker_id: str | None = None,
        visibility: float = 30.0,
        concurrency: int = 16,
        max_attempts: int = 5,
        backoff: float = 1.0,
        max_backoff: float = 300.0,
        jitter: float = 0.5,
        high_ratio: float = 0.0,
        priority_threshold: int = 1,
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidArgument(f"concurrency must be an int of at least 1, not {concurrency!r}.")
        if isinstance(priority_threshold, bool) or priority_threshold not in range(HIGHEST_PRIORITY + 1):
            raise InvalidArgument(
                f"priority_threshold must be from 0 to {HIGHEST_PRIORITY}, not {priority_threshold!r}."
            )
        self._transport = transport
        self._handler = handler
        self._with_context = _takes_context(handler)
        self._visibility = visibility
        self._concurrency = concurrency
        self._loop_options: dict[str, Any] = {
            "worker_id": worker_id or default_worker_id(),
            "visibility": visibility,
            "concurrency": concurrency,
            "retry": Retry(max_attempts, backoff, max_backoff, jitter),
            "share": Share(high_ratio),
            "priority_threshold": priority_threshold,
        }
        self._wake_up: Callable[[], object] = lambda: None
        self._stopped = False
        self._check_handler()

    def stop(self) -> None:
        """Have :meth:`run` claim nothing more, finish what is held, and return. May be called from any thread."""
        self._stopped = True
        self._wake_up()

    def _start_loop(self, port: Port, begin: Begin) -> Loop:
        loop = self._make_loop(port, begin)
        self._wake_up = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, loop.stop)
        if self._stopped:
            loop.stop()
        return loop

    def _make_loop(self, port: Port, begin: Begin) -> Loop:
        return Loop(port, begin, **self._loop_options)

    def _check_handler(self) -> None:
        raise NotImplementedError

    def _arguments(self, event: Event, context: object) -> tuple[object, ...]:
        return (event, context) if self._with_context else (event,)


class AsyncWorker(WorkerBase[AsyncTransport, Callable[..., Awaitable[object]]]):
    """Drains an async transport with an async handler.

    See :class:`WorkerBase` for the parameters.
    """

    async def run(self) -> None:
        """Work until :meth:`stop`, SIGTERM or SIGINT; then finish what is held, and return.

        Cancelled instead, it cancels its handlers and gives back what they had, for others to claim at once.
        """
        loop = self._start_loop(self._transport, self._begin)
        with _signals_stop(self):
            await loop.run()

    async def step(self) -> bool:
        """Handle exactly one message, without renewing its lease.

        Returns
        -------
        bool
            Whether there was one.
        """
        return await self._make_loop(self._transport, self._begin).step()

    def _begin(self, lease: Lease) -> tuple[AsyncContext, Callable[[Event], Awaitable[None]]]:
        context = AsyncContext(lease, self._visibility, self._transport)

        async def call(event: Event) -> None:
            await self._handler(*self._arguments(event, context))

        return context, call

    def _check_handler(self) -> None:
        if not is_async_handler(self._handler):
            raise InvalidArgument("AsyncWorker needs an async handler (async def); for a sync one use Worker.")


class Worker(WorkerBase[Transport, Callable[..., object]]):
    """Drains a sync transport with a sync handler, each message in a thread.

    See :class:`WorkerBase` for the parameters.
    """

    def run(self) -> None:
        """Work until :meth:`stop`, SIGTERM or SIGINT; then finish what is held, and return."""
        with (
            ThreadPoolExecutor(self._concurrency, "harel-handler") as handlers,
            ThreadPoolExecutor(_TRANSPORT_THREADS, "harel-transport") as calls,
        ):
            asyncio.run(self._run(_in_threads(handlers), _in_threads(calls)))

    def step(self) -> bool:
        """Handle exactly one message, in this thread, without renewing its lease.

        Returns
        -------
        bool
            Whether there was one.
        """
        port = _Lifted(self._transport, _at_once)
        return _without_a_loop(self._make_loop(port, lambda lease: self._begin(lease, _at_once)).step())

    async def _run(self, in_handler_thread: _Lift, in_transport_thread: _Lift) -> None:
        port = _Lifted(self._transport, in_transport_thread)
        loop = self._start_loop(port, lambda lease: self._begin(lease, in_handler_thread))
        with _signals_stop(self):
            await loop.run()

    def _begin(self, lease: Lease, lift: _Lift) -> tuple[Context, Callable[[Event], Awaitable[None]]]:
        context = Context(lease, self._visibility, self._transport)

        async def call(event: Event) -> None:
            await lift(functools.partial(self._handler, *self._arguments(event, context)))

        return context, call

    def _check_handler(self) -> None:
        if is_async_handler(self._handler):
            raise InvalidArgument("Worker needs a sync handler (def); for an async one use AsyncWorker.")


class _Lift(Protocol):
    """Makes a blocking call awaitable."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class _Lifted:
    """A sync transport with the methods that the loop awaits."""

    def __init__(self, transport: Transport, lift: _Lift) -> None:
        self._transport = transport
        self._lift = lift

    async def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> list[Lease]:
        return await self._lift(lambda: self._transport.claim_many(worker_id, visibility, limit, min_priority))

    async def ack_many(self, leases: Iterable[Lease]) -> list[bool]:
        return await self._lift(lambda: self._transport.ack_many(leases))

    async def nack(self, lease: Lease, delay: float = 0.0) -> bool:
        return await self._lift(lambda: self._transport.nack(lease, delay))

    async def extend(self, lease: Lease, visibility: float) -> bool:
        return await self._lift(lambda: self._transport.extend(lease, visibility))

    async def reject(self, lease: Lease, reason: str) -> bool:
        return await self._lift(lambda: self._transport.reject(lease, reason))

    async def wait(self, timeout: float) -> bool:
        return await self._lift(lambda: self._transport.wait(timeout))


async def _at_once(call: Callable[[], T], /) -> T:
    return call()


def _in_threads(pool: ThreadPoolExecutor) -> _Lift:
    def lift(call: Callable[[], T], /) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(pool, call)

    return lift


def _without_a_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("A coroutine suspended that was not meant to.")


@contextlib.contextmanager
def _signals_stop(worker: WorkerBase[Any, Any]) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop the worker, where this is the main thread, which alone may say so."""
    signals = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in signals}
    for number in signals:
        loop.add_signal_handler(number, worker.stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # None: it was not set from Python
                signal.signal(number, handler)


def is_async_handler(handler: Callable[..., Any]) -> bool:
    """Say whether a handler is for :class:`AsyncWorker`."""
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
