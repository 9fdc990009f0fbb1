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
from benchmarks.folders import Folders
from benchmarks.processes import worker
from benchmarks.rounds import set_up
from benchmarks.servers import Postgres
from benchmarks.worker import LEAST_PUBLISHED
from benchmarks.workloads import ONE

__all__ = ["Syncs", "count_syncs"]

_COUNTED = "fsync,fdatasync,sync_file_range,msync"
_LOG = "write-ahead log"
_GROUPS = 100
_MESSAGES = _GROUPS + 2 * LEAST_PUBLISHED


@dataclass(frozen=True)
class Syncs:
    """Waits for the disk, a message; ``None`` where they could not be counted."""

    publish: float | None
    claim_ack: float | None
    log: str
    """How changes are kept until they are where they belong."""
    each_s: float | None = None
    """What one takes, if the server measures it."""


def count_syncs(folders: Folders, missing: dict[str, str], server: Postgres | None = None) -> dict[str, Syncs]:
    """Run every contender that has to wait for the disk, one by one, and count its syncs.

    Those of a file are seen with strace; PostgreSQL counts its own.
    """
    backend = "sqlite" if server is None else "postgres"
    return {
        contender.key: _in_file(contender, folders) if server is None else _on_server(contender, folders, server)
        for contender in CONTENDERS
        if contender.backend == backend and contender.key not in missing
    }


def _in_file(contender: Contender, folders: Folders) -> Syncs:
    name = f"{contender.key}-syncs"
    trace = folders.data / f"{contender.key}.strace"
    strace = shutil.which("strace")
    before = [strace, "-f", "-qq", "-e", f"trace={_COUNTED},getppid", "-o", str(trace)] if strace else []
    with worker(contender, folders.cache, before if _may_trace(strace) else []) as process:
        place = set_up(process, contender, folders, None, name=name, groups=_GROUPS, messages=_MESSAGES)
        process.ask("round", workload=ONE, count=LEAST_PUBLISHED)
        process.ask("close")
    mode = sqlite3.connect(f"{place}/{FILE}").execute("PRAGMA journal_mode").fetchone()[0]
    if not trace.exists():
        return Syncs(None, None, mode)
    taking, giving = _between_the_marks(trace.read_text())
    return Syncs(publish=giving / LEAST_PUBLISHED, claim_ack=taking / LEAST_PUBLISHED, log=mode)


def _on_server(contender: Contender, folders: Folders, server: Postgres) -> Syncs:
    """Look at the server's count after each half: it is complete when who was served has gone."""
    with worker(contender, folders.cache) as process:
        place = set_up(process, contender, folders, server, name="", groups=_GROUPS, messages=_MESSAGES)
        process.ask("close")
    seen = [server.client_syncs()]
    for do, more in (("give", {"groups": _GROUPS}), ("take", {})):
        with worker(contender, folders.cache) as process:
            process.ask("open", place=place)
            process.ask(do, workload=ONE, count=LEAST_PUBLISHED, **more)
            process.ask("close")
        server.wait_until_alone(place)
        seen.append(server.client_syncs())
    before, given, taken = seen
    if before is None or given is None or taken is None:
        return Syncs(None, None, _LOG)
    publish, claim_ack = given[0] - before[0], taken[0] - given[0]
    each_s = (taken[1] - before[1]) / max(1, publish + claim_ack)
    return Syncs(publish / LEAST_PUBLISHED, claim_ack / LEAST_PUBLISHED, _LOG, each_s)


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
