"""The database files that this process has open: through which copy of SQLite, and whose turn it is to write.

POSIX locks belong to a process, not to a connection: closing any descriptor of a file drops all of its locks. One copy
of SQLite keeps account of that, but ``sqlite3`` and ``libsql`` bring a copy each, and neither knows of the other. So
a file that is open through one is refused to the other.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from harel.errors import ConfigError, HarelError, InvalidArgument, TransportUnavailable

__all__ = ["Abandoned", "Asker", "Place", "Turn", "opened"]

T = TypeVar("T")

_LOOK_S = 0.05
"""How often who waits for its turn looks whether it has waited too long, or is gone; its turn wakes it at once."""


class Abandoned(HarelError):
    """Whoever asked for this transaction is gone, and it was rolled back."""


class Asker:
    """Who asks for something: a thread or a task.

    Parameters
    ----------
    who : object
        The thread's number or the task.
    gone : threading.Event, optional
        Set when nobody waits for the answer any more.
    """

    __slots__ = ("_gone", "since", "who")

    def __init__(self, who: object, gone: threading.Event | None = None) -> None:
        self.who = who
        self.since = time.monotonic()
        self._gone = gone

    def must_be_there(self) -> None:
        """Raise :exc:`Abandoned` if nobody waits for the answer."""
        if self._gone is not None and self._gone.is_set():
            raise Abandoned("The task was cancelled; nothing was changed.")


class Turn:
    """The right to write to a file, handed on in the order in which it was asked for.

    An operation has it for as long as it runs. A caller's transaction may have it for longer, and only that is waited
    for with a limit.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._line: deque[threading.Event] = deque()
        self._taken = False
        self._owner: object = None
        self._owned_since = 0.0

    def must_not_belong_to(self, who: object) -> None:
        """Raise if this thread or task has a transaction open itself: it would wait for its own end."""
        if self._owner is not None and self._owner == who:
            raise InvalidArgument(
                "This thread or task is inside transaction() on this file, which has the write lock. Publish and "
                "settle through bind(connection) there; claim, and whatever else writes, outside of the block."
            )

    def take(self, asker: Asker, *, limit_s: float, name: str, owns: bool = False) -> None:
        """Wait for the turn.

        Parameters
        ----------
        asker : Asker
        limit_s : float
            For how many seconds to wait for a caller's transaction.
        name : str
            The file's, for messages.
        owns : bool
            Whether this is a caller's transaction.
        """
        self.must_not_belong_to(asker.who)
        mine = None
        with self._guard:
            if self._taken:
                mine = threading.Event()
                self._line.append(mine)
            self._taken = True
        if mine is not None:
            try:
                self._await(mine, asker, limit_s, name)
            except BaseException:
                self._leave(mine)
                raise
        if owns:
            self._owned_since = time.monotonic()
            self._owner = asker.who

    def pass_on(self) -> None:
        """Give the turn to who has waited longest."""
        with self._guard:
            self._owner = None
            if self._line:
                self._line.popleft().set()
            else:
                self._taken = False

    def _await(self, mine: threading.Event, asker: Asker, limit_s: float, name: str) -> None:
        while True:
            asker.must_be_there()
            owned = self._owner is not None
            if owned and time.monotonic() - max(asker.since, self._owned_since) >= limit_s:
                raise TransportUnavailable(
                    f"A transaction() of this process kept {name} locked for {limit_s:g} s. Do less inside it, or "
                    "raise busy_timeout; and what writes must not be awaited inside it, except through bind()."
                )
            if mine.wait(_LOOK_S):
                return

    def _leave(self, mine: threading.Event) -> None:
        with self._guard:
            if mine in self._line:
                self._line.remove(mine)
                return
        self.pass_on()


class Place:
    """One file that is open.

    Parameters
    ----------
    key : tuple of int
        Device and inode; ``None`` for a database that is no file.
    engine : str
        Through which driver.
    """

    def __init__(self, key: tuple[int, int] | None, engine: str) -> None:
        self.key = key
        self.engine = engine
        self.turn = Turn()
        self.connections = 0

    def left(self) -> None:
        """Say that a connection was closed."""
        with _open.guard:
            self.connections -= 1
            if self.connections == 0 and self.key is not None and _open.places.get(self.key) is self:
                del _open.places[self.key]

    def is_at(self, path: str) -> bool:
        """Say whether this is the file with this path."""
        return self.key is not None and self.key == _key(path)


class _Open:
    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.places: dict[tuple[int, int], Place] = {}


_open = _Open()


def _forget() -> None:
    """Begin anew in a forked child: it neither uses nor closes its parent's connections."""
    _open.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget)


def opened(path: str, engine: str, connect: Callable[[], T]) -> tuple[Place, T]:
    """Open a connection, unless the file is open through another copy of SQLite.

    Parameters
    ----------
    path : str
        The file's; empty for a database that is no file.
    engine : str
    connect : callable
        Makes the connection, and the file if it is not there.

    Raises
    ------
    ConfigError
        When the file is open through the other driver; before it is touched.
    """
    if not path:
        return Place(None, engine), connect()
    with _open.guard:
        key = _key(path)
        place = _open.places.get(key) if key is not None else None
        if place is not None and place.engine != engine:
            raise ConfigError(
                f"{path} is open in this process through {place.engine} already, so it cannot be opened through "
                f"{engine}: each brings its own copy of SQLite, and in one process neither sees the other's locks. "
                "Use one of them here, or the other in a process of its own."
            )
        connection = connect()
        key = _key(path)
        if place is None or place.key != key:
            place = Place(key, engine)
            if key is not None:
                place = _open.places.setdefault(key, place)
        place.connections += 1
    return place, connection


def _key(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
