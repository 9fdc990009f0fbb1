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
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, Environment
from benchmarks.folders import ROOT, Folders, is_in_memory
from benchmarks.machine import describe
from benchmarks.memory import fill_memory, publish_files
from benchmarks.processes import python_of, worker
from benchmarks.report import Run, page
from benchmarks.results import Results
from benchmarks.rounds import Effort, Scene, Snapshot, depth, measure, set_up
from benchmarks.servers import SERVERS, Unavailable
from benchmarks.snapshot import Beside, claim_beside_snapshot
from benchmarks.syncs import Syncs, count_syncs
from benchmarks.targets import Measured, judge
from benchmarks.workloads import CLAIMS, LARGE_BATCHES, ONE, SMALL_BATCHES, WITH_FLOOR, WORKLOADS

RATES = "messages a second"
CROWD = "claims a second where groups are many"

BACKENDS = ("memory", "sqlite", "postgres", "redis")


def _file_scene(sizes: tuple[int, ...], seconds: float, most: int) -> tuple[Scene, ...]:
    return (Scene(RATES, sizes, (ONE, SMALL_BATCHES), seconds, most),)


def _server_scenes(sizes: tuple[int, ...], crowd: int, seconds: float, most: int, claims: int) -> tuple[Scene, ...]:
    return (
        Scene(RATES, sizes, (ONE, LARGE_BATCHES), seconds, most),
        Scene(CROWD, (1_000, crowd), (CLAIMS, WITH_FLOOR), seconds, claims, ours_only=True, urgent=True),
    )


FULL = Effort(
    rounds=7,
    scenes={
        "memory": _file_scene((1_000, 10_000, 100_000), 0.25, 20_000),
        "sqlite": _file_scene((1_000, 10_000, 100_000), 0.5, 10_000),
        "postgres": _server_scenes((1_000, 10_000), 1_000_000, 0.5, 5_000, 1_000),
        "redis": _server_scenes((1_000, 10_000), 1_000_000, 0.25, 10_000, 2_000),
    },
    grown=1_000_000,
    lines=(50_000, 400_000),
    snapshot=Snapshot(claims=40_000),
)
QUICK = Effort(
    rounds=3,
    scenes={
        "memory": _file_scene((1_000, 5_000), 0.02, 2_000),
        "sqlite": _file_scene((1_000, 5_000), 0.03, 1_000),
        "postgres": _server_scenes((1_000,), 5_000, 0.05, 500, 100),
        "redis": _server_scenes((1_000,), 5_000, 0.05, 500, 100),
    },
    grown=100_000,
    lines=(2_000, 10_000),
    snapshot=Snapshot(claims=2_000),
)

PROFILED = 25
"""Functions that a profile shows."""


def main() -> None:
    if sys.argv[1:2] == ["profile"]:
        options = _profile_options(sys.argv[2:])
        with _folders(options.dir) as folders:
            _profile(options, folders)
        return
    options = _bench_options()
    with _folders(options.dir) as folders:
        _bench(options, folders)


def _bench_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure harel beside its peers, and write the page.",
        epilog="python -m benchmarks profile --help: show where a workload of harel spends its time.",
    )
    parser.add_argument("backends", nargs="*", metavar="backend", help=f"which, of {', '.join(BACKENDS)}; all of them")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: to see that it works")
    _add_dir(parser)
    parser.add_argument("--output", type=Path, help="the page; benchmarks/RESULTS.md, or with --quick none")
    parser.add_argument("--rounds", type=int, help="how many rounds, at least 5 for a page that is kept")
    parser.add_argument(
        "--crowd", type=int, metavar="GROUPS", help="how many groups make a crowd on a server; a million"
    )
    parser.add_argument(
        "--snapshot-minutes", type=float, metavar="N", help="for how long claims go on beside an old snapshot"
    )
    options = parser.parse_args()
    if options.snapshot_minutes is not None and options.snapshot_minutes < 2:
        parser.error("--snapshot-minutes holds the last minute against the first: give it two at least")
    for backend in options.backends:
        if backend not in BACKENDS:
            parser.error(f"{backend} is none of {', '.join(BACKENDS)}")
    options.backends = [backend for backend in BACKENDS if backend in options.backends or not options.backends]
    return options


def _profile_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks profile")
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("workload", choices=["one", "batches"], help="one by one, or in batches")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=5_000)
    _add_dir(parser)
    return parser.parse_args(arguments)


def _add_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, help="where the measured files go; a folder on a real disk")


def _effort(options: argparse.Namespace) -> Effort:
    effort = QUICK if options.quick else FULL
    if options.rounds:
        effort = replace(effort, rounds=options.rounds)
    if options.snapshot_minutes:
        effort = replace(effort, snapshot=Snapshot(0, options.snapshot_minutes))
    if options.crowd:
        scenes = {
            backend: tuple(
                replace(scene, sizes=(*scene.sizes[:-1], options.crowd)) if scene.title == CROWD else scene
                for scene in scenes
            )
            for backend, scenes in effort.scenes.items()
        }
        effort = replace(effort, scenes=scenes)
    return effort


def _bench(options: argparse.Namespace, folders: Folders) -> None:
    began = time.monotonic()
    date = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    effort = _effort(options)
    if is_in_memory(folders.data):
        _say(f"{folders.data} lies in memory, where a sync costs nothing: give a --dir on a disk.")
    results = Results()
    peers = _make_environments(folders, results)
    machine = describe(folders, peers)
    syncs: dict[str, Syncs] = {}
    beside: list[Beside] = []
    for backend in options.backends:
        if backend in SERVERS:
            try:
                _measure_on_server(backend, effort, folders, results, syncs, beside)
            except Unavailable as error:
                results.unavailable[backend] = str(error)
                _say(f"{backend} goes unmeasured: {error}")
        else:
            measure(backend, effort, folders, results, _say)
    if "sqlite" in options.backends:
        _say("counting syncs")
        syncs.update(count_syncs(folders, results.missing))
    filled, published = [], None
    if "memory" in options.backends:
        _say("filling queues in memory")
        filled = fill_memory(effort, folders, results)
        _say("publishing files")
        published = publish_files(effort, folders)
    measured = Measured(options.backends, results, filled, published, beside)
    run = Run(
        command=" ".join(["python -m benchmarks", *sys.argv[1:]]),
        quick=options.quick,
        date=date,
        seconds=time.monotonic() - began,
        effort=effort,
        machine=machine,
        measured=measured,
        syncs=syncs,
        verdicts=judge(measured, effort),
    )
    _publish(page(run), options)


def _measure_on_server(
    backend: str,
    effort: Effort,
    folders: Folders,
    results: Results,
    syncs: dict[str, Syncs],
    beside: list[Beside],
) -> None:
    _say(f"{backend}: starting a server")
    with SERVERS[backend](folders.data) as server:
        results.servers[backend] = server.about
        measure(backend, effort, folders, results, _say, server)
        if backend == "postgres":
            beside += claim_beside_snapshot(effort, folders, server, _say)
            _say("postgres: counting syncs")
            syncs.update(count_syncs(folders, results.missing, server))


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
            wanted = " ".join(environment.requirements)
            _say(f"making the environment of {wanted}, unless it is there")
            try:
                python = python_of(environment, folders.cache)
                frozen = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True)
                installed[environment.name] = ", ".join(frozen.stdout.split())
            except (OSError, subprocess.SubprocessError) as error:
                broken[environment] = str(error)
                _say(f"{wanted} could not be installed, and goes unmeasured: {error}")
        if environment in broken:
            results.missing[contender.key] = broken[environment]
    return installed


def _profile(options: argparse.Namespace, folders: Folders) -> None:
    if options.backend not in SERVERS:
        _show_profile(options, folders, None)
        return
    try:
        with SERVERS[options.backend](folders.data) as server:
            _show_profile(options, folders, server)
    except Unavailable as error:
        sys.exit(str(error))


def _show_profile(options: argparse.Namespace, folders: Folders, server: Any) -> None:
    (contender,) = (each for each in CONTENDERS if each.role == "ours" and each.backend == options.backend)
    one, batches = FULL.scenes[options.backend][0].workloads
    workload = one if options.workload == "one" else batches
    size = WORKLOADS[workload].size
    count = options.messages // size * size
    with worker(contender, folders.cache) as process:
        set_up(
            process,
            contender,
            folders,
            server,
            name="profile",
            groups=options.groups,
            messages=options.groups * depth(options.groups, count),
        )
        process.ask("round", workload=workload, count=count)
        found = process.ask("profile", workload=workload, count=count)
    for figure, rows in found.items():
        print(f"\n{figure} {workload}, {count:,} messages, {options.groups:,} groups\n")
        print("   own  with callees    calls  function")
        for row in rows[:PROFILED]:
            where = f"{row['file']} {row['function']}".strip()
            print(f"{row['share']:6.1%}  {row['with_callees']:12.1%}  {row['calls']:7,}  {where}")


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
