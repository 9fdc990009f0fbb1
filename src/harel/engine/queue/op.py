"""What an operation is: a generator that yields requests, receives replies and returns its result.

The generator does no I/O. A driver sends what it yields: :func:`run` blocks, :func:`arun` awaits. So an
operation is written once for both twins, and a test can step through it, reply as it likes, or stop
anywhere as a crash would.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

__all__ = ["Op", "Sleep", "arun", "rests", "run"]

T = TypeVar("T")

Op: TypeAlias = Generator[Any, Any, T]
"""An operation with a result of type ``T``. What it yields is its backend's own vocabulary."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """A request to every driver: pause, or less where something wakes it.

    The reply is the number of seconds that went by.
    """

    seconds: float
    seen: int = 0
    """What the queue had seen when it was last looked at; a wake-up since then ends the pause at once."""


def rests(poll_interval_s: float, first_s: float | None = None) -> Iterator[float]:
    """Yield the seconds between the looks of a wait that nothing wakes: few at first, and then ever twice as many.

    What comes soon is found soon, and who waits long looks once every interval.

    Parameters
    ----------
    poll_interval_s : float
    first_s : float or None
        The first rest; ``None`` is an eighth of the interval.
    """
    rest = poll_interval_s / 8 if first_s is None else min(first_s, poll_interval_s)
    while True:
        yield rest
        rest = min(2 * rest, poll_interval_s)


def run(op: Op[T], send: Callable[[Any], Any]) -> T:
    """Run an operation, sending each request with a blocking ``send``."""
    try:
        request = next(op)
        while True:
            try:
                reply = send(request)
            except BaseException as error:
                request = op.throw(error)
            else:
                request = op.send(reply)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def arun(op: Op[T], send: Callable[[Any], Awaitable[Any]]) -> T:
    """Run an operation, sending each request with an awaiting ``send``."""
    try:
        request = next(op)
        while True:
            try:
                reply = await send(request)
            except BaseException as error:
                request = op.throw(error)
            else:
                request = op.send(reply)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
