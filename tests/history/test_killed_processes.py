"""Real processes over one queue, killed at counted steps and replaced: promises 1 to 5 hold."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import pytest

from harel import Transport, connect
from harel.testing.history import Operation, Recorder, check, read
from tests.backends import URLS, with_options
from tests.history.member import PATIENCE_S, VISIBILITY_S, Part

Death: TypeAlias = tuple[str, int]

PUBLISHERS = {"p": ("request", 700), "q": None}
"""Who publishes, and when they die, of a thousand messages."""

DEATHS = (
    (("answer", 9), ("request", 40)),
    (("request", 77), ("answer", 30)),
    (("answer", 24), ("request", 110)),
    (("request", 150), ("answer", 5)),
)
"""When the processes die that take one worker's place after another; one more takes it and lives."""


@dataclass(frozen=True)
class Pace:
    """What makes a run last about as long on each backend."""

    messages_each: int = 1_000
    """How many messages each publisher has."""
    steps: int = 4
    """How many of its steps make one of a file's statements, so that deaths come as early."""
    options: Mapping[str, str] = field(default_factory=dict)


A_FILE = Pace(steps=1, options={"synchronous": "NORMAL"})
A_STAND_IN = Pace(messages_each=400)

QUEUES = {name: Pace() for name in URLS} | {
    "sqlite": A_FILE,
    "libsql": A_FILE,
    "mongo": A_STAND_IN,
    "rqlite": A_STAND_IN,
    "sqs": Pace(messages_each=200, options={"poll_interval": "0.1"}),
}
"""Every backend that processes can share."""


class Play:
    """One run: what its parts have in common."""

    def __init__(self, queue: str, flavour: Literal["sync", "async"], folder: Path) -> None:
        self.pace = QUEUES[queue]
        self._flavour: Literal["sync", "async"] = flavour
        self._folder = folder
        self.url = with_options(URLS[queue](folder), **self.pace.options)

    def part(self, name: str, role: Literal["publish", "work"], dies_at: Death | None = None, **more: int) -> Part:
        if dies_at is not None and dies_at[0] == "request":
            share = self.pace.messages_each / 1_000 if role == "publish" else 1.0
            dies_at = ("request", int(dies_at[1] * share / self.pace.steps))
        return Part(name, role, self._flavour, self.url, str(self._folder), dies_at=dies_at, **more)


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


def _work(play: Play, worker: int) -> None:
    for life, dies_at in enumerate((*DEATHS[worker], None)):
        _play(play.part(f"w{worker}.{life}", "work", dies_at))


def _publish(play: Play, name: str, dies_at: Death | None) -> None:
    whole = play.part(name, "publish", dies_at, end=play.pace.messages_each)
    _play(whole)
    if dies_at is not None:
        # Its successor leaves out what it was publishing when it died, which may have happened or not.
        begun = {operation.event_id for operation in read(whole.record) if operation.kind == "publish"}
        begin = len([event_id for event_id in begun if event_id.startswith(name)])
        _play(play.part(name, "publish", begin=begin, end=play.pace.messages_each))


def _left(transport: Transport) -> dict[str, int]:
    """Say what each group still has; where it cannot be asked, what claims find until none has found any for long."""
    if transport.capabilities.groups:
        return {group.group_id: group.messages for group in transport.groups(limit=1_000)}
    found: Counter[str] = Counter()
    patience = time.monotonic() + PATIENCE_S
    while time.monotonic() < patience:
        for lease in transport.claim_many("observer", VISIBILITY_S, 10):
            found[lease.group_id] += transport.ack(lease)
        transport.wait(0.1)
    return dict(found)


@pytest.mark.timeout(600)  # on a machine that has much else to do
@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("queue", QUEUES)
def test_processes_that_are_killed_break_no_promise(
    queue: str, flavour: Literal["sync", "async"], tmp_path: Path
) -> None:
    play = Play(queue, flavour, tmp_path)
    observer = play.part("observer", "work")
    connect(play.url).close()
    with ThreadPoolExecutor(6) as members:
        workers = [members.submit(_work, play, worker) for worker in range(len(DEATHS))]
        publishers = [members.submit(_publish, play, name, dies_at) for name, dies_at in PUBLISHERS.items()]
        try:
            for publisher in publishers:
                publisher.result()
        finally:
            observer.published.touch()
        for worker in workers:
            worker.result()
    recorder = Recorder(observer.record, observer.name)
    with connect(play.url) as transport:
        recorder.drained(_left(transport))
    recorder.close()
    history = read(observer.record)
    assert [str(violation) for violation in check(history)] == []
    _was_worth_checking(history, play.pace.messages_each)


def _was_worth_checking(history: list[Operation], messages_each: int) -> None:
    """A run in which nothing was lost by a kill or taken over would show nothing."""
    published = [operation for operation in history if operation.kind == "publish"]
    assert 2 * messages_each - 5 <= len({operation.event_id for operation in published}) <= 2 * messages_each
    assert len([operation for operation in history if operation.returned is None]) >= 3
    settled = {operation.token for operation in history if operation.kind in ("ack", "nack", "reject")}
    assert [operation for operation in history if operation.token and operation.token not in settled]
    assert [operation for operation in history if operation.kind == "ack" and operation.result == 0]
