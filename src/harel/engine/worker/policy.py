"""What a worker decides, without I/O: what becomes of a message, and which claim asks for a floor."""

from __future__ import annotations

import math
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from harel.errors import ConfigError, InvalidArgument, shown

__all__ = ["Again", "Dead", "Done", "Held", "OnExhausted", "Reject", "RetryLater", "RetryPolicy", "Share", "Verdict"]

OnExhausted = Literal["dead_letter", "hold"]

_MOST_TRACE_CHARS = 20_000
"""Of a longer traceback the end is kept: that is where the error is."""


class RetryLater(Exception):
    """Raised by a handler: not now, but ``after`` seconds from now. Its group is parked meanwhile, so order holds.

    It is no failure and is not logged as one. The attempt counts all the same, since the queue counts claims; see
    ``max_claims`` of :class:`RetryPolicy`.

    Parameters
    ----------
    after : float
        Seconds.
    """

    def __init__(self, after: float) -> None:
        number = isinstance(after, int | float) and not isinstance(after, bool)
        if not number or not 0 <= after < math.inf:
            raise InvalidArgument(f"after must be a number of seconds that is not negative, not {shown(after)}.")
        self.after: float = after
        super().__init__(f"Try again in {after:g} s.")


class Reject(Exception):
    """Raised by a handler: this message will never do. It goes to the dead letters at once, and its group goes on.

    Parameters
    ----------
    reason : str
        What the dead letter says.
    """

    def __init__(self, reason: str) -> None:
        self.reason: str = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Done:
    """It was handled."""


@dataclass(frozen=True, slots=True)
class Again:
    """Try again, ``delay`` seconds from now; its group is parked meanwhile."""

    delay: float


@dataclass(frozen=True, slots=True)
class Dead:
    """To the dead letters; its group goes on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """Its group is held, with this message in front, until somebody releases it."""

    reason: str


Verdict: TypeAlias = Done | Again | Dead | Held

DONE = Done()


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and when a message that failed is tried again, and what becomes of it in the end.

    An attempt counts when the message is claimed, so a message that kills its worker is given up too.

    Attributes
    ----------
    max_attempts : int
        The failure of this attempt, or of a later one, is final.
    backoff : float
        Seconds before the second attempt; each further one waits twice as long.
    max_backoff : float
        The longest wait, in seconds.
    jitter : float
        0 to 1: the part of the wait that is random, so that groups which failed together do not come back together.
    on_exhausted : str
        ``"dead_letter"``: the message is rejected to the dead letters, and its group goes on. ``"hold"``: the group is
        held with the message in front, for a person to release; then it has ``max_attempts`` more.
    retry_on : tuple of exception classes
        Any other error is final at once.
    give_up_on : tuple of exception classes
        These errors are final at once.
    max_claims : int, optional
        Claimed more often than this, a message is not handled any more but given up; ``max_attempts`` unless given.
        Give more where handlers raise :exc:`RetryLater` more often than a message may fail. It is of no use with
        ``"hold"``.
    """

    max_attempts: int = 5
    backoff: float = 1.0
    max_backoff: float = 300.0
    jitter: float = 0.5
    on_exhausted: OnExhausted = "dead_letter"
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()
    max_claims: int | None = None

    def __post_init__(self) -> None:
        _check_count("max_attempts", self.max_attempts, 1)
        _check_number("max_backoff", self.max_backoff, 0.0, math.inf)
        _check_number("backoff", self.backoff, 0.0, self.max_backoff)
        _check_number("jitter", self.jitter, 0.0, 1.0)
        if self.on_exhausted not in get_args(OnExhausted):
            raise InvalidArgument(f'on_exhausted must be "dead_letter" or "hold", not {shown(self.on_exhausted)}.')
        for name in ("retry_on", "give_up_on"):
            _check_classes(name, getattr(self, name))
        if self.max_claims is not None:
            _check_count("max_claims", self.max_claims, self.max_attempts)
            if self.on_exhausted == "hold":
                raise ConfigError('max_claims is of no use with on_exhausted="hold": leave it out.')

    @property
    def holds(self) -> bool:
        """Whether an exhausted message holds its group."""
        return self.on_exhausted == "hold"

    def is_last(self, attempt: int) -> bool:
        """Say whether no other attempt follows this one by itself.

        With ``"hold"`` attempts are counted in rounds of ``max_attempts``: one that follows the last of a round was
        let through by a release.
        """
        return attempt % self.max_attempts == 0 if self.holds else attempt >= self.max_attempts

    def before(self, attempt: int) -> Verdict | None:
        """Decide before a message is handled; ``None`` is to handle it."""
        limit = self.max_claims or self.max_attempts
        if self.holds or attempt <= limit:
            return None
        return Dead(
            f"Claimed {_times(attempt - 1)} and never settled (the limit is {limit}): its worker died or was stopped, "
            "its leases ran out, or it was put off, each time."
        )

    def after(
        self, attempt: int, error: BaseException, random_number: Callable[[], float] = random.random
    ) -> Again | Dead | Held:
        """Decide after a handler raised.

        Parameters
        ----------
        attempt : int
        error : BaseException
            What it raised.
        random_number : callable
            Returns a float from 0 to 1.
        """
        if isinstance(error, RetryLater):
            return Again(error.after)
        if isinstance(error, Reject):
            return Dead(str(error.reason))
        if isinstance(error, self.give_up_on) or not self._retries(error):
            return self._given_up(f"Given up at attempt {attempt}, for this error is not retried", error)
        if self.is_last(attempt):
            return self._given_up(f"Failed {_times(attempt)}; the last error was", error)
        return Again(self._delay(attempt, random_number()))

    def _retries(self, error: BaseException) -> bool:
        # One that is no Exception comes from what the handler awaited, such as a task that was cancelled.
        return isinstance(error, self.retry_on) or not isinstance(error, Exception)

    def _delay(self, attempt: int, part: float) -> float:
        doublings = (attempt - 1) % self.max_attempts if self.holds else attempt - 1
        delay = min(self.max_backoff, self.backoff * 2.0 ** min(doublings, 64))
        return delay * (1 - self.jitter * part)

    def _given_up(self, what: str, error: BaseException) -> Dead | Held:
        trace = "".join(traceback.format_exception(error))
        reason = f"{what} {_described(error)}\n\n{trace[-_MOST_TRACE_CHARS:]}"
        return Held(reason) if self.holds else Dead(reason)


class Share:
    """Says of each claim whether it asks for the floor first, so that a given share of them does.

    Each claim adds the ratio to what is due, and one that makes it a whole asks: no chance, no clusters.

    Parameters
    ----------
    ratio : float
        0 to 1.
    """

    def __init__(self, ratio: float) -> None:
        _check_number("high_ratio", ratio, 0.0, 1.0)
        self._ratio = ratio
        self._due = 0.0

    def asks_for_floor(self) -> bool:
        """Count one claim."""
        self._due += self._ratio
        if self._due < 1.0 - 1e-9:
            return False
        self._due -= 1.0
        return True


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a __str__ of the caller's
        return f"{type(error).__name__}, whose text cannot be shown"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _check_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidArgument(f"{name} must be an int of at least {least}, not {shown(value)}.")


def _check_number(name: str, value: float, least: float, most: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most or value == math.inf:
        limits = f"from {least:g} to {most:g}" if most < math.inf else f"of at least {least:g}, and finite"
        raise InvalidArgument(f"{name} must be {limits}, not {shown(value)}.")


def _check_classes(name: str, classes: object) -> None:
    if not isinstance(classes, tuple) or not all(
        isinstance(each, type) and issubclass(each, BaseException) for each in classes
    ):
        raise InvalidArgument(f"{name} must be a tuple of exception classes, not {shown(classes)}.")
