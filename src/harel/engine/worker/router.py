"""A handler made of handlers, one for each kind of event."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from harel.engine.worker.payloads import DoesNotFit, Read, named, reader
from harel.engine.worker.policy import Reject
from harel.errors import InvalidArgument, shown
from harel.events import Event

__all__ = ["Router"]

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


class _Route(NamedTuple):
    handler: Callable[..., Any]
    read: Read
    takes_context: bool


class Router:
    """Calls the handler of an event's kind. It is a handler itself: give it to a worker.

    The handlers are all sync, for :class:`~harel.Worker`, or all async, for :class:`~harel.AsyncWorker`. Each takes
    ``(payload)`` or ``(payload, context)``, and the annotation of its first parameter says what it gets: a
    ``msgspec.Struct``, a dataclass, a ``TypedDict`` or a pydantic model is made of the payload; ``dict`` or nothing is
    the payload as it is; :class:`~harel.Event` is the event. A payload that does not fit, and a kind that nobody
    handles, is rejected to the dead letters, with a reason that says what is the matter.
    """

    def __init__(self) -> None:
        self._routes: dict[str, _Route] = {}
        self._default: _Route | None = None
        self._is_async: bool | None = None

    @property
    def is_async(self) -> bool:
        """Whether its handlers are for :class:`~harel.AsyncWorker`."""
        return bool(self._is_async)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that have a handler of their own, in the order in which they were given."""
        return tuple(self._routes)

    def on(self, *kinds: str) -> Callable[[HandlerT], HandlerT]:
        """Make a function the handler of these kinds; a decorator.

        Raises
        ------
        InvalidArgument
            When a kind has a handler already, or the function cannot be one.
        """
        if not kinds or not all(isinstance(kind, str) and kind for kind in kinds):
            raise InvalidArgument(
                'Say which kinds a handler is for: @router.on("placed"); @router.default is the rest.'
            )

        def register(handler: HandlerT) -> HandlerT:
            for kind in kinds:
                if kind in self._routes:
                    raise InvalidArgument(
                        f"{kind!r} has the handler {named(self._routes[kind].handler)} already; a kind has one."
                    )
            self._routes |= dict.fromkeys(kinds, self._route(handler))
            return handler

        return register

    def default(self, handler: HandlerT) -> HandlerT:
        """Make a function the handler of every other kind; a decorator.

        Raises
        ------
        InvalidArgument
            When there is one already, or the function cannot be one.
        """
        if self._default is not None:
            raise InvalidArgument(f"{named(self._default.handler)} is the default handler already; there is one.")
        self._default = self._route(handler)
        return handler

    def __call__(self, event: Event, context: Any = None) -> Any:
        """Handle an event; of async handlers this returns what is to be awaited.

        Raises
        ------
        Reject
            When nobody handles the kind, or the payload does not fit.
        """
        route = self._routes.get(event.kind, self._default)
        if route is None:
            raise Reject(f"Nobody handles the kind {shown(event.kind)}; this router knows {self._known()}.")
        try:
            first = route.read(event)
        except DoesNotFit as error:
            raise Reject(
                f"The payload of {shown(event.kind)} is not what {named(route.handler)} takes: {error}"
            ) from error
        return route.handler(first, context) if route.takes_context else route.handler(first)

    def _route(self, handler: Callable[..., Any]) -> _Route:
        takes_context = _takes_context(handler)
        route = _Route(handler, reader(handler), takes_context)
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
        if self._is_async not in (None, is_async):
            raise InvalidArgument(
                f"{named(handler)} is {_manner(is_async)}, and the router's other handlers are "
                f"{_manner(not is_async)}; a router's are all one or the other."
            )
        self._is_async = is_async
        return route

    def _known(self) -> str:
        return ", ".join(map(repr, self._routes)) or "none"


def _manner(is_async: bool) -> str:
    return "async" if is_async else "sync"


def _takes_context(handler: Callable[..., Any]) -> bool:
    """Say whether a handler takes ``(payload, context)`` and not ``(payload)`` alone."""
    if not callable(handler):
        raise InvalidArgument(f"A handler is a function, not {shown(handler)}.")
    signature = inspect.signature(handler)
    for count in (2, 1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count == 2
    raise InvalidArgument(f"A handler takes (payload) or (payload, context); {named(handler)} takes {signature}.")
