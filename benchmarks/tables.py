"""What both halves of the page are made with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.results import Spread

__all__ = ["label", "shares", "table", "with_ends"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table, its columns aligned."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    rule = " | ".join("-" * max(3, width) for width in widths)
    return "\n".join(f"| {line} |" for line in (lines[0], rule, *lines[1:]))


def label(contender: Contender) -> str:
    """Name a contender, and say what it is measured for."""
    return {"limit": f"{contender.name} (the limit)", "peer": f"{contender.name} (peer)"}.get(
        contender.role, contender.name
    )


def shares(rows: Sequence[dict[str, Any]]) -> str:
    """Say which files have the most time of their own; what C does counts as the function that it is."""
    found: Counter[str] = Counter()
    for row in rows:
        found[row["file"] or row["function"].strip("<>")] += row["share"]
    return ", ".join(f"{share:.0%} in `{place}`" for place, share in found.most_common(5))


def with_ends(spread: Spread | None, scale: float = 1.0) -> str:
    """Write the middle, and the least and the most."""
    if spread is None:
        return "-"
    middle, least, most = (each * scale for each in (spread.middle, spread.least, spread.most))
    return f"{_number(middle)} ({_number(least)} to {_number(most)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
