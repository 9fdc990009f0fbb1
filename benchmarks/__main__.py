"""The command: measure everything and write the page, measure one part of it, or profile one workload."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, Environment
from benchmarks.crews import Load
from benchmarks.drains import Drained, Draining, drain_backlogs
from benchmarks.flood import Flood, Flooded, flood_queues
from benchmarks.folders import ROOT, Folders, is_in_memory
from benchmarks.handled import Handled, Handling, Messages, measure_workers, profile_worker, try_concurrencies
from benchmarks.machine import describe
from benchmarks.memory import fill_memory, publish_files
from benchmarks.peers import PEERS
from benchmarks.pictures import draw
from benchmarks.processes import installed_in, worker
from benchmarks.report import Run, page
from benchmarks.results import Results
from benchmarks.rounds import DEEP_GROUPS, Effort, Scene, Snapshot, depth, measure, set_up
from benchmarks.roundtrips import Counted, count_round_trips
from benchmarks.servers import SERVERS, Unavailable
from benchmarks.snapshot import Beside, claim_beside_snapshot
from benchmarks.syncs import Syncs, count_syncs
from benchmarks.targets import Measured, Verdict, judge
from benchmarks.workloads import CLAIMS, DEEP, LARGE_BATCHES, ONE, SMALL_BATCHES, WITH_FLOOR, WORKLOADS

RATES = "messages a second"
CROWD = "claims a second, by the number of groups"
DEPTH = "messages a second one by one, by how many wait in each group"

BACKENDS = ("memory", "sqlite", "postgres", "redis")


@dataclass(frozen=True)
class _Sizes:
    """How large the scenes of a backend are."""

    groups: tuple[int, ...]
    crowd: tuple[int, ...]
    depths: tuple[int, ...]


def _scenes(batches: str, sizes: _Sizes, seconds: float, most: int, claims: int) -> tuple[Scene, ...]:
    deep = min(sizes.depths) * DEEP_GROUPS // 2
    return (
        Scene(RATES, sizes.groups, (ONE, batches), seconds, most),
        Scene(CROWD, sizes.crowd, (CLAIMS, WITH_FLOOR), seconds, claims, ours_only=True, urgent=True),
        Scene(DEPTH, sizes.depths, (DEEP,), seconds, deep, ours_only=True, deep=True),
    )


_CROWD, _DEPTHS = (1_000, 10_000, 100_000, 1_000_000), (10, 100, 1_000, 10_000)
_FULL_HERE = _Sizes((1_000, 10_000, 100_000), _CROWD, _DEPTHS)
_FULL_ON_SERVERS = _Sizes((1_000, 10_000), _CROWD, _DEPTHS)
FULL = Effort(
    rounds=5,
    scenes={
        "memory": _scenes(SMALL_BATCHES, _FULL_HERE, 0.25, 20_000, 2_000),
        "sqlite": _scenes(SMALL_BATCHES, _FULL_HERE, 0.4, 10_000, 2_000),
        "postgres": _scenes(LARGE_BATCHES, _FULL_ON_SERVERS, 0.4, 5_000, 1_000),
        "redis": _scenes(LARGE_BATCHES, _FULL_ON_SERVERS, 0.25, 10_000, 2_000),
    },
    grown=1_000_000,
    lines=(50_000, 400_000),
    snapshot=Snapshot(claims=40_000),
    handling=Handling(
        rounds=3,
        messages=Messages(
            many=Load(1_000, 20),
            few=Load(20, 1_000),
            singles=Load(20_000, 1),
            paused=Load(1_000, 5),
            delays=30,
            pause_s=0.02,
            handler_ms=5.0,
            steady_s=2.0,
            peer_s=1.0,
        ),
    ),
    draining=Draining(
        rounds=3, messages=100_000, groups=(10, 1_000, 50_000), few=10_000, paused=20_000, handler_ms=5.0
    ),
    flood=Flood(old=200, batch=50, calm=40, steps=300, arriving=60, rounds=3),
)
_QUICK = _Sizes((1_000, 2_000), (1_000, 5_000), (10, 50))
QUICK = Effort(
    rounds=3,
    scenes={
        "memory": _scenes(SMALL_BATCHES, _QUICK, 0.02, 2_000, 100),
        "sqlite": _scenes(SMALL_BATCHES, _QUICK, 0.03, 1_000, 100),
        "postgres": _scenes(LARGE_BATCHES, _QUICK, 0.05, 500, 100),
        "redis": _scenes(LARGE_BATCHES, _QUICK, 0.05, 500, 100),
    },
    grown=100_000,
    lines=(2_000, 10_000),
    snapshot=Snapshot(claims=2_000),
    handling=Handling(
        rounds=2,
        messages=Messages(
            many=Load(50, 10),
            few=Load(5, 50),
            singles=Load(500, 1),
            paused=Load(50, 2),
            delays=5,
            pause_s=0.01,
            handler_ms=5.0,
            steady_s=0.2,
            peer_s=0.2,
        ),
    ),
    draining=Draining(rounds=2, messages=1_000, groups=(10, 50, 500), few=200, paused=400, handler_ms=5.0),
    flood=Flood(old=20, batch=10, calm=5, steps=20, arriving=12, rounds=2),
)

_BEGAN = time.monotonic()
PROFILED = 25
"""Functions that a profile shows."""


@dataclass(frozen=True)
class Part:
    """A command: what of everything is measured."""

    name: str
    about: str
    rates: bool = True
    workers: bool = True
    backlogs: bool = True
    trips: bool = True

    @property
    def has_rounds(self) -> bool:
        return self.rates or self.workers or self.backlogs


ALL = Part("", "Measure harel beside its peers, and write the page.")
PARTS = (
    Part(
        "workers",
        "Measure from publish to handled: the worker runtimes, harel's beside its peers'. Without --output the page is "
        "only printed.",
        rates=False,
        backlogs=False,
        trips=False,
    ),
    Part(
        "backlogs",
        "Measure harel's workers on large backlogs, and its queue in a flood of new groups. Without --output the page "
        "is only printed.",
        rates=False,
        workers=False,
        trips=False,
    ),
    Part(
        "roundtrips",
        "Count the round trips of each operation on every backend, sync and async. Without --output the page is only "
        "printed.",
        rates=False,
        workers=False,
        backlogs=False,
    ),
)

EPILOG = """\
one part of it:
  python -m benchmarks workers ...     from publish to handled: the worker runtimes alone
  python -m benchmarks backlogs ...    large backlogs, and a flood of new groups
  python -m benchmarks roundtrips      how many round trips each operation takes, on every backend
  python -m benchmarks profile ...     where a workload of harel spends its time
Each has its own --help."""


@dataclass
class Found:
    """What a run collects."""

    results: Results
    handled: Handled | None
    drained: Drained | None
    flooded: list[Flooded] = field(default_factory=list)
    syncs: dict[str, Syncs] = field(default_factory=dict)
    beside: list[Beside] = field(default_factory=list)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped."))  # servers that were started are stopped
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "profile":
        options = _profile_options(sys.argv[2:])
        with _folders(options.dir) as folders:
            _profile(options, folders)
        return
    part = next((part for part in PARTS if part.name == command), ALL)
    options = _bench_options(part, sys.argv[1:] if part is ALL else sys.argv[2:])
    with _folders(options.dir) as folders:
        if part.name == "workers" and options.trial:
            _try(options, folders)
        else:
            _bench(part, options, folders)


def _bench_options(part: Part, arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {part.name}".rstrip(),
        description=part.about,
        epilog=EPILOG if part is ALL else None,
        formatter_class=argparse.RawDescriptionHelpFormatter if part is ALL else argparse.HelpFormatter,
    )
    if part.has_rounds:
        parser.add_argument(
            "backends", nargs="*", metavar="backend", help=f"which, of {', '.join(BACKENDS)}; all of them"
        )
        parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: to see that it works")
    _add_dir(parser)
    page_of_all = "the page, with plots/ beside it; benchmarks/RESULTS.md, or with --quick none"
    parser.add_argument("--output", type=Path, help=page_of_all if part is ALL else "the page")
    if part.has_rounds:
        parser.add_argument("--rounds", type=int, help="how many rounds, at least 5 for a page that is kept")
    if part.name == "workers":
        parser.add_argument(
            "--trial", action="store_true", help="instead try how many groups at once are best, once each"
        )
    if part.rates:
        parser.add_argument(
            "--crowd", type=int, metavar="GROUPS", help="how many groups make a crowd on a server; a million"
        )
        parser.add_argument(
            "--snapshot-minutes", type=float, metavar="N", help="for how long claims go on beside an old snapshot"
        )
    parser.set_defaults(backends=[], quick=False, rounds=None, crowd=None, snapshot_minutes=None, trial=False)
    options = parser.parse_args(arguments)
    if options.snapshot_minutes is not None and options.snapshot_minutes < 2:
        parser.error("--snapshot-minutes holds the last minute against the first: give it two at least")
    for backend in options.backends:
        if backend not in BACKENDS:
            parser.error(f"{backend} is none of {', '.join(BACKENDS)}")
    options.backends = [
        backend for backend in BACKENDS if part.has_rounds and (backend in options.backends or not options.backends)
    ]
    return options


def _profile_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks profile")
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument(
        "workload", choices=["one", "batches", "worker"], help="one by one, in batches, or the worker's runtime"
    )
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=5_000)
    _add_dir(parser)
    return parser.parse_args(arguments)


def _add_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, help="where the measured files go; a folder on a real disk")


def _effort(options: argparse.Namespace) -> Effort:
    effort = QUICK if options.quick else FULL
    if options.rounds:
        rounds = {"rounds": options.rounds}
        effort = replace(
            effort,
            **rounds,
            handling=replace(effort.handling, **rounds),
            draining=replace(effort.draining, **rounds),
            flood=replace(effort.flood, **rounds),
        )
    if options.snapshot_minutes:
        effort = replace(effort, snapshot=Snapshot(0, options.snapshot_minutes))
    if options.crowd:
        scenes = {
            backend: tuple(
                replace(scene, sizes=(*(size for size in scene.sizes if size < options.crowd), options.crowd))
                if scene.title == CROWD
                else scene
                for scene in scenes
            )
            for backend, scenes in effort.scenes.items()
        }
        effort = replace(effort, scenes=scenes)
    return effort


def _bench(part: Part, options: argparse.Namespace, folders: Folders) -> None:
    began = time.monotonic()
    date = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    effort = _effort(options)
    if is_in_memory(folders.data):
        _say(f"{folders.data} lies in memory, where a sync costs nothing: give a --dir on a disk.")
    found = Found(
        Results(),
        Handled(effort.handling) if part.workers else None,
        Drained(effort.draining) if part.backlogs else None,
    )
    peers = _make_environments(options.backends, folders, found.results) if part.rates or part.workers else {}
    machine = describe(folders, peers)
    for backend in options.backends:
        _measure(backend, part, effort, folders, found)
    filled, published = [], None
    if part.rates and "sqlite" in options.backends:
        _say("counting syncs")
        found.syncs.update(count_syncs(folders, found.results.missing))
    if part.rates and "memory" in options.backends:
        _say("filling queues in memory")
        filled = fill_memory(effort, folders, found.results)
        _say("publishing files")
        published = publish_files(effort, folders)
    measured = Measured(
        options.backends,
        found.results,
        filled,
        published,
        found.beside,
        handled=found.handled,
        drained=found.drained,
        flooded=found.flooded,
        counted=_count_round_trips() if part.trips else (),
        rates=part.rates,
    )
    plots = draw(measured)
    run = Run(
        command=" ".join(["python -m benchmarks", *sys.argv[1:]]),
        quick=options.quick,
        date=date,
        seconds=time.monotonic() - began,
        effort=effort,
        machine=machine,
        measured=measured,
        syncs=found.syncs,
        verdicts=[_unjudged(verdict) if options.quick else verdict for verdict in judge(measured, effort)],
        plots=list(plots),
    )
    _publish(page(run), plots, part, options)


def _unjudged(verdict: Verdict) -> Verdict:
    """Leave a target of a backend open: the rounds of a quick run are too short for it."""
    return replace(verdict, met=None) if verdict.target.partition(":")[0] in BACKENDS else verdict


def _measure(backend: str, part: Part, effort: Effort, folders: Folders, found: Found) -> None:
    try:
        with _server(backend, folders, found.results) as server:
            if part.rates:
                measure(backend, effort, folders, found.results, _say, server)
            if found.handled is not None:
                measure_workers(backend, found.handled, folders, found.results, _say, server)
            if found.drained is not None and backend != "memory":
                drain_backlogs(backend, found.drained, folders, _say, server)
            if part.backlogs:
                found.flooded += flood_queues(backend, effort.flood, folders, _say, server)
            if part.rates and backend == "postgres":
                found.beside += claim_beside_snapshot(effort, folders, server, _say)
                _say("postgres: counting syncs")
                found.syncs.update(count_syncs(folders, found.results.missing, server))
    except Unavailable as error:
        found.results.unavailable[backend] = str(error)
        _say(f"{backend} goes unmeasured: {error}")


@contextmanager
def _server(backend: str, folders: Folders, results: Results) -> Iterator[Any]:
    """Start a backend's server; ``None`` where it has none."""
    if backend not in SERVERS:
        yield None
        return
    _say(f"{backend}: starting a server")
    with SERVERS[backend](folders.data) as server:
        results.servers[backend] = server.about
        yield server


def _count_round_trips() -> list[Counted]:
    _say("counting round trips")
    return count_round_trips()


def _try(options: argparse.Namespace, folders: Folders) -> None:
    """Print what several concurrencies give, as it comes."""
    effort = _effort(options)
    results = Results()
    _make_environments(options.backends, folders, results)
    for backend in options.backends:
        try:
            with _server(backend, folders, results) as server:
                for found in try_concurrencies(backend, effort.handling, folders, results, _say, server):
                    contender, scene, concurrency, rate = found
                    print(f"{backend}, {contender}, {scene}: {concurrency:,} at once, {rate:,.0f} a second", flush=True)
        except Unavailable as error:
            _say(f"{backend} goes unmeasured: {error}")


def _publish(text: str, plots: dict[str, str], part: Part, options: argparse.Namespace) -> None:
    print(text)
    is_kept = part is ALL and not options.quick
    output = options.output or (ROOT / "benchmarks" / "RESULTS.md" if is_kept else None)
    if output is None:
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    folder = output.parent / "plots"
    folder.mkdir(exist_ok=True)
    for name, plot in plots.items():
        (folder / name).write_text(plot, encoding="utf-8")
    _say(f"Written to {output}, and {len(plots)} plots to {folder}.")


def _make_environments(backends: Sequence[str], folders: Folders, results: Results) -> dict[str, str]:
    """Make the peers' environments; return what is installed in each."""
    installed: dict[str, str] = {}
    broken: dict[Environment, str] = {}
    for contender in (*CONTENDERS, *PEERS):
        environment = contender.environment
        if environment is None or contender.unable or contender.backend not in backends:
            continue
        if environment not in broken and environment.name not in installed:
            wanted = " ".join(environment.wanted)
            _say(f"making the environment of {wanted}, unless it is there")
            try:
                installed[environment.name] = installed_in(environment, folders.cache)
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
    if options.workload == "worker":
        load = Load(options.groups, max(1, options.messages // options.groups))
        found = profile_worker(contender, load, folders, _say, server)
        _print_profile(found, "by one worker", load.messages, options.groups)
        return
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
    _print_profile(found, workload, count, options.groups)


def _print_profile(found: dict[str, list[dict[str, Any]]], how: str, count: int, groups: int) -> None:
    for figure, rows in found.items():
        print(f"\n{figure} {how}, {count:,} messages, {groups:,} groups\n")
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
    print(f"[{time.monotonic() - _BEGAN:6.0f} s] {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
