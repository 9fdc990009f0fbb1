"""``harel stats``, ``groups``, ``peek`` and ``dead``."""

from __future__ import annotations

import time

import msgspec
import pytest

from harel import Event, Transport
from harel.cli.output import moment, shown
from tests.cli.conftest import Harel


@pytest.fixture
def busy(queue: Transport) -> Transport:
    """One group in each state, and one dead letter."""
    for name in ("dying", "leased", "parked", "held", "ready"):
        queue.publish(name, Event("k", {"of": name}, f"{name}-1"), priority=1)
        queue.publish(name, Event("k", {}, f"{name}-2"))
    dying, _leased, parked = queue.claim_many("worker-1", 600.0, 3)
    queue.reject(dying, "It was [red]rotten[/red].")
    queue.nack(parked, 600.0)
    queue.hold("held")
    return queue


def test_stats_for_people(harel: Harel, busy: Transport) -> None:
    rows = dict(line.rsplit(maxsplit=1) for line in harel("stats").succeeded().splitlines()[2:-1])
    assert {name.strip(): count for name, count in rows.items()} == {
        "messages": "9",
        "groups": "5",
        "ready": "2",
        "leased": "1",
        "parked": "1",
        "held": "1",
        "dead letters": "1",
    }


def test_stats_for_programs(harel: Harel, busy: Transport) -> None:
    (printed,) = harel("stats", "--json").json
    assert printed.pop("oldest_ready_s") >= 0.0
    assert printed == {
        "messages": 9,
        "groups": 5,
        "ready": 2,
        "leased": 1,
        "parked": 1,
        "held": 1,
        "dead_letters": 1,
    }


def test_groups_say_why_each_runs_or_does_not_run(
    harel: Harel, busy: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = busy.groups(state="leased")[0].since + 30.0
    monkeypatch.setattr("harel.cli.output.time.time", lambda: now)
    heading, _, *rows = harel("groups").succeeded().splitlines()
    assert heading.split() == ["group", "state", "since", "until", "attempts", "holder", "messages", "priority"]
    cells = {row.split()[0]: " ".join(row.split()[1:]) for row in rows}
    assert cells["leased"] == "leased 30 s ago in 10 min 1 worker-1 2 1"
    assert cells["parked"].startswith("parked 30 s ago in 10 min 1 2 1")
    assert cells["held"].startswith("held 30 s ago 0 2 1")
    assert cells["ready"] == "ready 30 s ago 0 2 1"
    assert cells["dying"] == "ready 30 s ago 0 1 1"


def test_groups_for_programs(harel: Harel, busy: Transport) -> None:
    infos = harel("groups", "--json").json
    assert infos == [msgspec.to_builtins(info) for info in busy.groups()]
    leased = next(info for info in infos if info["state"] == "leased")
    assert list(leased) == ["group_id", "state", "since", "until", "holder", "attempts", "messages", "priority"]
    assert leased["holder"] == "worker-1"
    assert abs(leased["since"] - time.time()) < 3600
    assert leased["until"] == pytest.approx(leased["since"] + 600.0)


def test_groups_by_state_and_by_page(harel: Harel, busy: Transport) -> None:
    names = [info["group_id"] for info in harel("groups", "--state", "ready", "--json").json]
    assert names == ["dying", "ready"]
    first = harel("groups", "--limit", "2").succeeded()
    assert first.endswith("There may be more: --after held\n")
    rest = harel("groups", "--limit", "4", "--after", "held", "--json").json
    assert [info["group_id"] for info in rest] == ["leased", "parked", "ready"]
    assert "more" not in harel("groups", "--limit", "6").succeeded()


def test_a_long_backlog_is_not_counted_out(harel: Harel, queue: Transport) -> None:
    queue.publish_many(("g", Event("k"), 0) for _ in range(1_001))  # type: ignore[misc]
    assert " 1,000+ " in harel("groups").succeeded()


def test_peek(harel: Harel, busy: Transport) -> None:
    heading, _, first, second = harel("peek", "leased").succeeded().splitlines()
    assert heading.split() == ["seq", "kind", "payload"]
    assert first.split() == ["3", "k", '{"of":"leased"}']
    assert second.split() == ["4", "k", "{}"]
    assert harel("peek", "leased", "--limit", "1", "--json").json == [
        {
            "seq": 3,
            "group_id": "leased",
            "event": {"kind": "k", "payload": {"of": "leased"}, "id": "leased-1", "headers": {}},
            "raw": None,
        }
    ]


def test_dead_letters(harel: Harel, busy: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    (letter,) = busy.dead_letters()
    monkeypatch.setattr("harel.cli.output.time.time", lambda: letter.rejected_at + 90.0)
    heading, _, row = harel("dead").succeeded().splitlines()
    assert heading.split() == ["seq", "group", "kind", "payload", "attempts", "rejected", "reason"]
    assert row.split(maxsplit=8) == [
        *("1", "dying", "k", '{"of":"dying"}', "1", "90", "s", "ago", "It was [red]rotten[/red].")
    ]
    assert harel("dead", "--json").json == [
        {
            "seq": 1,
            "group_id": "dying",
            "attempts": 1,
            "reason": "It was [red]rotten[/red].",
            "rejected_at": letter.rejected_at,
            "priority": 1,
            "event": {"kind": "k", "payload": {"of": "dying"}, "id": "dying-1", "headers": {}},
            "raw": None,
        }
    ]


def test_of_a_reason_with_a_traceback_a_person_sees_the_first_line(harel: Harel, queue: Transport) -> None:
    queue.publish("g", Event("k"))
    lease = queue.claim("w", 60.0)
    assert lease is not None
    queue.reject(lease, "Failed once.\n\nTraceback:\n  line 1")
    assert harel("dead").succeeded().endswith("Failed once.\n")
    assert harel("dead", "--json").json[0]["reason"] == "Failed once.\n\nTraceback:\n  line 1"


def test_dead_letters_by_group_and_by_page(harel: Harel, queue: Transport) -> None:
    for name in ("a", "b", "a"):
        queue.publish(name, Event("k"))
        lease = queue.claim("w", 60.0)
        assert lease is not None
        queue.reject(lease, "no")
    assert [letter["seq"] for letter in harel("dead", "--group", "a", "--json").json] == [1, 3]
    assert [letter["seq"] for letter in harel("dead", "--after", "1", "--json").json] == [2, 3]
    assert harel("dead", "--limit", "2").succeeded().endswith("There may be more: --after 2\n")


def test_a_stored_text_that_is_no_event_is_shown_all_the_same(harel: Harel, queue: Transport, tmp_path: object) -> None:
    import sqlite3

    queue.publish("g", Event("k"))
    connection = sqlite3.connect("harel.db")
    with connection:
        connection.execute("UPDATE transport_messages SET event = '\"[b]old[/b]\"'")
    connection.close()
    assert '"[b]old[/b]"' in harel("peek", "g").succeeded()
    assert harel("peek", "g", "--json").json == [{"seq": 1, "group_id": "g", "event": None, "raw": '"[b]old[/b]"'}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("groups",), "No groups.\n"),
        (("groups", "--state", "held"), "No such groups.\n"),
        (("groups", "--json"), ""),
        (("dead",), "No dead letters.\n"),
        (("dead", "--group", "g"), "No such dead letters.\n"),
        (("dead", "--json"), ""),
        (("peek", "g"), "Group 'g' has no messages.\n"),
        (("peek", "g", "--json"), ""),
    ],
)
def test_nothing_to_show(harel: Harel, queue: Transport, arguments: tuple[str, ...], said: str) -> None:
    assert harel(*arguments).succeeded() == said


@pytest.mark.parametrize("command", [("groups",), ("peek", "g"), ("dead",)])
def test_a_limit_below_one_is_a_sentence(harel: Harel, command: tuple[str, ...]) -> None:
    assert harel(*command, "--limit", "0").failed() == "limit must be an int of at least 1, not 0."


def test_nothing_is_folded_or_cut_in_a_pipe(harel: Harel, queue: Transport) -> None:
    queue.publish("g" * 512, Event("k"))
    assert "g" * 512 in harel("groups").succeeded()


def test_a_name_cannot_steer_the_terminal_or_the_table(harel: Harel, queue: Transport) -> None:
    queue.publish("[red]a[/red]\x1b[2J\nb", Event("k"))
    assert "[red]a[/red]\\x1b[2J\\nb" in harel("groups").succeeded()


@pytest.mark.parametrize(
    ("away", "said"),
    [
        (-0.4, "now"),
        (0.4, "now"),
        (-12, "12 s ago"),
        (29.2, "in 29 s"),
        (-119, "119 s ago"),
        (-121, "2 min ago"),
        (7_300, "in 2 h"),
        (-200_000, "2 d ago"),
    ],
)
def test_times_are_said_as_seen_from_now(monkeypatch: pytest.MonkeyPatch, away: float, said: str) -> None:
    monkeypatch.setattr("harel.cli.output.time.time", lambda: 1e9)
    assert moment(1e9 + away) == said
    assert moment(None) == ""


def test_printable_text_is_shown_as_it_is() -> None:
    assert shown("zażółć 中文 🙂") == "zażółć 中文 🙂"
