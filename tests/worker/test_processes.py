"""Workers that are processes of their own: signals, kills, hangs, on every server that is here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from harel import connect
from tests.servers.postgres import postgres_url, schema_in
from tests.servers.redis import prefix_in, redis_url
from tests.worker.driving import DEADLINE_S, messages
from tests.worker.programs import ASYNC_PROGRAM, BLOCKING_PROGRAM, ELSEWHERE_PROGRAM, PROGRAM, children, program, said


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A queue that other processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/queue.db"
    if request.param == "postgres":
        url, name = postgres_url(), f"schema={schema_in(tmp_path)}"
    else:
        url, name = redis_url(), f"prefix={prefix_in(tmp_path)}"
    return f"{url}{'&' if '?' in url else '?'}{name}"


def filled(place: str) -> str:
    """Put two messages of one group there."""
    with connect(place) as queue:
        queue.publish_many(messages(groups=1, each=2))
    return place


@pytest.mark.parametrize(
    ("text", "number"), [(PROGRAM, signal.SIGTERM), (ASYNC_PROGRAM, signal.SIGINT)], ids=["sync", "async"]
)
def test_a_signal_stops_a_worker_after_what_it_holds(text: str, number: int, place: str) -> None:
    filled(place)
    with program(text, place) as process:
        assert process.stdout.readline() == "handling 0\n"
        os.kill(process.pid, number)
        name = signal.Signals(number).name
        told = f"{name}: finishing 1 message, for 30 s at most; a second signal ends that at once.\n"
        assert said(process) == told
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "finished\n"
        assert process.wait(DEADLINE_S) == 0
    with connect(place) as queue:
        assert [message.event.payload["n"] for message in queue.peek("g0")] == [1]
        assert queue.groups()[0].state == "ready"


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("text", [PROGRAM, BLOCKING_PROGRAM], ids=["a thread hangs", "the event loop is blocked"])
def test_a_second_signal_ends_it_at_once(text: str, place: str) -> None:
    with program(text, filled(place), 30.0, 3_600.0) as process:
        assert process.stdout.readline() == "handling 0\n"
        os.kill(process.pid, signal.SIGTERM)
        if text == PROGRAM:
            assert "finishing 1 message" in said(process)
        else:
            assert process.stdout.readline() == "told\n", "two signals sent too soon would be one"
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
        assert "SIGTERM came a second time: leaving now." in process.stderr.read()


def test_a_process_that_hangs_leaves_after_the_drain_timeout_and_its_message_behind(place: str) -> None:
    filled(place)
    with program(PROGRAM, place, 3_600.0, 0.1) as process:
        assert process.stdout.readline() == "handling 0\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == "finished\n"
        assert process.wait(DEADLINE_S) == 0, "the thread that hangs keeps no process alive"
    with connect(place) as queue:
        lease = queue.claim("other", 30.0)
        assert lease is not None, "claimable at once, an hour before its lease would have ended"
        assert lease.attempt == 2


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_signal_that_does_not_interrupt_the_event_loops_sleep_wakes_it(place: str) -> None:
    """The handler's thread takes it. One that comes just before the sleep begins does not interrupt it either."""
    with program(ELSEWHERE_PROGRAM, filled(place), 3_600.0, 0.1) as process:
        assert process.stdout.readline() == "handling 0\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == "finished\n"
        assert process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_as_process_1_of_a_container_it_stops_at_a_signal(place: str) -> None:
    """The kernel ignores signals to process 1 that it has no handler for."""
    unshare = ("unshare", "--pid", "--fork", "--mount-proc")
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let us make a process namespace (unshare --pid)")
    filled(place)
    with program("import os\nassert os.getpid() == 1\n" + PROGRAM, place, 30.0, 30.0, *unshare) as process:
        assert process.stdout.readline() == "handling 0\n"
        (inside,) = children(process.pid)
        os.kill(inside, signal.SIGTERM)
        assert "finishing 1 message" in said(process)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "finished\n"
        assert process.wait(DEADLINE_S) == 0


def test_a_worker_killed_at_every_attempt_leaves_a_dead_letter_after_exactly_the_limit(place: str) -> None:
    filled(place)
    for _ in range(3):
        with program(PROGRAM, place, 0.3) as process:
            assert process.stdout.readline() == "handling 0\n"
            os.kill(process.pid, signal.SIGKILL)
            process.wait(DEADLINE_S)
    with program(PROGRAM, place, 0.3) as process:
        assert process.stdout.readline() == "handling 1\n", "the fourth worker goes on with the next message"
    with connect(place) as queue:
        (letter,) = queue.dead_letters()
        assert (letter.event.payload, letter.attempts) == ({"n": 0}, 4)
        assert letter.reason.startswith("Claimed 3 times and never settled (the limit is 3)")
