"""What is to be reached, and whether it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.contenders import BARE, OURS, PEER
from benchmarks.memory import Filled, Published
from benchmarks.rounds import Cell, Results, Spread
from benchmarks.workloads import FIGURES, WORKLOADS

__all__ = ["Verdict", "judge"]

FEW, MANY = 1_000, 100_000
DEARER_AT_MOST = 1.5
MEMORY_RATE_AT_LEAST = 50_000
OF_BARE_AT_LEAST = 0.7
OF_PEER_AT_LEAST = 8.0
MESSAGES_HELD = 1_000_000
HELD_IN_LESS_THAN = 10**9
FILE_GROWTH_AT_MOST = 1.1

ONE, BATCHES = WORKLOADS


@dataclass(frozen=True)
class Verdict:
    """One target. ``met`` is ``None`` when this run did not measure it."""

    target: str
    measured: str
    met: bool | None


def judge(results: Results, filled: Sequence[Filled], published: Published) -> list[Verdict]:
    """Hold the results against every target. Where several cells count, the worst one decides."""
    return [
        _flat("memory", results),
        _flat("sqlite", results),
        _fast_in_memory(results),
        _against_bare(results),
        _against_peer(results),
        *_held(filled),
        _constant(published),
    ]


def _flat(backend: str, results: Results) -> Verdict:
    dearer = results.ratio(_ours(backend, ONE, "claim+ack", FEW), _ours(backend, ONE, "claim+ack", MANY))
    return Verdict(
        f"{backend}: claim+ack at {MANY:,} groups costs at most {DEARER_AT_MOST} times what it costs at {FEW:,}",
        _times(dearer),
        None if dearer is None else dearer.middle <= DEARER_AT_MOST,
    )


def _fast_in_memory(results: Results) -> Verdict:
    rate = results.spread(_ours("memory", ONE, "claim+ack", MANY))
    return Verdict(
        f"memory: at least {MEMORY_RATE_AT_LEAST:,} claim+ack a second at {MANY:,} groups, one by one",
        "not measured" if rate is None else f"{rate.middle:,.0f} ({rate.least:,.0f} to {rate.most:,.0f})",
        None if rate is None else rate.middle >= MEMORY_RATE_AT_LEAST,
    )


def _against_bare(results: Results) -> Verdict:
    where, worst = _worst(results, ONE, BARE)
    return Verdict(
        f"sqlite: one by one at least {OF_BARE_AT_LEAST} of the same statements in bare sqlite3",
        f"{_times(worst)}{where}",
        None if worst is None else worst.middle >= OF_BARE_AT_LEAST,
    )


def _against_peer(results: Results) -> Verdict:
    where, worst = _worst(results, BATCHES, PEER)
    return Verdict(
        f"sqlite: in batches at least {OF_PEER_AT_LEAST:g} times the rate of {PEER}, which has none, one by one",
        f"{_times(worst)}{where}",
        None if worst is None else worst.middle >= OF_PEER_AT_LEAST,
    )


def _worst(results: Results, workload: str, other: str) -> tuple[str, Spread | None]:
    """Find where our rate is the smallest multiple of another's rate one by one."""
    found = []
    for groups in sorted({cell.groups for cell in results.rates}):
        for figure in FIGURES:
            ratio = results.ratio(_ours("sqlite", workload, figure, groups), Cell(other, "sqlite", ONE, figure, groups))
            if ratio is not None:
                found.append((f", {figure} at {groups:,} groups, the lowest", ratio))
    return min(found, key=lambda each: each[1].middle, default=("", None))


def _held(filled: Sequence[Filled]) -> list[Verdict]:
    ours = [each for each in filled if each.role == "ours"]
    return [
        Verdict(
            f"memory: {MESSAGES_HELD:,} small messages in {each.groups:,} groups take less than 1 GB",
            f"{each.bytes / 1e6:,.0f} MB" + ("" if each.messages == MESSAGES_HELD else f" for {each.messages:,}"),
            each.bytes < HELD_IN_LESS_THAN if each.messages == MESSAGES_HELD else None,
        )
        for each in ours
    ]


def _constant(published: Published) -> Verdict:
    target = "`harel publish --file` runs in constant memory"
    if published.pending:
        return Verdict(target, published.pending, None)
    (few, small), (many, large) = sorted(published.peaks.items())
    measured = f"at most {small / 1e6:,.1f} MB for {few:,} lines, {large / 1e6:,.1f} MB for {many:,}"
    return Verdict(target, measured, large <= small * FILE_GROWTH_AT_MOST)


def _ours(backend: str, workload: str, figure: str, groups: int) -> Cell:
    return Cell(OURS, backend, workload, figure, groups)


def _times(ratio: Spread | None) -> str:
    return "not measured" if ratio is None else f"{ratio.middle:.2f} ({ratio.least:.2f} to {ratio.most:.2f})"
