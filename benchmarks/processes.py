"""The workers' processes, and the Pythons that they run on."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender, Environment
from benchmarks.folders import ROOT

__all__ = ["Process", "python_of", "worker"]


class Process:
    """A worker's process."""

    def __init__(
        self, contender: Contender, python: str, before: Sequence[str] = (), module: str = "benchmarks.worker"
    ) -> None:
        self._process = subprocess.Popen(
            [*before, python, "-m", module, contender.key],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._name = f"{contender.name} ({contender.backend})"
        self._told = ""

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have a command carried out, and wait for the answer."""
        self.tell(do, **arguments)
        return self.answer()

    def tell(self, do: str, **arguments: Any) -> None:
        """Have a command carried out, and go on meanwhile."""
        assert self._process.stdin is not None
        self._told = do
        print(json.dumps({"do": do, **arguments}, default=str), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to what was told."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"The worker of {self._name} ended while it was to {self._told}.")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._name} could not {self._told}:\n{answer['error']}")
        return answer

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def worker(
    contender: Contender, cache: Path, before: Sequence[str] = (), module: str = "benchmarks.worker"
) -> Iterator[Process]:
    """Start a contender's process in its environment."""
    with Process(contender, python_of(contender.environment, cache), before, module) as process:
        yield process


def python_of(environment: Environment | None, cache: Path) -> str:
    """Return the Python of an environment, which is made if it is not there yet, or was made for something else."""
    if environment is None:
        return sys.executable
    folder = cache / f"{environment.name}-py{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    finished = folder / "finished"
    wanted = " ".join(environment.requirements)
    if not finished.exists() or finished.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "-qq", *environment.requirements], check=True)
        finished.write_text(wanted)
    return str(python)
