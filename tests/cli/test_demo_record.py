"""The demo's check finds each fault in a record, and accuses no record that is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from harel.cli.demo_record import Follower, Handling, Scribe, find_fault, repeated

PUBLISHED = {"a": ["a/1", "a/2", "a/3"], "b": ["b/1"]}


def handled(event_id: str, began: float, ended: float | None, worker: str = "w1") -> Handling:
    return Handling(
        worker=worker,
        number=0,
        group_id=event_id.split("/", maxsplit=1)[0],
        event_id=event_id,
        attempt=1,
        began=began,
        ended=ended,
    )


RIGHT = [handled("a/1", 0, 1), handled("b/1", 0.5, 5), handled("a/2", 1, 2, "w2"), handled("a/3", 2, 3)]


def without(event_id: str) -> list[Handling]:
    return [handling for handling in RIGHT if handling.event_id != event_id]


@pytest.mark.parametrize(
    ("handlings", "again"),
    [
        pytest.param(RIGHT, 0, id="each once"),
        pytest.param(RIGHT[::-1], 0, id="read in another order"),
        pytest.param([*without("a/2"), handled("a/2", 1, None, "dead"), handled("a/2", 1.6, 2)], 1, id="cut off"),
        pytest.param([*without("a/2"), handled("a/1", 1, 1.1), handled("a/2", 1.2, 2)], 1, id="not acknowledged"),
        pytest.param([*RIGHT, handled("a/3", 3, 4), handled("a/3", 4, 5)], 2, id="the last one, twice more"),
        pytest.param([*RIGHT, handled("a/3", 3, None, "dead"), handled("b/1", 5, 6)], 2, id="cut off at a repetition"),
    ],
)
def test_a_record_that_is_right(handlings: list[Handling], again: int) -> None:
    """At least once, in order: what a kill cut off, or kept from being acknowledged, comes again."""
    killed = {"dead": 1.5 if again == 1 else 3.5}
    assert find_fault(PUBLISHED, handlings, killed) is None
    assert repeated(handlings) == again


@pytest.mark.parametrize(
    ("handlings", "text"),
    [
        pytest.param(without("a/2"), "a/3 was handled before a/2.", id="one left out"),
        pytest.param(without("a/3"), "a/3 was never handled.", id="the last one lost"),
        pytest.param(without("b/1"), "b/1 was never handled.", id="a whole group lost"),
        pytest.param([], "a/1 was never handled.", id="nothing was handled"),
        pytest.param(
            [*without("a/2"), handled("a/2", 3, 4)], "a/3 was handled before a/2.", id="two the wrong way round"
        ),
        pytest.param(
            [*RIGHT, handled("a/1", 3, 4)], "a/1 was handled again after a/3.", id="an earlier one comes again"
        ),
        pytest.param(
            [*without("a/2"), handled("a/2", 0.9, 2, "w2")],
            "a/2 began while a/1 was still being handled.",
            id="two at a time",
        ),
        pytest.param(
            [*RIGHT, handled("a/2", 1.5, 1.6)],
            "a/2 began while a/2 was still being handled.",
            id="the same one twice at a time",
        ),
        pytest.param(
            [*without("a/2"), handled("a/2", 1, None, "dead"), handled("a/2", 1.4, 2)],
            "a/2 began while a/2 was still being handled.",
            id="delivered again before its worker was killed",
        ),
        pytest.param(
            [*without("a/2"), handled("a/2", 1, None, "dead")],
            "a/3 was handled though a/2 was cut off and is not done.",
            id="cut off and passed over",
        ),
        pytest.param(
            [*without("a/3"), handled("a/3", 2, None, "dead-late")],
            "a/3 was cut off and never delivered again.",
            id="the last one cut off and lost",
        ),
        pytest.param(
            [*without("a/3"), handled("a/3", 2, None)],
            "a/3 began and never ended, though its worker was not killed.",
            id="never ended",
        ),
        pytest.param(
            [*RIGHT, handled("a/4", 3, 4)],
            "a/4 was handled, and never published to this group.",
            id="never published",
        ),
        pytest.param([*RIGHT, handled("c/1", 3, 4)], "c/1 was handled, and never published to this group.", id="group"),
    ],
)
def test_a_record_that_is_not(handlings: list[Handling], text: str) -> None:
    fault = find_fault(PUBLISHED, handlings, {"dead": 1.5, "dead-late": 2.5})
    assert fault is not None
    assert fault.text == text
    assert fault.group_id == text[0]
    expected = sorted((h for h in handlings if h.group_id == fault.group_id), key=lambda h: h.began)
    assert list(fault.handlings) == expected


def test_the_first_group_at_fault_is_the_first_published() -> None:
    fault = find_fault(PUBLISHED, without("b/1")[1:], {})
    assert fault is not None
    assert fault.group_id == "a"


def test_a_record_is_read_while_it_is_written_and_a_cut_line_is_left_alone(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    follower = Follower([one, other])
    assert not follower.read_on()
    scribe = Scribe(one, "w1")
    first = scribe.begin("a", "a/1", 1)
    assert follower.read_on()
    assert follower.handlings == [first]
    assert follower.handled == 0
    scribe.end(first)
    second = scribe.begin("a", "a/2", 3)
    with one.open("ab") as file:
        file.write(b'{"worker":"w1","num')
    again = Scribe(other, "w2").begin("a", "a/1", 2)
    assert follower.read_on()
    assert not follower.read_on()
    assert follower.handled == 1
    with one.open("ab") as file:
        file.write(b'ber":3,"group_id":"a","event_id":"a/3","attempt":1,"began":9.0}\n')
    assert follower.read_on()
    ended, *rest, completed = follower.handlings
    assert (ended.event_id, ended.began, rest) == ("a/1", first.began, [second, again])
    assert (completed.event_id, completed.began) == ("a/3", 9.0)
    assert ended.ended is not None
    assert ended.ended >= ended.began
