"""The workers' processes, and the environments that they run in."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender, Environment
from benchmarks.folders import ROOT

__all__ = ["NotInstalled", "Process", "command_of", "installed_in", "python_of", "worker"]

PROGRAMS = ROOT / "benchmarks" / "peers"
"""Where the programs are that run on Node."""


class NotInstalled(subprocess.SubprocessError):
    """What of an environment could not be installed, and what the tool said last."""


class Process:
    """A worker's process."""

    def __init__(self, contender: Contender, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
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
    with Process(contender, [*before, *command_of(contender, cache, module)]) as process:
        yield process


def command_of(contender: Contender, cache: Path, module: str) -> list[str]:
    """Return what starts a contender's process: the module in its Python, or its program on Node.

    Raises
    ------
    NotInstalled
        If its environment is not there and cannot be made.
    """
    environment = contender.environment
    if not contender.program:
        return [python_of(environment, cache), "-m", module, contender.key]
    assert environment is not None
    folder = _made(environment, cache)
    # A program finds packages beside itself and in the folders above, so a copy of it goes where they are.
    copy = folder / "programs"
    for each in PROGRAMS.glob("*.mjs"):
        _copy(each, copy / each.name)
    return [str(_node_of(environment, cache)), str(copy / contender.program), contender.key]


def python_of(environment: Environment | None, cache: Path) -> str:
    """Return the Python of an environment, which is made if it is not there yet, or was made for something else.

    Raises
    ------
    NotInstalled
    """
    if environment is None:
        return sys.executable
    return str(_made(environment, cache) / "bin" / "python")


def installed_in(environment: Environment, cache: Path) -> str:
    """Return all that is installed in an environment, which is made if need be, with the versions.

    Raises
    ------
    NotInstalled
    """
    folder = _made(environment, cache)
    if environment.packages:
        manifests = [json.loads(path.read_text()) for path in _manifests(folder / "node_modules")]
        versions = {f"{each['name']}@{each['version']}" for each in manifests if "version" in each}
        assert environment.node is not None
        return ", ".join((*environment.node.wanted, *sorted(versions)))
    frozen = subprocess.run(
        [str(folder / "bin" / "python"), "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    )
    return ", ".join(frozen.stdout.split())


def _made(environment: Environment, cache: Path) -> Path:
    """Return the folder of an environment, which is made if it is not there, or was made for something else."""
    kind = "node" if environment.packages else f"py{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / f"{environment.name}-{kind}"
    finished = folder / "finished"
    wanted = " ".join(environment.wanted)
    if not finished.exists() or finished.read_text() != wanted:
        make: Callable[[Environment, Path, Path], None] = _make_node if environment.packages else _make_python
        make(environment, folder, cache)
        finished.write_text(wanted)
    return folder


def _make_python(environment: Environment, folder: Path, _: Path) -> None:
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    _install(environment, [*pip, "install", "-qq", *environment.requirements], folder)


def _make_node(environment: Environment, folder: Path, cache: Path) -> None:
    """Install Node packages, running no script of theirs and leaving no file that says where they came from."""
    node = _node_of(environment, cache)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "programs").mkdir(parents=True)
    pins = dict(package.rsplit("@", 1) for package in environment.packages)
    manifest = {"name": environment.name, "private": True, "dependencies": pins}
    (folder / "package.json").write_text(json.dumps(manifest, indent=2))
    how = ("--no-package-lock", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error")
    _install(environment, [str(node.with_name("npm")), "install", *how], folder, node.parent)


def _node_of(environment: Environment, cache: Path) -> Path:
    assert environment.node is not None
    return _made(environment.node, cache) / "bin" / "node"


def _install(environment: Environment, command: Sequence[str], folder: Path, first: Path | None = None) -> None:
    path = os.environ.get("PATH", "")
    variables = {**os.environ, "PATH": f"{first}{os.pathsep}{path}" if first else path}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in said if "error" in line.lower()] or said or [f"it ended with {done.returncode}"]
        # Where things are fetched from is the machine's own affair.
        last = re.sub(r"\S+://\S+", "(an address)", errors[0])
        raise NotInstalled(f"{Path(command[0]).name} could not install {' '.join(environment.wanted)}: {last}")


def _manifests(modules: Path) -> Iterator[Path]:
    """Yield what describes each package that lies in a folder of them, or in a package's own."""
    for pattern in ("*", "@*/*"):
        for package in sorted(modules.glob(pattern)):
            if (package / "package.json").exists():
                yield package / "package.json"
                yield from _manifests(package / "node_modules")


def _copy(source: Path, to: Path) -> None:
    """Copy a file unless it is there as it is; two processes may do it at the same time."""
    text = source.read_text()
    if not to.exists() or to.read_text() != text:
        part = to.with_suffix(f".{os.getpid()}")
        part.write_text(text)
        part.replace(to)
