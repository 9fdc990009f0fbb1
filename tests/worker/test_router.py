"""A handler made of handlers: which one gets what, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from harel import AsyncContext, AsyncWorker, Context, Event, InvalidArgument, Reject, Router, Worker
from harel.engine.aio_transport import AsyncInMemoryTransport
from harel.engine.transport import InMemoryTransport
from harel.engine.worker import is_async_handler

Calls = list[tuple[object, ...]]


class Order(msgspec.Struct):
    total: int


@pytest.fixture
def calls() -> Calls:
    return []


@pytest.fixture
def router(calls: Calls) -> Router:
    """One handler of each kind there is."""
    router = Router()

    @router.on("placed", "changed")
    def placed(order: Order) -> None:
        calls.append(("placed", order))

    @router.on("paid")
    def paid(payload: dict[str, Any], context: Context) -> None:
        calls.append(("paid", payload, context.attempt))

    @router.on("sent")
    def sent(event: Event) -> None:
        calls.append(("sent", event.id))

    return router


def worked(router: Router, *events: Event) -> InMemoryTransport:
    """Return the queue that a worker drained of these events."""
    queue = InMemoryTransport()
    for event in events:
        queue.publish("g", event)
    worker = Worker(queue, router)
    while worker.step():
        pass
    return queue


def test_each_kind_goes_to_its_handler_as_it_wants_it(router: Router, calls: Calls) -> None:
    queue = worked(
        router,
        Event("placed", {"total": 5}),
        Event("changed", {"total": 6}),
        Event("paid", {"by": "card"}),
        Event("sent", {}, "e-4"),
    )
    assert calls == [("placed", Order(5)), ("placed", Order(6)), ("paid", {"by": "card"}, 1), ("sent", "e-4")]
    assert (queue.stats().messages, queue.stats().dead_letters) == (0, 0)
    assert router.kinds == ("placed", "changed", "paid", "sent")


def test_a_payload_that_does_not_fit_is_dead_at_once_and_the_group_goes_on(router: Router, calls: Calls) -> None:
    queue = worked(router, Event("placed", {"total": "five"}), Event("placed", {"total": 6}))
    (letter,) = queue.dead_letters()
    assert letter.attempts == 1
    assert letter.reason.endswith(".placed takes: total: Expected `int`, got `str`")
    assert letter.reason.startswith("The payload of 'placed' is not what ")
    assert calls == [("placed", Order(6))]


def test_a_kind_that_nobody_handles_is_dead_with_a_sentence(router: Router) -> None:
    (letter,) = worked(router, Event("lost")).dead_letters()
    assert letter.reason == ("Nobody handles the kind 'lost'; this router knows 'placed', 'changed', 'paid', 'sent'.")


def test_a_router_without_handlers_says_that_it_knows_none() -> None:
    with pytest.raises(Reject, match="this router knows none"):
        Router()(Event("k"))


def test_the_default_gets_what_no_other_gets(router: Router, calls: Calls) -> None:
    @router.default
    def rest(event: Event) -> None:
        calls.append(("rest", event.kind))

    worked(router, Event("lost"), Event("placed", {"total": 1}))
    assert calls == [("rest", "lost"), ("placed", Order(1))]


def test_an_error_of_a_handlers_is_not_taken_for_a_payload_that_does_not_fit(router: Router) -> None:
    """Promise 3: what may succeed later is tried again."""

    @router.on("odd")
    def odd(order: Order) -> None:
        msgspec.convert({}, Order)

    queue = worked(router, Event("odd", {"total": 1}))
    assert queue.dead_letters() == []
    assert [group.state for group in queue.groups()] == ["parked"]


async def test_async_handlers_make_a_router_for_an_async_worker() -> None:
    router = Router()
    got: list[object] = []

    @router.on("placed")
    async def placed(order: Order, context: AsyncContext) -> None:
        await asyncio.sleep(0)
        got.append((order, context.attempt))

    class Shop:
        async def __call__(self, payload: dict[str, Any]) -> None: ...

    router.on("shop")(Shop())

    assert is_async_handler(router)
    async with AsyncInMemoryTransport() as queue:
        await queue.publish("g", Event("placed", {"total": 5}))
        await queue.publish("g", Event("placed", {}))
        await queue.publish("g", Event("other"))
        worker = AsyncWorker(queue, router)
        while await worker.step():
            pass
        reasons = [letter.reason for letter in await queue.dead_letters()]
    assert got == [(Order(5), 1)]
    assert [reason.partition(": ")[2] or reason for reason in reasons] == [
        "Object missing required field `total`",
        "Nobody handles the kind 'other'; this router knows 'placed', 'shop'.",
    ]


def test_a_router_is_for_the_worker_of_its_handlers(router: Router) -> None:
    assert not is_async_handler(router)
    with pytest.raises(InvalidArgument, match="use Worker"):
        AsyncWorker(AsyncInMemoryTransport(), router)

    async def late(payload: object) -> None: ...

    with pytest.raises(InvalidArgument, match=r"late is async, and the router's other handlers are sync"):
        router.on("late")(late)
    assert "late" not in router.kinds


def test_a_decorated_function_stays_what_it_was(router: Router) -> None:
    def plain(payload: object) -> str:
        return "returned"

    assert router.on("plain")(plain) is plain
    assert router.default(plain) is plain


@pytest.mark.parametrize(
    ("register", "said"),
    [
        (lambda router: router.on(lambda payload: None), "Say which kinds a handler is for"),
        (lambda router: router.on(), "Say which kinds a handler is for"),
        (lambda router: router.on(""), "Say which kinds a handler is for"),
        (lambda router: router.on("new", "paid")(lambda payload: None), "'paid' has the handler .*paid already"),
        (lambda router: router.on("new")(5), "A handler is a function, not 5"),
        (lambda router: router.on("new")(lambda: None), r"A handler takes \(payload\) or \(payload, context\); .*\(\)"),
        (lambda router: router.on("new")(lambda a, b, c: None), r"takes \(a, b, c\)"),
        (lambda router: [router.default(lambda payload: None) for _ in "12"], "is the default handler already"),
    ],
)
def test_what_cannot_be_is_said_when_it_is_registered(
    router: Router, register: Callable[[Router], object], said: str
) -> None:
    before = router.kinds
    with pytest.raises(InvalidArgument, match=said):
        register(router)
    assert router.kinds == before
