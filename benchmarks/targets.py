"""What is to be reached, and whether it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.contenders import BARE, OURS, PEER
from benchmarks.crews import Load
from benchmarks.drains import Drained
from benchmarks.flood import Flooded
from benchmarks.handled import FEW_GROUPS, MANY_WORKERS, ONE_WORKER, PUBLISHED, SINGLES, Handled, Messages, runtimes_of
from benchmarks.limits import SERVER_ALONE
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
FLAT_AT_MOST = 1.25
BESIDE_SNAPSHOT_AT_MOST = 2.0

OF_BARE_AT_LEAST = 0.8
OF_SERVER_AT_LEAST = 0.7
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


MANY_SHALLOW, FEW_DEEP, ONES = Load(1_000, 20), Load(20, 1_000), Load(20_000, 1)
AHEAD = {
    "postgres": (("graphile", {}, 1.0), ("pg-boss", {}, 2.0)),
    "redis": (("groupmq", {SINGLES: 2.0}, 1.0),),
    "sqlite": (("", {}, 1.0),),
}
"""By backend, which peers' keys begin so (all of them, where it is empty), and how many times as fast harel is to be,
in scenes of their own and in all others."""
PUBLISHED_AHEAD_OF = {"postgres": "graphile"}
HANDLED_OF_PEER_AT_LEAST = {"memory": 10.0, "sqlite": 8.0, "postgres": 15.0, "redis": 8.0}
HANDLED_AT_LEAST = {"postgres": 8_000}
FEW_OF_MANY_AT_LEAST = 0.95
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
    drained: Drained | None = None
    flooded: Sequence[Flooded] = ()
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
    if backend in BARE:
        verdicts += [_against_bare(backend, workload, results) for workload in effort.scenes[backend][0].workloads]
    verdicts += _against_peer(backend, results)
    crowd = max(max(scene.sizes) for scene in effort.scenes[backend] if CLAIMS in scene.workloads)
    verdicts += [_crowded(backend, CLAIMS, crowd, results), _crowded(backend, WITH_FLOOR, crowd, results)]
    if backend == "postgres":
        verdicts.append(_beside_snapshot(measured.beside))
    return verdicts


def _of_workers(backend: str, handled: Handled, results: Results) -> list[Verdict]:
    messages = handled.handling.messages
    judged = (messages.many, messages.few, messages.singles) == (MANY_SHALLOW, FEW_DEEP, ONES)
    verdicts = [
        _of_peer(backend, messages, results),
        *_ahead(backend, messages, results),
        *_published_ahead(backend, messages, results),
        *_of_server(backend, messages, results),
        *_at_least(backend, messages, results),
        _steady(backend, handled, results),
    ]
    return verdicts if judged else [replace(verdict, met=None) for verdict in verdicts]


def _of_peer(backend: str, messages: Messages, results: Results) -> Verdict:
    ours, peers = (messages.cell(name, backend, ONE_WORKER) for name in (OURS, PEER))
    ratio, at_least = results.ratio(ours, peers), HANDLED_OF_PEER_AT_LEAST[backend]
    return Verdict(
        f"{backend}: one worker, {_in_words(MANY_SHALLOW)}, handles at least {at_least:g} times as many messages a "
        f"second as that of {PEER}",
        _times(ratio) + _own_backlog(peers, results, ratio),
        None if ratio is None else ratio.middle >= at_least,
    )


def _ahead(backend: str, messages: Messages, results: Results) -> list[Verdict]:
    """Hold W1, W2 and W3 against the peers; of several the fastest counts."""
    verdicts = []
    for begins, own, others in AHEAD.get(backend, ()):
        peers = [each for each in runtimes_of(backend) if each.role == "peer" and each.key.startswith(begins)]
        for name, scene in (("W1", ONE_WORKER), ("W2", MANY_WORKERS), ("W3", SINGLES)):
            at_least = own.get(scene, others)
            ours = messages.cell(OURS, backend, scene)
            found = [
                (ratio, peer.name)
                for peer in peers
                if (ratio := results.ratio(ours, messages.cell(peer.name, backend, scene))) is not None
            ]
            worst, who = min(found, key=lambda each: each[0].middle, default=(None, ""))
            times = "ahead of" if at_least == 1.0 else f"at least {at_least:g} times"
            verdicts.append(
                Verdict(
                    f"{backend}: {name} {times} {begins or 'every peer'}",
                    _times(worst) + (f" of {who}" if who else ""),
                    None if worst is None else worst.middle >= at_least,
                )
            )
    return verdicts


def _published_ahead(backend: str, messages: Messages, results: Results) -> list[Verdict]:
    begins = PUBLISHED_AHEAD_OF.get(backend)
    if begins is None:
        return []
    ours = messages.cell(OURS, backend, ONE_WORKER, PUBLISHED)
    ratios = [
        results.ratio(ours, messages.cell(peer.name, backend, ONE_WORKER, PUBLISHED))
        for peer in runtimes_of(backend)
        if peer.key.startswith(begins)
    ]
    worst = min((ratio for ratio in ratios if ratio is not None), key=lambda each: each.middle, default=None)
    met = None if worst is None else worst.middle >= 1.0
    return [Verdict(f"{backend}: publishing in batches ahead of {begins}", _times(worst), met)]


def _of_server(backend: str, messages: Messages, results: Results) -> list[Verdict]:
    name = SERVER_ALONE.get(backend)
    if name is None:
        return []
    ratio = results.ratio(*(messages.cell(each, backend, MANY_WORKERS) for each in (OURS, name)))
    return [
        Verdict(
            f"{backend}: four processes handle at least {OF_SERVER_AT_LEAST} of what the server sustains alone, {name}",
            _times(ratio),
            None if ratio is None else ratio.middle >= OF_SERVER_AT_LEAST,
        )
    ]


def _at_least(backend: str, messages: Messages, results: Results) -> list[Verdict]:
    wanted = HANDLED_AT_LEAST.get(backend)
    if wanted is None:
        return []
    rate = results.spread(messages.cell(OURS, backend, ONE_WORKER))
    return [
        Verdict(
            f"{backend}: one worker, {_in_words(MANY_SHALLOW)}, handles at least {wanted:,} messages a second",
            _a_second(rate),
            None if rate is None else rate.middle >= wanted,
        )
    ]


def _steady(backend: str, handled: Handled, results: Results) -> Verdict:
    messages = handled.handling.messages
    ours, few = (messages.cell(OURS, backend, scene) for scene in (ONE_WORKER, FEW_GROUPS))
    of_many, gaps = results.ratio(few, ours), handled.gaps_s.get(few, ())
    return Verdict(
        f"{backend}: {_in_words(FEW_DEEP)} no slower a message than {_in_words(MANY_SHALLOW)}: at least "
        f"{FEW_OF_MANY_AT_LEAST} of the rate, and never {GAP_LESS_THAN_S:g} s without a message",
        "not measured" if of_many is None else f"{_times(of_many)}, at most {max(gaps) * 1e3:,.0f} ms without one",
        None if of_many is None else max(gaps) < GAP_LESS_THAN_S and of_many.middle >= FEW_OF_MANY_AT_LEAST,
    )


def _in_words(load: Load) -> str:
    return f"{load.groups:,} groups of {load.each:,}"


def _own_backlog(peers: Cell, results: Results, ratio: Spread | None) -> str:
    count = results.counts.get(peers, MANY_SHALLOW.messages)
    return "" if ratio is None or count == MANY_SHALLOW.messages else f"; the peer had {count:,} messages"


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
    # A heap in memory is as deep as the logarithm of what is in it.
    at_most = DEARER_AT_MOST if backend == "memory" else FLAT_AT_MOST
    return Verdict(
        f"{backend}: {claim} at {CROWD:,} groups costs at most {at_most} times what it costs at {FEW:,}",
        _times(dearer) + ("" if crowd == CROWD or dearer is None else f" at {crowd:,} groups"),
        None if dearer is None or crowd != CROWD else dearer.middle <= at_most,
    )


def _fast_in_memory(results: Results) -> Verdict:
    rate = results.spread(_ours("memory", ONE, "claim+ack", MANY))
    return Verdict(
        f"memory: at least {MEMORY_RATE_AT_LEAST:,} claim+ack a second at {MANY:,} groups, one by one",
        _a_second(rate),
        None if rate is None else rate.middle >= MEMORY_RATE_AT_LEAST,
    )


def _against_bare(backend: str, workload: str, results: Results) -> Verdict:
    figures = ("publish", "claim+ack")
    where, worst = _worst(results, backend, workload, figures, BARE[backend], their=workload)
    how = ONE if workload == ONE else "in batches"
    return Verdict(
        f"{backend}: {' and '.join(figures)} {how} at least {OF_BARE_AT_LEAST} of {BARE[backend]}'s, same requests",
        f"{_times(worst)}{where}",
        None if worst is None else worst.middle >= OF_BARE_AT_LEAST,
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
    results: Results, backend: str, workload: str, figures: Sequence[str], other: str, their: str = ONE
) -> tuple[str, Spread | None]:
    """Find where our rate is the smallest multiple of another's, one by one unless it is said how."""
    found = []
    for groups in sorted({cell.groups for cell in results.rates if cell.backend == backend}):
        for figure in figures:
            theirs = Cell(other, backend, their, figure, groups)
            ratio = results.ratio(_ours(backend, workload, figure, groups), theirs)
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
