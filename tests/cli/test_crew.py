"""The process that keeps worker processes running: what it does when, by a clock and with processes of paper."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from harel.cli.crew import DRAIN, Crew
from harel.cli.failure import GAVE_UP


class Paper:
    """Stands in for a worker process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = -1
        self.status: int | None = None
        self.told: list[bytes] = []

    def poll(self) -> int | None:
        return self.status

    def tell(self, order: bytes) -> None:
        self.told.append(order)

    def kill(self) -> None:
        self.told.append(b"kill")
        if self.status is None:
            self.status = -signal.SIGKILL


class Office:
    """Runs a crew of paper through a script: each step is what happens while the crew waits."""

    def __init__(self, size: int) -> None:
        self.now = 100.0
        self.started: list[tuple[int, float]] = []
        self.members: list[Paper] = []
        self.waited: list[float] = []
        self.crew = Crew(size, self._start, clock=lambda: self.now, take=self._take)

    def run(self, script: Iterator[int | None]) -> int:
        self._script = script
        return self.crew.run()

    def at(self, number: int) -> Paper:
        """The latest with this number."""
        return next(member for member in reversed(self.members) if member.number == number)

    def _start(self, number: int) -> Paper:
        self.started.append((number, self.now))
        self.members.append(Paper(number))
        return self.members[-1]

    def _take(self, timeout: float) -> int | None:
        self.waited.append(timeout)
        return next(self._script)


def test_the_first_signal_lets_all_finish_and_the_status_is_zero() -> None:
    office = Office(3)

    def script() -> Iterator[int | None]:
        yield None
        assert [member.told for member in office.members] == [[], [], []]
        yield signal.SIGTERM
        assert [member.told for member in office.members] == [[DRAIN]] * 3
        for member in office.members:
            member.status = 0
            yield signal.SIGCHLD

    assert office.run(script()) == 0
    assert [number for number, _ in office.started] == [0, 1, 2]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_has_them_leave_now(number: int, status: int) -> None:
    office = Office(2)

    def script() -> Iterator[int | None]:
        yield signal.SIGTERM
        office.at(0).status = 0
        yield signal.SIGCHLD
        yield number
        assert office.at(0).told == [DRAIN]
        assert office.at(1).told == [DRAIN, b"kill"]

    assert office.run(script()) == status


def test_one_that_dies_is_replaced_after_a_pause_that_doubles(caplog: pytest.LogCaptureFixture) -> None:
    office = Office(2)

    def script() -> Iterator[int | None]:
        for pause in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
            office.at(1).status = -signal.SIGKILL
            yield signal.SIGCHLD
            count = len(office.started)
            office.now += pause - 0.01
            yield None
            assert len(office.started) == count
            assert office.waited[-1] == pytest.approx(0.01)
            office.now += 0.02
            yield None
            assert office.started[-1] == (1, office.now)
            assert len(office.started) == count + 1
        yield from ended(office)

    with caplog.at_level(logging.ERROR, "harel.crew"):
        assert office.run(script()) == 0
    assert [number for number, _ in office.started].count(0) == 1, "the other was left alone"
    assert max(office.waited) == 1.0, "it also looks when no signal says so"
    assert caplog.records[0].getMessage() == (
        "Worker process 1 ended by itself: SIGKILL ended it. Another one is started in 0.5 s."
    )


def test_one_that_lived_long_is_replaced_as_if_it_were_the_first_time() -> None:
    office = Office(1)

    def script() -> Iterator[int | None]:
        for lived, pause in ((0.0, 0.5), (0.0, 1.0), (60.0, 0.5), (59.0, 1.0)):
            office.now += lived
            office.at(0).status = 1
            yield signal.SIGCHLD
            died = office.now
            office.now += pause + 0.001
            yield None
            assert office.started[-1][1] == pytest.approx(died + pause, abs=0.01)
        yield from ended(office)

    assert office.run(script()) == 0


def test_one_that_ended_well_without_being_told_is_replaced_too() -> None:
    office = Office(1)

    def script() -> Iterator[int | None]:
        office.at(0).status = 0
        yield signal.SIGCHLD
        office.now += 1.0
        yield None
        assert len(office.started) == 2
        yield from ended(office)

    assert office.run(script()) == 0


def test_nobody_is_replaced_once_a_signal_came() -> None:
    office = Office(2)

    def script() -> Iterator[int | None]:
        office.at(0).status = 1
        yield signal.SIGCHLD
        yield signal.SIGTERM
        office.now += 100.0
        yield None
        office.at(1).status = 0
        yield signal.SIGCHLD

    assert office.run(script()) == 0
    assert len(office.started) == 2


def test_one_that_fails_at_its_end_makes_the_status_2(caplog: pytest.LogCaptureFixture) -> None:
    office = Office(2)

    def script() -> Iterator[int | None]:
        yield signal.SIGTERM
        office.at(0).status = 0
        office.at(1).status = 3
        yield signal.SIGCHLD

    assert office.run(script()) == 2
    assert caplog.records[-1].getMessage() == "Worker process 1 failed at its end: exit status 3."


def test_one_that_gives_up_ends_them_all_with_status_2() -> None:
    """The queue is gone for all of them, and whoever started them asked to be told."""
    office = Office(3)

    def script() -> Iterator[int | None]:
        office.at(1).status = GAVE_UP
        yield signal.SIGCHLD
        assert office.at(0).told == office.at(2).told == [DRAIN]
        office.at(0).status = 0
        office.at(2).status = GAVE_UP
        yield signal.SIGCHLD

    assert office.run(script()) == 2
    assert len(office.started) == 3


def test_whatever_goes_wrong_nobody_is_left() -> None:
    office = Office(2)

    def script() -> Iterator[int | None]:
        yield None
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        office.run(script())
    assert [member.told for member in office.members] == [[b"kill"]] * 2


def test_news_is_taken_from_a_signal_handler() -> None:
    """The crew's own inbox, which the fake one above stands in for."""
    members = [Paper(0)]
    crew = Crew(1, lambda number: members[0])
    crew.notify(signal.SIGTERM)
    members[0].status = 0
    assert crew.run() == 0
    assert members[0].told == [DRAIN]


REAPER = """
import ctypes, os, subprocess, sys, time
from harel.cli.crew import reap_orphans
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER: as if it were process 1
own = subprocess.Popen(["sleep", "600"])
out = subprocess.check_output(["sh", "-c", "true & echo $!"], text=True)
orphan = int(out)
while os.path.exists(f"/proc/{orphan}"):
    reap_orphans([own.pid])
    time.sleep(0.01)
own.kill()
while not open(f"/proc/{own.pid}/stat").read().split()[2] == "Z":
    time.sleep(0.01)
reap_orphans([own.pid])
assert own.wait() == -9, "its own are left to it"
reap_orphans([])
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and prctl")
def test_orphans_are_reaped_and_ones_own_are_not() -> None:
    done = subprocess.run([sys.executable, "-c", REAPER], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert os.getpid() != 1


def ended(office: Office) -> Iterator[int | None]:
    """Bring it to its end."""
    yield signal.SIGTERM
    for member in office.members:
        if member.status is None:
            member.status = 0
    yield signal.SIGCHLD
