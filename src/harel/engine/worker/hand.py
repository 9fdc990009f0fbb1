"""How a handler is called: in a context of its own, in a thread if it is sync, inside a transaction if asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any, ClassVar, Protocol

from harel.engine.queue.contract import AsyncTransport, Capabilities, Transport
from harel.engine.worker.context import AsyncContext, Context
from harel.engine.worker.job import Job
from harel.engine.worker.port import Lift
from harel.engine.worker.slots import Fresh
from harel.engine.worker.watchers import Watchers
from harel.errors import LeaseLost, NotSupported
from harel.events import Event

__all__ = ["AsyncHand", "Hand", "SyncHand", "must_have_transactions"]


def must_have_transactions(can: Capabilities) -> None:
    """Raise where there are no transactions to settle messages in."""
    if not can.bind:
        raise NotSupported("This backend has no transactions to share (capabilities.bind is False).")


class Hand(Protocol):
    """Calls the handler."""

    cancellable: ClassVar[bool]
    """Whether a call can be cancelled; a thread cannot."""

    async def call(self, job: Job, event: Event) -> BaseException | None:
        """Call the handler; return what it raised."""
        ...


class AsyncHand:
    """Calls an async handler.

    Parameters
    ----------
    handler : callable
    with_context : bool
        Whether it takes ``(event, context)``.
    transport : AsyncTransport
    visibility : float
    watchers : Watchers
    transactional : bool
        Whether a message is settled in a transaction that its handler writes in too.
    keeps_lease : bool
        Whether nobody can take a lease while such a transaction is open.
    """

    cancellable: ClassVar[bool] = True

    def __init__(
        self,
        handler: Callable[..., Awaitable[object]],
        with_context: bool,
        transport: AsyncTransport,
        visibility: float,
        watchers: Watchers,
        *,
        transactional: bool,
        keeps_lease: bool,
    ) -> None:
        self._handler = handler
        self._with_context = with_context
        self._transport = transport
        self._visibility = visibility
        self._watchers = watchers
        self._transactional = transactional
        self._keeps_lease = keeps_lease

    async def call(self, job: Job, event: Event) -> BaseException | None:
        if self._transactional:
            must_have_transactions(self._transport.capabilities)  # known for sure once the transport is open
        try:
            if self._transactional:
                await Fresh(self._call_in_transaction, job, event)
            elif self._watchers:
                await Fresh(self._call_watched, job, event, None, None)
            elif self._with_context:
                await Fresh(self._handler, event, AsyncContext(job, self._visibility, self._transport))
            else:
                await Fresh(self._handler, event)
        except Exception as error:  # noqa: BLE001 - what to do about it is the policy's to say
            return error
        return None

    async def _call_in_transaction(self, job: Job, event: Event) -> None:
        async with self._transport.transaction() as connection:
            bound = self._transport.bind(connection)
            await self._call_watched(job, event, connection, bound)
            with _settling(job):
                await bound.ack(job.lease)
        job.committed = True

    async def _call_watched(self, job: Job, event: Event, connection: Any, bound: Any) -> None:
        context = AsyncContext(job, self._visibility, self._transport, connection, bound, keeps_lease=self._keeps_lease)
        with self._watchers.handling(job.lease, event):
            await (self._handler(event, context) if self._with_context else self._handler(event))


class SyncHand:
    """Calls a sync handler.

    Parameters
    ----------
    handler : callable
    with_context : bool
        Whether it takes ``(event, context)``.
    transport : Transport
    visibility : float
    watchers : Watchers
    lift : callable
        How the blocking call is made: in a thread, or here.
    transactional : bool
        Whether a message is settled in a transaction that its handler writes in too.
    keeps_lease : bool
        Whether nobody can take a lease while such a transaction is open.
    keeping : callable
        Returns what a job's call is put inside of.
    """

    cancellable: ClassVar[bool] = False

    def __init__(
        self,
        handler: Callable[..., object],
        with_context: bool,
        transport: Transport,
        visibility: float,
        watchers: Watchers,
        lift: Lift,
        *,
        transactional: bool,
        keeps_lease: bool,
        keeping: Callable[[Job], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._handler = handler
        self._with_context = with_context
        self._transport = transport
        self._visibility = visibility
        self._watchers = watchers
        self._lift = lift
        self._transactional = transactional
        self._keeps_lease = keeps_lease
        self._keeping = keeping

    async def call(self, job: Job, event: Event) -> BaseException | None:
        try:
            return await self._lift(partial(copy_context().run, self._call, job, event))
        except Exception as error:  # noqa: BLE001 - such as SystemExit in a thread
            return error

    def _call(self, job: Job, event: Event) -> BaseException | None:
        try:
            with self._keeping(job):
                if self._transactional:
                    self._call_in_transaction(job, event)
                else:
                    self._call_watched(job, event, None, None)
        except Exception as error:  # noqa: BLE001 - what to do about it is the policy's to say
            return error
        return None

    def _call_in_transaction(self, job: Job, event: Event) -> None:
        with self._transport.transaction() as connection:
            bound = self._transport.bind(connection)
            self._call_watched(job, event, connection, bound)
            with _settling(job):
                bound.ack(job.lease)
        job.committed = True

    def _call_watched(self, job: Job, event: Event, connection: Any, bound: Any) -> None:
        arguments: tuple[Any, ...] = (event,)
        if self._with_context:
            arguments += (
                Context(job, self._visibility, self._transport, connection, bound, keeps_lease=self._keeps_lease),
            )
        if not self._watchers:
            self._handler(*arguments)
            return
        with self._watchers.handling(job.lease, event):
            self._handler(*arguments)


@contextmanager
def _settling(job: Job) -> Iterator[None]:
    job.settling = True
    try:
        yield
    except LeaseLost:
        job.told_lost = True
        raise
