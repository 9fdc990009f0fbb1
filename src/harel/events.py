"""Events, messages and their codec: JSON text in the store, checked on the way in."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from harel.errors import InvalidArgument, InvalidMessage, shown

__all__ = ["Event", "Message", "decode_event", "encode_event"]


def _new_id() -> str:
    return str(uuid4())


class Event(msgspec.Struct, frozen=True):
    """What happened: the thing that a handler gets.

    Attributes
    ----------
    kind : str
        What kind of event this is, such as ``"order.placed"``. Not empty.
    payload : dict
        Anything that JSON holds: it comes back equal (a tuple as a list). Keys are strings and
        numbers are finite.
    id : str
        The event's own identity, a new UUID unless given. It stays the same when the event is
        delivered again, so a handler can recognise one that it has seen.
    headers : dict of str to str
        Small strings that travel along, such as a trace context.
    """

    kind: str
    payload: dict[str, Any] = {}
    id: str = msgspec.field(default_factory=_new_id)
    headers: dict[str, str] = {}


class Message(NamedTuple):
    """One event for one group, as ``publish_many`` takes it."""

    group_id: str
    event: Event
    priority: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


def encode_event(event: Event) -> str:
    """Encode an event as the JSON text that is stored.

    The text is decoded again and compared: what JSON would change silently (NaN to null, a
    datetime to a string, a number as a key to a string) is refused here, and not found out by a
    handler later.

    Parameters
    ----------
    event : Event

    Returns
    -------
    str
        JSON text, an object with ``kind``, ``payload``, ``id`` and ``headers``.

    Raises
    ------
    InvalidArgument
        When a part of the event is not what JSON can hold; the message names the part.
    """
    if type(event) is not Event:  # a subclass would come back without what it added
        raise InvalidArgument(f"An event must be a harel.Event, not {type(event).__name__}.")
    try:
        return _encoded(event)
    except InvalidArgument:
        raise
    except Exception as error:
        # What stands in an event may be of a class of the caller's, whose methods raise anything.
        raise InvalidArgument(f"The event cannot be stored as JSON: {_said(error)}.") from error


def _encoded(event: Event) -> str:
    try:
        raw = _encode(event)
        unchanged = _decode(raw) == event
    except Exception:
        _refuse_what_json_cannot_hold(event)
        raise
    if not unchanged or not event.kind or not event.id or _may_be_too_deep(raw):
        _refuse_what_json_cannot_hold(event)
    return raw.decode()


def _may_be_too_deep(raw: bytes) -> bool:
    """Say whether to look how deep an event is: what is deeper than a handler's stack leaves room for is lost on it."""
    return len(raw) > 2 * _DEEPEST and raw.count(b"{") + raw.count(b"[") > _DEEPEST


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {shown(str(error))}"


def decode_event(raw: str) -> Event:
    """Decode stored JSON text.

    Raises
    ------
    InvalidMessage
        When the text is not an event, with what is wrong with it.
    """
    try:
        return _decode(raw)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidMessage(
            f"The stored event cannot be decoded: {error}. Reject it to the dead letters to look at it there."
        ) from error


def _refuse_what_json_cannot_hold(event: Event) -> None:
    if not isinstance(event.kind, str) or not event.kind:
        raise InvalidArgument(f"event.kind must be a string that is not empty, not {shown(event.kind)}.")
    if not isinstance(event.id, str) or not event.id:
        raise InvalidArgument(f"event.id must be a string that is not empty, not {shown(event.id)}.")
    if not isinstance(event.payload, dict):
        raise InvalidArgument(f"event.payload must be a dict, not {type(event.payload).__name__}.")
    if not isinstance(event.headers, dict):
        raise InvalidArgument(f"event.headers must be a dict, not {type(event.headers).__name__}.")
    for name, value in event.headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(f"event.headers must map strings to strings; {shown(name)} maps to {shown(value)}.")
    for where, text in [("kind", event.kind), ("id", event.id), *_items("headers", event.headers)]:
        _check_value(f"event.{where}", text, 0)
    _check_value("event.payload", event.payload, 0)


_DEEPEST = 500


def _check_value(where: str, value: object, depth: int) -> None:
    if depth > _DEEPEST:
        raise InvalidArgument(f"event.payload is nested more than {_DEEPEST} levels deep.")
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_value(f"{where}[{index}]", item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidArgument(f"{where} has the key {shown(key)}; JSON keys are strings.")
            _check_text(f"A key of {where}", key)
            _check_value(f"{where}[{shown(key)}]", item, depth + 1)
    else:
        _check_scalar(where, value)


def _check_scalar(where: str, value: object) -> None:
    if isinstance(value, str):
        _check_text(where, value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArgument(f"{where} is {value}, which JSON cannot hold.")
    elif type(value) is int:
        if not _comes_back(value):
            raise InvalidArgument(f"{where} is a number too large for JSON here; send it as a string.")
    elif value is not None and not (isinstance(value, int) and _comes_back(value)):
        raise InvalidArgument(
            f"{where} is a {type(value).__name__}, which does not come back from JSON as it was; "
            "send a string, a number, a list or a dict."
        )


def _comes_back(number: int) -> bool:
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(number)) == number)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return False


def _check_text(where: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{where} holds a lone surrogate at position {error.start}, which is not text.") from None


def _items(where: str, mapping: dict[str, str]) -> list[tuple[str, str]]:
    return [(f"{where}[{shown(key)}]", key + value) for key, value in mapping.items()]
