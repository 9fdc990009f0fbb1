"""The processes of a history: who is alive, who takes the place of whom."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from torture.member import Part, Role

__all__ = ["Cast"]

_ROOT = Path(__file__).resolve().parent.parent
_EXPECTED = {0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM}
"""harel's worker ends with the last one when it is told a second time."""
_LEAVING_S = 60.0


class Cast:
    """Starts processes, replaces the dead, and collects what they said when they died of something else.

    Parameters
    ----------
    parts : iterable of Part
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self._lives: dict[str, int] = {}
        self._playing: dict[str, tuple[Part, subprocess.Popen[bytes]]] = {}
        self.started = 0
        self.surprises: list[str] = []
        """Of each process that ended as none should: its name, and what it said."""
        for part in parts:
            self._start(part)

    def choose(self, chance: random.Random, role: Role | None = None) -> str:
        """Choose one of the processes, by its part's name."""
        return chance.choice([name for name, (part, _) in self._playing.items() if role in (None, part.role)])

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send it a signal, if it is alive."""
        process = self._playing[name][1]
        if process.poll() is None:
            process.send_signal(number)
            if number == signal.SIGKILL:
                process.wait()

    def replace_the_dead(self) -> None:
        """Start another process in the place of each that ended."""
        for name, (part, process) in list(self._playing.items()):
            if process.poll() is not None:
                self._bury(name)
                self._start(part)

    def wait(self, *roles: Role, timeout_s: float) -> None:
        """Wait until those with these roles have ended by themselves."""
        deadline = time.monotonic() + timeout_s
        for name, (part, process) in list(self._playing.items()):
            if part.role in roles:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
                if process.poll() is None:
                    self.surprises.append(f"{name} did not come to its end in {timeout_s:g} seconds.")
                    process.kill()
                self._bury(name)

    def stop(self) -> None:
        """Tell those that are left to end, and wait."""
        for name in list(self._playing):
            self.signal(name, signal.SIGTERM)
        self.wait("publish", "work", "runtime", "operate", timeout_s=_LEAVING_S)

    def _start(self, part: Part) -> None:
        life = self._lives[part.name] = self._lives.get(part.name, 0) + 1
        named = msgspec.structs.replace(part, name=f"{part.name}-{life}")
        said = Path(part.folder) / f"{named.name}.said"
        with said.open("wb") as output:
            arguments = [sys.executable, "-m", "torture.member", msgspec.json.encode(named).decode()]
            process = subprocess.Popen(arguments, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._playing[part.name] = part, process
        self.started += 1

    def _bury(self, name: str) -> None:
        part, process = self._playing.pop(name)
        code = process.wait()
        said = (Path(part.folder) / f"{name}-{self._lives[name]}.said").read_text(errors="replace")
        if code not in _EXPECTED:
            self.surprises.append(f"{name} ended with {code} and said:\n{said[-3_000:]}")
