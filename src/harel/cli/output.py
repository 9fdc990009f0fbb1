"""What commands print: tables and relative times for people, JSON for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from harel.engine.queue.contract import DeadLetter, StoredMessage
from harel.errors import InvalidMessage

if TYPE_CHECKING:  # rich takes as long to import as everything else together
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

__all__ = ["event_fields", "moment", "note", "print_json", "progress", "say", "shown", "summary", "table"]

_WIDTH_OF_A_PIPE = 10_000
_LONGEST_SUMMARY = 100


def say(sentence: str) -> None:
    """Print a line on standard output."""
    sys.stdout.write(f"{sentence}\n")


def note(sentence: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def print_json(document: Any) -> None:
    """Print one JSON document on a line of its own."""
    say(msgspec.json.encode(document).decode())


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Print a table.

    Parameters
    ----------
    columns : sequence of str
        Their headings.
    rows : iterable of sequence
        What their cells show; ``None`` is an empty one.
    right : sequence of str
        The columns that are aligned to the right.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text("" if cell is None else shown(str(cell))) for cell in row))
    console = _console()
    with console.capture() as printed:  # written by us, because rich ends the process when a pipe is closed
        console.print(made)
    sys.stdout.write(printed.get())


def progress(*columns: str | ProgressColumn) -> Progress:
    """Make a progress bar on standard error, which shows only on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def moment(at: float | None) -> str:
    """Say when something was or will be, epoch seconds, as seen from now: ``12 s ago``, ``in 29 s``."""
    if at is None:
        return ""
    away = at - time.time()
    seconds = abs(away)
    if seconds < 1:
        return "now"
    amount = next(
        f"{seconds / size:.0f} {unit}"
        for unit, size, below in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800), ("d", 86_400, float("inf")))
        if seconds < below
    )
    return f"in {amount}" if away > 0 else f"{amount} ago"


def shown(text: str) -> str:
    """Return a text with what a terminal would obey, and not print, escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def summary(stored: StoredMessage | DeadLetter) -> tuple[str, str]:
    """Return an event's kind and the beginning of its payload."""
    try:
        event = stored.event
    except InvalidMessage:
        return "(not an event)", _cut(stored.raw)
    return event.kind, _cut(msgspec.json.encode(event.payload).decode())


def event_fields(stored: StoredMessage | DeadLetter) -> dict[str, Any]:
    """Return the fields ``event`` and ``raw``: the second is ``None`` unless the first cannot be decoded."""
    try:
        return {"event": stored.event, "raw": None}
    except InvalidMessage:
        return {"event": None, "raw": stored.raw}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SUMMARY else f"{text[:_LONGEST_SUMMARY]}…"


def _console() -> Console:
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_PIPE  # nothing folded or cut for the next program
    return console
