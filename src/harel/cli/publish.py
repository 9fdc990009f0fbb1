"""``harel publish``: one event, or a file of them."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import typer

from harel.cli.failure import INTERRUPTED, Failure
from harel.cli.options import Json, TransportUrl, open_queue
from harel.cli.output import print_json, progress, say, shown
from harel.engine.queue.contract import Transport
from harel.errors import HarelError, InvalidArgument, NotSupported
from harel.events import Event, Message

__all__ = ["Source", "publish", "publish_lines"]

BATCH_EVENTS = 500
BATCH_BYTES = 4 * 2**20
_GZIP_MAGIC = b"\x1f\x8b"
_NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)


def publish(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="Whose event it is.", show_default=False)] = None,
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help="What kind, such as order.placed.", show_default=False)
    ] = None,
    payload: Annotated[
        str | None, typer.Argument(metavar="JSON", help="The payload, a JSON object.", show_default=False)
    ] = None,
    transport: TransportUrl = None,
    file: Annotated[
        str | None,
        typer.Option(
            metavar="F.jsonl[.gz]",
            help='Publish the lines of a file, or of standard input (-): {"group_id", "kind", "payload"} '
            'and, if wanted, "id", "headers", "priority".',
            show_default=False,
        ),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(metavar="0..4", help="Counts if this creates the group.", show_default="0")
    ] = None,
    event_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The event's id.", show_default="a new UUID")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A header; may be repeated.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish an event to a group, or a file of events with --file."""
    if file is not None:
        if any(given is not None for given in (group, kind, payload, priority, event_id)) or header:
            raise Failure("With --file the groups, events and priorities are in the file; give nothing else.")
        count = _publish_file(file, transport)
        if as_json:
            print_json({"published": count})
        else:
            say(f"{count:,} events published.")
        return
    if group is None or kind is None:
        raise Failure("Say what to publish: GROUP KIND [JSON], or --file F.jsonl.")
    event = _event(kind, payload, event_id, header or [])
    with open_queue(transport) as queue:
        queue.publish(group, event, priority or 0)
    if as_json:
        print_json({"published": 1, "group_id": group, "id": event.id})
    else:
        say(f"{shown(kind)} published to group {shown(group)}, with the id {shown(event.id)}.")


def publish_lines(queue: Transport, source: Source, sent: Callable[[], None] = lambda: None) -> int:
    """Publish what a source holds, in its order and in constant memory.

    When a line is wrong, all before it are published. ``sent`` is called after each batch.

    Returns
    -------
    int
        How many events.

    Raises
    ------
    Failure
        Names the source, the line, what is wrong with it, and how many events were published before it.
    """
    batch = _Batch(queue, sent)
    longest = 3 * queue.capabilities.max_event_bytes + 2**16  # escaped as ASCII an event is three times as long
    try:
        _publish_all(batch, source.lines(longest))
    except _WrongLine as wrong:
        what = _sentence(str(wrong))
        raise Failure(
            f"{source.name}, line {wrong.number}: {what} {_were(batch.published)} published before it."
        ) from wrong
    except HarelError as error:
        raise Failure(f"{source.name}: {error} {_were(batch.published)} published before that.") from error
    except KeyboardInterrupt:
        raise Failure(
            f"Interrupted: {_were(batch.published)} published from {source.name}, and perhaps up to "
            f"{BATCH_EVENTS} more after them.",
            INTERRUPTED,
        ) from None
    return batch.published


class Source:
    """Lines of a file or of standard input, plain or compressed with gzip.

    Parameters
    ----------
    name : str
        What it is called in messages.
    stream : BufferedReader
        Its bytes as they are stored.
    """

    def __init__(self, name: str, stream: io.BufferedReader) -> None:
        self.name = name
        self._stream = stream
        self._bytes = 0

    def lines(self, longest: int) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not blank, with their numbers."""
        is_compressed = self._stream.peek(2)[:2] == _GZIP_MAGIC
        plain = gzip.GzipFile(fileobj=self._stream) if is_compressed else self._stream
        for number in itertools.count(1):
            try:
                line = plain.readline(longest + 1)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise _WrongLine(number, f"The compressed data ends early or is damaged: {error}") from error
            if not line:
                return
            if len(line) > longest:
                raise _WrongLine(number, f"It is longer than {longest:,} bytes, more than any event of this queue.")
            self._bytes += len(line)
            if not line.isspace():
                yield number, line

    def size(self) -> int | None:
        """Return how many bytes there are, or ``None`` if only the end will tell."""
        return os.fstat(self._stream.fileno()).st_size if self._stream.seekable() else None

    def position(self) -> int:
        """Return how many bytes were read; of a file as it is stored."""
        return self._stream.raw.tell() if self._stream.seekable() else self._bytes


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """What a line holds."""

    group_id: str
    kind: str
    payload: dict[str, Any]
    id: str | None = None
    headers: dict[str, str] = {}
    priority: int = 0


class _WrongLine(Exception):
    """A line that cannot be published."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(what)
        self.number = number


class _Batch:
    """Collects messages and publishes them many at once."""

    def __init__(self, queue: Transport, sent: Callable[[], None]) -> None:
        self.published = 0
        self._queue = queue
        self._sent = sent
        self._waiting: list[tuple[int, Message]] = []
        self._bytes = 0

    def add(self, number: int, message: Message, size: int) -> None:
        self._waiting.append((number, message))
        self._bytes += size
        if len(self._waiting) >= BATCH_EVENTS or self._bytes >= BATCH_BYTES:
            self.send()

    def send(self) -> None:
        """Publish what waits. A message that the queue does not take is a :exc:`_WrongLine`."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        try:
            self._queue.publish_many([message for _, message in waiting])
        except (InvalidArgument, NotSupported):
            self._send_one_by_one(waiting)  # nothing was sent; this finds out which it is
        else:
            self.published += len(waiting)
        self._sent()

    def _send_one_by_one(self, waiting: list[tuple[int, Message]]) -> None:
        for number, message in waiting:
            try:
                self._queue.publish(*message)
            except (InvalidArgument, NotSupported) as error:
                raise _WrongLine(number, str(error)) from error
            self.published += 1


def _publish_all(batch: _Batch, lines: Iterator[tuple[int, bytes]]) -> None:
    try:
        for number, line in lines:
            batch.add(number, _message(number, line), len(line))
    except _WrongLine:
        batch.send()
        raise
    batch.send()


def _message(number: int, line: bytes) -> Message:
    try:
        read = _decode(line)
    except _NOT_JSON as error:
        raise _WrongLine(number, str(error)) from error
    event = Event(read.kind, read.payload, headers=read.headers, **({} if read.id is None else {"id": read.id}))
    return Message(read.group_id, event, read.priority)


_decode = msgspec.json.Decoder(_Line).decode


def _event(kind: str, payload: str | None, event_id: str | None, headers: list[str]) -> Event:
    try:
        value = {} if payload is None else msgspec.json.decode(payload)
    except _NOT_JSON as error:
        raise Failure(f"The payload is not JSON: {_sentence(str(error))}") from error
    if not isinstance(value, dict):
        raise Failure(f"The payload must be a JSON object such as '{{\"amount\": 5}}', not {payload}.")
    return Event(kind, value, headers=_headers(headers), **({} if event_id is None else {"id": event_id}))


def _headers(given: list[str]) -> dict[str, str]:
    for text in given:
        if not text.partition("=")[1]:
            raise Failure(f"A header is given as NAME=VALUE, not {text!r}.")
    return {name: value for name, _, value in (text.partition("=") for text in given)}


def _publish_file(file: str, transport: str | None) -> int:
    with _opened(file) as source, open_queue(transport) as queue:
        return _publish_watched(queue, source)


@contextmanager
def _opened(file: str) -> Iterator[Source]:
    if file == "-":
        yield Source("standard input", cast("io.BufferedReader", sys.stdin.buffer))
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115  it is closed below
    except ValueError:
        raise Failure(f"{shown(file)} cannot be the name of a file.") from None
    with stream:
        yield Source(file, stream)


def _publish_watched(queue: Transport, source: Source) -> int:
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = progress("publish", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with bar:
        task = bar.add_task("publish", total=source.size())
        return publish_lines(queue, source, lambda: bar.update(task, completed=source.position()))


def _were(count: int) -> str:
    return "1 event was" if count == 1 else f"{count:,} events were"


def _sentence(text: str) -> str:
    return f"{text.rstrip('.')}."
