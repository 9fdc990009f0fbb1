"""What a part of the torture is given, and what it gives back."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

__all__ = ["SHARED", "Options", "Report", "table"]

SHARED = ("sqlite", "libsql", "redis", "postgres", "mongo", "rqlite", "sqs")
"""Every backend that processes can share; the last three on stand-ins of ours unless a real server is named."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a part is to be run.

    Attributes
    ----------
    backends : tuple of str
        Names of :data:`SHARED`.
    seed : int
        What all that is left to chance comes from: the same seed makes the same choices.
    size : str
        ``"short"`` takes seconds a backend, ``"full"`` minutes.
    folder : Path
        An empty one, for what the part writes; it is kept if something fails.
    """

    backends: tuple[str, ...]
    seed: int
    size: Literal["short", "full"]
    folder: Path


class Report(msgspec.Struct, kw_only=True):
    """What a part found.

    Attributes
    ----------
    title : str
        One line.
    text : str
        What was tried and counted: Markdown, without headings.
    failures : list of str
        Each broken promise or surprise, so that a person can follow it and repeat it; empty if all held.
    """

    title: str
    text: str
    failures: list[str]


def table(heads: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """Make a Markdown table."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(_in_a_cell(str(cell)) for cell in line) + " |" for line in lines)


def _in_a_cell(text: str) -> str:
    """Escape what ends a cell, and what makes a page no text."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text).replace("|", "\\|")
