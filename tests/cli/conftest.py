"""The command, run in this process or in one of its own, on a queue in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harel import Transport
from harel.cli.app import run
from harel.engine.transport import SqliteTransport

COMMAND = (sys.executable, "-m", "harel.cli")


@dataclass(frozen=True)
class Outcome:
    """What a run of the command left."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> list[Any]:
        """The documents that it printed, one a line."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    @property
    def json_errors(self) -> list[Any]:
        """The documents that it printed on standard error, one a line."""
        return [msgspec.json.decode(line) for line in self.err.splitlines()]

    def failed(self, status: int = 2) -> str:
        """Return the one sentence that it ended with, having printed nothing else on standard error."""
        assert self.status == status, self
        (line,) = self.err.splitlines()
        assert line.startswith("harel: ")
        return line.removeprefix("harel: ")

    def succeeded(self) -> str:
        """Return what it printed, having had nothing to complain of."""
        assert (self.status, self.err) == (0, ""), self
        return self.out


Harel = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave no STM_* variable of the developer's, and be in an empty folder."""
    for name in [name for name in os.environ if name.startswith("STM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def harel(capsys: pytest.CaptureFixture[str]) -> Harel:
    """Run the command in this process, on the queue ``harel.db`` of the current folder."""

    def run_here(*arguments: str) -> Outcome:
        capsys.readouterr()
        status = run(arguments)
        return Outcome(status, *capsys.readouterr())

    return run_here


@pytest.fixture
def process() -> Harel:
    """Run the command in a process of its own, to its end."""

    def run_there(*arguments: str, stdin: bytes = b"") -> Outcome:
        ended = subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, timeout=60, check=False)
        return Outcome(ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    return run_there


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Transport]:
    """The same queue, for the test itself."""
    with SqliteTransport(tmp_path / "harel.db", synchronous="OFF") as transport:
        yield transport
