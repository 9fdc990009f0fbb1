"""The command as a process: pipes, signals, start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from harel import Event, Message, Transport
from tests.cli.conftest import COMMAND, Harel
from tests.cli.test_publish import lines


def test_the_script_that_is_installed_is_the_command() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="harel")
    assert script.value == "harel.cli.app:main"


def test_a_reader_that_leaves_early_is_met_with_silence(queue: Transport) -> None:
    queue.publish_many(Message(f"group-{n}", Event("k")) for n in range(3_000))
    with subprocess.Popen(
        [*COMMAND, "groups", "--json", "--limit", "3000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.readline()
        command.stdout.close()
        assert command.stderr.read() == b""
    assert command.returncode == 141


@pytest.mark.parametrize("arguments", [("stats",), ("stats", "--json"), ("peek", "g")])
def test_a_reader_that_never_was_is_met_with_silence(queue: Transport, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([*COMMAND, *arguments], stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_a_full_disk_is_a_sentence(queue: Transport) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        ended = subprocess.run([*COMMAND, "stats"], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (2, b"harel: No space left on device.\n")


def test_ctrl_c_is_exit_status_130_and_says_how_far_it_came(queue: Transport) -> None:
    """The command has published a batch and waits for more of its input when it is interrupted."""
    with subprocess.Popen(
        [*COMMAND, "publish", "--file", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        assert command.stdin is not None
        assert command.stderr is not None
        command.stdin.write(lines(500))
        command.stdin.flush()
        while queue.stats().messages < 500:
            assert command.poll() is None
            time.sleep(0.01)
        command.send_signal(signal.SIGINT)
        err = command.stderr.read().decode()
        command.stdin.close()
        assert command.wait(timeout=60) == 130
    (line,) = err.splitlines()
    assert line.startswith("harel: Interrupted: 500 events were published from standard input")


def test_starting_loads_neither_rich_nor_the_demo(process: Harel) -> None:
    """They would take longer than everything else of a command together."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, harel.cli.app; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()
    assert "harel.cli.look" in loaded
    for module in ("rich", "rich.table", "rich.progress", "harel.testing", "harel.cli.demo_run", "sqlite3"):
        assert module not in loaded
