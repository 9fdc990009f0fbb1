"""Which plots there are, and what is on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.contenders import OURS, Contender
from benchmarks.crews import WORKERS
from benchmarks.drains import Backlog, Drained
from benchmarks.flood import Flooded
from benchmarks.handled import FEW_GROUPS, MANY_WORKERS, ONE_WORKER, SINGLES, Handled, runtimes_of, scenes_of
from benchmarks.limits import SERVER_ALONE
from benchmarks.plots import Bar, BarPanel, Line, LinePanel, bars, lines
from benchmarks.report_beside import order_of, scene_name
from benchmarks.results import Results, Spread
from benchmarks.rounds import DEEP_GROUPS
from benchmarks.targets import Measured
from benchmarks.workloads import CLAIMS, DEEP

__all__ = ["draw"]

BACKENDS = ("memory", "sqlite", "postgres", "redis")
SHOWN = (ONE_WORKER, MANY_WORKERS, SINGLES, FEW_GROUPS)


def draw(measured: Measured) -> dict[str, str]:
    """Return the plots by their file names."""
    backends = [backend for backend in measured.backends if backend not in measured.results.unavailable]
    found: dict[str, str] = {}
    if measured.handled is not None:
        for backend in backends:
            found[f"beside-{backend}.svg"] = _beside(backend, measured.handled, measured.results)
        found["steady.svg"] = _steady(backends, measured.handled)
    if measured.drained is not None and measured.drained.rates:
        found["backlog.svg"] = _backlog(measured.drained, 0.0)
        found["backlog-slow.svg"] = _backlog(measured.drained, measured.drained.draining.handler_ms)
    found |= {"groups.svg": _groups(measured.results), "depth.svg": _depth(measured.results)}
    if measured.flooded:
        found["flood.svg"] = _flood(measured.flooded)
    return {name: picture for name, picture in found.items() if picture}


def _beside(backend: str, handled: Handled, results: Results) -> str:
    messages = handled.handling.messages
    panels = []
    for scene in SHOWN:
        if scene not in scenes_of(backend):
            continue
        found = [_contender(each, colour, scene, handled, results) for colour, each in enumerate(_shown(backend))]
        limits = [name for name in (_limit_name(backend, scene),) if name]
        for name in limits:
            spread = results.spread(messages.cell(name, backend, scene))
            if spread is not None:
                found.append(Bar(f"the server alone ({name})", spread.middle, spread.least, spread.most, 7))
        panels.append(BarPanel(scene_name(scene, messages), found))
    return bars(f"{backend}: from publish to handled, no-op handler", "Messages a second", panels)


def _shown(backend: str) -> list[Contender]:
    return runtimes_of(backend)


def _limit_name(backend: str, scene: str) -> str:
    return SERVER_ALONE.get(backend, "") if scene in (MANY_WORKERS, SINGLES) else ""


def _contender(each: Contender, colour: int, scene: str, handled: Handled, results: Results) -> Bar:
    cell = handled.handling.messages.cell(each.name, each.backend, scene)
    spread = results.spread(cell)
    if each.unable or each.key in results.missing or cell in handled.failed or spread is None:
        why = "cannot keep a group's order" if each.unable else "not installed" if each.key in results.missing else ""
        return Bar(each.name, None, note=why or ("cannot" if cell in handled.failed else "not measured"))
    broken = order_of(each, handled).startswith("**")
    return Bar(
        each.name,
        spread.middle,
        spread.least,
        spread.most,
        0 if each.name == OURS else 1 + (colour - 1) % 6,
        "breaks order" if broken else "",
        broken,
    )


def _backlog(drained: Drained, handler_ms: float) -> str:
    draining = drained.draining
    panels = []
    for backend in (each for each in BACKENDS if each != "memory"):
        drawn = []
        for colour, groups in enumerate(draining.groups):
            for is_skewed in (False, True):
                rates = [
                    (count, Spread.of(drained.rates[backend, key]))
                    for count in (1, 2, WORKERS)
                    if (backend, key := Backlog(groups, is_skewed, count, handler_ms)) in drained.rates
                ]
                if rates:
                    drawn.append(_line(key.shape, rates, colour, dashed=is_skewed))
        if drawn:
            panels.append(LinePanel(backend, drawn, "worker processes", "messages a second", ticks=(1, 2, WORKERS)))
    if not panels:
        return ""
    if handler_ms:
        about = f"handlers of {handler_ms:g} ms; as many messages as the table says; bars: least and most"
    else:
        about = f"no-op handler; {draining.messages:,} messages, fewer where groups are few; bars: least and most"
    return lines("A large backlog of harel's", panels, about=about)


def _line(label: str, rates: Sequence[tuple[float, Spread]], colour: int, *, dashed: bool = False) -> Line:
    points = [(at, spread.middle) for at, spread in rates]
    return Line(label, points, colour, [(spread.least, spread.most) for _, spread in rates], dashed)


def _groups(results: Results) -> str:
    """Draw what a claim costs, by the number of groups."""
    drawn = list(_costs(results, CLAIMS, "claim"))
    if not drawn:
        return ""
    panel = LinePanel("one claim", drawn, "groups in the queue", "µs", log_across=True, log_up=True)
    return lines("What a claim of harel's costs, by the number of groups", [panel])


def _depth(results: Results) -> str:
    """Draw what a message costs, by how many wait in each group."""
    panels = [
        LinePanel(figure, drawn, f"messages in each of {DEEP_GROUPS} groups", "µs", log_across=True, log_up=True)
        for figure in ("claim+ack", "publish")
        if (drawn := list(_costs(results, DEEP, figure)))
    ]
    return lines("What a message of harel's costs one by one, by its group's backlog", panels) if panels else ""


def _costs(results: Results, workload: str, figure: str) -> Iterator[Line]:
    for colour, backend in enumerate(BACKENDS):
        cells = sorted(
            (cell for cell in results.rates if (cell.contender, cell.backend) == (OURS, backend)),
            key=lambda cell: cell.groups,
        )
        rates = [
            (cell.groups, Spread.of([1e6 / rate for rate in results.rates[cell]]))
            for cell in cells
            if (cell.workload, cell.figure) == (workload, figure)
        ]
        if rates:
            yield _line(backend, rates, colour)


def _flood(found: Sequence[Flooded]) -> str:
    panels = []
    for backend in dict.fromkeys(each.backend for each in found):
        both = [each for each in found if each.backend == backend]
        drawn = [
            Line(
                f"an old group, fresh_first={each.fresh_first}",
                each.points,
                0 if each.fresh_first else 1,
                dots=False,
                dashed=not each.fresh_first,
            )
            for each in both
        ]
        flood_s = max(each.flood_s for each in both)
        panels.append(
            LinePanel(
                backend,
                drawn,
                "seconds since the flood began",
                "seconds waited",
                shade=(0.0, flood_s),
                shade_label="new groups come",
            )
        )
    about = "of the old groups the one that has waited longest, at each claim of one round"
    return lines("A flood of new groups: how long old ones wait", panels, about=about)


def _steady(backends: Sequence[str], handled: Handled) -> str:
    panels = []
    for backend in backends:
        drawn = []
        for colour, each in enumerate(_shown(backend)):
            found = handled.steady.get((each.name, backend))
            if found is None or not found.median_s:
                continue
            broken = order_of(each, handled).startswith("**")
            shade = 0 if each.name == OURS else 1 + (colour - 1) % 6
            for what, seconds in (("median", found.median_s), ("99 of 100", found.tail_s)):
                spread = Spread.of([max(value * 1e3, 0.001) for value in seconds])
                note = "breaks order" if broken else ""
                name = f"{each.name} at {median(found.offered):,.0f}/s, {what}"
                drawn.append(Bar(name, spread.middle, spread.least, spread.most, shade, note, broken))
        if drawn:
            panels.append(BarPanel(backend, drawn))
    return bars("What a message waits at half of its contender's capacity", "ms", panels) if panels else ""
