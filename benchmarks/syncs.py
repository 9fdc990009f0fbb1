"""How often each contender really waits for the disk, seen from outside."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.contenders import CONTENDERS, FILE, Contender
from benchmarks.rounds import Folders, worker
from benchmarks.worker import LEAST_PUBLISHED
from benchmarks.workloads import WORKLOADS

__all__ = ["Syncs", "count_syncs"]

_COUNTED = "fsync,fdatasync,sync_file_range,msync"
_GROUPS = 100


@dataclass(frozen=True)
class Syncs:
    """Waits for the disk, a message; ``None`` where they could not be counted."""

    publish: float | None
    claim_ack: float | None
    journal_mode: str


def count_syncs(folders: Folders, missing: dict[str, str]) -> dict[str, Syncs]:
    """Run every contender that is on a disk under strace, one by one, and count its syncs."""
    found = {}
    for contender in CONTENDERS:
        if contender.on_disk and contender.key not in missing:
            found[contender.key] = _count(contender, folders)
    return found


def _count(contender: Contender, folders: Folders) -> Syncs:
    folder = folders.data / f"{contender.key}-syncs"
    trace = folders.data / f"{contender.key}.strace"
    strace = shutil.which("strace")
    before = [strace, "-f", "-qq", "-e", f"trace={_COUNTED},getppid", "-o", str(trace)] if strace else []
    with worker(contender, folders.cache, before if _may_trace(strace) else []) as process:
        process.ask(
            "open", folder=folder, scratch=f"{folder}-first", groups=_GROUPS, messages=_GROUPS * LEAST_PUBLISHED // 50
        )
        process.ask("round", workload=next(iter(WORKLOADS)), count=LEAST_PUBLISHED)
        process.ask("close")
    mode = sqlite3.connect(folder / FILE).execute("PRAGMA journal_mode").fetchone()[0]
    if not trace.exists():
        return Syncs(None, None, mode)
    taking, giving = _between_the_marks(trace.read_text())
    return Syncs(publish=giving / LEAST_PUBLISHED, claim_ack=taking / LEAST_PUBLISHED, journal_mode=mode)


def _may_trace(strace: str | None) -> bool:
    return strace is not None and subprocess.run([strace, "-qq", "-o", os.devnull, "true"], check=False).returncode == 0


def _between_the_marks(trace: str) -> Sequence[int]:
    """Count the calls between the first and second mark, and between the third and fourth."""
    counts = [0]
    for call in re.findall(r"^\d+ +(\w+)\(", trace, flags=re.MULTILINE):
        if call == "getppid":
            counts.append(0)
        else:
            counts[-1] += 1
    _, taking, _, giving, _ = counts
    return taking, giving
