"""What a server was asked to do, and by which script: from its MONITOR."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from uuid import uuid4

import redis

_LINE = re.compile(rb"\+[0-9.]+ \[\d+ (\S+)\] (.*)\r\n")
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')


@dataclass
class Command:
    """A command from outside, and the commands that its script gave."""

    words: list[str]
    inner: list[list[str]] = field(default_factory=list)

    @property
    def keys(self) -> list[str]:
        """The keys that a script's command declares."""
        return self.words[3 : 3 + int(self.words[2])]


class Watch:
    """Lists the commands that a server gets while a call runs."""

    def __init__(self, client: redis.Redis, url: str) -> None:
        self.client = client
        parts = urlsplit(url)
        self._address = (parts.hostname or "localhost", parts.port or 6379)

    def during(self, call: Callable[[], object]) -> list[Command]:
        """Return what the call sent."""
        self.client.ping()
        end = uuid4().hex
        with socket.create_connection(self._address) as monitor, monitor.makefile("rb") as lines:
            monitor.sendall(b"MONITOR\r\n")
            assert lines.readline() == b"+OK\r\n"
            call()
            self.client.echo(end)
            seen: list[Command] = []
            while True:
                found = _LINE.fullmatch(lines.readline())
                assert found, "not a line of MONITOR"
                words = [word.decode("unicode_escape") for word in _WORD.findall(found[2])]
                if words == ["ECHO", end]:
                    return seen
                if found[1] == b"lua":
                    seen[-1].inner.append(words)
                else:
                    seen.append(Command(words))

    def one(self, call: Callable[[], object]) -> Command:
        """Return the one command that the call sent."""
        commands = self.during(call)
        assert len(commands) == 1, [command.words[:2] for command in commands]
        return commands[0]


@contextmanager
def watching(url: str) -> Iterator[Watch]:
    with redis.Redis.from_url(url) as client:
        yield Watch(client, url)
