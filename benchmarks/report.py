"""The page of results: Markdown, made of what was measured and of nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.contenders import BARE, CONTENDERS, OURS, PEER, Contender
from benchmarks.memory import Filled, Published
from benchmarks.rounds import Cell, Effort, Results, Spread, depth
from benchmarks.syncs import Syncs
from benchmarks.targets import BATCHES, ONE, Verdict
from benchmarks.worker import LEAST_PUBLISHED
from benchmarks.workloads import FIGURES, WORKLOADS

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
    results: Results
    syncs: dict[str, Syncs]
    filled: Sequence[Filled]
    published: Published
    verdicts: Sequence[Verdict]


def page(run: Run) -> str:
    parts = [
        "# What harel costs",
        f"Written by `{run.command}` on {run.date}, in {run.seconds / 60:.1f} minutes.",
        "\n".join(f"- {name}: {value}" for name, value in (*run.machine, _disk(run))),
        "## Targets",
        "**A quick run**: it shows that all of this works; its rounds are too short to judge by." if run.quick else "",
        _targets(run.verdicts),
        *(part for backend in _backends() for part in _backend(run, backend)),
        "## Memory",
        _memory(run),
        "## What is durable",
        _durable(run),
        "## What bounds it",
        *_bounds(run),
        "## How it was measured",
        _how(run),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _disk(run: Run) -> tuple[str, str]:
    probed = Spread.of([seconds * 1e6 for seconds in run.results.sync_s])
    return (
        "Rewrite 4 KiB and sync",
        f"{probed.middle:,.0f} µs ({probed.least:,.0f} to {probed.most:,.0f}), probed in every round",
    )


def _targets(verdicts: Sequence[Verdict]) -> str:
    words = {True: "met", False: "**not met**", None: "not measured"}
    rows = [(verdict.target, verdict.measured, words[verdict.met]) for verdict in verdicts]
    return _table(("Target", "Measured", ""), rows)


def _backends() -> list[str]:
    return list(dict.fromkeys(contender.backend for contender in CONTENDERS))


def _backend(run: Run, backend: str) -> list[str]:
    parts = [
        f"## {backend}: messages a second",
        f"The middle of {run.effort.rounds} rounds, and the least and the most.",
    ]
    sizes = [f"{groups:,} groups" for groups in run.effort.sizes]
    for figure in FIGURES:
        rows = [
            _row(run, contender, workload, figure)
            for contender in CONTENDERS
            if contender.backend == backend
            for workload in WORKLOADS
        ]
        parts.append(_table((figure, *sizes), rows))
    waiting = [f"{groups * depth(groups, run.effort.most[backend]):,}" for groups in run.effort.sizes]
    counts = [("in the queue", *waiting), *_counts(run, backend)]
    parts.append(_table(("Messages, and how many of them a round claims", *sizes), counts))
    return parts


def _row(run: Run, contender: Contender, workload: str, figure: str) -> tuple[str, ...]:
    label = f"{_label(contender)}, {workload}"
    if contender.key in run.results.missing:
        return (label, *["not installed"] * len(run.effort.sizes))
    if WORKLOADS[workload].size > 1 and not contender.batches:
        return (label, *["none"] * len(run.effort.sizes))
    return (label, *(_rate(run, contender, workload, figure, groups) for groups in run.effort.sizes))


def _rate(run: Run, contender: Contender, workload: str, figure: str, groups: int) -> str:
    spread = run.results.spread(Cell(contender.name, contender.backend, workload, figure, groups))
    if spread is None:
        return "-"
    return f"{spread.middle:,.0f} ({spread.least:,.0f} to {spread.most:,.0f})"


def _counts(run: Run, backend: str) -> list[tuple[str, ...]]:
    rows = []
    for contender in CONTENDERS:
        for workload in WORKLOADS:
            cells = [Cell(contender.name, backend, workload, "claim+ack", groups) for groups in run.effort.sizes]
            if contender.backend == backend and all(cell in run.results.counts for cell in cells):
                counts = (f"{run.results.counts[cell]:,}" for cell in cells)
                rows.append((f"{_label(contender)}, {workload}", *counts))
    return rows


def _label(contender: Contender) -> str:
    return {"limit": f"{contender.name} (the limit)", "peer": f"{contender.name} (peer)"}.get(
        contender.role, contender.name
    )


def _memory(run: Run) -> str:
    rows = [
        (
            f"{each.contender}: {each.messages:,} messages in {each.groups:,} groups",
            f"{each.bytes / 1e6:,.0f} MB",
            f"{each.bytes / each.messages:,.0f} bytes",
        )
        for each in run.filled
    ]
    rows += [
        (f"`harel publish --file`, {lines:,} lines", f"{peak / 1e6:,.1f} MB at most", "")
        for lines, peak in run.published.peaks.items()
    ]
    if run.published.pending:
        rows.append(("`harel publish --file`", f"pending: {run.published.pending}", ""))
    return _table(("Resident memory", "", "a message"), rows)


def _durable(run: Run) -> str:
    rows = []
    for contender in CONTENDERS:
        found = run.syncs.get(contender.key)
        seen = (
            ("-", "-", "-") if found is None else (found.journal_mode, _syncs(found.publish), _syncs(found.claim_ack))
        )
        rows.append((f"{_label(contender)}, {contender.backend}", contender.durable, *seen))
    head = ("One by one", "Survives", "Journal", "Syncs a publish", "Syncs a claim+ack")
    return _table(head, rows) + (
        "\n\nSyncs are the calls of fsync, fdatasync, sync_file_range and msync that strace saw, those of checkpoints "
        "included. With a write-ahead log a commit that waited for no sync may be lost in a power cut; one that waited "
        "is kept as far as the disk keeps its word. Where two contenders differ here, their rates differ "
        "for that too."
    )


def _syncs(number: float | None) -> str:
    return "not established: strace cannot be used here" if number is None else f"{number:.2f}"


def _bounds(run: Run) -> list[str]:
    return [part for part in (_memory_bound(run), _sqlite_bound(run), _peer_bound(run)) if part]


def _memory_bound(run: Run) -> str:
    profiles = [_profile(run, "memory", workload) for workload in WORKLOADS]
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
    return f"claim+ack {workload}, {_shares(profile['claim+ack'])}; publish {workload}, {_shares(profile['publish'])}"


def _shares(rows: Sequence[dict[str, Any]]) -> str:
    """Say which files have the most time of their own; what C does counts as the function that it is."""
    shares: Counter[str] = Counter()
    for row in rows:
        shares[row["file"] or row["function"].strip("<>")] += row["share"]
    return ", ".join(f"{share:.0%} in `{place}`" for place, share in shares.most_common(5))


def _sqlite_bound(run: Run) -> str:
    groups = run.effort.sizes[-1]
    lines = []
    for workload in (ONE, BATCHES):
        for figure in FIGURES:
            share = run.results.ratio(
                Cell(OURS, "sqlite", workload, figure, groups), Cell(BARE, "sqlite", workload, figure, groups)
            )
            if share is not None:
                lines.append(f"{share.middle:.0%} of a {figure} {workload}")
    if not lines:
        return ""
    return (
        f"**sqlite**: at {groups:,} groups what the statements cost in bare sqlite3 is "
        + ", ".join(lines)
        + "; the rest is harel's Python: checking, encoding, decoding, the lock and the retries. "
        + _waits(run, groups)
    )


def _waits(run: Run, groups: int) -> str:
    sync_s = median(run.results.sync_s)
    syncs = run.syncs.get("harel-sqlite")
    if syncs is None or syncs.publish is None or syncs.claim_ack is None:
        return ""
    said = []
    for figure, number in zip(FIGURES, (syncs.publish, syncs.claim_ack), strict=True):
        rate = run.results.spread(Cell(OURS, "sqlite", ONE, figure, groups))
        if rate is not None:
            said.append(f"{min(1.0, number * sync_s * rate.middle):.0%} of a {figure}")
    return (
        f"A sync of this disk takes {sync_s * 1e6:,.0f} µs, so waiting for it is about {' and '.join(said)} one by "
        "one; a batch waits once for all its messages, which leaves SQLite's work on its B-trees and harel's Python."
    )


def _peer_bound(run: Run) -> str:
    said = []
    for backend in _backends():
        slower = [
            (groups, run.results.spread(Cell(PEER, backend, ONE, "claim+ack", groups))) for groups in run.effort.sizes
        ]
        rates = [f"{spread.middle:,.0f} at {groups:,} groups" for groups, spread in slower if spread is not None]
        if rates:
            said.append(f"{backend}: {', '.join(rates)}")
    if not said:
        return ""
    return (
        f"**{PEER}**: claim+ack a second, in " + "; in ".join(said) + ". It was run and not read, so why is not said."
    )


def _how(run: Run) -> str:
    wanted = ", ".join(f"{seconds:g} s in {backend}" for backend, seconds in run.effort.seconds.items())
    return (
        "Each contender at each number of groups has a process of its own. A round of every one is taken before the "
        "next round of any, so what the machine does meanwhile happens to all, and ratios are taken round by round. "
        "Every group has as many messages as every other, at least two. A round claims, reads and acks so many "
        "messages, then publishes as many to the same groups, so the next round finds the queue as this one did; both "
        "halves are timed with `perf_counter`, the garbage collector off, after a warm-up that also finds how many "
        f"messages make a round of the time wanted ({wanted}). A slow contender has fewer claims in a round, never "
        f"fewer rounds; its publishes are at least {LEAST_PUBLISHED}. Messages are small, and made before the time "
        f"runs. One process works on each queue; nothing else competes for it. {BARE} is timed only while it is inside "
        "sqlite3. What is on disk was filled, closed, copied there and opened again."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    rule = " | ".join("-" * max(3, width) for width in widths)
    return "\n".join(f"| {line} |" for line in (lines[0], rule, *lines[1:]))
