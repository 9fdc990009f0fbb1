"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from pathlib import Path

from benchmarks.folders import ROOT, Folders, filesystem_of, is_in_memory

__all__ = ["describe"]


def describe(folders: Folders, peers: dict[str, str]) -> list[tuple[str, str]]:
    """Return names and values, for a table."""
    file_system, device = filesystem_of(folders.data)
    note = " **(in memory: nothing here is durable)**" if is_in_memory(folders.data) else ""
    peer_versions = [(f"Peer {name}", versions) for name, versions in peers.items()]
    return [
        ("Processor", f"{_cpu()}, {os.cpu_count()} cores"),
        ("Memory", f"{_memory_bytes() / 2**30:.1f} GiB"),
        ("System", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("Load before", _load()),
        ("File system", f"{file_system} on {device}{note}"),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("SQLite", sqlite3.sqlite_version),
        ("harel", _revision()),
        *peer_versions,
    ]


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f} processes wanting to run, over the last minute"


def _revision() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    version = __import__("harel").__version__
    commit = git("rev-parse", "--short", "HEAD")
    if not commit:
        return str(version)
    return f"{version} at {commit}{' with changes' if git('status', '--porcelain', '--', 'src') else ''}"
