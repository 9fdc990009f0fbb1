"""The command: measure everything and write the page, or profile one workload."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.contenders import CONTENDERS, Environment
from benchmarks.machine import describe, is_in_memory
from benchmarks.memory import fill_memory, publish_files
from benchmarks.report import Run, page
from benchmarks.rounds import ROOT, Effort, Folders, Results, measure, python_of, worker
from benchmarks.syncs import count_syncs
from benchmarks.targets import judge
from benchmarks.workloads import WORKLOADS

FULL = Effort(
    sizes=(1_000, 10_000, 100_000),
    rounds=7,
    seconds={"memory": 0.25, "sqlite": 0.5},
    most={"memory": 20_000, "sqlite": 10_000},
    grown=1_000_000,
    lines=(50_000, 400_000),
)
QUICK = Effort(
    sizes=(1_000, 5_000),
    rounds=3,
    seconds={"memory": 0.02, "sqlite": 0.03},
    most={"memory": 2_000, "sqlite": 1_000},
    grown=100_000,
    lines=(2_000, 10_000),
)

PROFILED = 25
"""Functions that a profile shows."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: to see that it works")
    parser.add_argument("--dir", type=Path, help="where the measured files go; a folder on a real disk")
    parser.add_argument("--output", type=Path, help="the page; benchmarks/RESULTS.md, or with --quick none")
    parser.add_argument("--rounds", type=int, help="how many rounds, at least 5 for a page that is kept")
    commands = parser.add_subparsers(dest="command", metavar="profile")
    profile = commands.add_parser("profile", help="show where a workload of harel spends its time")
    profile.add_argument("backend", choices=list(FULL.seconds))
    profile.add_argument("workload", choices=[_short(name) for name in WORKLOADS], help="one, or in batches")
    profile.add_argument("--groups", type=int, default=10_000)
    profile.add_argument("--messages", type=int, default=5_000)
    options = parser.parse_args()
    with _folders(options.dir) as folders:
        if options.command == "profile":
            _profile(options, folders)
        else:
            _bench(options, folders)


def _bench(options: argparse.Namespace, folders: Folders) -> None:
    began = time.monotonic()
    date = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    effort = QUICK if options.quick else FULL
    if options.rounds:
        effort = Effort(**{**vars(effort), "rounds": options.rounds})
    if is_in_memory(folders.data):
        _say(f"{folders.data} lies in memory, where a sync costs nothing: give a --dir on a disk.")
    results = Results()
    peers = _make_environments(folders, results)
    machine = describe(folders, peers)
    for backend in effort.seconds:
        measure(backend, effort, folders, results, _say)
    _say("counting syncs")
    syncs = count_syncs(folders, results.missing)
    _say("filling queues in memory")
    filled = fill_memory(effort, folders, results)
    _say("publishing files")
    published = publish_files(effort, folders)
    run = Run(
        command=" ".join(["python -m benchmarks", *sys.argv[1:]]),
        quick=options.quick,
        date=date,
        seconds=time.monotonic() - began,
        effort=effort,
        machine=machine,
        results=results,
        syncs=syncs,
        filled=filled,
        published=published,
        verdicts=judge(results, filled, published),
    )
    _publish(page(run), options)


def _publish(text: str, options: argparse.Namespace) -> None:
    print(text)
    output = options.output or (None if options.quick else ROOT / "benchmarks" / "RESULTS.md")
    if output is not None:
        output.write_text(text, encoding="utf-8")
        _say(f"Written to {output}.")


def _make_environments(folders: Folders, results: Results) -> dict[str, str]:
    """Make the peers' environments; return what is installed in each."""
    installed: dict[str, str] = {}
    broken: dict[Environment, str] = {}
    for contender in CONTENDERS:
        environment = contender.environment
        if environment is None:
            continue
        if environment not in broken and environment.name not in installed:
            _say(f"making the environment of {environment.requirement}, unless it is there")
            try:
                python = python_of(environment, folders.cache)
                frozen = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True)
                installed[environment.name] = ", ".join(frozen.stdout.split())
            except (OSError, subprocess.SubprocessError) as error:
                broken[environment] = str(error)
                _say(f"{environment.requirement} could not be installed, and goes unmeasured: {error}")
        if environment in broken:
            results.missing[contender.key] = broken[environment]
    return installed


def _profile(options: argparse.Namespace, folders: Folders) -> None:
    (contender,) = (each for each in CONTENDERS if each.role == "ours" and each.backend == options.backend)
    (workload,) = (name for name in WORKLOADS if _short(name) == options.workload)
    count = options.messages // WORKLOADS[workload].size * WORKLOADS[workload].size
    deep = 2 + -(-count // options.groups)
    with worker(contender, folders.cache) as process:
        process.ask(
            "open",
            folder=folders.data / "profile",
            scratch=folders.scratch / "profile",
            groups=options.groups,
            messages=options.groups * deep,
        )
        process.ask("round", workload=workload, count=count)
        found = process.ask("profile", workload=workload, count=count)
    for figure, rows in found.items():
        print(f"\n{figure} {workload}, {count:,} messages, {options.groups:,} groups\n")
        print("   own  with callees    calls  function")
        for row in rows[:PROFILED]:
            where = f"{row['file']} {row['function']}".strip()
            print(f"{row['share']:6.1%}  {row['with_callees']:12.1%}  {row['calls']:7,}  {where}")


def _short(workload: str) -> str:
    return workload.split()[0]


@contextmanager
def _folders(wanted: Path | None) -> Iterator[Folders]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harel-bench"
    parent = wanted or cache
    for folder in (cache, parent):
        folder.mkdir(parents=True, exist_ok=True)
    memory = Path("/dev/shm")
    data = Path(tempfile.mkdtemp(prefix="data-", dir=parent))
    scratch = Path(tempfile.mkdtemp(prefix="harel-bench-", dir=memory if os.access(memory, os.W_OK) else data))
    try:
        yield Folders(cache, data, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(data, ignore_errors=True)


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
