"""The worker processes of ``harel demo``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from harel.cli.demo_worker import Settings
from harel.cli.failure import Failure

__all__ = ["WORKER", "Crew", "Member"]

WORKER = (sys.executable, "-P", "-m", "harel.cli.demo_worker")
_LAST_WORDS_BYTES = 4_096
_TIME_TO_STOP_S = 15.0


class Member:
    """One worker process.

    Parameters
    ----------
    number : int
        From 1.
    settings : Settings
    command : sequence of str
    errors : Path
        The file for its standard error.
    """

    def __init__(self, number: int, settings: Settings, command: Sequence[str], errors: Path) -> None:
        self.number = number
        self.worker_id = settings.worker_id
        self.killed_at: float | None = None
        self._errors = errors
        with errors.open("wb") as stderr:
            # In a session of its own, so that Ctrl-C reaches the parent alone, which then ends it.
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
            )
        with contextlib.suppress(BrokenPipeError):  # it is gone already; check() tells
            self._input.write(msgspec.json.encode(settings) + b"\n")
            self._input.flush()

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def check(self) -> None:
        """Raise :exc:`Failure` if it ended by itself."""
        status = self._process.poll()
        if status is not None and self.killed_at is None:
            raise Failure(f"Worker {self.number} ended by itself, with status {status}{self._last_words()}")

    def has_stopped(self) -> bool:
        """Whether it has stopped itself since this was last asked."""
        if self._process.returncode is not None:
            return False
        pid, status = os.waitpid(self._process.pid, os.WNOHANG | os.WUNTRACED)
        if pid and not os.WIFSTOPPED(status):
            raise Failure(f"Worker {self.number} ended by itself{self._last_words()}")
        return bool(pid)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.killed_at = time.monotonic()
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Order it to finish what it holds and end."""
        if self.killed_at is None:
            self.check()
            self._input.close()

    def wait(self) -> None:
        """Wait for its end after :meth:`stop`."""
        try:
            status = self._process.wait(_TIME_TO_STOP_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"Worker {self.number} did not end within {_TIME_TO_STOP_S:g} s of being told to.") from None
        if status and self.killed_at is None:
            raise Failure(f"Worker {self.number} failed at its end, with status {status}{self._last_words()}")

    def clear_away(self) -> None:
        """Leave no process behind, whatever happened."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._input.close()

    def _last_words(self) -> str:
        words = self._errors.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace").strip().splitlines()
        return f"; it said: {words[-1]}" if words else "."


class Crew:
    """All of them; none is left when the context ends."""

    def __init__(self) -> None:
        self.members: list[Member] = []

    def check(self) -> None:
        """Raise :exc:`Failure` if one ended by itself."""
        for member in self.members:
            member.check()

    def dismiss(self) -> None:
        """Have all finish what they hold and end."""
        for member in self.members:
            member.stop()
        for member in self.members:
            member.wait()

    def killed(self) -> list[Member]:
        """Return those that were killed."""
        return [member for member in self.members if member.killed_at is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.clear_away()
