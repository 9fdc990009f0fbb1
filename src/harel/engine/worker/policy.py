"""What a worker decides, without I/O: what becomes of a message, and which claim asks for a floor."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from harel.errors import InvalidArgument

__all__ = ["Ack", "Nack", "Reject", "Retry", "Share", "Verdict"]


@dataclass(frozen=True, slots=True)
class Ack:
    """It was handled."""


@dataclass(frozen=True, slots=True)
class Nack:
    """Try again, ``delay`` seconds from now; its group is parked meanwhile."""

    delay: float


@dataclass(frozen=True, slots=True)
class Reject:
    """To the dead letters; its group goes on."""

    reason: str


Verdict: TypeAlias = Ack | Nack | Reject


class Retry:
    """How often and when a message that failed is tried again.

    The delay doubles with each attempt up to a limit, and is spread at random so that groups which
    failed together do not come back together.

    Parameters
    ----------
    max_attempts : int
        After this many a message is rejected. A claim counts as one, whatever became of its worker.
    backoff : float
        Seconds before the second attempt.
    max_backoff : float
        The longest delay, in seconds.
    jitter : float
        0 to 1: the part of the delay that is random.
    random_number : callable
        Returns a float from 0 to 1.
    """

    def __init__(
        self,
        max_attempts: int,
        backoff: float,
        max_backoff: float,
        jitter: float,
        random_number: Callable[[], float] = random.random,
    ) -> None:
        if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or max_attempts < 1:
            raise InvalidArgument(f"max_attempts must be an int of at least 1, not {max_attempts!r}.")
        if not 0 <= backoff <= max_backoff:
            raise InvalidArgument(f"backoff must be from 0 to max_backoff ({max_backoff!r}) seconds, not {backoff!r}.")
        if not 0 <= jitter <= 1:
            raise InvalidArgument(f"jitter must be from 0 to 1, not {jitter!r}.")
        self.max_attempts = max_attempts
        self._backoff = backoff
        self._max_backoff = max_backoff
        self._jitter = jitter
        self._random_number = random_number

    def before(self, attempt: int) -> Verdict | None:
        """Decide before a message is handled; ``None`` is to handle it.

        Only a message whose workers died comes here again after its last attempt.
        """
        if attempt <= self.max_attempts:
            return None
        return Reject(
            f"Claimed {attempt - 1} times and never settled (the limit is {self.max_attempts}): "
            "its worker died, or its leases ran out, each time."
        )

    def after(self, attempt: int, error: Exception) -> Verdict:
        """Decide after a handler failed."""
        if attempt >= self.max_attempts:
            return Reject(f"Failed {attempt} times; the last error was {type(error).__name__}: {error}")
        delay = min(self._max_backoff, self._backoff * 2.0 ** min(attempt - 1, 64))
        return Nack(delay * (1 - self._jitter * self._random_number()))


class Share:
    """Says of each claim whether it asks for the floor first, so that a given share of them does.

    Parameters
    ----------
    ratio : float
        0 to 1.
    """

    def __init__(self, ratio: float) -> None:
        if not 0 <= ratio <= 1:
            raise InvalidArgument(f"high_ratio must be from 0 to 1, not {ratio!r}.")
        self._ratio = ratio
        self._due = 0.0

    def asks_for_floor(self) -> bool:
        """Count one claim."""
        self._due += self._ratio
        if self._due < 1.0 - 1e-9:
            return False
        self._due -= 1.0
        return True
