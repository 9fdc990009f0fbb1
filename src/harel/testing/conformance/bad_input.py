"""A call that is wrong in itself is a clear error: nothing is sent and nothing changes."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import enum
import math
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from harel.config import connect
from harel.engine.queue.contract import Lease, Transport
from harel.errors import InvalidArgument
from harel.events import Event, Message
from harel.testing.conformance.kit import (
    EVERY_CALL,
    VISIBILITY_S,
    WAYS,
    Call,
    assert_refused,
    drain,
    each_way,
    info_of,
    only_dead_letter,
    open_queue,
    put,
    take,
)
from harel.testing.subject import Subject

Asked = Callable[[Transport, Lease, Any], object]
"""A call with one argument put in."""

OK = Event(kind="k")


def _something_in_every_state(queue: Transport) -> Lease:
    """Bring about a queue on which any call that went through would show; return a live lease."""
    put(queue, "g", "m1", "m2")
    put(queue, "parked", "m1")
    put(queue, "dead", "m1")
    leases = {lease.group_id: lease for lease in queue.claim_many("worker", 600.0, 10)}
    assert queue.nack(leases["parked"], 600.0)
    assert queue.reject(leases["dead"], "a reason")
    put(queue, "ready", "m1", "m2")
    return leases["g"]


def _assert_all_refused(subject: Subject, takers: dict[str, tuple[str | None, Asked]], values: list[Any]) -> None:
    """See that each of the calls refuses each of the values, and says so of the right argument."""
    queue = open_queue(subject)
    lease = _something_in_every_state(queue)
    for taker, (capability, ask) in takers.items():
        if capability is None or getattr(queue.capabilities, capability):
            for value in values:
                call = partial(ask, queue, lease, value)
                message = assert_refused(subject, queue, InvalidArgument, call, queue)
                assert taker.rpartition(" ")[2] in message, "the message does not name the argument"
    assert queue.ack(lease) is True


GROUP_IDS: dict[str, tuple[str | None, Asked]] = {
    "publish group_id": (None, lambda queue, _lease, name: queue.publish(name, OK)),
    "publish_many group_id": (
        None,
        lambda queue, _lease, name: queue.publish_many([Message("g", OK), Message(name, OK)]),
    ),
    "peek group_id": ("peek", lambda queue, _lease, name: queue.peek(name)),
    "hold group_id": ("hold", lambda queue, _lease, name: queue.hold(name)),
    "release group_id": ("hold", lambda queue, _lease, name: queue.release(name)),
    "purge group_id": ("purge", lambda queue, _lease, name: queue.purge(name)),
}

OPTIONAL_GROUP_IDS: dict[str, tuple[str | None, Asked]] = {
    "groups after": ("groups", lambda queue, _lease, name: queue.groups(after=name)),
    "dead_letters group_id": ("dead_letters", lambda queue, _lease, name: queue.dead_letters(group_id=name)),
}

WORKER_IDS: dict[str, tuple[str | None, Asked]] = {
    "claim worker_id": (None, lambda queue, _lease, name: queue.claim(name, 1.0)),
    "claim_many worker_id": (None, lambda queue, _lease, name: queue.claim_many(name, 1.0, 2)),
}

NO_NAMES: list[Any] = ["", "\0", "a\0b", "\ud800", "a\udfffb", 7, True, 1.5, b"g", ["g"], ("g",), {"g": 1}, OK]


def _too_long(most: int) -> list[str]:
    return ["x" * (most + 1), "é" * (most // 2) + "x", "\U0001f418" * (most // 4 + 1), "x" * 1_000_000]


def test_a_group_id_is_text_of_1_to_512_bytes_without_nul(subject: Subject) -> None:
    _assert_all_refused(subject, GROUP_IDS, [*NO_NAMES, *_too_long(512), None])


def test_a_group_id_that_may_be_left_out_is_checked_too(subject: Subject) -> None:
    _assert_all_refused(subject, OPTIONAL_GROUP_IDS, [*NO_NAMES, *_too_long(512)])


def test_a_worker_id_is_text_of_1_to_200_bytes_without_nul(subject: Subject) -> None:
    _assert_all_refused(subject, WORKER_IDS, [*NO_NAMES, *_too_long(200), None])


PRIORITIES: dict[str, tuple[str | None, Asked]] = {
    "publish priority": (None, lambda queue, _lease, priority: queue.publish("g", OK, priority)),
    "publish_many priority": (
        None,
        lambda queue, _lease, priority: queue.publish_many([Message("g", OK), Message("h", OK, priority)]),
    ),
    "claim min_priority": (None, lambda queue, _lease, floor: queue.claim("w", 1.0, floor)),
    "claim_many min_priority": (None, lambda queue, _lease, floor: queue.claim_many("w", 1.0, 2, floor)),
}

NO_NUMBERS: list[Any] = [None, True, False, "1", b"1", [1], math.nan, math.inf, -math.inf]


def test_a_priority_is_an_int_from_0_to_4(subject: Subject) -> None:
    _assert_all_refused(subject, PRIORITIES, [*NO_NUMBERS, -1, 5, 0.0, 1.0, 2**70, -(2**70), 10**5_000])


SECONDS: dict[str, tuple[str | None, Asked]] = {
    "claim visibility": (None, lambda queue, _lease, seconds: queue.claim("w", seconds)),
    "claim_many visibility": (None, lambda queue, _lease, seconds: queue.claim_many("w", seconds, 2)),
    "extend visibility": (None, lambda queue, lease, seconds: queue.extend(lease, seconds)),
}

SECONDS_OR_NONE_AT_ALL: dict[str, tuple[str | None, Asked]] = {
    "nack delay": (None, lambda queue, lease, seconds: queue.nack(lease, seconds)),
    "wait timeout": (None, lambda queue, _lease, seconds: queue.wait(seconds)),
}

NO_SECONDS: list[Any] = [
    *NO_NUMBERS, -1, -0.001, -1e300, 1e300, 2**70, 10**400, 10**5_000, 1 + 0j,
    dt.timedelta(seconds=1), decimal.Decimal("NaN"), decimal.Decimal("sNaN"),
]  # fmt: skip


def test_seconds_are_a_finite_number_that_is_not_negative(subject: Subject) -> None:
    _assert_all_refused(subject, SECONDS_OR_NONE_AT_ALL, NO_SECONDS)


def test_a_visibility_is_a_finite_number_above_zero(subject: Subject) -> None:
    _assert_all_refused(subject, SECONDS, [*NO_SECONDS, 0, 0.0, -0.0, 5e-324, 1e-9])


def test_no_seconds_are_longer_than_the_backend_can(subject: Subject) -> None:
    longest = open_queue(subject).capabilities.max_visibility_s
    _assert_all_refused(subject, {**SECONDS, **SECONDS_OR_NONE_AT_ALL}, [math.nextafter(longest, math.inf)])


LIMITS: dict[str, tuple[str | None, Asked]] = {
    "claim_many limit": (None, lambda queue, _lease, limit: queue.claim_many("w", 1.0, limit)),
    "groups limit": ("groups", lambda queue, _lease, limit: queue.groups(limit=limit)),
    "peek limit": ("peek", lambda queue, _lease, limit: queue.peek("g", limit)),
    "dead_letters limit": ("dead_letters", lambda queue, _lease, limit: queue.dead_letters(limit=limit)),
}


def test_a_limit_is_an_int_of_at_least_1(subject: Subject) -> None:
    _assert_all_refused(subject, LIMITS, [*NO_NUMBERS, 0, -1, 1.0, 2.5, -(2**70), -(10**5_000)])


DEAD_LETTER_IDS: dict[str, tuple[str | None, Asked]] = {
    "dead_letters after": ("dead_letters", lambda queue, _lease, seq: queue.dead_letters(after=seq)),
    "redrive dead_letter_id": ("dead_letters", lambda queue, _lease, seq: queue.redrive(seq)),
}


def test_a_dead_letters_id_is_an_int_that_is_not_negative(subject: Subject) -> None:
    no_ids = [value for value in NO_NUMBERS if value is not None]
    _assert_all_refused(subject, DEAD_LETTER_IDS, [*no_ids, -1, 1.0, -(2**70), -(10**5_000)])


def test_a_dead_letter_is_not_its_id(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    put(queue, "g", "m")
    assert queue.reject(take(queue), "a reason")
    no_ids: list[Any] = [None, only_dead_letter(queue)]
    for wrong in no_ids:
        assert_refused(subject, queue, InvalidArgument, partial(queue.redrive, wrong), queue)


def test_a_state_is_one_of_four(subject: Subject) -> None:
    takers: dict[str, tuple[str | None, Asked]] = {
        "groups state": ("groups", lambda queue, _lease, state: queue.groups(state=state))
    }
    _assert_all_refused(subject, takers, ["", "READY", "busy", 1, True, b"ready", ["ready"], {"ready"}])


def test_a_reason_is_text(subject: Subject) -> None:
    takers: dict[str, tuple[str | None, Asked]] = {
        "reject reason": (None, lambda queue, lease, reason: queue.reject(lease, reason))
    }
    _assert_all_refused(subject, takers, [None, 7, b"reason", KeyError("reason"), ["reason"]])


class _Colour(enum.Enum):
    RED = "red"


def _recursive() -> dict[str, Any]:
    payload: dict[str, Any] = {}
    payload["me"] = [payload]
    return payload


def _nested(depth: int) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for _ in range(depth):
        payload = {"down": payload}
    return payload


PAYLOADS: dict[str, Any] = {
    "None": None,
    "a list": [1],
    "text": "payload",
    "a set": {1},
    "pairs": [("a", 1)],
    "holding NaN": {"a": math.nan},
    "holding NaN deep down": {"a": [{"b": (1, math.nan)}]},
    "holding infinity": {"a": math.inf},
    "holding minus infinity": {"a": -math.inf},
    "holding a datetime": {"a": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)},
    "holding a date": {"a": dt.date(2024, 1, 1)},
    "holding a timedelta": {"a": dt.timedelta(1)},
    "holding a set": {"a": {1, 2}},
    "holding an empty set": {"a": set()},
    "holding bytes": {"a": b"bytes"},
    "holding a Decimal": {"a": decimal.Decimal("1.5")},
    "holding a UUID": {"a": uuid.uuid4()},
    "holding a member of an Enum": {"a": _Colour.RED},
    "holding an event": {"a": OK},
    "holding any object": {"a": object()},
    "holding a class": {"a": dict},
    "holding a complex number": {"a": 1j},
    "with an int as a key": {1: "a"},
    "with None as a key": {"a": {None: 1}},
    "with a bool as a key": {"a": {True: 1}},
    "with a float as a key": {"a": [{1.5: 1}]},
    "with a tuple as a key": {("a", "b"): 1},
    "with bytes as a key": {b"a": 1},
    "with a lone surrogate": {"a": "\ud800"},
    "with a lone surrogate as a key": {"a": {"\udfff": 1}},
    "that holds itself": _recursive(),
    "nested beyond all bounds": _nested(20_000),
    "with a number of 5,000 digits": {"a": [10**5_000]},
}

EVENTS: dict[str, Any] = {
    "None": None,
    "a dict": {"kind": "k", "payload": {}},
    "text": "event",
    "the class": Event,
    "a message": Message("g", OK),
    "a kind that is empty": Event(kind=""),
    "a kind that is None": Event(kind=None),  # type: ignore[arg-type]
    "a kind that is a number": Event(kind=7),  # type: ignore[arg-type]
    "a kind that is bytes": Event(kind=b"k"),  # type: ignore[arg-type]
    "a kind with a lone surrogate": Event(kind="\ud800"),
    "an id that is empty": Event(kind="k", id=""),
    "an id that is None": Event(kind="k", id=None),  # type: ignore[arg-type]
    "an id that is a UUID": Event(kind="k", id=uuid.uuid4()),  # type: ignore[arg-type]
    "an id with a lone surrogate": Event(kind="k", id="a\udfff"),
    "headers that are None": Event(kind="k", headers=None),  # type: ignore[arg-type]
    "headers that are a list": Event(kind="k", headers=["a"]),  # type: ignore[arg-type]
    "headers with a number": Event(kind="k", headers={"a": 1}),  # type: ignore[dict-item]
    "headers with None": Event(kind="k", headers={"a": None}),  # type: ignore[dict-item]
    "headers with a number as a key": Event(kind="k", headers={1: "a"}),  # type: ignore[dict-item]
    "headers with bytes": Event(kind="k", headers={"a": b"b"}),  # type: ignore[dict-item]
    "headers with a lone surrogate": Event(kind="k", headers={"a": "\ud800"}),
    **{f"a payload {what}": Event(kind="k", payload=payload) for what, payload in PAYLOADS.items()},
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_what_is_no_event_or_what_json_cannot_hold_is_refused(subject: Subject, event: Any) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m")
    for publish in (
        lambda: queue.publish("g", event),
        lambda: queue.publish_many([Message("g", OK), Message("new", event), Message("g", OK)]),
    ):
        assert_refused(subject, queue, InvalidArgument, publish, queue)
    assert drain(queue) == ["g m"]


def test_an_event_larger_than_the_backend_stores_is_refused_and_the_largest_is_stored(subject: Subject) -> None:
    queue = open_queue(subject)
    most = queue.capabilities.max_event_bytes
    if most > 2**24:
        pytest.skip("capabilities.max_event_bytes is more than a test can fill")
    event = Event(kind="k", payload={"text": ""}, id="i")
    room = most - len('{"kind":"k","payload":{"text":""},"id":"i","headers":{}}')
    # Two bytes each: it is bytes that count.
    event.payload["text"] = "é" * (room // 2) + "x" * (room % 2 + 1)
    assert_refused(subject, queue, InvalidArgument, lambda: queue.publish("g", event), queue)
    event.payload["text"] = event.payload["text"][:-1]
    queue.publish("g", event)
    assert take(queue).event == event


BATCHES: dict[str, Any] = {
    "None": None,
    "a number": 7,
    "one message": Message("g", OK),
    "text": "abc",
    "a dict": {"g": OK},
    "of None": [Message("g", OK), None],
    "of events": [OK],
    "of pairs": [("g", OK)],
    "of fours": [("g", OK, 0, 0)],
    "of text": ["abc"],
    "of dicts": [{"group_id": "g", "event": OK, "priority": 0}],
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_a_batch_is_messages(subject: Subject, batch: Any) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m")
    assert_refused(subject, queue, InvalidArgument, lambda: queue.publish_many(batch), queue)


class _Name(str, enum.Enum):  # noqa: UP042 - its str() is not its value
    ORDERS = "orders"


class _Level(enum.IntEnum):
    HIGH = 3


class _Number(int):
    pass


class _Seconds(float):
    pass


def test_a_subclass_is_taken_for_the_value_that_it_is(subject: Subject) -> None:
    queue = open_queue(subject)
    level = _Level.HIGH if queue.capabilities.priority else _Number(0)
    queue.publish(_Name.ORDERS, OK, level)
    queue.publish_many([Message(_Name.ORDERS, OK, level)])
    lease = queue.claim(_Name.ORDERS, _Seconds(60.0), level)
    assert lease is not None
    assert (type(lease.group_id), lease.group_id, lease.worker_id) == (str, "orders", "orders")
    assert queue.extend(lease, _Number(60))
    assert queue.nack(lease, _Seconds(0.0))
    (lease,) = queue.claim_many("w", _Number(60), _Number(5), level)
    assert queue.reject(lease, _Name.ORDERS)
    if queue.capabilities.groups:
        (info,) = queue.groups(limit=_Number(1))
        assert (info.group_id, info.priority) == ("orders", level)
    if queue.capabilities.peek:
        assert len(queue.peek(_Name.ORDERS, _Number(5))) == 1
    if queue.capabilities.dead_letters:
        assert only_dead_letter(queue).reason == "orders"
        assert queue.dead_letters(group_id=_Name.ORDERS, limit=_Number(1), after=_Number(0)) != []
        assert queue.redrive(_Number(lease.seq)) is True
    if queue.capabilities.hold:
        assert queue.hold(_Name.ORDERS)
        assert queue.release(_Name.ORDERS)
    if queue.capabilities.purge:
        assert queue.purge(_Name.ORDERS) == 2


class _Hostile:
    def __eq__(self, _other: object) -> bool:
        raise KeyError("compared")

    def __repr__(self) -> str:
        raise KeyError("shown")

    __hash__ = None  # type: ignore[assignment]


class _Alike:
    def __eq__(self, _other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class _HostileDict(dict[str, Any]):
    __eq__ = _Hostile.__eq__
    __hash__ = None


def test_what_an_object_says_of_itself_makes_it_nothing_else(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m")
    odd: list[Any] = [_Hostile(), _Alike()]
    for value in odd:
        calls: list[Callable[[], object]] = [
            partial(queue.publish, value, OK),
            partial(queue.publish, "g", OK, value),
            partial(queue.claim, "w", value),
        ]
        if queue.capabilities.groups:
            calls.append(partial(queue.groups, state=value))
        for call in calls:
            assert_refused(subject, queue, InvalidArgument, call, queue)
    for payload in ({"a": _Number(3)}, {"a": _Hostile()}, {"a": _HostileDict(a=1)}, {"a": [_HostileDict(a=1)]}):
        assert_refused(subject, queue, InvalidArgument, partial(queue.publish, "g", Event("k", payload)), queue)


def test_an_event_is_not_deeper_than_a_handler_can_read(subject: Subject) -> None:
    queue = open_queue(subject)
    for depth in (502, 700, 900):
        event = Event("k", _nested(depth))
        assert_refused(subject, queue, InvalidArgument, partial(queue.publish, "g", event), queue)
    deepest = Event("k", _nested(500))
    queue.publish("g", deepest)
    assert _read_far_down(take(queue), 200) == deepest


def _read_far_down(lease: Lease, frames: int) -> Event:
    return lease.event if frames == 0 else _read_far_down(lease, frames - 1)


OPERATORS: list[Any] = [{"$gt": ""}, {"$ne": None}, ["g"], None, 7, b"g", _Hostile()]
ALTERED: dict[str, list[Any]] = {
    "group_id": [*OPERATORS, "", "g\0", "\ud800"],
    "token": [*OPERATORS, "", "\0", "\ud800"],
    "seq": [-1, 1.5, "1", None, {"$gt": 0}, 10**5_000],
    "attempt": [-1, 1.5, "1", None, {"$gt": 0}, 2**40],
    "queue": [None, 7, "\r\n", "x" * 1_000, _Hostile(), _Alike()],
}


@pytest.mark.parametrize("field", ALTERED)
@each_way
def test_a_lease_that_was_altered_is_refused(subject: Subject, way: str, field: str) -> None:
    queue = open_queue(subject)
    lease = _something_in_every_state(queue)
    for value in ALTERED[field]:
        forged = copy.copy(lease)
        setattr(forged, field, value)
        message = assert_refused(subject, queue, InvalidArgument, partial(WAYS[way], queue, forged), queue)
        assert message.isprintable()
        assert len(message) < 600
    assert queue.ack(lease) is True


NO_LEASES: list[Any] = [None, "worker:token", 7, {"group_id": "g"}, OK, [None]]


@each_way
def test_a_lease_is_what_claim_returned(subject: Subject, way: str) -> None:
    queue = open_queue(subject)
    lease = _something_in_every_state(queue)
    for wrong in NO_LEASES:
        assert_refused(subject, queue, InvalidArgument, partial(WAYS[way], queue, wrong), queue)
    assert queue.ack(lease)


@pytest.mark.parametrize("kind", ["None", "a number", "one lease"])
def test_ack_many_takes_leases(subject: Subject, kind: str) -> None:
    queue = open_queue(subject)
    lease: Any = _something_in_every_state(queue)
    leases = {"None": None, "a number": 7, "one lease": lease}[kind]
    assert_refused(subject, queue, InvalidArgument, lambda: queue.ack_many(leases), queue)
    assert queue.ack(lease)


@each_way
def test_a_lease_of_another_queue_is_refused(subject: Subject, way: str) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1", "m2")
    lease = take(queue)
    with connect("memory://") as other:
        put(other, "g", "m1", "m2")
        foreign = take(other)
        message = assert_refused(subject, queue, InvalidArgument, lambda: WAYS[way](queue, foreign), queue)
        assert "claimed" in message
        with pytest.raises(InvalidArgument):
            queue.ack_many([lease, foreign])
        assert other.ack(foreign) is True
    assert queue.ack(lease) is True


@pytest.mark.parametrize("call", [call for _, call in EVERY_CALL.values()], ids=EVERY_CALL)
def test_a_closed_transport_does_nothing(subject: Subject, call: Call) -> None:
    queue, watcher = open_queue(subject), subject.open()
    lease = _something_in_every_state(queue)
    queue.close()
    message = assert_refused(subject, queue, InvalidArgument, lambda: call(queue, lease), watcher)
    assert "closed" in message
    assert watcher.ack(lease) is True


def test_what_lies_just_within_the_bounds_is_taken(subject: Subject) -> None:
    queue = open_queue(subject)
    longest = queue.capabilities.max_visibility_s
    for group_id in ("x" * 512, "é" * 256, "\U0001f418" * 128):
        queue.publish(group_id, OK)
        lease = take(queue, "é" * 100, 1)
        assert lease.group_id == group_id
        assert queue.extend(lease, longest) is True
        assert queue.nack(lease, 0) is True
        assert queue.nack(take(queue, visibility=longest), longest) is True
    assert queue.wait(0) is False
    subject.clock.advance(longest + 1.0)
    assert len(queue.claim_many("w" * 200, VISIBILITY_S, 2**70)) == 3


def test_the_longest_lease_and_park_are_kept_and_held_like_any(subject: Subject) -> None:
    queue = open_queue(subject, "hold", "groups")
    longest = queue.capabilities.max_visibility_s
    put(queue, "g", "m1")
    lease = take(queue, visibility=longest)
    assert info_of(queue, "g").state == "leased"
    assert queue.hold("g")
    assert info_of(queue, "g").state == "held"
    assert queue.release("g")
    assert info_of(queue, "g").state == "leased"
    assert queue.nack(lease, longest)
    assert info_of(queue, "g").state == "parked"
