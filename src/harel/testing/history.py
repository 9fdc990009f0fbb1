"""A record of what concurrent processes did to a queue, and a checker of promises 1 to 8 over it.

What is recorded, and how, is in ``history_record.py``. The checker accuses no correct history: an operation took
effect at some unknown moment between its two times, one without a second time at any moment after the first or
never, and whatever such moments could explain is taken as explained.

``check_group.py`` has what is known of one group, ``check_leases.py`` the promises that one group's leases and
messages show (1, 2, 3, 5), ``check_claims.py``
those that show only beside what other groups were in for (4, 6, 7, 8), by what ``check_turns.py`` and
``check_lives.py`` say of each group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from harel.testing.check_claims import turn_rules
from harel.testing.check_group import Finding, Group, Restarts, Terms, by_call
from harel.testing.check_leases import lease_rules, stranded
from harel.testing.history_record import (
    Kind,
    Notebook,
    Operation,
    RecordedCalls,
    Recorder,
    Recording,
    read,
)

__all__ = ["Kind", "Notebook", "Operation", "RecordedCalls", "Recorder", "Recording", "Violation", "check", "read"]


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that a history breaks, and the operations that show it."""

    promise: int
    """Its number in :mod:`harel.engine.queue.contract`."""
    group_id: str
    text: str
    operations: tuple[Operation, ...]
    began: float = 0.0
    """When the history began; what ``str`` counts seconds from."""
    more: int = 0
    """How many more violations of this promise there are, which are left out."""

    def __str__(self) -> str:
        shown = "".join(f"\n    {operation.line(self.began)}" for operation in self.operations)
        more = f"\n    ... and promise {self.promise} is broken {self.more:,} more times." if self.more else ""
        return f"Promise {self.promise} is broken in group {self.group_id!r}: {self.text}{shown}{more}"


def check(
    operations: Iterable[Operation],
    *,
    fair: bool = False,
    late_settle: bool = False,
    finds_all: bool | None = None,
    fresh_first: bool = True,
    slack_s: float = 0.001,
    overlook_s: float = 1.0,
    restarts: Iterable[tuple[float, float]] = (),
    most: int = 5,
) -> list[Violation]:
    """Check promises 1 to 8 over a whole history.

    Every publish, claim, settle, extend, purge, hold, release and redrive of the queue has to be in it. An event id
    names one message of a group; a history may publish one twice, and is then checked less closely for it.

    1, 2, 3, 5
        are always checked. That a message was lost is only known once nothing can be claimed any more, so that
        takes a ``"drained"``.
    4, 6, 8
        by a claim that found nothing, or fewer than it asked for, though during the whole of the call some group at
        or above its floor certainly had a message and certainly no live lease, park or hold, and no operation but
        publishes touched it. It is promise 6 if a lease that ran out is what made the group claimable, else promise
        8 if the claim had a floor, else promise 4. Needs ``finds_all``. What a ``"drained"`` says is left breaks
        promise 4 in any case, and a claim that got a group which cannot have the priority of its floor promise 8.
    6
        also by a settle or an extend that was denied though certainly nobody had claimed the group since, nor
        settled, purged or forgotten the lease. Needs ``late_settle``.
    7
        by a claim that took one group while another one, as certainly claimable as above, had certainly waited longer.
        Needs ``fair``.

    Where claims were lost, those that never returned, each may have leased any group at any later moment. That it did
    shows in the attempts of the group's next delivery, and a group is certainly without a lease up to its next claim
    if those are as many as without the lost claim. Without a next claim nothing is certain any more.

    Parameters
    ----------
    operations : iterable of Operation
        In any order.
    fair, late_settle : bool
        What ``capabilities`` says of the backend.
    finds_all : bool, optional
        Whether a claim that comes back with fewer than it asked for says that there was no more; as ``fair`` unless
        given.
    fresh_first : bool
        Whether groups that were never served go before those that were: the transport's option.
    slack_s : float
        By how much what the queue's clock says may differ from the clock of the history: how much sooner or later a
        lease may end than its visibility says, and how exactly two groups' waiting can be compared. As much as the
        backend's clock has steps, or its clients guess it wrongly.
    overlook_s : float
        For how long a group that became claimable may be passed over by claims that find others: PostgreSQL's walk
        hints, which end after 10 microseconds for each dead entry of the index. It does not excuse a claim that found
        nothing. 0.0 for a backend that looks at everything.
    restarts : iterable of (float, float)
        From when to when the server was down. It may have forgotten what is soft state in it: claims, extends and
        nacks that were called before the second moment of such a pair. So after the first moment such a
        group may be claimed again while its lease seems to live; the holder of the lease may be denied; a lease that
        a forgotten claim or nack had ended may be settled once more; and in which order groups had waited is not
        known. Whatever was called after the second moment counts in full, an extend of an older lease
        included. Nothing else is loosened: a publish, ack, reject, hold, release, purge or redrive that returned
        has happened.
    most : int
        How many violations of each promise are returned, the first in time; the last says how many there are more.

    Returns
    -------
    list of Violation
        Those of the lower promises first, each promise's in the order of time. Takes O(n log n).
    """
    history = sorted(operations, key=by_call)
    terms = Terms(
        fair=fair,
        late_settle=late_settle,
        finds_all=fair if finds_all is None else finds_all,
        fresh_first=fresh_first,
        slack_s=slack_s,
        overlook_s=overlook_s,
        restarts=Restarts(restarts),
        began=history[0].called if history else 0.0,
        lost_from=next((o.called for o in history if o.kind == "claim" and o.returned is None), math.inf),
    )
    return _told(_found(history, terms), terms, most)


def _found(history: Sequence[Operation], terms: Terms) -> Iterator[Finding]:
    groups = _by_group(history)
    drained = next((operation for operation in reversed(history) if operation.kind == "drained"), None)
    for group in groups.values():
        yield from lease_rules(group, terms, drained)
    if drained is not None:
        yield from stranded(drained, groups)
    yield from turn_rules(history, groups, terms)


def _by_group(history: Iterable[Operation]) -> dict[str, Group]:
    """Tell the operations by their groups; a redrive's is that of the message that was rejected."""
    groups: dict[str, Group] = {}
    rejects: dict[int | None, Operation] = {}
    for operation in history:
        if operation.kind == "reject" and operation.may_have_happened:
            rejects.setdefault(operation.seq, operation)
    for operation in history:
        known = operation
        if operation.kind == "redrive" and operation.seq in rejects:
            reject = rejects[operation.seq]
            known = msgspec.structs.replace(operation, group_id=reject.group_id, event_id=reject.event_id)
        if known.group_id:
            group = groups.get(known.group_id)
            if group is None:
                group = groups[known.group_id] = Group(known.group_id)
            group.add(known)
    return groups


def _told(found: Iterable[Finding], terms: Terms, most: int) -> list[Violation]:
    """Put findings in order, and leave out what is more of the same."""
    told: list[Violation] = []
    each = sorted(found, key=lambda finding: (finding[0], finding[3][-1].called))
    for promise, some in groupby(each, key=itemgetter(0)):
        all_of_it = list(some)
        more = max(0, len(all_of_it) - most)
        first = all_of_it[:most]
        for place, (_, group_id, text, shown) in enumerate(first, 1):
            told.append(
                Violation(
                    promise=promise,
                    group_id=group_id,
                    text=text,
                    operations=shown,
                    began=terms.began,
                    more=more if place == len(first) else 0,
                )
            )
    return told
