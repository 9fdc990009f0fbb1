"""How much memory the queue and the command take."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import CONTENDERS, KIND
from benchmarks.folders import ROOT, Folders
from benchmarks.processes import worker
from benchmarks.results import Results
from benchmarks.rounds import Effort

__all__ = ["Filled", "Published", "fill_memory", "publish_files"]


@dataclass(frozen=True)
class Filled:
    """By how many bytes a process grew that was filled."""

    contender: str
    role: str
    groups: int
    messages: int
    bytes: int


@dataclass(frozen=True)
class Published:
    """The most memory that ``harel publish --file`` had, by the number of lines; or why it could not run."""

    peaks: dict[int, int]
    pending: str = ""


def fill_memory(effort: Effort, folders: Folders, results: Results) -> list[Filled]:
    """Fill the queues in memory, each in a new process: few groups, and every message a group."""
    filled = []
    for groups in (1_000, effort.grown):
        for contender in CONTENDERS:
            if contender.backend != "memory" or contender.key in results.missing:
                continue
            with worker(contender, folders.cache) as process:
                process.ask("open", place="")
                grown = process.ask("grow", groups=groups, messages=effort.grown)["bytes"]
            filled.append(Filled(contender.name, contender.role, groups, effort.grown, grown))
    return filled


def publish_files(effort: Effort, folders: Folders) -> Published:
    """Publish a small and a large file with the command, and watch its memory."""
    command = Path(sys.executable).parent / "harel"
    helps = subprocess.run([command, "publish", "--help"], capture_output=True, text=True, check=False, cwd=ROOT)
    if helps.returncode or "--file" not in helps.stdout:
        return Published({}, "the command has no `publish --file` yet")
    peaks = {}
    for lines in effort.lines:
        file = folders.data / f"{lines}.jsonl.gz"
        _write_lines(file, lines)
        url = f"sqlite:///{folders.data / f'published-{lines}.db'}"
        peaks[lines] = _peak_of([str(command), "publish", "--file", str(file), "--transport", url])
    return Published(peaks)


def _write_lines(file: Path, lines: int) -> None:
    with gzip.open(file, "wt", compresslevel=1, encoding="utf-8") as out:
        for number in range(lines):
            message = {"group_id": f"order-{number % 1_000:07}", "kind": KIND, "payload": {"order": number}}
            out.write(json.dumps(message) + "\n")


def _peak_of(command: list[str]) -> int:
    """Run a command; return the most memory it had resident, in bytes.

    Read from the process itself while it runs: what the system adds up for its parent begins with what the parent had.
    """
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, stdin=subprocess.DEVNULL) as process,
    ):
        status = Path(f"/proc/{process.pid}/status")
        peak = 0
        while process.poll() is None:
            peak = max(peak, _high_water(status))
            time.sleep(0.005)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed: {said.read()}")
    return peak


def _high_water(status: Path) -> int:
    try:
        text = status.read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM")), 0)
