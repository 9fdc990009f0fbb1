"""What the demo's workers handled: the record that they write, and the check of it.

The check goes by this record and by what was published, and by nothing that the queue says.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import msgspec

__all__ = ["Fault", "Follower", "Handling", "Scribe", "find_fault", "repeated"]


class Handling(msgspec.Struct, frozen=True, kw_only=True):
    """One time that a worker handled an event.

    Attributes
    ----------
    worker : str
    number : int
        Which of the worker's handlings it is.
    group_id, event_id : str
    attempt : int
        Of the lease.
    began, ended : float
        Seconds of the machine's monotonic clock; ``ended`` is ``None`` if it was cut off.
    """

    worker: str
    number: int
    group_id: str
    event_id: str
    attempt: int
    began: float
    ended: float | None = None


class Fault(msgspec.Struct, frozen=True):
    """The first group in which something is not as promised."""

    group_id: str
    text: str
    handlings: tuple[Handling, ...]
    """All of the group's, by when they began."""


class Scribe:
    """Writes a worker's handlings, each line at once: what is written survives a kill.

    Parameters
    ----------
    path : Path
    worker : str
    """

    def __init__(self, path: Path, worker: str) -> None:
        self._worker = worker
        self._count = 0
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def begin(self, group_id: str, event_id: str, attempt: int) -> Handling:
        """Record that a handling begins."""
        self._count += 1
        handling = Handling(
            worker=self._worker,
            number=self._count,
            group_id=group_id,
            event_id=event_id,
            attempt=attempt,
            began=time.monotonic(),
        )
        self._write(handling)
        return handling

    def end(self, handling: Handling) -> None:
        """Record that it ended."""
        self._write(msgspec.structs.replace(handling, ended=time.monotonic()))

    def _write(self, handling: Handling) -> None:
        # The newline comes last and a line without one is not read, so that a kill cannot leave half a line to misread.
        os.write(self._file, msgspec.json.encode(handling) + b"\n")


class Follower:
    """Reads the records while they are written.

    Parameters
    ----------
    paths : sequence of Path
        Files that scribes write, there or not yet.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._handlings: dict[tuple[str, int], Handling] = {}
        self._ended: set[str] = set()
        self._read_to = dict.fromkeys(paths, 0)
        self._decode = msgspec.json.Decoder(Handling).decode

    @property
    def handlings(self) -> list[Handling]:
        """All that was read so far."""
        return list(self._handlings.values())

    @property
    def handled(self) -> int:
        """How many events were handled to the end, each counted once."""
        return len(self._ended)

    def read_on(self) -> bool:
        """Read what is new; say whether anything was."""
        return sum(self._read_file(path) for path in self._read_to) > 0

    def _read_file(self, path: Path) -> bool:
        if not path.exists():
            return False
        with path.open("rb") as file:
            file.seek(self._read_to[path])
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_to[path] += len(whole)
        for line in whole.splitlines():
            handling = self._decode(line)
            self._handlings[handling.worker, handling.number] = handling
            if handling.ended is not None:
                self._ended.add(handling.event_id)
        return bool(whole)


def repeated(handlings: Iterable[Handling]) -> int:
    """Count the handlings of events that had been handled, or begun, before."""
    events = [handling.event_id for handling in handlings]
    return len(events) - len(set(events))


def find_fault(
    published: Mapping[str, Sequence[str]], handlings: Iterable[Handling], killed: Mapping[str, float]
) -> Fault | None:
    """Check that every group was handled in order, one at a time, and to its end.

    An event may be handled again, as long as the next one has not begun: its worker may have been killed.

    Parameters
    ----------
    published : mapping of str to sequence of str
        The event ids of each group, in the order in which they were published. An id occurs once.
    handlings : iterable of Handling
    killed : mapping of str to float
        The workers that were killed, and when, by the clock of the handlings.

    Returns
    -------
    Fault or None
        The first one, by the order of ``published``.
    """
    by_group: dict[str, list[Handling]] = defaultdict(list)
    for handling in sorted(handlings, key=attrgetter("began")):
        by_group[handling.group_id].append(handling)
    for group_id in dict.fromkeys((*published, *by_group)):
        found = by_group[group_id]
        text = _overlap(found, killed) or _disorder(published.get(group_id, ()), found)
        if text:
            return Fault(group_id, text, tuple(found))
    return None


def _overlap(handlings: Sequence[Handling], killed: Mapping[str, float]) -> str | None:
    latest: Handling | None = None
    until = -math.inf
    for handling in handlings:
        if latest is not None and handling.began < until:
            return f"{handling.event_id} began while {latest.event_id} was still being handled."
        ended = killed.get(handling.worker) if handling.ended is None else handling.ended
        if ended is None:
            return f"{handling.event_id} began and never ended, though its worker was not killed."
        latest, until = handling, ended
    return None


def _disorder(published: Sequence[str], handlings: Sequence[Handling]) -> str | None:
    place = {event_id: index for index, event_id in enumerate(published)}
    begun = 0
    is_complete = True
    for handling in handlings:
        index = place.get(handling.event_id)
        if index is None:
            return f"{handling.event_id} was handled, and never published to this group."
        if index > begun:
            return f"{handling.event_id} was handled before {published[begun]}."
        if index < begun - 1:
            return f"{handling.event_id} was handled again after {published[begun - 1]}."
        if index == begun:
            if not is_complete:
                return f"{handling.event_id} was handled though {published[begun - 1]} was cut off and is not done."
            begun, is_complete = begun + 1, False
        is_complete = is_complete or handling.ended is not None
    if begun < len(published):
        return f"{published[begun]} was never handled."
    if not is_complete:
        return f"{published[-1]} was cut off and never delivered again."
    return None
