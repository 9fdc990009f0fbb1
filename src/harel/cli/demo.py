"""``harel demo``: real events, real processes, one of them killed; and a check of what came of it."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from harel.cli.failure import NO, Failure
from harel.cli.options import Json
from harel.cli.output import note, print_json, say

__all__ = ["demo"]


def demo(
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport",
            metavar="URL",
            help="An empty queue to use. Unless given, a SQLite file in a temporary folder.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="How many worker processes.")] = 4,
    no_kill: Annotated[bool, typer.Option("--no-kill", help="Do not kill a worker half way.")] = False,
    flights: Annotated[int | None, typer.Option(min=1, hidden=True)] = None,
    as_json: Json = False,
) -> None:
    """Publish a week of flights, a group per aircraft; drain them with several processes; kill one; check the order.

    The check goes by what the workers wrote down, not by what the queue says of itself.
    """
    from harel.cli.demo_run import Demo, take_flights

    if workers == 1 and not no_kill:
        raise Failure("With one worker nobody is left to recover what it held: add --no-kill, or more workers.")
    with _sigterm_as_exit(), tempfile.TemporaryDirectory(prefix="harel-demo-") as folder:
        url = transport or f"sqlite:///{folder}/queue.db"
        report = Demo(url, Path(folder), workers=workers, kill=not no_kill).run(take_flights(flights))
    if report.faults:
        for fault in report.faults:
            note(fault)
        raise Failure("The demo found what harel promises not to do; it is described above.", NO)
    if as_json:
        print_json(report.figures)
    else:
        say(report.line())


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Let SIGTERM end the demo in order, so that no process and no file is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
