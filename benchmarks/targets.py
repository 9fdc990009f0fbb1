"""What is to be reached, and whether it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.contenders import BARE, OURS, PEER
from benchmarks.handled import FEW_GROUPS, ONE_WORKER, Handled, Load
from benchmarks.memory import Filled, Published
from benchmarks.results import Cell, Results, Spread
from benchmarks.rounds import Effort
from benchmarks.roundtrips import CORE, Counted
from benchmarks.snapshot import Beside
from benchmarks.workloads import CLAIMS, FLOOR, LARGE_BATCHES, ONE, SMALL_BATCHES, WITH_FLOOR, in_words

__all__ = ["Measured", "Verdict", "judge"]

FEW, MANY, CROWD = 1_000, 100_000, 1_000_000
DEARER_AT_MOST = 1.5
MEMORY_RATE_AT_LEAST = 50_000
MESSAGES_HELD = 1_000_000
HELD_IN_LESS_THAN = 10**9
FILE_GROWTH_AT_MOST = 1.1
BESIDE_SNAPSHOT_AT_MOST = 2.0

OF_BARE_AT_LEAST = {"sqlite": 0.7, "redis": 0.85}
OF_PEER_AT_LEAST = {
    "sqlite": {(SMALL_BATCHES, "publish"): 8.0, (SMALL_BATCHES, "claim+ack"): 8.0},
    "postgres": {
        (ONE, "claim+ack"): 1.7,
        (ONE, "publish"): 1.5,
        (LARGE_BATCHES, "claim+ack"): 10.0,
        (LARGE_BATCHES, "publish"): 15.0,
    },
    "redis": {
        (ONE, "claim+ack"): 1.1,
        (ONE, "publish"): 1.0,
        (LARGE_BATCHES, "claim+ack"): 8.0,
        (LARGE_BATCHES, "publish"): 8.0,
    },
}
"""By backend, workload and figure: how many times the peer's rate one by one."""


MANY_SHALLOW, FEW_DEEP = Load(1_000, 20), Load(20, 1_000)
HANDLED_OF_PEER_AT_LEAST = {"memory": 10.0, "sqlite": 8.0, "postgres": 15.0, "redis": 8.0}
HANDLED_AT_LEAST = {"postgres": 8_000}
FEW_OF_MANY_AT_LEAST = 0.5
GAP_LESS_THAN_S = 1.0
"""A worker that pauses for longer where groups are few has stalled."""

MORE_TRIPS = {"mongo": ("publish", "claim", "ack")}
"""Core operations that may take more than one round trip."""


@dataclass(frozen=True)
class Verdict:
    """One target. ``met`` is ``None`` when this run did not measure it, or with less than it is about."""

    target: str
    measured: str
    met: bool | None


@dataclass(frozen=True)
class Measured:
    """What targets are held against."""

    backends: Sequence[str]
    results: Results
    filled: Sequence[Filled] = ()
    published: Published | None = None
    beside: Sequence[Beside] = ()
    handled: Handled | None = None
    counted: Sequence[Counted] = ()
    rates: bool = True
    """Whether the operations were measured at all, and not only something else."""


def judge(measured: Measured, effort: Effort | None = None) -> list[Verdict]:
    """Hold what was measured against every target of its backends. Where several cells count, the worst one decides."""
    verdicts = []
    for backend in measured.backends:
        if effort is not None and measured.rates:
            verdicts += _of_operations(backend, measured, effort)
        if measured.handled is not None:
            verdicts += _of_workers(backend, measured.handled, measured.results)
    if measured.published is not None:
        verdicts.append(_constant(measured.published))
    if measured.counted:
        verdicts.append(_one_trip(measured.counted))
    return verdicts


def _of_operations(backend: str, measured: Measured, effort: Effort) -> list[Verdict]:
    results = measured.results
    verdicts = []
    if backend in ("memory", "sqlite"):
        verdicts.append(_flat(backend, results))
    if backend == "memory":
        verdicts += [_fast_in_memory(results), *_held(measured.filled)]
    if backend in OF_BARE_AT_LEAST:
        verdicts.append(_against_bare(backend, results))
    verdicts += _against_peer(backend, results)
    if backend in ("postgres", "redis"):
        crowd = max(effort.scenes[backend][-1].sizes)
        verdicts += [_crowded(backend, CLAIMS, crowd, results), _crowded(backend, WITH_FLOOR, crowd, results)]
    if backend == "postgres":
        verdicts.append(_beside_snapshot(measured.beside))
    return verdicts


def _of_workers(backend: str, handled: Handled, results: Results) -> list[Verdict]:
    messages = handled.handling.messages
    judged = messages.many == MANY_SHALLOW and messages.few == FEW_DEEP
    ours, peers, few = (
        messages.cell(name, backend, scene)
        for name, scene in ((OURS, ONE_WORKER), (PEER, ONE_WORKER), (OURS, FEW_GROUPS))
    )
    of_peer, rate = results.ratio(ours, peers), results.spread(ours)
    one_worker = f"{backend}: one worker, {_in_words(MANY_SHALLOW)}, handles at least"
    at_least = HANDLED_OF_PEER_AT_LEAST[backend]
    verdicts = [
        Verdict(
            f"{one_worker} {at_least:g} times as many messages a second as that of {PEER}",
            _times(of_peer) + _own_backlog(messages.many_for_peer[backend], of_peer),
            of_peer.middle >= at_least if judged and of_peer is not None else None,
        )
    ]
    if backend in HANDLED_AT_LEAST:
        wanted = HANDLED_AT_LEAST[backend]
        verdicts.append(
            Verdict(
                f"{one_worker} {wanted:,} messages a second",
                _a_second(rate),
                rate.middle >= wanted if judged and rate is not None else None,
            )
        )
    of_many, gaps = results.ratio(few, ours), handled.gaps_s.get(few, ())
    steady = of_many is not None and max(gaps) < GAP_LESS_THAN_S and of_many.middle >= FEW_OF_MANY_AT_LEAST
    verdicts.append(
        Verdict(
            f"{backend}: with {_in_words(FEW_DEEP)} no stall: never {GAP_LESS_THAN_S:g} s without a message, and at "
            f"least {FEW_OF_MANY_AT_LEAST} of the rate with {_in_words(MANY_SHALLOW)}",
            "not measured" if of_many is None else f"{_times(of_many)}, at most {max(gaps) * 1e3:,.0f} ms without one",
            steady if judged and of_many is not None else None,
        )
    )
    return verdicts


def _in_words(load: Load) -> str:
    return f"{load.groups:,} groups of {load.each:,}"


def _own_backlog(each: int, ratio: Spread | None) -> str:
    return "" if ratio is None or each == MANY_SHALLOW.each else f"; the peer had {each} messages a group"


def _one_trip(counted: Sequence[Counted]) -> Verdict:
    """Hold the core operations to one round trip each, where they could be counted."""
    more, unseen = [], []
    for each in counted:
        backend = each.name.partition("-")[0]
        if backend == "memory":
            continue
        if each.unavailable:
            unseen.append(each.name)
        more += [
            f"{operation} on {each.name} takes {each.trips[operation].trips}"
            for operation in CORE
            if operation in each.trips
            and each.trips[operation].trips != 1
            and operation not in MORE_TRIPS.get(backend, ())
        ]
    measured = "; ".join(more) or "all do"
    return Verdict(
        f"{', '.join(CORE)} take one round trip each on every backend; publish, claim and ack of MongoDB may take more",
        measured + (f"; not counted: {', '.join(unseen)}" if unseen else ""),
        False if more else (None if unseen else True),
    )


def _flat(backend: str, results: Results) -> Verdict:
    dearer = results.ratio(_ours(backend, ONE, "claim+ack", FEW), _ours(backend, ONE, "claim+ack", MANY))
    return Verdict(
        f"{backend}: claim+ack at {MANY:,} groups costs at most {DEARER_AT_MOST} times what it costs at {FEW:,}",
        _times(dearer),
        None if dearer is None else dearer.middle <= DEARER_AT_MOST,
    )


def _crowded(backend: str, workload: str, crowd: int, results: Results) -> Verdict:
    """Hold a crowd against few groups; a smaller one than the target's is measured, and not judged."""
    dearer = results.ratio(_ours(backend, workload, "claim", FEW), _ours(backend, workload, "claim", crowd))
    claim = "a claim" if workload == CLAIMS else f"a claim with floor {FLOOR}, behind groups of priority 0,"
    return Verdict(
        f"{backend}: {claim} at {CROWD:,} groups costs at most {DEARER_AT_MOST} times what it costs at {FEW:,}",
        _times(dearer) + ("" if crowd == CROWD or dearer is None else f" at {crowd:,} groups"),
        None if dearer is None or crowd != CROWD else dearer.middle <= DEARER_AT_MOST,
    )


def _fast_in_memory(results: Results) -> Verdict:
    rate = results.spread(_ours("memory", ONE, "claim+ack", MANY))
    return Verdict(
        f"memory: at least {MEMORY_RATE_AT_LEAST:,} claim+ack a second at {MANY:,} groups, one by one",
        _a_second(rate),
        None if rate is None else rate.middle >= MEMORY_RATE_AT_LEAST,
    )


def _against_bare(backend: str, results: Results) -> Verdict:
    figures = ("publish", "claim+ack") if backend == "sqlite" else ("claim+ack",)
    where, worst = _worst(results, backend, ONE, figures, BARE[backend])
    what = {"sqlite": "the same statements in bare sqlite3", "redis": "bare EVALSHA calls of the same scripts"}
    return Verdict(
        f"{backend}: {' and '.join(figures)} one by one at least {OF_BARE_AT_LEAST[backend]} of {what[backend]}",
        f"{_times(worst)}{where}",
        None if worst is None else worst.middle >= OF_BARE_AT_LEAST[backend],
    )


def _against_peer(backend: str, results: Results) -> list[Verdict]:
    verdicts = []
    for (workload, figure), at_least in OF_PEER_AT_LEAST.get(backend, {}).items():
        where, worst = _worst(results, backend, workload, (figure,), PEER)
        how = in_words(workload, figure)
        verdicts.append(
            Verdict(
                f"{backend}: {figure} {how} at least {at_least:g} times the rate of {PEER} one by one",
                f"{_times(worst)}{where}",
                None if worst is None else worst.middle >= at_least,
            )
        )
    return verdicts


def _worst(
    results: Results, backend: str, workload: str, figures: Sequence[str], other: str
) -> tuple[str, Spread | None]:
    """Find where our rate is the smallest multiple of another's rate one by one."""
    found = []
    for groups in sorted({cell.groups for cell in results.rates if cell.backend == backend}):
        for figure in figures:
            ratio = results.ratio(_ours(backend, workload, figure, groups), Cell(other, backend, ONE, figure, groups))
            if ratio is not None:
                found.append((f", {figure} at {groups:,} groups, the lowest", ratio))
    return min(found, key=lambda each: each[1].middle, default=("", None))


def _beside_snapshot(beside: Sequence[Beside]) -> Verdict:
    target = (
        "postgres: claims beside an old snapshot take, after long, at most "
        f"{BESIDE_SNAPSHOT_AT_MOST:g} times what they took at first"
    )
    held = [each for each in beside if each.held]
    if not held:
        return Verdict(target, "not measured", None)
    (run,) = held
    middle, mean = run.last.middle / run.first.middle, run.last.mean / run.first.mean
    return Verdict(
        target,
        f"{middle:.2f} by the median, {mean:.2f} by the mean, the last {run.stretch} of {run.claims:,} claims "
        f"of {run.groups:,} groups in {run.minutes:.1f} minutes against the first",
        max(middle, mean) <= BESIDE_SNAPSHOT_AT_MOST,
    )


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


def _a_second(rate: Spread | None) -> str:
    return "not measured" if rate is None else f"{rate.middle:,.0f} ({rate.least:,.0f} to {rate.most:,.0f})"
