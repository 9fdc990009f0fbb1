"""Plots as SVG: bars and lines in panels side by side, with spread, readable on light and on dark ground."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Bar", "BarPanel", "Line", "LinePanel", "bars", "lines"]

FONT = 12
CHARACTER = 6.6
"""About the width of one."""
COLOURS = ("1f6fb4", "d1650c", "2b8a3e", "8a4fb5", "b02a4a", "12807f", "7d6608", "5c6670")
ON_DARK = ("6db3f2", "f5a05a", "6fcf7f", "c69bee", "f28ba5", "5fd0cf", "d9c463", "aab4be")
STYLE = (
    f"text{{font:{FONT}px system-ui,sans-serif;fill:#24292f}}.title{{font-weight:600;font-size:14px}}"
    ".ground{fill:#fff}.grid{stroke:#d8dee4;stroke-width:1}.axis{stroke:#57606a;stroke-width:1}"
    ".whisker{stroke:#24292f;stroke-width:1.4}.shade{fill:#57606a;opacity:.13}.line{fill:none;stroke-width:2}"
    + "".join(f".f{at}{{fill:#{each}}}.s{at}{{stroke:#{each}}}" for at, each in enumerate(COLOURS))
    + "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.ground{fill:#0d1117}.grid{stroke:#30363d}"
    ".axis{stroke:#8b949e}.whisker{stroke:#e6edf3}.shade{fill:#8b949e}"
    + "".join(f".f{at}{{fill:#{each}}}.s{at}{{stroke:#{each}}}" for at, each in enumerate(ON_DARK))
    + "}"
)


@dataclass(frozen=True)
class Bar:
    label: str
    value: float | None
    """``None`` where there is none; ``note`` says why."""
    least: float = 0.0
    most: float = 0.0
    colour: int = 0
    note: str = ""
    hatched: bool = False


@dataclass(frozen=True)
class BarPanel:
    title: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Line:
    label: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    spread: Sequence[tuple[float, float]] = ()
    """Of each point the least and the most."""
    dashed: bool = False
    dots: bool = True


@dataclass(frozen=True)
class LinePanel:
    title: str
    lines: Sequence[Line]
    across: str
    """What the horizontal axis shows, with its unit."""
    up: str
    log_across: bool = False
    log_up: bool = False
    ticks: Sequence[float] = ()
    """Where the horizontal axis has its marks, if that is known."""
    shade: tuple[float, float] | None = None
    shade_label: str = ""
    name_ticks: Callable[[float], str] = field(default=lambda value: _short(value))


def bars(title: str, unit: str, panels: Sequence[BarPanel]) -> str:
    """Draw horizontal bars on a logarithmic scale that all panels share, one panel below the other."""
    values = [
        value for panel in panels for bar in panel.bars if bar.value for value in (bar.value, bar.least, bar.most)
    ]
    scale = _Scale.over([value for value in values if value > 0], log=True)
    left = 16 + CHARACTER * max(len(bar.label) for panel in panels for bar in panel.bars)
    width, row, parts, top = left + 620, 20, [], 72.0
    for panel in panels:
        parts.append(_text(16, top, panel.title, "title"))
        top += 10
        bottom = top + row * len(panel.bars)
        place = _Place(scale, left, left + 430)
        parts.extend(_line(place(tick), top, place(tick), bottom, "grid") for tick in scale.ticks)
        for number, bar in enumerate(panel.bars):
            parts.extend(_bar(bar, top + row * number, place, left))
        parts.append(_line(left, top, left, bottom, "axis"))
        parts.extend(_text(place(tick), bottom + 15, _short(tick), anchor="middle") for tick in scale.ticks)
        top = bottom + 50
    legend = _text(16, 42, f"{unit}; the middle of the rounds, and the least and the most")
    return _svg(width, top - 22, [_text(16, 22, title, "title"), legend, *parts])


def _bar(bar: Bar, top: float, place: _Place, left: float) -> Iterator[str]:
    middle = top + 10
    yield _text(left - 8, middle + 4, bar.label, anchor="end")
    if not bar.value:
        yield _text(left + 6, middle + 4, bar.note or "none")
        return
    end = place(bar.value)
    yield _box(left, top + 3, end - left, 14, f'class="f{bar.colour}"')
    if bar.hatched:
        yield _box(left, top + 3, end - left, 14, 'fill="url(#hatch)"')
    ends = place(bar.least), place(bar.most)
    yield _line(ends[0], middle, ends[1], middle, "whisker")
    yield from (_line(x, middle - 4, x, middle + 4, "whisker") for x in ends)
    yield _text(max(end, ends[1]) + 6, middle + 4, f"{_exact(bar.value)}{f'  {bar.note}' if bar.note else ''}")


def lines(title: str, panels: Sequence[LinePanel], *, about: str = "") -> str:
    """Draw panels of lines side by side, each with its own scales, and one legend."""
    labels: dict[str, Line] = {line.label: line for panel in panels for line in panel.lines}
    width, height, gap = 330, 230, 70
    top = 108.0 + 18 * len(labels)
    parts = [_text(16, 22, title, "title"), *([_text(16, 42, about)] if about else [])]
    for number, (label, line) in enumerate(labels.items()):
        y = 62 + 18 * number
        parts.append(_stroke(f"M16 {y}H46", line))
        parts.append(_text(54, y + 4, label))
    for number, panel in enumerate(panels):
        left = 62 + number * (width + gap)
        parts.extend(_panel(panel, left, top, left + width, top + height))
    total = max(62 + len(panels) * (width + gap) - gap + 24, 32 + CHARACTER * max(len(about), 1.3 * len(title)))
    return _svg(total, top + height + 52, parts)


def _panel(panel: LinePanel, left: float, top: float, right: float, bottom: float) -> Iterator[str]:
    across = _Scale.over([x for line in panel.lines for x, _ in line.points], log=panel.log_across, pad=False)
    heights = [y for line in panel.lines for _, y in line.points]
    heights += [y for line in panel.lines for ends in line.spread for y in ends]
    up = _Scale.over(heights, log=panel.log_up)
    x, y = _Place(across, left, right), _Place(up, bottom, top)
    yield _text(left, top - 22, panel.title, "title")
    yield _text(left - 46, top - 8, panel.up)
    if panel.shade:
        begin, end = (min(max(x(each), left), right) for each in panel.shade)
        yield _box(begin, top, end - begin, bottom - top, 'class="shade"')
        yield _text(begin + 4, top + 14, panel.shade_label)
    for tick in up.ticks:
        yield _line(left, y(tick), right, y(tick), "grid")
        yield _text(left - 6, y(tick) + 4, _short(tick), anchor="end")
    for tick in panel.ticks or across.ticks:
        yield _line(x(tick), bottom, x(tick), bottom + 4, "axis")
        yield _text(x(tick), bottom + 18, panel.name_ticks(tick), anchor="middle")
    yield _line(left, bottom, right, bottom, "axis")
    yield _text((left + right) / 2, bottom + 38, panel.across, anchor="middle")
    for line in panel.lines:
        places = [(x(at), y(value)) for at, value in line.points]
        yield _stroke("M" + "L".join(f"{at:.1f} {value:.1f}" for at, value in places), line)
        for (at, _), (least, most) in zip(places, line.spread, strict=False):
            yield _line(at, y(least), at, y(most), f"s{line.colour}")
        for at, value in places if line.dots else ():
            yield f'<circle cx="{at:.1f}" cy="{value:.1f}" r="3" class="f{line.colour}"/>'


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    log: bool
    ticks: Sequence[float]

    @classmethod
    def over(cls, values: Sequence[float], *, log: bool, pad: bool = True) -> _Scale:
        low, high = min(values, default=1.0), max(values, default=10.0)
        if log:
            if pad:
                low, high = 10 ** math.floor(math.log10(low)), high * 1.02
            high = max(high, low * 1.001)
            decades = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
            ticks = [10.0**decade for decade in decades]
            if len(ticks) < 3 and pad:
                ticks = [m * tick for tick in [10.0 ** (decades[0] - 1), *ticks] for m in (1, 2, 5)]
            return cls(low, high, log, [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001])
        if pad:
            low = min(0.0, low)
        high = max(high * 1.05 if pad else high, low + 1e-9)
        step = _step((high - low) / 5)
        first = math.ceil(low / step - 1e-9)
        return cls(low, high, log, [step * n for n in range(first, math.floor(high / step + 1e-9) + 1)])


def _step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)


@dataclass(frozen=True)
class _Place:
    """From a value to where it is drawn."""

    scale: _Scale
    start: float
    end: float

    def __call__(self, value: float) -> float:
        low, high = self.scale.low, self.scale.high
        if self.scale.log:
            share = math.log(max(value, low) / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}" if abs(value) >= 1e-3 or not value else f"{value:.0e}"


def _exact(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}{anchor}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _box(x: float, y: float, width: float, height: float, look: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {look}/>'


def _stroke(path: str, line: Line) -> str:
    dash = ' stroke-dasharray="6 4"' if line.dashed else ""
    return f'<path d="{path}" class="line s{line.colour}"{dash}/>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    hatch = (
        '<pattern id="hatch" width="6" height="6" patternTransform="rotate(45)" patternUnits="userSpaceOnUse">'
        '<line x1="0" y1="0" x2="0" y2="6" stroke="#fff" stroke-width="3" opacity=".75"/></pattern>'
    )
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {size} role="img">',
            f"<style>{STYLE}</style><defs>{hatch}</defs>",
            _box(0, 0, width, height, 'class="ground"'),
            *parts,
            "</svg>\n",
        )
    )
