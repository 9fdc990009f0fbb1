"""One number a group: when it may next be claimed, in epoch seconds of the server's clock.

A claim takes the smallest number that is not in the future. What a group has gone through lies in
the number alone, so that one index orders everything:

========================== ==================================================================
first publish              ``now - FRESH``: before every served group, by arrival among the fresh
claim, extend              ``now + visibility``
ack with messages left     ``now``: the back of the line
nack                       ``now + delay``
hold                       ``HELD`` is added: out of every claim's reach, and what the number was
                           (the end of a lease that is still running) is not forgotten
release                    ``HELD`` is taken off again if a lease is running, else ``now``
========================== ==================================================================
"""

from __future__ import annotations

from typing import Literal

__all__ = ["FRESH", "HELD", "HELD_FROM", "LONGEST_S", "SHORTEST_S", "GroupState", "state_of", "waiting_since"]

FRESH = 2.0**33
"""Seconds that a group which was never served is put before now."""

HELD = 2.0**34
"""Seconds that a hold adds to a group's number."""

HELD_FROM = 2.0**33
"""From here on a number says that its group is held: even ``now - FRESH + HELD`` lies above, and no lease
or park reaches it."""

LONGEST_S = 10 * 366 * 86_400.0
"""The longest visibility or delay, ten years: far from :data:`HELD_FROM` at any date to come."""

SHORTEST_S = 0.001
"""The shortest visibility: below it ``now + visibility`` may be no later than now."""

GroupState = Literal["ready", "leased", "parked", "held"]


def state_of(number: float, has_token: bool, now: float) -> GroupState:
    """Say what state a group is in.

    Parameters
    ----------
    number : float
        When the group may next be claimed, epoch seconds.
    has_token : bool
        Whether a lease was taken and neither settled nor taken over.
    now : float
        Epoch seconds, of the same clock.
    """
    if number >= HELD_FROM:
        return "held"
    if number <= now:
        return "ready"
    return "leased" if has_token else "parked"


def waiting_since(number: float) -> float:
    """Say since when a claimable group waits, epoch seconds, be it fresh or served."""
    return number + FRESH if number < 0 else number
