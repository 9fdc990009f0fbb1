"""The middle of ``harel demo``: watch the workers drain the queue, and kill one that holds a lease."""

from __future__ import annotations

import time
from collections.abc import Callable

from harel.cli.demo_crew import Crew
from harel.cli.demo_record import Follower
from harel.cli.failure import Failure

__all__ = ["drain"]

_LOOK_S = 0.02
_GRACE_S = 3.0
"""How long an empty queue and a record that lacks events may disagree before the check has the word."""


def drain(
    count: Callable[[], int] | None,
    crew: Crew,
    follower: Follower,
    total: int,
    *,
    kill: bool,
    visibility_s: float,
    patience_s: float,
    advance: Callable[[int], None],
) -> None:
    """Return when the queue is empty.

    Parameters
    ----------
    count : callable or None
        Returns how many messages there are; ``None`` if the queue cannot say. Then all have to be handled, and nothing
        to come again for as long as a lease may last.
    crew : Crew
    follower : Follower
        Of the records that the crew writes.
    total : int
        How many events there are.
    kill : bool
        Whether to kill the first worker that stops itself; the others go on.
    visibility_s : float
        Seconds that a lease lasts.
    patience_s : float
        Seconds without progress before giving up.
    advance : callable
        Told how many events were handled.

    Raises
    ------
    Failure
        When a worker ended by itself, or nothing moved for too long.
    """
    grace_s = _GRACE_S if count else _GRACE_S + visibility_s
    moved_at = time.monotonic()
    before = None
    while True:
        has_news = follower.read_on()
        left = count() if count else total - follower.handled
        if has_news or left != before:
            moved_at, before = time.monotonic(), left
        advance(follower.handled)
        quiet_s = time.monotonic() - moved_at
        if left == 0 and ((count and follower.handled >= total) or quiet_s > grace_s):
            break
        crew.check()
        if kill:
            kill = not _killed_one(crew)
        _resume_all(crew)
        if quiet_s > patience_s:
            raise Failure(f"Nothing moved for {patience_s:g} s, and {left:,} messages are left; the demo gave up.")
        time.sleep(_LOOK_S)


def _killed_one(crew: Crew) -> bool:
    """Kill a worker that has stopped itself in the middle of a message, if there is one."""
    for member in crew.members:
        if member.has_stopped():
            member.kill()
            return True
    return False


def _resume_all(crew: Crew) -> None:
    for member in crew.members:
        if member.has_stopped():
            member.resume()
