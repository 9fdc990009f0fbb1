"""The page's first parts: harel beside its peers and the limits, large backlogs, a steady flow, a flood."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from benchmarks.contenders import BARE, CONTENDERS, OURS, Contender
from benchmarks.crews import WORKERS, Broken
from benchmarks.drains import Backlog, Drained, Draining
from benchmarks.flood import Flood, Flooded
from benchmarks.handled import (
    FEW_GROUPS,
    FIGURE,
    MANY_WORKERS,
    ONE_WORKER,
    PAUSES,
    PUBLISHED,
    SINGLES,
    Handled,
    Messages,
    Steady,
    runtimes_of,
    scenes_of,
)
from benchmarks.limits import BATCH, BATCHES, SERVER_ALONE
from benchmarks.results import Cell, Results, Spread
from benchmarks.tables import label, table, with_ends

__all__ = ["backlogs", "beside", "differences", "flooded", "limits_about", "order_of", "scene_name", "steady", "worse"]

SHORT = {ONE_WORKER: "W1", MANY_WORKERS: "W2", SINGLES: "W3"}
WORTH_TELLING = 1.05
"""By how much another has to be better for it to be told."""


def scene_name(scene: str, messages: Messages) -> str:
    """Say what is handled, and by how many processes."""
    load = messages.load(scene)
    each = "one" if load.each == 1 else f"{load.each:,}"
    processes = "four processes" if scene in (MANY_WORKERS, PAUSES) else "one process"
    slow = f", handlers of {messages.handler_ms:g} ms" if scene == PAUSES else ""
    short = f"{SHORT[scene]}: " if scene in SHORT else ""
    return f"{short}{load.groups:,} groups of {each}, {processes}{slow}"


def beside(backends: Sequence[str], handled: Handled, results: Results, plots: Sequence[str]) -> list[str]:
    """Write the first table of every backend."""
    messages = handled.handling.messages
    scenes = "; ".join(scene_name(scene, messages) for scene in SHORT)
    about = (
        f"From publish to handled, no-op handler, a backlog published before. {scenes}. Messages a second: the middle "
        f"of {handled.handling.rounds} rounds, and the least and the most; a peer that would take longer has fewer "
        "messages, which its cell says. All rounds of all workloads saw whether each message was handled once, its "
        "group's in order, and one at a time: who breaks that is marked, and stays. The limits are the same requests "
        "as harel's without harel."
    )
    parts = ["## harel beside its peers", about]
    for backend in backends:
        columns = [scene for scene in SHORT if scene in scenes_of(backend)]
        rows = [_beside_row(each, backend, columns, handled, results) for each in runtimes_of(backend)]
        rows += _limit_rows(backend, columns, messages, results)
        head = (backend, *(SHORT[scene] for scene in columns), "published in batches", "Order, exclusivity")
        parts.append(table(head, rows))
        parts += [
            f"![{backend}: harel beside its peers](plots/{name})" for name in plots if name.endswith(f"-{backend}.svg")
        ]
    return parts


def _beside_row(
    each: Contender, backend: str, columns: Sequence[str], handled: Handled, results: Results
) -> tuple[str, ...]:
    messages = handled.handling.messages
    if each.unable or each.key in results.missing:
        why = f"cannot: {each.unable}" if each.unable else f"not installed: {results.missing[each.key]}"
        return (label(each), *["-"] * (len(columns) + 1), why)
    rates = []
    for scene in columns:
        cell = messages.cell(each.name, backend, scene)
        rates.append(_rate(cell, handled, results, messages.load(scene).messages))
    published = results.spread(messages.cell(each.name, backend, ONE_WORKER, PUBLISHED))
    batches = with_ends(published) if each.batches or published is None else f"one by one: {with_ends(published)}"
    return (_bold(label(each), is_ours=each.name == OURS), *rates, batches, _verdict(each, handled))


def _verdict(contender: Contender, handled: Handled) -> str:
    """Say whether order was kept, and what could not be done at all."""
    whose = (contender.name, contender.backend)
    failed = [cell.workload for cell in handled.failed if (cell.contender, cell.backend) == whose]
    return "; cannot: ".join(part for part in (order_of(contender, handled), ", ".join(failed)) if part)


def _rate(cell: Cell, handled: Handled, results: Results, full: int) -> str:
    if cell in handled.failed:
        return f"cannot: {handled.failed[cell]}"
    rate = with_ends(results.spread(cell))
    count = results.counts.get(cell, full)
    return rate if count == full else f"{rate}, of {count:,}"


def _limit_rows(
    backend: str, columns: Sequence[str], messages: Messages, results: Results
) -> Iterator[tuple[str, ...]]:
    names = [(BARE.get(backend), f"one connection, batches of {BATCH}")]
    names.append((SERVER_ALONE.get(backend), f"the server alone{', four clients' if backend == 'postgres' else ''}"))
    for name, how in names:
        if name is None:
            continue
        rates = [with_ends(results.spread(messages.cell(name, backend, scene))) for scene in columns]
        if any(rate != "-" for rate in rates):
            yield (f"*limit: {name}, {how}*", *rates, "-", "-")


def order_of(contender: Contender, handled: Handled) -> str:
    """Say whether a contender kept order and exclusivity, over all that it was seen to do."""
    cells = [cell for cell in handled.broken if (cell.contender, cell.backend) == (contender.name, contender.backend)]
    if not cells:
        return "-"
    broken = sum((handled.broken[cell] for cell in cells), Broken())
    return f"**broken**: {broken}" if broken else "kept"


def _bold(text: str, *, is_ours: bool) -> str:
    return f"**{text}**" if is_ours else text


def backlogs(drained: Drained | None) -> list[str]:
    """Write what harel made of large backlogs."""
    if drained is None or not drained.rates:
        return []
    draining = drained.draining
    parts = [
        f"## A backlog of {draining.messages:,} messages",
        _backlog_about(draining),
        "![A backlog by the number of worker processes](plots/backlog.svg)",
        "![The same with handlers that take time](plots/backlog-slow.svg)",
    ]
    backends = dict.fromkeys(backend for backend, _ in drained.rates)
    return [*parts, *(_backlog_table(backend, drained) for backend in backends)]


def _backlog_about(draining: Draining) -> str:
    few, handler_ms = draining.groups[0], draining.handler_ms
    return (
        "Published before, in rounds: one to every group that has any left, then the next. Skewed: as uneven as the "
        f"flights of the demo are by aircraft. With {few} groups, and with handlers of {handler_ms:g} ms, there are "
        "fewer messages, as the table says; a group's handlers go one after the other, so that "
        f"{few} groups can do {1000 / handler_ms * few:,.0f} such a second at most. Messages a second: the middle of "
        f"{draining.rounds} rounds, and the least and the most."
    )


def _backlog_table(backend: str, drained: Drained) -> str:
    found = {backlog: rates for (where, backlog), rates in drained.rates.items() if where == backend}
    workers = sorted({backlog.workers for backlog in found})
    rows = []
    for each in dict.fromkeys(replace(backlog, workers=1) for backlog in found):
        rates = [_spread(found.get(replace(each, workers=count))) for count in workers]
        messages, largest = next(
            drained.counts[backend, backlog] for backlog in found if replace(backlog, workers=1) == each
        )
        rows.append((_shape(each), *map(with_ends, rates), f"{messages:,}", f"{largest:,}"))
    columns = [f"{count} process{'es' if count > 1 else ''}" for count in workers]
    return table((backend, *columns, "messages", "in the largest group"), rows)


def _shape(backlog: Backlog) -> str:
    return backlog.shape + (f", handlers of {backlog.handler_ms:g} ms" if backlog.handler_ms else ", no-op")


def _spread(values: Sequence[float] | None) -> Spread | None:
    return Spread.of(values) if values else None


def steady(backends: Sequence[str], handled: Handled) -> list[str]:
    """Write how long messages wait that come at half of what a worker can do."""
    rows = []
    for contender in (each for backend in backends for each in runtimes_of(backend)):
        found = handled.steady.get((contender.name, contender.backend))
        if found is None or not found.median_s:
            continue
        rows.append(
            (
                f"{contender.backend}: {label(contender)}",
                f"{found.wanted:,}",
                with_ends(Spread.of(found.offered)),
                _ms(found.median_s),
                _ms(found.tail_s),
                f"{found.messages:,}",
            )
        )
    if not rows:
        return []
    messages = handled.handling.messages
    return [
        "## At half of its capacity",
        (
            f"For {messages.steady_s:g} s messages come at half of the rate that the contender's one worker had in "
            f"W1, in ticks of 10 ms, to {messages.many.groups:,} groups in turn, from a second process. What a message "
            "waits is from when its publish returned to when its handler began, in ms."
        ),
        "![Waiting at half of the capacity](plots/steady.svg)",
        table(("", "wanted a second", "published a second", "median, ms", "99 of 100 within, ms", "messages"), rows),
    ]


def _ms(seconds: Sequence[float]) -> str:
    spread = Spread.of([each * 1e3 for each in seconds])
    return f"{spread.middle:.2f} ({spread.least:.2f} to {spread.most:.2f})"


def flooded(found: Sequence[Flooded], size: Flood) -> list[str]:
    """Write how long groups wait in a flood."""
    if not found:
        return []
    rows = [
        (
            f"{each.backend}, fresh_first={each.fresh_first}",
            _ms(each.before_s),
            _ms(each.old_s),
            _ms(each.new_s),
        )
        for each in found
    ]
    return [
        "## A flood of new groups",
        (
            f"{size.old} old groups never run out of messages; one claimant takes {size.batch} at once. Then for "
            f"{size.steps} claims {size.arriving} new groups of one message come before each, more than it serves. "
            "With `fresh_first` (the default) new groups go first, and the old ones wait until the flood is over; "
            "without, all go in turn, and the new ones wait too."
        ),
        "![How long old groups wait](plots/flood.svg)",
        table(("ms", "an old group, before: longest", "in the flood: longest", "a new group: median"), rows),
    ]


def differences(backends: Sequence[str]) -> list[str]:
    """Write what each peer does differently, in the words of who set it up."""
    about: dict[str, str] = {}
    for backend in backends:
        for each in runtimes_of(backend):
            if each.about:
                about.setdefault(each.name, f"- **{each.name}** ({each.backend}): {each.about} {each.unable}".rstrip())
    return ["## What each peer does differently", "\n".join(about.values())] if about else []


def worse(backends: Sequence[str], handled: Handled | None, results: Results, found: Sequence[Flooded]) -> list[str]:
    """Write where another was better than harel in this run, and what harel's choices cost."""
    said = [line for backend in backends for line in _faster(backend, handled, results)]
    if handled is not None:
        said += [line for backend in backends for line in _sooner(backend, handled)]
        said += [line for backend in backends for line in _does_not_scale(backend, handled.handling.messages, results)]
    by_kind = {(each.backend, each.fresh_first): median(each.old_s) for each in found}
    said += [
        f"{backend}: in a flood of new groups an old one waited up to {waited * 1e3:,.0f} ms, and with "
        f"`fresh_first=False` up to {by_kind[backend, False] * 1e3:,.0f} ms"
        for (backend, fresh_first), waited in by_kind.items()
        if fresh_first and waited > WORTH_TELLING * by_kind[backend, False]
    ]
    if not said:
        return []
    return ["## What harel does worse", "\n".join(f"- {line}." for line in said)]


def _faster(backend: str, handled: Handled | None, results: Results) -> Iterator[str]:
    """Yield in what peers had a higher rate, and which; of several sizes of a workload the worst for harel."""
    peers = {each.name: each for each in (*CONTENDERS, *runtimes_of(backend)) if each.role == "peer"}
    found: dict[str, dict[str, float]] = {}
    for cell in results.rates:
        if cell.backend != backend or cell.contender not in peers:
            continue
        if cell.figure == PUBLISHED and cell.workload != ONE_WORKER:
            continue
        ratio = results.ratio(cell, replace(cell, contender=OURS))
        if ratio is not None and ratio.middle > WORTH_TELLING:
            others = found.setdefault(_in_words(cell, handled), {})
            others[cell.contender] = max(ratio.middle, others.get(cell.contender, 0.0))
    for what, others in found.items():
        each = ", ".join(
            f"{name}{_mark(peers[name], handled)} {times:.2f} times as fast" for name, times in others.items()
        )
        yield f"{backend}, {what}: {each}"


def _in_words(cell: Cell, handled: Handled | None) -> str:
    if cell.figure == PUBLISHED:
        return "publishing the backlog of W1"
    if handled is not None and cell.figure == FIGURE:
        return scene_name(cell.workload, handled.handling.messages)
    return f"{cell.figure}, {cell.workload}"


def _mark(contender: Contender, handled: Handled | None) -> str:
    broken = handled is not None and order_of(contender, handled).startswith("**")
    return " (breaks order)" if broken else ""


def _sooner(backend: str, handled: Handled) -> Iterator[str]:
    """Yield behind which peers a message waited longer than with harel, each at half of its own capacity."""
    ours = handled.steady.get((OURS, backend))
    others = [(each, handled.steady.get((each.name, backend))) for each in runtimes_of(backend) if each.name != OURS]
    if ours is None or not ours.median_s:
        return
    for name, mine, its in (
        ("half of the messages", median(ours.median_s), _median_of),
        ("99 of 100", median(ours.tail_s), _tail_of),
    ):
        sooner = [
            f"{each.name}{_mark(each, handled)} {its(other) * 1e3:.2f}"
            for each, other in others
            if other is not None and other.median_s and mine > WORTH_TELLING * its(other)
        ]
        if sooner:
            yield (
                f"{backend}, at half of its own capacity: {name} wait {mine * 1e3:.2f} ms at most; with "
                f"{', '.join(sooner)} ms"
            )


def _median_of(steady: Steady) -> float:
    return median(steady.median_s)


def _tail_of(steady: Steady) -> float:
    return median(steady.tail_s)


def _does_not_scale(backend: str, messages: Messages, results: Results) -> Iterator[str]:
    one, four, few = (messages.cell(OURS, backend, scene) for scene in (ONE_WORKER, MANY_WORKERS, FEW_GROUPS))
    gained, kept = results.ratio(four, one), results.ratio(few, one)
    if gained is not None and gained.middle < WORKERS / 2:
        yield f"{backend}: {WORKERS} processes handle {gained.middle:.2f} times as many messages a second as one"
    if kept is not None and kept.middle < 1 / WORTH_TELLING:
        yield (
            f"{backend}: of {messages.few.groups} groups a worker handles {kept.middle:.2f} of what it handles of "
            f"{messages.many.groups:,}"
        )


def limits_about(backends: Sequence[str]) -> str:
    """Say how the limits were measured."""
    said = [
        (
            f"Limits of the workers: the same backlog is filled by a bare driver. One connection then claims and acks "
            f"{BATCH} at once with harel's own requests, timed only while it is inside the driver."
        )
    ]
    if "postgres" in backends:
        said.append(
            "pgbench, of PostgreSQL's own wheel, runs four clients that claim and ack by the same functions, "
            f"{', '.join(map(str, BATCHES))} at once, of which the best counts; it ends before the backlog does, and "
            "what it handled is counted in the table."
        )
    if "redis" in backends:
        said.append(
            "For Redis the requests of such a drain are recorded, and sent for another, the same backlog over one "
            "connection without waiting for replies; nothing may be left then. valkey-benchmark is not in the wheel of "
            "Valkey, and could not ack what it claims."
        )
    return " ".join(said)
