"""Real processes over one SQLite file, killed at counted steps and replaced: promises 1 to 5 hold."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from harel.engine.transport import SqliteTransport
from harel.testing.history import Operation, Recorder, check, read
from tests.history.member import Part

MESSAGES_EACH = 1_000

PUBLISHERS = {"p": ("statement", 700), "q": None}
"""Who publishes, and when they die."""

DEATHS = (
    (("answer", 9), ("statement", 40)),
    (("statement", 77), ("answer", 30)),
    (("answer", 24), ("statement", 110)),
    (("statement", 150), ("answer", 5)),
)
"""When the processes die that take one worker's place after another; one more takes it and lives."""


def _play(part: Part) -> None:
    """Run a process to its end, which is the one that its part has for it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.history.member", msgspec.json.encode(part).decode()],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if part.dies_at is None else -signal.SIGKILL), done.stderr


def _work(worker: int, flavour: Literal["sync", "async"], folder: str) -> None:
    for life, dies_at in enumerate((*DEATHS[worker], None)):
        _play(Part(f"w{worker}.{life}", "work", flavour, folder, dies_at=dies_at))


def _publish(name: str, flavour: Literal["sync", "async"], folder: str, dies_at: tuple[str, int] | None) -> None:
    whole = Part(name, "publish", flavour, folder, end=MESSAGES_EACH, dies_at=dies_at)
    _play(whole)
    if dies_at is not None:
        # Its successor leaves out what it was publishing when it died, which may have happened or not.
        begun = {operation.event_id for operation in read(whole.record) if operation.kind == "publish"}
        begin = len([event_id for event_id in begun if event_id.startswith(name)])
        _play(Part(name, "publish", flavour, folder, begin=begin, end=MESSAGES_EACH))


def _left(transport: SqliteTransport) -> dict[str, int]:
    return {group.group_id: group.messages for group in transport.groups(limit=1_000)}


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_processes_that_are_killed_break_no_promise(flavour: Literal["sync", "async"], tmp_path: Path) -> None:
    folder = str(tmp_path)
    part = Part("observer", "work", flavour, folder)
    with ThreadPoolExecutor(6) as members:
        workers = [members.submit(_work, worker, flavour, folder) for worker in range(len(DEATHS))]
        publishers = [members.submit(_publish, name, flavour, folder, dies_at) for name, dies_at in PUBLISHERS.items()]
        try:
            for publisher in publishers:
                publisher.result()
        finally:
            part.published.touch()
        for worker in workers:
            worker.result()
    recorder = Recorder(part.record, part.name)
    with SqliteTransport(part.queue) as transport:
        recorder.drained(_left(transport))
    recorder.close()
    history = read(part.record)
    assert [str(violation) for violation in check(history)] == []
    _was_worth_checking(history)


def _was_worth_checking(history: list[Operation]) -> None:
    """A run in which nothing was lost by a kill or taken over would show nothing."""
    published = [operation for operation in history if operation.kind == "publish"]
    assert 2 * MESSAGES_EACH - 5 <= len({operation.event_id for operation in published}) <= 2 * MESSAGES_EACH
    assert len([operation for operation in history if operation.returned is None]) >= 3
    settled = {operation.token for operation in history if operation.kind in ("ack", "nack", "reject")}
    assert [operation for operation in history if operation.token and operation.token not in settled]
    assert [operation for operation in history if operation.kind == "ack" and operation.result == 0]
