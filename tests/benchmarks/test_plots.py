"""The plots: well-formed, with every label and number, on scales that hold them."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from benchmarks.drains import Drained, Draining
from benchmarks.flood import Flooded
from benchmarks.pictures import draw
from benchmarks.plots import Bar, BarPanel, Line, LinePanel, bars, lines
from benchmarks.results import Cell, Results
from benchmarks.targets import Measured
from benchmarks.workloads import CLAIMS, DEEP

SVG = "{http://www.w3.org/2000/svg}"


def parsed(picture: str) -> ET.Element:
    return ET.fromstring(picture)


def texts(picture: str) -> list[str]:
    return [text.text or "" for text in parsed(picture).iter(f"{SVG}text")]


def boxes(picture: str, kind: str) -> list[float]:
    return [float(box.get("width", "0")) for box in parsed(picture).iter(f"{SVG}rect") if box.get("class") == kind]


def test_bars_grow_with_the_logarithm_and_show_their_spread_and_their_marks() -> None:
    picture = bars(
        "A title",
        "Messages a second",
        [
            BarPanel(
                "W1 <&>",
                [
                    Bar("ours", 10_000.0, 9_000.0, 12_000.0, 0),
                    Bar("peer", 1_000.0, 900.0, 1_100.0, 1, "breaks order", hatched=True),
                    Bar("slow", 100.0, 100.0, 100.0, 2),
                    Bar("other", None, note="no order within a group"),
                ],
            )
        ],
    )
    found = texts(picture)
    assert {"A title", "W1 <&>", "ours", "10,000", "1,000  breaks order", "no order within a group"} <= set(found)
    assert {"100", "1k", "10k"} <= set(found)
    ours, peer, slow = (boxes(picture, f"f{colour}")[0] for colour in range(3))
    assert ours - peer == pytest.approx(peer - slow, abs=0.2)
    assert picture.count('fill="url(#hatch)"') == 1
    assert picture.count('class="whisker"') == 3 * 3


def test_lines_are_placed_on_their_scales() -> None:
    points = [(1_000.0, 100.0), (10_000.0, 100.0), (100_000.0, 200.0)]
    line = Line("postgres", points, 2, [(90.0, 110.0), (95.0, 120.0), (150.0, 250.0)], dashed=True)
    panel = LinePanel("a claim", [line], "groups", "µs", log_across=True, shade=(1_000.0, 10_000.0), shade_label="s")
    picture = lines("Costs", [panel, panel], about="about")
    assert {"Costs", "about", "postgres", "a claim", "groups", "µs", "1k", "10k", "100k"} <= set(texts(picture))
    dots = [(float(dot.get("cx", "0")), float(dot.get("cy", "0"))) for dot in parsed(picture).iter(f"{SVG}circle")]
    assert len(dots) == 6
    (x1, y1), (x2, y2), (x3, y3) = dots[:3]
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 == y2 > y3
    assert "stroke-dasharray" in picture
    assert "prefers-color-scheme:dark" in picture


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ([0.0, 0.0], False),
        ([5.0, 5.0], False),
        ([5.0, 5.0], True),
        ([0.0001, 0.0002], False),
        ([0.0001, 0.0002], True),
        ([1.0, 2_000_000.0], False),
        ([1.0, 2_000_000.0], True),
    ],
)
def test_any_values_have_a_scale(values: list[float], log: bool) -> None:
    panel = LinePanel("p", [Line("l", list(enumerate(values, 1)))], "x", "y", log_up=log)
    picture = lines("t", [panel])
    numbers = [float(value) for value in re.findall(r'c[xy]="([-0-9.]+)"', picture)]
    width, height = (float(parsed(picture).get(side, "0")) for side in ("width", "height"))
    assert len(numbers) == 4
    assert all(0 <= x <= width for x in numbers[::2])
    assert all(0 <= y <= height for y in numbers[1::2])


def test_of_what_was_not_measured_there_is_no_plot() -> None:
    assert draw(Measured(["redis"], Results())) == {}


def test_backlogs_are_drawn_by_how_long_their_handlers_take() -> None:
    drained = Drained(Draining(2, 100, (10, 50), 100, 100, 5.0))
    drained.rates = {("redis", each): [10.0 * each.workers, 20.0] for each in drained.draining.backlogs("redis")}
    found = draw(Measured(["redis"], Results(), drained=drained))
    assert set(found) == {"backlog.svg", "backlog-slow.svg"}
    shown = set(texts(found["backlog.svg"]))
    assert {"10 groups", "50 groups, skewed", "redis", "worker processes", "1", "2", "4"} <= shown
    assert any("handlers of 5 ms" in text for text in texts(found["backlog-slow.svg"]))


def test_costs_and_floods_are_drawn() -> None:
    results = Results()
    for groups in (1_000, 10_000):
        results.rates[Cell("harel", "redis", CLAIMS, "claim", groups)] = [5_000.0, 6_000.0]
        results.rates[Cell("harel", "redis", DEEP, "claim+ack", groups)] = [5_000.0, 6_000.0]
    flooded = [Flooded("redis", first, [(-0.1, 0.0), (0.1, 0.1), (0.5, 0.5)], 0.4, [0.5]) for first in (True, False)]
    found = draw(Measured(["redis"], results, flooded=flooded))
    assert set(found) == {"groups.svg", "depth.svg", "flood.svg"}
    assert "an old group, fresh_first=False" in texts(found["flood.svg"])
    assert all(parsed(picture).tag == f"{SVG}svg" for picture in found.values())
