"""The page of results: Markdown, made of what was measured and of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.contenders import BARE, CONTENDERS, OURS, PEER, Contender
from benchmarks.reasons import reasons
from benchmarks.report_beside import backlogs, beside, differences, flooded, limits_about, steady, worse
from benchmarks.report_workers import how_workers, round_trips, worker_bound, workers
from benchmarks.results import Cell, Results, Spread
from benchmarks.rounds import DEEP_GROUPS, Effort, Scene
from benchmarks.snapshot import Beside, Times
from benchmarks.syncs import Syncs
from benchmarks.tables import label, shares, table, with_ends
from benchmarks.targets import Measured, Verdict
from benchmarks.worker import LEAST_PUBLISHED
from benchmarks.workloads import ONE, URGENT, WORKLOADS, in_words

__all__ = ["Run", "page"]


@dataclass(frozen=True)
class Run:
    """All that one run found."""

    command: str
    quick: bool
    date: str
    seconds: float
    effort: Effort
    machine: Sequence[tuple[str, str]]
    measured: Measured
    syncs: dict[str, Syncs]
    verdicts: Sequence[Verdict]
    plots: Sequence[str] = ()
    """The names of their files."""

    @property
    def results(self) -> Results:
        return self.measured.results

    @property
    def backends(self) -> list[str]:
        """Those that could be measured."""
        return [backend for backend in self.measured.backends if backend not in self.results.unavailable]


def page(run: Run) -> str:
    handled, results = run.measured.handled, run.results
    parts = [
        "# What harel costs",
        f"Written by `{run.command}` on {run.date}, in {run.seconds / 60:.1f} minutes.",
        "**A quick run**: it shows that all of this works; its rounds are too short to judge by." if run.quick else "",
        "\n".join(f"- {name}: {value}" for name, value in (*run.machine, *results.servers.items(), *_disk(run))),
        *(beside(run.backends, handled, results, run.plots) if handled is not None else []),
        "## Targets",
        _targets(run.verdicts),
        *reasons(run.verdicts),
        *worse(run.backends, handled, results, run.measured.flooded),
        *backlogs(run.measured.drained),
        *(steady(run.backends, handled) if handled is not None else []),
        *_costs(run),
        *flooded(run.measured.flooded, run.effort.flood),
        *(part for backend in run.measured.backends for part in _backend(run, backend)),
        *_old_snapshot(run),
        *round_trips(run.measured.counted),
        *_memory(run),
        *_measured(run),
        *(differences(run.backends) if handled is not None else []),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _costs(run: Run) -> list[str]:
    """Show how costs do not grow; the figures are in the tables of each backend."""
    shown = [
        f"![{about}](plots/{name})"
        for name, about in (("groups.svg", "A claim's cost by groups"), ("depth.svg", "A message's cost by backlog"))
        if name in run.plots
    ]
    return ["## What a claim costs where groups are many, and messages deep", *shown] if shown else []


def _measured(run: Run) -> list[str]:
    if not run.backends:
        return []
    bounds = _bounds(run)
    how = [
        *([_how(run)] if run.measured.rates else []),
        *([how_workers(run.measured.handled), limits_about(run.backends)] if run.measured.handled is not None else []),
    ]
    return [
        *(["## What is durable", _durable(run)] if run.measured.rates else []),
        *(["## What bounds it", *bounds] if bounds else []),
        *(["## How it was measured", *how] if how else []),
    ]


def _disk(run: Run) -> list[tuple[str, str]]:
    if not run.results.sync_s:
        return []
    probed = Spread.of([seconds * 1e6 for seconds in run.results.sync_s])
    return [
        (
            "Rewrite 4 KiB and sync",
            f"{probed.middle:,.0f} µs ({probed.least:,.0f} to {probed.most:,.0f}), probed in every round",
        )
    ]


def _targets(verdicts: Sequence[Verdict]) -> str:
    words = {True: "met", False: "**not met**", None: "not judged"}
    rows = [(verdict.target, verdict.measured, words[verdict.met]) for verdict in verdicts]
    return table(("Target", "Measured", ""), rows)


def _backend(run: Run, backend: str) -> list[str]:
    if backend in run.results.unavailable:
        return [f"## {backend}", f"Not measured: run `{run.results.unavailable[backend]}` first."]
    scenes = run.effort.scenes[backend] if run.measured.rates else ()
    handled = run.measured.handled
    return [
        *(part for scene in scenes for part in _scene(run, backend, scene)),
        *(workers(backend, handled, run.results) if handled is not None else []),
    ]


def _scene(run: Run, backend: str, scene: Scene) -> list[str]:
    parts = [
        f"## {backend}: {scene.title}",
        f"The middle of {run.effort.rounds} rounds, and the least and the most."
        + (f" {URGENT} groups more have the priority that the floor asks for." if scene.urgent else ""),
    ]
    contenders = [
        each for each in CONTENDERS if each.backend == backend and (each.role == "ours" or not scene.ours_only)
    ]
    sizes = [f"{size:,} in each of {DEEP_GROUPS} groups" if scene.deep else f"{size:,} groups" for size in scene.sizes]
    for figure in scene.figures:
        rows = [_row(run, scene, each, workload, figure) for each in contenders for workload in scene.workloads]
        parts.append(table((figure, *sizes), rows))
    if scene.ours_only:
        return parts
    waiting = [f"{scene.filled(size)[1]:,}" for size in scene.sizes]
    counts = [("in the queue", *waiting), *_counts(run, scene, contenders)]
    parts.append(table(("Messages, and how many of them a round claims", *sizes), counts))
    return parts


def _row(run: Run, scene: Scene, contender: Contender, workload: str, figure: str) -> tuple[str, ...]:
    name = f"{label(contender)}, {workload if figure == 'claim' else in_words(workload, figure)}"
    if contender.key in run.results.missing:
        return (name, *["not installed"] * len(scene.sizes))
    if WORKLOADS[workload].size > 1 and not contender.batches:
        return (name, *["none"] * len(scene.sizes))
    return (name, *(_rate(run, contender, workload, figure, groups) for groups in scene.sizes))


def _rate(run: Run, contender: Contender, workload: str, figure: str, groups: int) -> str:
    return with_ends(run.results.spread(Cell(contender.name, contender.backend, workload, figure, groups)))


def _counts(run: Run, scene: Scene, contenders: Sequence[Contender]) -> list[tuple[str, ...]]:
    rows = []
    figure = scene.figures[-1]
    for contender in contenders:
        for workload in scene.workloads:
            cells = [Cell(contender.name, contender.backend, workload, figure, groups) for groups in scene.sizes]
            if all(cell in run.results.counts for cell in cells):
                how = workload if figure == "claim" else in_words(workload, figure)
                counts = (f"{run.results.counts[cell]:,}" for cell in cells)
                rows.append((f"{label(contender)}, {how}", *counts))
    return rows


def _old_snapshot(run: Run) -> list[str]:
    if not run.measured.beside:
        return []
    rows = [
        (
            f"{_kind(each)}, {each.groups:,} groups, {each.claims:,} claims in {each.minutes:.1f} minutes",
            f"{each.stretch} {_times(each.first)}",
            f"{each.stretch} {_times(each.last)}",
            f"{each.last.middle / each.first.middle:.2f}, {each.last.mean / each.first.mean:.2f}",
        )
        for each in run.measured.beside
    ]
    about = (
        "A transaction of another session, REPEATABLE READ, has read once and stays open while messages are claimed "
        "one by one, acked in batches and published again: nothing that is dead can be cleared away. The table gives "
        "the median, the mean, and what one claim in a hundred exceeds. A run of seconds has fewer groups than one of "
        "minutes, so that as much dies in each."
    )
    return [
        "## postgres: claims beside an old snapshot",
        about,
        table(("An old snapshot", "The first", "The last", "Times, by median and mean"), rows),
    ]


def _kind(beside: Beside) -> str:
    return "beside it" if beside.held else "without one"


def _times(times: Times) -> str:
    return f"{times.middle * 1e6:,.0f}, {times.mean * 1e6:,.0f}, {times.tail * 1e6:,.0f} µs"


def _memory(run: Run) -> list[str]:
    published = run.measured.published
    if published is None:
        return []
    rows = [
        (
            f"{each.contender}: {each.messages:,} messages in {each.groups:,} groups",
            f"{each.bytes / 1e6:,.0f} MB",
            f"{each.bytes / each.messages:,.0f} bytes",
        )
        for each in run.measured.filled
    ]
    rows += [
        (f"`harel publish --file`, {lines:,} lines", f"{peak / 1e6:,.1f} MB at most", "")
        for lines, peak in published.peaks.items()
    ]
    if published.pending:
        rows.append(("`harel publish --file`", f"pending: {published.pending}", ""))
    return ["## Memory", table(("Resident memory", "", "a message"), rows)]


def _durable(run: Run) -> str:
    rows = []
    for contender in CONTENDERS:
        if contender.backend not in run.backends:
            continue
        found = run.syncs.get(contender.key)
        seen = ("-", "-", "-") if found is None else (found.log, _syncs(found.publish), _syncs(found.claim_ack))
        rows.append((f"{label(contender)}, {contender.backend}", contender.durable, *seen))
    head = ("One by one", "Survives", "Journal", "Syncs a publish", "Syncs a claim+ack")
    return table(head, rows) + (
        "\n\nSyncs of a file are the calls of fsync, fdatasync, sync_file_range and msync that strace saw, those of "
        "checkpoints included; those of PostgreSQL are its own count of the log's, by the processes that serve "
        "clients. With a write-ahead log a commit that waited for no sync may be lost in a power cut; one that waited "
        "is kept as far as the disk keeps its word. Where two contenders differ here, their rates differ "
        "for that too."
    )


def _syncs(number: float | None) -> str:
    return "not established: no strace, or a server that does not count" if number is None else f"{number:.2f}"


def _bounds(run: Run) -> list[str]:
    parts = [
        _memory_bound(run),
        _sqlite_bound(run),
        *(_server_bound(run, backend) for backend in ("postgres", "redis") if backend in run.backends),
        _peer_bound(run),
        *_worker_bounds(run),
    ]
    return [part for part in parts if part]


def _worker_bounds(run: Run) -> list[str]:
    handled = run.measured.handled
    return [] if handled is None else [worker_bound(backend, handled, run.results) for backend in run.backends]


def _memory_bound(run: Run) -> str:
    if "memory" not in run.backends:
        return ""
    profiles = [_profile(run, "memory", workload) for workload in run.effort.scenes["memory"][0].workloads]
    if not all(profiles):
        return ""
    return (
        "**memory**: one process runs Python and waits for nothing, so the interpreter bounds it. "
        "Of the time under cProfile, which makes small functions look dearer than they are: "
        + "; ".join(profiles)
        + "."
    )


def _profile(run: Run, backend: str, workload: str) -> str:
    profile = run.results.profiles.get((backend, workload))
    if not profile:
        return ""
    return "; ".join(f"{figure} {in_words(workload, figure)}, {shares(rows)}" for figure, rows in profile.items())


def _sqlite_bound(run: Run) -> str:
    if "sqlite" not in run.backends:
        return ""
    scene = run.effort.scenes["sqlite"][0]
    groups = scene.sizes[-1]
    shares = _of_bare(run, "sqlite", scene)
    if not shares:
        return ""
    return (
        f"**sqlite**: at {groups:,} groups what the statements cost in bare sqlite3 is {shares}"
        "; the rest is harel's Python: checking, encoding, decoding, the lock and the retries. "
        + _waits(run, "sqlite", groups)
    )


def _server_bound(run: Run, backend: str) -> str:
    scene = run.effort.scenes[backend][0]
    groups = scene.sizes[-1]
    said = [
        part
        for workload in scene.workloads
        for figure in scene.figures
        if (part := _round_trip(run, Cell(OURS, backend, workload, figure, groups)))
    ]
    if not said:
        return ""
    profiles = [_profile(run, backend, workload) for workload in scene.workloads]
    shares = _of_bare(run, backend, scene)
    return (
        f"**{backend}**: at {groups:,} groups, a message: {'; '.join(said)}. The rest is the way between the two, "
        f"the switch of processes{', and the disk' if backend == 'postgres' else ''}. "
        + (
            f"What the same calls cost in {BARE[backend]} is {shares}; above 100% it is the dearer one. "
            if shares
            else ""
        )
        + (_waits(run, backend, groups) + " " if backend == "postgres" else "")
        + f"Of the client's time under cProfile: {'; '.join(part for part in profiles if part)}."
    )


def _round_trip(run: Run, cell: Cell) -> str:
    rates, client = run.results.spread(cell), run.results.client_s.get(cell)
    if rates is None or not client:
        return ""
    server = run.results.server_s.get(cell)
    return (
        f"{cell.figure} {in_words(cell.workload, cell.figure)} takes {1e6 / rates.middle:,.0f} µs, in which the client "
        f"works for {median(client) * 1e6:,.0f}" + (f" and the server for {server * 1e6:,.0f}" if server else "")
    )


def _of_bare(run: Run, backend: str, scene: Scene) -> str:
    """Say what the bare driver takes, in parts of what ours takes."""
    lines = []
    for workload in scene.workloads:
        for figure in scene.figures:
            cells = [Cell(name, backend, workload, figure, scene.sizes[-1]) for name in (OURS, BARE[backend])]
            share = run.results.ratio(*cells)
            if share is not None:
                lines.append(f"{share.middle:.0%} of a {figure} {in_words(workload, figure)}")
    return ", ".join(lines)


def _waits(run: Run, backend: str, groups: int) -> str:
    syncs = run.syncs.get(f"harel-{backend}")
    if syncs is None or syncs.publish is None or syncs.claim_ack is None:
        return ""
    sync_s = syncs.each_s or median(run.results.sync_s)
    said = []
    for figure, number in (("publish", syncs.publish), ("claim+ack", syncs.claim_ack)):
        rate = run.results.spread(Cell(OURS, backend, ONE, figure, groups))
        if rate is not None:
            said.append(f"{min(1.0, number * sync_s * rate.middle):.0%} of a {figure}")
    whose = "the log" if syncs.each_s else "this disk"
    return (
        f"A sync of {whose} takes {sync_s * 1e6:,.0f} µs, so waiting for it is about {' and '.join(said)} one by "
        "one; a batch waits once for all its messages."
    )


def _peer_bound(run: Run) -> str:
    said = []
    for backend in run.backends:
        cells = [
            (groups, run.results.spread(Cell(PEER, backend, ONE, "claim+ack", groups)))
            for groups in run.effort.scenes[backend][0].sizes
        ]
        rates = [f"{spread.middle:,.0f} at {groups:,} groups" for groups, spread in cells if spread is not None]
        if rates:
            said.append(f"{backend}: {', '.join(rates)}")
    if not said:
        return ""
    return (
        f"**{PEER}**: claim+ack a second, in " + "; in ".join(said) + ". It was run and not read, so why is not said."
    )


def _how(run: Run) -> str:
    wanted = ", ".join(f"{run.effort.scenes[backend][0].seconds:g} s in {backend}" for backend in run.backends)
    bare = ", ".join(BARE[backend] for backend in run.backends if backend in BARE)
    return (
        "Each contender at each number of groups has a process of its own. A round of every one is taken before the "
        "next round of any, so what the machine does meanwhile happens to all, and ratios are taken round by round. "
        "Every group has as many messages as every other, at least two. A round claims, reads and acks so many "
        "messages, then publishes as many to the same groups, so the next round finds the queue as this one did; both "
        "halves are timed with `perf_counter`, the garbage collector off, after a warm-up that also finds how many "
        f"messages make a round of the time wanted ({wanted}). A slow contender has fewer claims in a round, never "
        f"fewer rounds; its publishes are at least {LEAST_PUBLISHED}. Messages are small, and made before the time "
        f"runs. One process works on each queue, over one connection; nothing else competes for it."
        + (f" {bare} are timed only while they are inside the driver." if bare else "")
        + (" What is in a file was filled, closed, copied there and opened again." if "sqlite" in run.backends else "")
        + (
            " Each queue on a server is alone in a database of its own, on the server that all share. PostgreSQL's "
            "were filled with `synchronous_commit` off, vacuumed and analyzed, and opened again with it on. The peer "
            "has hiredis too, which its extra leaves out."
            if set(run.results.servers)
            else ""
        )
    )
