"""The course of ``harel demo``: publish, drain, kill, recover, check."""

from __future__ import annotations

import gzip
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from itertools import islice
from pathlib import Path

import msgspec

from harel.cli.demo_crew import WORKER, Crew, Member
from harel.cli.demo_drain import drain
from harel.cli.demo_record import Follower, Handling, find_fault, repeated
from harel.cli.demo_worker import Settings
from harel.cli.failure import Failure
from harel.cli.options import open_queue
from harel.cli.output import progress
from harel.config import redacted
from harel.engine.queue.contract import Transport
from harel.events import Event, Message
from harel.testing.history import Recorder, Recording, check, read

__all__ = ["Demo", "Figures", "Report", "take_flights"]

_DATA = "data/flights-2013-week1.jsonl.gz"
_BATCH = 500
_VISIBILITY_S = 5.0
_CONCURRENCY = 8
_PATIENCE_S = 60.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo counted.

    Attributes
    ----------
    events, groups : int
    killed : int or None
        The number of the worker that was killed, from 1.
    repeated : int
        How many deliveries were of an event that had been delivered before.
    seconds : float
        From the beginning of the first handling to the end of the last.
    events_per_second : float
    """

    events: int
    groups: int
    killed: int | None
    repeated: int
    seconds: float
    events_per_second: float


class Report(msgspec.Struct, frozen=True):
    """What came of the demo."""

    figures: Figures
    faults: list[str]
    """What is not as promised, each for a person to read; empty if all is well."""

    def line(self) -> str:
        """Say it in one line."""
        figures = self.figures
        killed = f"Worker {figures.killed} was killed; " if figures.killed else "No worker was killed; "
        deliveries = "1 delivery was" if figures.repeated == 1 else f"{figures.repeated:,} deliveries were"
        waiting = ", the wait for its leases included" if figures.killed else ""
        return (
            f"{figures.events:,} events of {figures.groups:,} groups: every group in order, one at a time, none lost. "
            f"{killed}{deliveries} repeated. {figures.events_per_second:,.0f} events/s{waiting}."
        )


def take_flights(most: int | None = None) -> list[Message]:
    """Read the flights, each with an id that says which of its aircraft's flights it is."""
    decode = msgspec.json.decode
    count: dict[str, int] = defaultdict(int)
    messages = []
    with (files("harel.cli") / _DATA).open("rb") as stored, gzip.open(stored) as lines:
        for line in islice(lines, most):
            fields = decode(line)
            group_id = fields["group_id"]
            count[group_id] += 1
            event = Event(fields["kind"], fields["payload"], id=f"{group_id}/{count[group_id]}")
            messages.append(Message(group_id, event))
    return messages


class Demo:
    """One run.

    Parameters
    ----------
    url : str
        Of an empty queue.
    folder : Path
        An empty folder for what the workers write.
    workers : int
    kill : bool
        Whether one is killed half way.
    command : sequence of str
        What runs a worker.
    patience_s : float
        Without progress for this long, in seconds, the demo gives up.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        workers: int,
        kill: bool,
        command: Sequence[str] = WORKER,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._url = url
        self._folder = folder
        self._workers = workers
        self._kill = kill
        self._command = command
        self._patience_s = patience_s
        self._name = f"demo-{os.getpid()}"

    def run(self, messages: Sequence[Message]) -> Report:
        """Carry it out.

        Raises
        ------
        Failure
            When it could not be brought to its end.
        """
        published: dict[str, list[str]] = defaultdict(list)
        for group_id, event, _ in messages:
            published[group_id].append(event.id)
        recorder = Recorder(self._history(0), f"{self._name}-publisher")
        with open_queue(self._url) as queue, Crew() as crew:
            self._must_be_empty(queue)
            self._publish(Recording(queue, recorder), messages)
            self._start(crew, len(messages))
            follower = Follower([self._handlings(member.number) for member in crew.members])
            with _bar("drain", len(messages)) as advance:
                drain(
                    (lambda: queue.stats().messages) if queue.capabilities.stats else None,
                    crew,
                    follower,
                    len(messages),
                    kill=self._kill,
                    visibility_s=_VISIBILITY_S,
                    patience_s=self._patience_s,
                    advance=advance,
                )
            crew.dismiss()
            follower.read_on()
            left = self._found_in(queue)
            if left is None:
                recorder.drained({})
        recorder.close()
        histories = [path for path in map(self._history, range(self._workers + 1)) if path.exists()]
        faults = [
            *_faults_of_handlings(published, follower.handlings, crew.killed()),
            *([] if left is None else [f"The queue still has {left}."]),
            *map(str, check(read(*histories))[:1]),
        ]
        return Report(_figures(published, follower.handlings, crew.killed()), faults)

    def _must_be_empty(self, queue: Transport) -> None:
        found = self._found_in(queue)
        if found is not None:
            raise Failure(
                f"The queue at {redacted(self._url)} is not empty ({found}), and the demo would handle what is not its "
                "own. Name an empty one: another file or database, or another prefix."
            )

    def _found_in(self, queue: Transport) -> str | None:
        """Say what the queue holds, or ``None`` for nothing; one that cannot count is asked for a message."""
        if queue.capabilities.stats:
            stats = queue.stats()
            return f"{stats.messages:,} messages of {stats.groups:,} groups" if stats.groups else None
        lease = queue.claim(f"{self._name}-looks", _VISIBILITY_S)
        if lease is None:
            return None
        queue.nack(lease)
        return f"a message of group {lease.group_id!r}"

    def _publish(self, queue: Recording, messages: Sequence[Message]) -> None:
        with _bar("publish", len(messages)) as advance:
            for start in range(0, len(messages), _BATCH):
                queue.publish_many(messages[start : start + _BATCH])
                advance(min(start + _BATCH, len(messages)))

    def _start(self, crew: Crew, events: int) -> None:
        # Each worker stops at its share of the first half. So at least one does, whatever the others manage,
        # and the first to do so does it before more than half of the events are handled.
        stops_at = max(1, events // (2 * self._workers)) if self._kill else None
        for number in range(1, self._workers + 1):
            crew.members.append(self._member(number, stops_at))

    def _member(self, number: int, stops_at: int | None) -> Member:
        settings = Settings(
            url=self._url,
            worker_id=f"{self._name}-{number}",
            visibility=_VISIBILITY_S,
            concurrency=_CONCURRENCY,
            stops_at=stops_at,
            handlings=str(self._handlings(number)),
            history=str(self._history(number)),
        )
        return Member(number, settings, self._command, self._folder / f"errors-{number}")

    def _handlings(self, number: int) -> Path:
        return self._folder / f"handlings-{number}.jsonl"

    def _history(self, number: int) -> Path:
        return self._folder / f"history-{number}.jsonl"


def _figures(
    published: Mapping[str, Sequence[str]], handlings: Sequence[Handling], killed: Sequence[Member]
) -> Figures:
    events = sum(map(len, published.values()))
    began = min((handling.began for handling in handlings), default=0.0)
    ended = max((handling.ended for handling in handlings if handling.ended is not None), default=began)
    seconds = ended - began
    return Figures(
        events=events,
        groups=len(published),
        killed=killed[0].number if killed else None,
        repeated=repeated(handlings),
        seconds=seconds,
        events_per_second=events / seconds if seconds else 0.0,
    )


def _faults_of_handlings(
    published: Mapping[str, Sequence[str]], handlings: Sequence[Handling], killed: Sequence[Member]
) -> Iterator[str]:
    fault = find_fault(published, handlings, {member.worker_id: member.killed_at or 0.0 for member in killed})
    if fault is None:
        return
    yield f"Group {fault.group_id}: {fault.text}"
    yield f"  published: {', '.join(published.get(fault.group_id, ()))}"
    start = fault.handlings[0].began if fault.handlings else 0.0
    for handling in fault.handlings:
        until = "cut off" if handling.ended is None else f"{handling.ended - start:.6f}"
        yield (
            f"  {handling.began - start:.6f} to {until}  {handling.event_id}  "
            f"by {handling.worker}, attempt {handling.attempt}"
        )


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; yields what tells it how far things are."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

    with progress(f"{what:8}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(what, total=total)
        yield lambda completed: bar.update(task, completed=completed)
