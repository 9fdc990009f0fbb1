"""Where a message of a protocol ends, so that the proxy can count messages and cut between two, or inside one.

Whole messages go in and out; nothing in them is changed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["FRAMINGS", "Framing", "Message"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message on its way.

    Attributes
    ----------
    data : bytes
    counts : bool
        Whether it is a part of an operation; a driver's own looks at the server's health are not.
    """

    data: bytes
    counts: bool = True


class Framing(ABC):
    """The messages of one connection, as its bytes come in, in whatever pieces."""

    def __init__(self) -> None:
        self._up = bytearray()
        self._down = bytearray()

    def requests(self, data: bytes) -> Iterator[Message]:
        """Take bytes from the client, and yield the messages that are whole with them."""
        self._up += data
        while end := self._request_end(self._up):
            message = bytes(self._up[:end])
            del self._up[:end]
            yield Message(message, self._request_counts(message))

    def replies(self, data: bytes) -> Iterator[Message]:
        """Take bytes from the server, and yield the messages that are whole with them."""
        self._down += data
        while end := self._reply_end(self._down):
            message = bytes(self._down[:end])
            del self._down[:end]
            yield Message(message, self._reply_counts(message))

    def rest(self) -> tuple[bytes, bytes]:
        """Return what came of a message that is not whole, of each side."""
        return bytes(self._up), bytes(self._down)

    @abstractmethod
    def _request_end(self, data: bytearray) -> int:
        """Say how long the first message is; 0 while it is not whole."""

    @abstractmethod
    def _reply_end(self, data: bytearray) -> int: ...

    def _request_counts(self, message: bytes) -> bool:
        return True

    def _reply_counts(self, message: bytes) -> bool:
        return True


_ASKS_FOR_ENCRYPTION = (80877103, 80877104)


class PostgresFraming(Framing):
    """A byte for the kind, and four for the length; what begins a connection has no kind."""

    def __init__(self) -> None:
        super().__init__()
        self._started = False
        self._asked = False
        self._encrypted = False

    def _request_end(self, data: bytearray) -> int:
        if self._encrypted:
            return len(data)
        if self._started:
            return _sized(data, 1)
        end = _sized(data, 0)
        if end:
            self._asked = int.from_bytes(data[4:8], "big") in _ASKS_FOR_ENCRYPTION
            self._started = not self._asked
        return end

    def _reply_end(self, data: bytearray) -> int:
        if self._encrypted:
            return len(data)
        if self._asked and bytes(data[:1]) in (b"N", b"S", b"G"):
            self._asked = False
            self._encrypted = data[:1] != b"N"
            return 1
        return _sized(data, 1)


def _sized(data: bytearray, at: int) -> int:
    if len(data) < at + 4:
        return 0
    end = at + int.from_bytes(data[at : at + 4], "big")
    return end if len(data) >= end else 0


class RedisFraming(Framing):
    """RESP, versions 2 and 3: a line, and what it says that follows."""

    def _request_end(self, data: bytearray) -> int:
        return max(_end_of_value(data, 0), 0)

    def _reply_end(self, data: bytearray) -> int:
        return max(_end_of_value(data, 0), 0)


_BULKS, _LISTS, _MAPS = b"$!=", b"*~>", b"%|"


def _end_of_value(data: bytearray, at: int) -> int:
    """Return where the value that begins at ``at`` ends; -1 while it is not whole."""
    values = 1
    while values:
        line = data.find(b"\r\n", at)
        if line < 0:
            return -1
        kind, number = data[at], bytes(data[at + 1 : line])
        at, values = line + 2, values - 1
        if kind in _BULKS and number != b"-1":
            at += int(number) + 2
            if at > len(data):
                return -1
        elif kind in _LISTS or kind in _MAPS:
            values += max(int(number), 0) * (2 if kind in _MAPS else 1)
            values += kind == ord("|")  # attributes stand before the value that they are of
    return at


_LOOK = re.compile(rb"\x10?(?:hello|ismaster|isMaster)\x00")
_HEAD = 16
_OP_MSG = 2013


class MongoFraming(Framing):
    """The length in the first four bytes. A driver's own ``hello`` has no session, and does not count."""

    def __init__(self) -> None:
        super().__init__()
        self._not_counted: set[int] = set()

    def _request_end(self, data: bytearray) -> int:
        return _little_sized(data)

    def _reply_end(self, data: bytearray) -> int:
        return _little_sized(data)

    def _request_counts(self, message: bytes) -> bool:
        if int.from_bytes(message[12:16], "little") != _OP_MSG:
            counts = False
        else:
            # Four bytes of flags, one of the section's kind, four of the document's length, one of the value's type.
            counts = _LOOK.match(message, _HEAD + 10) is None or b"\x03lsid\x00" in message
        if not counts:
            self._not_counted.add(int.from_bytes(message[4:8], "little"))
        return counts

    def _reply_counts(self, message: bytes) -> bool:
        return int.from_bytes(message[8:12], "little") not in self._not_counted


def _little_sized(data: bytearray) -> int:
    if len(data) < _HEAD:
        return 0
    end = int.from_bytes(data[:4], "little")
    return end if len(data) >= end else 0


_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
_NO_BODY = re.compile(rb"HTTP/1\.\d (?:1\d\d|204|304)")


class HttpFraming(Framing):
    """HTTP/1.1: a head, and a body as long as it says."""

    def _request_end(self, data: bytearray) -> int:
        return _end_of_http(data)

    def _reply_end(self, data: bytearray) -> int:
        return _end_of_http(data)


def _end_of_http(data: bytearray) -> int:
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return 0
    body = head + 4
    if _NO_BODY.match(data):
        return body
    if _CHUNKED.search(data, 0, head + 2):
        return _end_of_chunks(data, body)
    length = _LENGTH.search(data, 0, head + 2)
    end = body + (int(length[1]) if length else 0)
    return end if len(data) >= end else 0


def _end_of_chunks(data: bytearray, at: int) -> int:
    while (line := data.find(b"\r\n", at)) >= 0:
        size = int(bytes(data[at:line]).partition(b";")[0], 16)
        at = line + 2 + size + 2
        if not size:
            return at if len(data) >= at else 0
    return 0


FRAMINGS: dict[str, type[Framing]] = {
    "redis": RedisFraming,
    "valkey": RedisFraming,
    "postgresql": PostgresFraming,
    "postgres": PostgresFraming,
    "mongodb": MongoFraming,
    "rqlite": HttpFraming,
    "sqs": HttpFraming,
    "http": HttpFraming,
}
"""By the scheme of a queue's URL."""
