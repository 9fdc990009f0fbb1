"""``harel worker`` as real processes: several of them, signals, kills, logs and metrics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harel import Event, Transport
from harel.cli import crew, crew_member
from harel.cli.work import Stopper, WorkerSettings
from tests.cli.conftest import COMMAND, Harel

DEADLINE_S = 60.0

HANDLERS = """
import logging, os, pathlib, time

def held(event):
    with open("begun", "a") as file:
        print(os.getpid(), flush=True, file=file)
    while not pathlib.Path("go").exists():
        time.sleep(0.01)

def telling(event):
    logging.getLogger("shop").warning("Só é %s\\n!", event.kind)
    raise ValueError("out of\\nstock")

async def telling_async(event):
    telling(event)

def quiet(event):
    pass
"""


@pytest.fixture(autouse=True)
def handlers(tmp_path: Path) -> None:
    """Put a module of handlers into the current folder."""
    (tmp_path / "crew_handlers.py").write_text(HANDLERS)


class Started:
    """A command that runs."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._folder = folder
        self._begun = folder / "begun"

    def line(self) -> str:
        """Return the next line that it writes on standard error, or that its processes write."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def lines_until(self, text: str) -> list[str]:
        lines = []
        for line in iter(self.line, ""):
            lines.append(line)
            if text in line:
                return lines
        raise AssertionError(lines)

    def begun(self, count: int) -> list[int]:
        """Wait until so many handlers were called; return the processes that did."""
        wait_until(lambda: self._begun.exists() and self._begun.read_text().count("\n") >= count)
        return [int(line) for line in self._begun.read_text().splitlines()]

    def go(self) -> None:
        """Let the handlers end."""
        (self._folder / "go").touch()

    def ended(self) -> tuple[int, str]:
        """Wait until it and its processes have ended; return its status and what is left of standard error."""
        assert self.process.stderr is not None
        rest = self.process.stderr.read()  # its end is the end of all that could write
        return self.process.wait(DEADLINE_S), rest


@contextmanager
def started(tmp_path: Path, *arguments: str) -> Iterator[Started]:
    with subprocess.Popen([*COMMAND, "worker", *arguments], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Started(process, tmp_path)
        finally:
            (tmp_path / "go").touch()
            process.kill()


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Started]:
    """Two processes with one group at a time each."""
    arguments = ("crew_handlers:held", "--processes", "2", "--concurrency", "1", "--visibility", "4")
    with started(tmp_path, *arguments, "--worker-id", "w") as command:
        assert command.line() == (
            "w works for sqlite:///harel.db with crew_handlers:held in 2 processes; Ctrl-C stops it.\n"
        )
        yield command


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def publish(queue: Transport, *groups: str) -> None:
    for group in groups:
        queue.publish(group, Event("k"))


class TestSeveral:
    """Two worker processes under one."""

    def test_one_that_is_killed_is_replaced_and_what_it_held_is_handled(
        self, several: Started, queue: Transport
    ) -> None:
        publish(queue, "a", "b")
        one, two = several.begun(2)
        assert len({one, two, several.pid}) == 3
        assert sorted(group.holder or "" for group in queue.groups()) == ["w-0", "w-1"]
        os.kill(one, signal.SIGKILL)
        assert "SIGKILL ended it. Another one is started in 0.5 s." in several.lines_until("ended by itself")[-1]
        third = several.begun(3)[2]
        assert third not in {one, two}
        several.go()
        wait_until(lambda: queue.stats().messages == 0)
        several.process.terminate()
        status, _ = several.ended()
        assert status == 0
        assert queue.stats().dead_letters == 0

    @pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
    def test_what_a_command_line_shows_has_no_url(self, several: Started, queue: Transport) -> None:
        publish(queue, "a")
        (pid,) = several.begun(1)
        assert "harel.db" not in Path(f"/proc/{pid}/cmdline").read_text()

    def test_the_first_signal_lets_all_finish_what_they_hold(self, several: Started, queue: Transport) -> None:
        publish(queue, "a", "b", "a", "b")
        several.begun(2)
        several.process.send_signal(signal.SIGINT)
        for _ in "12":
            several.lines_until("Told to finish")
        several.go()
        status, rest = several.ended()
        assert status == 0, rest
        assert (queue.stats().messages, queue.stats().leased) == (2, 0)

    def test_the_second_signal_ends_them_at_once(self, several: Started, queue: Transport) -> None:
        publish(queue, "a", "b")
        several.begun(2)
        several.process.terminate()
        several.lines_until("no more messages are claimed")
        several.process.terminate()
        status, rest = several.ended()
        assert status == 143, rest
        assert queue.stats().messages == 2

    def test_a_signal_to_all_of_them_at_once_is_one_signal(self, several: Started, queue: Transport) -> None:
        """So does what manages services: to the process that it started, and to each that is under it."""
        publish(queue, "a", "b")
        for pid in several.begun(2):
            os.kill(pid, signal.SIGTERM)
        for _ in "12":
            several.lines_until("finishing 1 message")
        several.process.terminate()
        several.lines_until("no more messages are claimed")
        several.go()
        status, rest = several.ended()
        assert status == 0, rest
        assert queue.stats().messages == 0

    def test_when_the_first_process_is_killed_the_others_finish_and_leave(
        self, several: Started, queue: Transport
    ) -> None:
        publish(queue, "a", "b", "a", "b")
        several.begun(2)
        os.kill(several.pid, signal.SIGKILL)
        for _ in "12":
            several.lines_until("The process that started this one is gone")
        several.go()
        status, rest = several.ended()
        assert status == -signal.SIGKILL, rest
        assert (queue.stats().messages, queue.stats().leased) == (2, 0)

    def test_when_the_first_process_is_killed_one_that_hangs_is_gone_too(
        self, tmp_path: Path, queue: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish(queue, "a")
        options = ("--processes", "2", "--drain-timeout", "0")
        with started(tmp_path, "crew_handlers:held", *options) as command:
            command.begun(1)
            os.kill(command.pid, signal.SIGKILL)
            status, rest = command.ended()
            assert status == -signal.SIGKILL, rest
        wait_until(lambda: queue.stats().ready == 1)

    def test_one_whose_main_thread_hangs_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It cannot end itself in order, such as when an async handler blocks the event loop."""
        done: list[tuple[str, float]] = []
        monkeypatch.setattr("harel.cli.crew_member.time.sleep", lambda seconds: done.append(("slept", seconds)))
        monkeypatch.setattr("harel.cli.crew_member.os._exit", lambda status: done.append(("left", status)))
        stopper = Stopper()
        stopper.passes_to(lambda: done.append(("stopped", 0)))
        crew_member._listen(iter([]), stopper, 7.0)
        assert done == [("stopped", 0), ("slept", 17.0), ("left", 2)]

    @pytest.mark.parametrize("option", [("--concurrency", "0"), ("--transport", "sqlite://u:secret@host/x")])
    def test_what_is_wrong_is_said_before_any_is_started(self, harel: Harel, option: tuple[str, str]) -> None:
        assert "secret" not in harel("worker", "crew_handlers:quiet", "--processes", "2", *option).failed()


def test_each_process_has_a_name_and_a_port_of_its_own(harel: Harel, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[WorkerSettings] = []

    class Silent(crew.Crew):
        def run(self) -> int:
            for seat in self._seats:
                self._start(seat.number)
            return 0

    monkeypatch.setattr(crew, "Crew", Silent)
    monkeypatch.setattr(crew, "MemberProcess", told.append)
    arguments = ("--processes", "3", "--metrics-port", "9100", "--metrics-host", "::1", "--worker-id", "w")
    assert harel("worker", "crew_handlers:quiet", *arguments, "--queue-name", "orders").status == 0
    assert [settings.worker_id for settings in told] == ["w-0", "w-1", "w-2"]
    assert [settings.metrics_port for settings in told] == [9100, 9101, 9102]
    assert [settings.queue_metrics for settings in told] == [True, False, False]
    assert {(settings.metrics_host, settings.queue_name) for settings in told} == {("::1", "orders")}


@pytest.mark.parametrize("port", ["0", "65534"])
def test_too_few_ports_for_the_processes_is_a_sentence(harel: Harel, port: str) -> None:
    sentence = harel("worker", "crew_handlers:quiet", "--processes", "3", "--metrics-port", port).failed()
    assert sentence.endswith(f"it takes one from 1 to 65533, not {port}.")


def test_metrics_are_served_while_it_works(tmp_path: Path, queue: Transport) -> None:
    publish(queue, "a", "a")
    options = ("--metrics-port", "0", "--queue-name", "orders", "--worker-id", "w")
    with started(tmp_path, "crew_handlers:quiet", *options) as command:
        url = command.lines_until("Metrics are at ")[-1].partition("Metrics are at ")[2].rstrip(".\n")
        wait_until(lambda: queue.stats().messages == 0)
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
            lines = answer.read().decode().splitlines()
        command.process.terminate()
        assert command.ended()[0] == 0
    assert 'harel_queue_up{queue="orders"} 1.0' in lines
    assert any(line.startswith('harel_messages_handled_total{queue="orders"} ') for line in lines)


@pytest.mark.parametrize("handler", ["telling", "telling_async"])
def test_the_log_is_an_object_a_line(tmp_path: Path, queue: Transport, handler: str) -> None:
    publish(queue, "a")
    options = ("--log-format", "json", "--worker-id", "w", "--max-attempts", "1")
    with started(tmp_path, f"crew_handlers:{handler}", *options) as command:
        wait_until(lambda: queue.stats().dead_letters == 1)
        command.process.terminate()
        status, out = command.ended()
    assert status == 0
    records: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert all(list(record)[:5] == ["time", "level", "logger", "message", "worker"] for record in records)
    assert {record["worker"] for record in records} == {"w"}
    assert records[0]["message"] == f"w works for sqlite:///harel.db with crew_handlers:{handler}."
    (told,) = (record for record in records if record["logger"] == "shop")
    which = {"group": "a", "seq": 1, "attempt": 1}
    assert {name: told[name] for name in ("level", "message", *which)} == {
        "level": "WARNING",
        "message": "Só é k\n!",
        **which,
    }
    (failed,) = (record for record in records if "error" in record)
    assert failed["error"] == "ValueError: out of\nstock"
    assert "in telling" in failed["traceback"]
    assert {name: failed[name] for name in which} == which


def test_an_error_that_ends_it_is_an_object_too(process: Harel) -> None:
    """The queue is gone once the worker runs, and it was told to give up."""
    (Path.cwd() / "gone.py").write_text(
        "import harel.engine.transport.sqlite as s\n"
        "from harel import TransportUnavailable\n"
        "def claim_many(*_): raise TransportUnavailable('harel.db is gone.')\n"
        "s.SqliteTransport.claim_many = claim_many\n"
        "def handle(event): pass\n"
    )
    outcome = process("worker", "gone:handle", "--give-up-after", "0", "--log-format", "json")
    assert outcome.status == 2
    *_, last = outcome.json_errors
    assert last["level"] == "ERROR"
    assert "harel.db is gone." in last["message"]
    text = process("worker", "gone:handle", "--give-up-after", "0")
    assert text.status == 2
    assert text.err.splitlines()[-1].startswith("harel: The queue could not be reached for 0 s")


def test_processes_that_give_up_end_the_command(process: Harel) -> None:
    (Path.cwd() / "gone.py").write_text(
        "import harel.engine.transport.sqlite as s\n"
        "from harel import TransportUnavailable\n"
        "def claim_many(*_): raise TransportUnavailable('harel.db is gone.')\n"
        "s.SqliteTransport.claim_many = claim_many\n"
        "def handle(event): pass\n"
    )
    outcome = process("worker", "gone:handle", "--give-up-after", "0", "--processes", "2")
    assert outcome.status == 2
    assert "gave up; the others finish what they hold." in outcome.err
