"""Where things lie, and on what kind of disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Folders", "filesystem_of", "is_in_memory"]

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Folders:
    cache: Path
    """Keeps the peers' environments."""
    data: Path
    """On the disk that is measured."""
    scratch: Path
    """In memory, if there is such a folder."""


def filesystem_of(folder: Path) -> tuple[str, str]:
    """Return the type of a folder's file system and its device."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown", "unknown"
    path = folder.resolve()
    entries = [line.split()[:3] for line in mounts.read_text().splitlines()]
    over = [(point, kind, device) for device, point, kind in entries if path.is_relative_to(point)]
    # Of mounts on the same place the last one is seen.
    _, kind, device = max(enumerate(over), key=lambda entry: (len(entry[1][0]), entry[0]))[1]
    return kind, device


def is_in_memory(folder: Path) -> bool:
    return filesystem_of(folder)[0] in ("tmpfs", "ramfs")
