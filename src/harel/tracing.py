"""Traces that join who publishes and who handles, with OpenTelemetry.

Needs the extra ``tracing``; ``opentelemetry`` is imported when something here is used, not before. The trace context
travels in ``event.headers``.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import msgspec

from harel.engine.queue.contract import AsyncBound, AsyncTransport, Bound, Lease, Transport
from harel.engine.worker.observer import Observer
from harel.engine.worker.policy import RetryLater
from harel.errors import ConfigError, InvalidArgument, shown
from harel.events import Event, Message

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, TracerProvider

__all__ = ["AsyncTracedTransport", "TracedTransport", "Tracing", "traced"]

AnyTransport = TypeVar("AnyTransport", Transport, AsyncTransport)

_SYSTEM = "harel"


def traced(
    transport: AnyTransport,
    queue: str = "default",
    *,
    tracer_provider: TracerProvider | None = None,
    propagator: TextMapPropagator | None = None,
) -> AnyTransport:
    """Return a transport that does the same, and makes a span of each publish that travels along with the event.

    Parameters
    ----------
    transport : Transport or AsyncTransport
        Closing what is returned closes it.
    queue : str
        What the queue is called: ``messaging.destination.name``.
    tracer_provider : TracerProvider, optional
        The global one unless given.
    propagator : TextMapPropagator, optional
        What writes the context into headers; the global one unless given, which writes W3C's ``traceparent``.
    """
    spans = _Spans(queue, tracer_provider, propagator)
    if inspect.iscoroutinefunction(transport.publish):
        return cast("AnyTransport", AsyncTracedTransport(transport, spans))
    return cast("AnyTransport", TracedTransport(transport, spans))


class Tracing(Observer):
    """Makes a span of each time that a message is handled, a child of the one that published it; a worker's observer.

    The handler runs inside it: what it calls and publishes belongs to the same trace. An exception of the handler's is
    recorded and makes the span one that failed, but for :exc:`~harel.RetryLater`.

    Parameters
    ----------
    queue : str
        What the queue is called: ``messaging.destination.name``.
    new_trace : bool
        Begin a trace of its own for each message, with a link to the span that published it.
    tracer_provider : TracerProvider, optional
        The global one unless given.
    propagator : TextMapPropagator, optional
        What reads the context from headers; the global one unless given.
    """

    def __init__(
        self,
        queue: str = "default",
        *,
        new_trace: bool = False,
        tracer_provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._spans = _Spans(queue, tracer_provider, propagator)
        self._new_trace = new_trace

    def handling(self, lease: Lease, event: Event) -> AbstractContextManager[object]:
        return self._spans.process(lease, event, new_trace=self._new_trace)


class _Passed:
    """A method that is passed on. It is named, and not left to ``__getattr__``, for ``isinstance`` to see."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: _Traced | None, owner: type) -> Any:
        return self if instance is None else getattr(instance.inner, self._name)


class _Traced:
    """What wraps a transport, or one that is bound; all that is not a publish it passes on."""

    def __init__(self, inner: Any, spans: _Spans) -> None:
        self.inner = inner
        self._spans = spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.inner!r}>"


class _Publishes(_Traced):
    """The methods that publish, of a sync transport and of one that is bound."""

    def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        with self._spans.publish([event]) as give:
            self.inner.publish(group_id, give(event), priority)

    def publish_many(self, messages: Iterable[Message]) -> None:
        batch = _listed(messages)
        with self._spans.publish(list(map(_event_of, batch))) as give:
            self.inner.publish_many([_with_event(message, give) for message in batch])


class _AsyncPublishes(_Traced):
    """The methods that publish, of an async transport and of one that is bound."""

    async def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        with self._spans.publish([event]) as give:
            await self.inner.publish(group_id, give(event), priority)

    async def publish_many(self, messages: Iterable[Message]) -> None:
        batch = _listed(messages)
        with self._spans.publish(list(map(_event_of, batch))) as give:
            await self.inner.publish_many([_with_event(message, give) for message in batch])


class _PassesOn(_Traced):
    """All that a transport does and that is not a publish."""

    capabilities = _Passed()
    claim = _Passed()
    claim_many = _Passed()
    ack = _Passed()
    ack_many = _Passed()
    nack = _Passed()
    extend = _Passed()
    extend_many = _Passed()
    reject = _Passed()
    wait = _Passed()
    stats = _Passed()
    groups = _Passed()
    peek = _Passed()
    hold = _Passed()
    release = _Passed()
    purge = _Passed()
    dead_letters = _Passed()
    redrive = _Passed()
    transaction = _Passed()
    close = _Passed()


class TracedTransport(_PassesOn, _Publishes):
    """A sync transport that makes a span of each publish. See :func:`traced`, which makes it."""

    def bind(self, connection: Any) -> Bound:
        return cast("Bound", _Publishes(self.inner.bind(connection), self._spans))

    def __enter__(self) -> Self:
        self.inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.inner.__exit__(kind, error, trace)


class AsyncTracedTransport(_PassesOn, _AsyncPublishes):
    """An async transport that makes a span of each publish. See :func:`traced`, which makes it."""

    def bind(self, connection: Any) -> AsyncBound:
        return cast("AsyncBound", _AsyncPublishes(self.inner.bind(connection), self._spans))

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.inner.__aexit__(kind, error, trace)


class _Spans:
    """How spans are made: their names, attributes and parents."""

    def __init__(
        self, queue: str, tracer_provider: TracerProvider | None, propagator: TextMapPropagator | None
    ) -> None:
        self._trace = _api("opentelemetry.trace")
        self._queue = queue
        self._tracer = self._trace.get_tracer("harel", tracer_provider=tracer_provider)
        self._propagator = propagator or _api("opentelemetry.propagate")

    @contextmanager
    def publish(self, events: list[Any]) -> Iterator[Callable[[Any], Any]]:
        """Make the span of one publish; yields what puts its context into an event."""
        kind = self._trace.SpanKind.PRODUCER
        with self._span(f"send {self._queue}", kind, self._attributes("send", "send", events)):
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier)
            yield lambda event: _with_headers(event, carrier)

    @contextmanager
    def process(self, lease: Lease, event: Event, *, new_trace: bool) -> Iterator[None]:
        """Make the span of handling one message."""
        publishers: Context = self._propagator.extract(event.headers)
        attributes = {
            **self._attributes("process", "process", [event]),
            "messaging.harel.group_id": lease.group_id,
            "messaging.harel.seq": lease.seq,
            "messaging.harel.attempt": lease.attempt,
        }
        kind = self._trace.SpanKind.CONSUMER
        name = f"process {self._queue}"
        if new_trace:
            context = self._trace.get_current_span(publishers).get_span_context()
            links = [self._trace.Link(context)] if context.is_valid else []
            nothing = _api("opentelemetry.context").Context()
            with self._span(name, kind, attributes, context=nothing, links=links):
                yield
        else:
            with self._span(name, kind, attributes, context=publishers):
                yield

    @contextmanager
    def _span(self, name: str, kind: Any, attributes: dict[str, Any], **parents: Any) -> Iterator[None]:
        span: Span
        with self._tracer.start_as_current_span(
            name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False, **parents
        ) as span:
            try:
                yield
            except RetryLater:
                raise
            except BaseException as error:  # a handler that was cancelled failed too
                span.record_exception(error)
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(self._trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
                raise

    def _attributes(self, name: str, kind: str, events: list[Any]) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "messaging.system": _SYSTEM,
            "messaging.destination.name": self._queue,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
        }
        if len(events) != 1:
            attributes["messaging.batch.message_count"] = len(events)
        elif isinstance(events[0], Event):
            attributes["messaging.message.id"] = events[0].id
            attributes["messaging.harel.kind"] = events[0].kind
        return attributes


def _with_headers(event: Any, carrier: dict[str, str]) -> Any:
    """Return an event that carries the context too; what is no event is for the transport to refuse."""
    if not carrier or type(event) is not Event or not isinstance(event.headers, dict):
        return event
    return msgspec.structs.replace(event, headers={**event.headers, **carrier})


def _listed(messages: Iterable[Message]) -> list[Message]:
    try:
        return list(messages)
    except TypeError:
        raise InvalidArgument(f"messages must be an iterable such as a list, not {shown(messages)}.") from None


def _event_of(message: Any) -> Any:
    return message[1] if isinstance(message, tuple | list) and len(message) == 3 else None


def _with_event(message: Any, give: Callable[[Any], Any]) -> Any:
    if _event_of(message) is None:
        return message
    return Message(message[0], give(message[1]), message[2])


def _api(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"harel.tracing needs {error.name}, which is not installed: pip install 'harel[tracing]'."
        ) from error
