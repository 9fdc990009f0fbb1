"""Harm to a queue in a file: there is no connection to cut, so a statement fails, or its process dies at it.

A statement fails in this process, as on a disk that cannot be read for a moment: before it ran, or when it had. A
process dies by SIGKILL: a child of its own carries the operation out, and kills itself before or behind its n-th
statement, which may be inside a transaction. Children are forked by a server that has imported all and opened nothing:
``python -m torture.crash_files``.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harel import connect
from harel.config import connect_async
from harel.errors import TransportUnavailable
from harel.testing import Blocking, ManualClock
from tests.backends import URLS, with_options
from torture.crash_bench import Outcome, judged, new_groups
from torture.crash_scenes import SCENES, Scene

__all__ = ["File", "StatementHarm"]


def _io_error(backend: str) -> Exception:
    """Return what the driver raises when the disk cannot be read."""
    if backend == "libsql":
        return ValueError("disk I/O error")
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


@dataclass(frozen=True, slots=True)
class StatementHarm:
    """What happens at an operation's n-th statement.

    Attributes
    ----------
    what : str
        ``"error"``: the driver raises; ``"death"``: the process is killed.
    number : int
    how : str
        ``"before"`` the statement runs, or ``"after"``.
    """

    what: Literal["error", "death"]
    number: int
    how: Literal["before", "after"]


class _Hook:
    """Counts a file's statements, and does something at one of them."""

    def __init__(self, file: Any, number: int, how: str, strike: Callable[[], None]) -> None:
        self.count = 0
        self._at = {"before": number, "after": -1}[how], {"before": -1, "after": number}[how]
        self._strike = strike
        self._file = file
        for name in ("_execute", "_execute_many"):
            setattr(file, name, self._counting(getattr(file, name)))

    def lift(self) -> None:
        del self._file._execute, self._file._execute_many

    def _counting(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self.count += 1
            count = self.count
            if count == self._at[0]:
                self._strike()
            rows = execute(*args)
            if count == self._at[1]:
                self._strike()
            return rows

        return counted


class File:
    """A queue in a file, with a transport that is harmed and one that looks.

    Parameters
    ----------
    backend : str
        ``"sqlite"`` or ``"libsql"``.
    flavour : str
    folder : Path
    seed : int
        Nothing here is left to chance.
    """

    def __init__(self, backend: str, flavour: str, folder: Path, seed: int) -> None:
        self.name = f"{backend}-{flavour}"
        self.clock = ManualClock()
        self._backend = backend
        self._flavour = flavour
        self._numbers = itertools.count(1)
        self.url = with_options(URLS[backend](folder), synchronous="NORMAL", busy_timeout="20")
        self._runner = asyncio.Runner() if flavour == "async" else None
        self.observer: Any = connect(self.url, clock=self.clock)
        self.harmed: Any = _opened(self.url, self.clock, self._runner)
        self._children: _Children | None = None

    def points(self, scene: Scene) -> tuple[str, list[StatementHarm]]:
        counts = []
        for count in (self._count_here, self._count_in_a_child):
            groups = self.groups()
            arranged = scene.arrange(self.harmed, groups)
            outcome, statements = count(scene, groups, arranged)
            counts.append(statements)
            complaints, _ = judged(self, scene, groups, outcome, arranged)
            assert not complaints, f"{self.name}, {scene.name}, undisturbed: {complaints[0]}"
        here, there = counts
        harms = [
            *(StatementHarm("error", number, how) for number in range(1, here + 1) for how in ("before", "after")),
            *(StatementHarm("death", number, how) for number in range(1, there + 1) for how in ("before", "after")),
        ]
        return f"{here} (in a new process {there})", harms

    def groups(self) -> tuple[str, str]:
        """Return two names that no group has had."""
        return new_groups(self._numbers)

    def strike(self, scene: Scene, point: StatementHarm, groups: Sequence[str], arranged: Any) -> Outcome:
        if point.what == "death":
            code = self._child(scene, groups, arranged, point.number, point.how)
            return Outcome(failure=_died(), reached=code == -signal.SIGKILL)
        hook = _Hook(_file_of(self.harmed), point.number, point.how, self._fail)
        try:
            outcome = Outcome(scene.act(self.harmed, groups, arranged))
        except Exception as error:
            outcome = Outcome(failure=error)
        finally:
            hook.lift()
        outcome.reached = hook.count >= point.number
        return outcome

    def left_behind(self) -> list[str]:
        return []  # a transaction that is left open keeps the observer from the file, which it says itself

    def close(self) -> list[str]:
        """Close both transports."""
        self.harmed.close()
        self.observer.close()
        if self._children is not None:
            self._children.close()
        if self._runner is not None:
            self._runner.close()
        return []

    def _fail(self) -> None:
        raise _io_error(self._backend)

    def _count_here(self, scene: Scene, groups: Sequence[str], arranged: Any) -> tuple[Outcome, int]:
        hook = _Hook(_file_of(self.harmed), 0, "before", self._fail)
        outcome = Outcome(scene.act(self.harmed, groups, arranged))
        hook.lift()
        return outcome, hook.count

    def _count_in_a_child(self, scene: Scene, groups: Sequence[str], arranged: Any) -> tuple[Outcome, int]:
        return Outcome(failure=_died()), self._child(scene, groups, arranged, 0, "before")

    def _child(self, scene: Scene, groups: Sequence[str], arranged: Any, number: int, how: str) -> int:
        if self._children is None:
            self._children = _Children()
        return self._children.perform(
            _Order(self.url, self._flavour, self.clock, scene.name, groups, arranged, number, how)
        )


def _opened(url: str, clock: ManualClock, runner: asyncio.Runner | None) -> Any:
    if runner is None:
        return connect(url, clock=clock)
    return Blocking(runner.run(connect_async(url, clock=clock)), runner)


def _file_of(queue: Any) -> Any:
    return (queue.inner if isinstance(queue, Blocking) else queue)._file


def _died() -> TransportUnavailable:
    return TransportUnavailable("The process died.")


@dataclass(frozen=True)
class _Order:
    """What a child is to do."""

    url: str
    flavour: str
    clock: ManualClock
    scene: str
    groups: Sequence[str]
    arranged: Any
    number: int
    how: str

    def perform(self) -> int:
        """Carry the operation out, and return how many statements it took, unless it dies."""
        (scene,) = (scene for scene in SCENES if scene.name == self.scene)
        queue = _opened(self.url, self.clock, asyncio.Runner() if self.flavour == "async" else None)
        hook = _Hook(_file_of(queue), self.number, self.how, lambda: os.kill(os.getpid(), signal.SIGKILL))
        scene.act(queue, self.groups, self.arranged)
        return hook.count


class _Children:
    """The server that forks children, and what asks it to."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torture.crash_files"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def perform(self, order: _Order) -> int:
        """Have a child do it, and return how it ended: its number of statements, or less than 0 for a signal."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(base64.b64encode(pickle.dumps(order)) + b"\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        assert code != _FAILED, f"a child could not {order.scene}; what it said is on stderr"
        return code

    def close(self) -> None:
        self._process.communicate()


_FAILED = 255


def main() -> None:
    """Fork a child for each order that is read."""
    from torture.crash_files import _Order as Order  # noqa: F401 - pickle knows it by this name

    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            code = _FAILED
            try:
                code = pickle.loads(base64.b64decode(line)).perform()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
