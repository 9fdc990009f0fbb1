"""Traces that join who publishes and who handles."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from harel import (
    AsyncTransport,
    AsyncWorker,
    Context,
    Event,
    InvalidArgument,
    Message,
    RetryLater,
    RetryPolicy,
    Transport,
    Worker,
)
from harel.engine.aio_transport import AsyncInMemoryTransport, AsyncSqliteTransport
from harel.engine.transport import InMemoryTransport, SqliteTransport
from harel.tracing import AsyncTracedTransport, TracedTransport, Tracing, traced


class Spans:
    """What was traced."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_the_handler_runs_in_the_publishers_trace(spans: Spans) -> None:
    queue = traced(InMemoryTransport(), "orders", tracer_provider=spans.provider)

    def handle(event: Event, context: Context) -> None:
        with spans.tracer.start_as_current_span("work"):
            if event.kind == "placed":
                context.publish("other", Event("billed"))

    with spans.tracer.start_as_current_span("request"):
        queue.publish("order-17", Event("placed", {"total": 42}, "e-1", {"mine": "stays"}))
    worker = Worker(queue, handle, observers=[Tracing("orders", tracer_provider=spans.provider)])
    assert worker.step()
    assert worker.step()

    sent, billed = spans.named("send orders")
    first, second = spans.named("process orders")
    work, _ = spans.named("work")
    assert parent_of(sent) == ids(spans.one("request"))
    assert parent_of(first) == ids(sent)
    assert parent_of(work) == ids(first)
    assert parent_of(billed) == ids(work), "what a handler publishes belongs to its trace"
    assert parent_of(second) == ids(billed)
    assert (sent.kind, first.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert attributes_of(sent) == {
        "messaging.system": "harel",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.id": "e-1",
        "messaging.harel.kind": "placed",
    }
    assert attributes_of(first) == {
        "messaging.system": "harel",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": "e-1",
        "messaging.harel.kind": "placed",
        "messaging.harel.group_id": "order-17",
        "messaging.harel.seq": 1,
        "messaging.harel.attempt": 1,
    }


async def test_the_same_with_await(spans: Spans) -> None:
    async with traced(AsyncInMemoryTransport(), tracer_provider=spans.provider) as queue:

        async def handle(event: Event) -> None:
            await asyncio.sleep(0)
            with spans.tracer.start_as_current_span("work"):
                await asyncio.sleep(0)

        await queue.publish("a", Event("k"))
        await queue.publish_many([Message("b", Event("k")), Message("c", Event("k"))])
        worker = AsyncWorker(queue, handle, observers=[Tracing(tracer_provider=spans.provider)])
        while await worker.step():
            pass
    one, many = spans.named("send default")
    processed = spans.named("process default")
    assert [parent_of(span) for span in processed] == [ids(one), ids(many), ids(many)]
    assert [parent_of(span) for span in spans.named("work")] == [ids(span) for span in processed]
    assert attributes_of(many)["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in attributes_of(many)


def test_the_context_travels_in_the_headers_as_w3c_writes_it(spans: Spans) -> None:
    inner = InMemoryTransport()
    event = Event("k", {}, "e-1", {"mine": "stays", "traceparent": "of an earlier delivery"})
    traced(inner, tracer_provider=spans.provider).publish("g", event)
    trace_id, span_id = ids(spans.one("send default"))
    (stored,) = inner.peek("g")
    headers = dict(stored.event.headers)
    version, trace, span, flags = headers.pop("traceparent").split("-")
    assert (version, trace, span) == ("00", f"{trace_id:032x}", f"{span_id:016x}")
    assert int(flags, 16) & 1, "it was sampled"
    assert headers == {"mine": "stays"}
    assert event.headers["traceparent"] == "of an earlier delivery", "the caller's event is the caller's"


def test_every_attempt_is_a_span_and_an_error_makes_it_one_that_failed(spans: Spans) -> None:
    queue = traced(InMemoryTransport(), tracer_provider=spans.provider)

    def handle(event: Event, context: Context) -> None:
        if context.attempt == 1:
            raise ValueError("out of stock")
        if context.attempt == 2:
            raise RetryLater(0.0)

    queue.publish("g", Event("k"))
    worker = Worker(queue, handle, retry=RetryPolicy(backoff=0.0), observers=[Tracing(tracer_provider=spans.provider)])
    while worker.step():
        pass
    failed, later, done = spans.named("process default")
    assert len({parent_of(span) for span in (failed, later, done)}) == 1
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "ValueError: out of stock")
    assert attributes_of(failed)["error.type"] == "ValueError"
    assert [event.name for event in failed.events] == ["exception"]
    assert [span.status.status_code for span in (later, done)] == [StatusCode.UNSET] * 2
    assert [attributes_of(span)["messaging.harel.attempt"] for span in (failed, later, done)] == [1, 2, 3]


def test_a_trace_of_its_own_links_to_the_publishers(spans: Spans) -> None:
    queue = traced(InMemoryTransport(), tracer_provider=spans.provider)
    queue.publish("g", Event("k"))
    observer = Tracing(new_trace=True, tracer_provider=spans.provider)
    with spans.tracer.start_as_current_span("the worker's own"):
        Worker(queue, lambda event: None, observers=[observer]).step()
    processed = spans.one("process default")
    assert parent_of(processed) is None
    assert [link.context.span_id for link in processed.links] == [ids(spans.one("send default"))[1]]


@pytest.mark.parametrize("new_trace", [False, True])
@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense"}])
def test_a_message_without_a_context_begins_a_trace(spans: Spans, headers: dict[str, str], new_trace: bool) -> None:
    queue = InMemoryTransport()
    queue.publish("g", Event("k", headers=headers))
    Worker(queue, lambda event: None, observers=[Tracing(new_trace=new_trace, tracer_provider=spans.provider)]).step()
    processed = spans.one("process default")
    assert parent_of(processed) is None
    assert processed.links == ()


def test_a_publish_that_fails_is_a_span_that_failed(spans: Spans) -> None:
    queue = traced(InMemoryTransport(), tracer_provider=spans.provider)
    queue.close()
    with pytest.raises(InvalidArgument, match="closed"):
        queue.publish("g", Event("k"))
    assert spans.one("send default").status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    "messages",
    [5, ["g"], [("g", Event("k"))], [("g", "no event", 0)], [Message("g", Event("k", headers=5))]],  # type: ignore[arg-type]
)
def test_what_is_wrong_is_refused_as_without_tracing(spans: Spans, messages: Any) -> None:
    queue = traced(InMemoryTransport(), tracer_provider=spans.provider)
    with pytest.raises(InvalidArgument) as traced_error:
        queue.publish_many(messages)
    with pytest.raises(InvalidArgument) as plain_error:
        InMemoryTransport().publish_many(messages)
    assert str(traced_error.value) == str(plain_error.value)
    assert queue.stats().messages == 0


def test_without_a_provider_nothing_is_added(spans: Spans) -> None:
    inner = InMemoryTransport()
    traced(inner).publish("g", Event("k", headers={"mine": "stays"}))
    assert inner.peek("g")[0].event.headers == {"mine": "stays"}


def test_it_is_a_transport_like_the_one_inside() -> None:
    assert isinstance(traced(InMemoryTransport()), Transport)
    assert isinstance(traced(AsyncInMemoryTransport()), AsyncTransport)
    assert isinstance(traced(InMemoryTransport()), TracedTransport)
    assert isinstance(traced(AsyncInMemoryTransport()), AsyncTracedTransport)
    with traced(InMemoryTransport()) as queue:
        assert queue.capabilities == InMemoryTransport().capabilities
    with pytest.raises(InvalidArgument, match="closed"):
        queue.claim("w", 30.0)


def test_without_the_extra_nothing_is_imported_and_using_it_is_a_sentence() -> None:
    program = (
        "import sys\n"
        "import harel, harel.tracing\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
        "sys.modules['opentelemetry'] = None\n"
        "for use in (harel.tracing.Tracing, lambda: harel.tracing.traced(harel.connect('memory://'))):\n"
        "    try:\n"
        "        use()\n"
        "    except harel.ConfigError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    first, *sentences = done.stdout.splitlines()
    assert first == "[]"
    assert len(sentences) == 2
    for sentence in sentences:
        assert sentence.startswith("harel.tracing needs opentelemetry")
        assert sentence.endswith("which is not installed: pip install 'harel[tracing]'.")


class TestBound:
    """A publish in the caller's own transaction."""

    def test_it_carries_the_context(self, spans: Spans, tmp_path: Any) -> None:
        with traced(SqliteTransport(tmp_path / "q.db"), tracer_provider=spans.provider) as queue:
            if not queue.capabilities.bind:
                pytest.skip("this backend binds no transaction")
            with queue.transaction() as connection:
                bound = queue.bind(connection)
                bound.publish("g", Event("k"))
                bound.publish_many([Message("g", Event("k"))])
            headers = [message.event.headers["traceparent"] for message in queue.peek("g")]
            lease = queue.claim("w", 30.0)
            assert lease is not None
            with queue.transaction() as connection:
                queue.bind(connection).ack(lease)
            assert len(queue.peek("g")) == 1
        assert [header.split("-")[2] for header in headers] == [
            f"{ids(span)[1]:016x}" for span in spans.named("send default")
        ]

    async def test_the_same_with_await(self, spans: Spans, tmp_path: Any) -> None:
        async with traced(AsyncSqliteTransport(tmp_path / "q.db"), tracer_provider=spans.provider) as queue:
            if not queue.capabilities.bind:
                pytest.skip("this backend binds no transaction")
            async with queue.transaction() as connection:
                bound = queue.bind(connection)
                await bound.publish("g", Event("k"))
                await bound.publish_many([Message("g", Event("k"))])
            headers = [message.event.headers["traceparent"] for message in await queue.peek("g")]
        assert [header.split("-")[2] for header in headers] == [
            f"{ids(span)[1]:016x}" for span in spans.named("send default")
        ]
