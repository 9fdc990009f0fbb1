"""From a handler's annotation to what it is given: the event, its payload as it is, or its payload made to fit."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, TypeAlias, get_type_hints

import msgspec
from msgspec import inspect as shapes

from harel.errors import InvalidArgument
from harel.events import Event

__all__ = ["DoesNotFit", "Read", "named", "reader"]

Read: TypeAlias = Callable[[Event], Any]
"""From an event to a handler's first argument; raises :exc:`DoesNotFit`."""

_AT = re.compile(r"^(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<where>.*)`)?$", re.DOTALL)
_AS_IT_IS = (inspect.Parameter.empty, Any, object, dict, dict[str, Any], Mapping, Mapping[str, Any])
_OBJECTS = (shapes.StructType, shapes.DataclassType, shapes.TypedDictType, shapes.DictType, shapes.AnyType)


class DoesNotFit(Exception):
    """A payload is not what a handler takes; the text says which field, and what is the matter with it."""


def reader(handler: Callable[..., Any]) -> Read:
    """Make what reads a handler's first argument from an event, by the annotation of its first parameter.

    Parameters
    ----------
    handler : callable
        Its first parameter is annotated with :class:`~harel.Event` (it gets the event), with nothing, ``dict``,
        ``object`` or ``Any`` (it gets the payload as it is), or with what a payload is made into: a
        ``msgspec.Struct``, a dataclass, a ``TypedDict``, a ``dict`` of something, or a pydantic model.

    Raises
    ------
    InvalidArgument
        When no payload could ever be made into it, or the annotation names what is not there.
    """
    wanted = _annotation(handler)
    if wanted is Event:
        return _whole
    if wanted in _AS_IT_IS:
        return _payload
    if _is_pydantic(wanted):
        return _by_pydantic(wanted)
    _must_hold_an_object(wanted, handler)
    return functools.partial(_by_msgspec, wanted)


def named(handler: object) -> str:
    """Return what a person calls a handler, or a type."""
    name = getattr(handler, "__qualname__", None)
    return name if isinstance(name, str) else repr(handler)


def _whole(event: Event) -> Event:
    return event


def _payload(event: Event) -> dict[str, Any]:
    return event.payload


def _by_msgspec(wanted: Any, event: Event) -> Any:
    try:
        return msgspec.convert(event.payload, wanted, str_keys=True)
    except msgspec.ValidationError as error:
        raise DoesNotFit(_with_the_field_first(str(error))) from error


def _by_pydantic(wanted: Any) -> Read:
    adapter = importlib.import_module("pydantic").TypeAdapter(wanted)  # it is loaded: somebody made the model with it

    def read(event: Event) -> Any:
        # As JSON, which is what it was: a strict model then takes a date from a string, as it would from JSON.
        try:
            return adapter.validate_json(msgspec.json.encode(event.payload))
        except ValueError as error:
            faults: Any = getattr(error, "errors", list)()
            where, what = (faults[0]["loc"], faults[0]["msg"]) if faults else ((), str(error))
            raise DoesNotFit(_sentence(".".join(map(str, where)), what)) from error

    return read


def _is_pydantic(wanted: Any) -> bool:
    """Say whether it is a pydantic model or dataclass, without importing pydantic to ask."""
    return isinstance(wanted, type) and hasattr(wanted, "__pydantic_validator__")


def _must_hold_an_object(wanted: Any, handler: Callable[..., Any]) -> None:
    """Raise unless it is known how to make it from a JSON object."""
    try:
        fits = _holds_an_object(shapes.type_info(wanted))
    except TypeError:
        fits = False
    if not fits:
        raise InvalidArgument(
            f"{named(handler)} takes {named(wanted)}, which no payload can be made into. Annotate its first parameter "
            "with Event, dict, a msgspec Struct, a dataclass, a TypedDict or a pydantic model, or with nothing."
        )


def _holds_an_object(shape: shapes.Type) -> bool:
    if isinstance(shape, shapes.UnionType):
        return any(map(_holds_an_object, shape.types))
    return isinstance(shape, _OBJECTS) and not getattr(shape, "array_like", False)


def _annotation(handler: Callable[..., Any]) -> Any:
    first = next(iter(inspect.signature(handler).parameters.values()), None)
    if first is None or not isinstance(first.annotation, str):
        return inspect.Parameter.empty if first is None else first.annotation
    # Only this one is resolved: that of another parameter may be there for a type checker alone.
    alone = SimpleNamespace(__annotations__={first.name: first.annotation})
    try:
        return get_type_hints(alone, _globals(handler), {})[first.name]
    except NameError as error:
        raise InvalidArgument(
            f"{named(handler)} takes {first.annotation}, and {error.name} is not found where it is defined: "
            "define or import it at the top of the module, and not for type checking alone."
        ) from error


def _globals(handler: Any) -> dict[str, Any]:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not inspect.isroutine(handler):
        handler = type(handler).__call__
    found: dict[str, Any] = getattr(inspect.unwrap(handler), "__globals__", {})
    return found


def _with_the_field_first(text: str) -> str:
    """Turn msgspec's ``Expected `int`, got `str` - at `$.total` `` round."""
    found = _AT.match(text)
    assert found is not None
    return _sentence(found["where"] or "", f"{'a key: ' if found['key'] else ''}{found['what']}")


def _sentence(field: str, what: str) -> str:
    return f"{field}: {what}" if field else what
