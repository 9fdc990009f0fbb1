"""``harel demo`` on fewer flights, and every way in which it can go wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harel import Capabilities, Event, QueueStats, Transport
from harel.cli import demo_drain, demo_run
from harel.cli.demo_crew import WORKER, Crew
from harel.cli.demo_record import find_fault
from harel.cli.demo_run import Demo, Figures, Report, take_flights
from harel.cli.failure import Failure
from harel.engine.transport import SqliteTransport
from tests.cli.conftest import COMMAND, Harel

FIGURES = Figures(events=6_091, groups=2_048, killed=3, repeated=9, seconds=3.0, events_per_second=2_030.3)

IDLE = "import sys; sys.stdin.read()"
DIES = "import sys; sys.exit('I was told to die.')"
LOSES = """
import sys
import msgspec
from harel import connect
from harel.cli.demo_worker import Settings
settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=Settings)
queue = connect(settings.url)
while leases := queue.claim_many(settings.worker_id, 60.0, 100):
    queue.ack_many(leases)
sys.stdin.read()
"""
STAYS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def demo(
    folder: Path, script: str | None = None, *, workers: int = 2, kill: bool = False, patience_s: float = 60
) -> Demo:
    command = WORKER if script is None else (sys.executable, "-c", script)
    url = f"sqlite:///{folder}/queue.db?synchronous=OFF"
    return Demo(url, folder, workers=workers, kill=kill, command=command, patience_s=patience_s)


def test_the_flights_are_all_there_in_the_order_of_their_departures() -> None:
    flights = take_flights()
    places: dict[str, list[str]] = defaultdict(list)
    for group_id, event, _ in flights:
        places[group_id].append(event.id)
    assert (len(flights), len(places)) == (6_091, 2_048)
    assert places["N14228"] == [f"N14228/{n}" for n in range(1, len(places["N14228"]) + 1)]
    departures = [event.payload["scheduled"] for _, event, _ in flights]
    assert departures == sorted(departures)


def test_a_worker_is_killed_and_everything_comes_in_order_all_the_same(tmp_path: Path) -> None:
    """Promises 1, 2, 3 and 6, by the record of what the processes did."""
    report = demo(tmp_path, kill=True).run(take_flights(600))
    assert report.faults == []
    figures = report.figures
    assert figures.events == 600
    assert figures.killed in {1, 2}
    assert 1 <= figures.repeated <= 8
    assert figures.seconds > 0


def test_the_command_without_a_kill_leaves_nothing_behind(
    harel: Harel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (figures,) = harel("demo", "--flights", "60", "--workers", "1", "--no-kill", "--json").json
    seconds, per_second = figures.pop("seconds"), figures.pop("events_per_second")
    assert figures == {
        "events": 60,
        "groups": len({m.group_id for m in take_flights(60)}),
        "killed": None,
        "repeated": 0,
    }
    assert per_second == pytest.approx(60 / seconds)
    assert list(tmp_path.iterdir()) == []


def test_a_queue_of_ones_own_is_used_and_left_empty(harel: Harel, queue: Transport) -> None:
    said = harel(
        "demo", "--flights", "60", "--workers", "2", "--no-kill", "--transport", "sqlite:///harel.db"
    ).succeeded()
    assert said.startswith("60 events of ")
    assert "every group in order, one at a time, none lost. No worker was killed; 0 deliveries were repeated." in said
    assert queue.stats().groups == 0


class Uncounted(SqliteTransport):
    """A queue that cannot count."""

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, stats=False)

    def stats(self) -> QueueStats:
        raise AssertionError("not to be asked")


def test_a_queue_that_cannot_count_is_drained_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "open_queue", lambda url: Uncounted(tmp_path / "queue.db"))
    report = demo(tmp_path, kill=True).run(take_flights(100))
    assert report.faults == []
    assert report.figures.events == 100
    assert report.figures.killed in {1, 2}


def test_what_is_left_in_a_queue_that_cannot_count_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here because it is published while the workers are already leaving."""
    crew_dismiss = Crew.dismiss

    def dismiss_and_publish(crew: Crew) -> None:
        crew_dismiss(crew)
        with SqliteTransport(tmp_path / "queue.db") as queue:
            queue.publish("late", Event("k"))

    monkeypatch.setattr(Crew, "dismiss", dismiss_and_publish)
    monkeypatch.setattr(demo_run, "open_queue", lambda url: Uncounted(tmp_path / "queue.db"))
    report = demo(tmp_path).run(take_flights(20))
    assert report.faults == ["The queue still has a message of group 'late'."]


def test_a_queue_that_cannot_count_and_is_not_empty_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "open_queue", lambda url: Uncounted(tmp_path / "queue.db"))
    with SqliteTransport(tmp_path / "queue.db") as queue:
        queue.publish("mine", Event("k"))
        with pytest.raises(Failure, match=r"is not empty \(a message of group 'mine'\)"):
            demo(tmp_path).run(take_flights(20))
        assert queue.stats().ready == 1, "it was given back"


def test_the_line_says_it_all() -> None:
    assert Report(FIGURES, []).line() == (
        "6,091 events of 2,048 groups: every group in order, one at a time, none lost. "
        "Worker 3 was killed; 9 deliveries were repeated. 2,030 events/s, the wait for its leases included."
    )


@pytest.mark.parametrize("hold", [False, True], ids=["messages", "an empty group that is held"])
def test_a_queue_that_is_not_empty_is_refused(harel: Harel, queue: Transport, hold: bool) -> None:
    queue.publish("mine", Event("k"))
    if hold:
        queue.hold("mine")
        queue.purge("mine")
    sentence = harel("demo", "--transport", "sqlite:///harel.db").failed()
    assert sentence.startswith(
        f"The queue at sqlite:///harel.db is not empty ({0 if hold else 1} messages of 1 groups)"
    )
    assert "Name an empty one" in sentence
    assert queue.stats().messages == (not hold)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workers", "1"), "With one worker nobody is left to recover what it held: add --no-kill, or more workers."),
        (("--workers", "0"), "Invalid value for '--workers'"),
    ],
)
def test_a_demo_that_cannot_be_is_refused(harel: Harel, arguments: tuple[str, ...], said: str) -> None:
    assert harel("demo", *arguments).failed().startswith(said)


def test_what_is_not_as_promised_is_exit_status_1_and_shown(harel: Harel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Demo, "run", lambda self, messages: Report(FIGURES, ["Group N1: N1/2 was lost.", "  its events"])
    )
    outcome = harel("demo")
    assert outcome.status == 1
    assert outcome.out == ""
    assert outcome.err.splitlines() == [
        "Group N1: N1/2 was lost.",
        "  its events",
        "harel: The demo found what harel promises not to do; it is described above.",
    ]


def test_messages_that_vanish_without_being_handled_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_drain, "_GRACE_S", 0.0)
    report = demo(tmp_path, LOSES, workers=1).run(take_flights(20))
    first = take_flights(1)[0].group_id
    assert report.faults[0] == f"Group {first}: {first}/1 was never handled."
    assert report.faults[1].startswith(f"  published: {first}/1")


def test_a_fault_is_shown_with_the_groups_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is right, and compared with another order of publishing than there was."""
    flights = take_flights(300)
    group = next(m.group_id for m in flights if m.event.id.endswith("/2"))

    def compare_with_another_order(published: dict[str, list[str]], *record: Any) -> object:
        return find_fault({**published, group: published[group][::-1]}, *record)

    monkeypatch.setattr("harel.cli.demo_run.find_fault", compare_with_another_order)
    faults = demo(tmp_path).run(flights).faults
    assert faults[0].startswith(f"Group {group}: {group}/1 was handled before {group}/")
    assert faults[1].startswith(f"  published: {group}/1, {group}/2")
    assert [line.split()[3] for line in faults[2:]] == [m.event.id for m in flights if m.group_id == group]


def test_a_worker_that_dies_by_itself_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"^Worker [12] ended by itself, with status 1; it said: I was told to die\.$"):
        demo(tmp_path, DIES).run(take_flights(20))


def test_a_demo_in_which_nothing_moves_gives_up(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"^Nothing moved for 0\.2 s, and 20 messages are left; the demo gave up\.$"):
        demo(tmp_path, IDLE, patience_s=0.2).run(take_flights(20))


def test_no_process_is_left_when_the_demo_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that does not listen is gone."""
    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    with pytest.raises(Failure, match="Nothing moved"):
        demo(tmp_path, STAYS, patience_s=0.1).run(take_flights(20))
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, status: int
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen([*COMMAND, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        while not any(tmp_path.glob("harel-demo-*/handlings-1.jsonl")):
            assert command.poll() is None
            time.sleep(0.01)
        command.send_signal(number)
        out, err = command.communicate(timeout=60)
    assert (command.returncode, out, err) == (status, b"", b"")
    assert list(tmp_path.iterdir()) == []
