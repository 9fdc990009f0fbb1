"""The command with hostile arguments and files: a status, a line that a person can read, and nothing interpreted."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harel.cli.app import run
from torture.hostile_bench import Book, Unkept
from torture.hostile_calls import named
from torture.hostile_places import FORMS
from torture.hostile_values import ALIKE, REFUSED_TEXTS, SECRET, TEXTS, nested

__all__ = ["try_commands", "try_files", "try_groups"]

STATUSES = (0, 1, 2)


class Outcome(NamedTuple):
    """What a command left."""

    status: int
    out: str
    err: str


def try_groups(book: Book, url: str, every: int = 1) -> None:
    """Lead a group of each name through the commands, and find it again in what they print."""
    names = list(dict.fromkeys([*(text for texts in TEXTS.values() for text in texts), *ALIKE]))[::every]
    for name in names:
        try:
            _led_through(url, name)
        except Unkept as unkept:
            book.fail("the command", f"a group called {named(name)}: {unkept}")
        else:
            book.note("the command", "names of groups", "every command", "stored", "stored")
    for texts in REFUSED_TEXTS.values():
        for name in texts:
            for arguments in (
                ["publish", "--", name, "k"],
                ["peek", "--", name],
                ["hold", "--", name],
                ["purge", "-y", "--", name],
            ):
                _refused(book, url, "names of groups", arguments, name)


def _led_through(url: str, name: str) -> None:
    payload = json.dumps({"of": name, name: [name]})
    _succeeded(url, "publish", "--header", f"h={name}", "--id", name, "--", name, name, payload)
    _succeeded(url, "publish", "--", name, "second")
    (info,) = [each for each in _documents(url, "groups", "--limit", "1000") if each["group_id"] == name]
    if info["messages"] != 2:
        raise Unkept(f"groups shows {info['messages']} messages and not 2")
    first = _documents(url, "peek", "--", name)[0]
    wanted = {"kind": name, "payload": {"of": name, name: [name]}, "id": name, "headers": {"h": name}}
    if first["group_id"] != name or first["event"] != wanted:
        raise Unkept(f"peek shows {str(first)[:300]!a}")
    if any(each["group_id"] <= name for each in _documents(url, "groups", f"--after={name}")):
        raise Unkept("groups --after shows what comes before")
    _succeeded(url, "hold", "--", name)
    _succeeded(url, "groups")
    _succeeded(url, "release", "--", name)
    _documents(url, "dead", f"--group={name}")
    _succeeded(url, "purge", "--yes", "--", name)
    left = _documents(url, "groups", "--limit", "1000")
    if left:
        raise Unkept(f"purge left {str(left)[:300]!a}")


_LINES: dict[str, list[bytes]] = {
    "no JSON": [b"x", b"{", b"\x00", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"'a'", b"NaN", b"{} {}", b"[" * 100_000,
                b"\x1b[31m"],
    "no event": [b"{}", b"[]", b"null", b"1", b'"a"', b'{"group_id":1,"kind":"k","payload":{}}',
                 b'{"group_id":"g","kind":"k","payload":[]}', b'{"group_id":"g","kind":"","payload":{}}',
                 b'{"group_id":"","kind":"k","payload":{}}', b'{"group_id":"g","kind":"k","payload":{},"priority":5}',
                 b'{"group_id":"g","kind":"k","payload":{},"priority":1e400}',
                 b'{"group_id":"g","kind":"k","payload":{},"priority":true}',
                 b'{"group_id":"g","kind":"k","payload":{},"headers":{"a":1}}',
                 b'{"group_id":"g","kind":"k","payload":{},"$where":"1"}'],
    "no text": [b'{"group_id":"\\ud800","kind":"k","payload":{}}', b'{"group_id":"a\\u0000","kind":"k","payload":{}}',
                b'{"group_id":"g","kind":"k","payload":{"a":"\\udfff"}}',
                b'{"group_id":"g\xff","kind":"k","payload":{}}',
                b'{"group_id":"' + b"x" * 513 + b'","kind":"k","payload":{}}'],
    "deep or large": [b'{"group_id":"g","kind":"k","payload":' + json.dumps(nested(600)).encode() + b"}",
                      b'{"group_id":"g","kind":"k","payload":{"a":1' + b"0" * 5_000 + b"}}",
                      b'{"group_id":"g","kind":"k","payload":{"a":1e999}}'],
}  # fmt: skip
"""Lines of a file for ``harel publish``, none of which is an event that can be stored."""


def try_files(book: Book, url: str, folder: Path) -> None:
    """Publish files with one wrong line, which is named, after a right one, which is published."""
    file = folder / "lines.jsonl"
    right = b'{"group_id":"file","kind":"k","payload":{}}\n'
    for kind, lines in _LINES.items():
        for line in lines:
            file.write_bytes(right + line + b"\n" + right)
            outcome = _said(url, "publish", "--file", str(file))
            try:
                _must_be_readable(outcome)
                if (
                    outcome.status != 2
                    or "line 2" not in outcome.err
                    or "1 event was published before" not in outcome.err
                ):
                    raise Unkept(f"it ended with {outcome.status} and said {outcome.err[:300]!a}")
            except Unkept as unkept:
                book.fail("the command", f"a file with the line {named(line)}: {unkept}")
            book.note("the command", "lines of a file", kind, "refused", outcome.err.strip())
    whole = {
        "a cut gzip": gzip.compress(right * 100)[:40], "a gzip with rubbish": b"\x1f\x8b" + b"x" * 100,
        "NUL bytes": b"\x00" * 1_000, "one long line": b"x" * 5_000_000,
    }  # fmt: skip
    for kind, data in whole.items():
        file.write_bytes(data)
        outcome = _said(url, "publish", "--file", str(file))
        with _noted(book, f"a file that is {kind}"):
            _must_be_readable(outcome)
            if outcome.status != 2:
                raise Unkept(f"it ended with {outcome.status}")
        book.note("the command", "files", kind, "refused", outcome.err.strip())
    _succeeded(url, "purge", "--yes", "--json", "--", "file")


def try_commands(book: Book, url: str, every: int = 1) -> None:
    """Give every command arguments that it does not take, and URLs with a password in them."""
    texts = [
        "",
        " ",
        "-1",
        "0",
        "1e3",
        "x",
        "nan",
        "9" * 5_000,
        "\ud800",
        "\0",
        *(texts[0] for texts in TEXTS.values()),
    ]
    shapes = [
        ["groups", "--limit={}"], ["groups", "--state={}"], ["groups", "--after={}"], ["peek", "--limit={}", "--", "g"],
        ["dead", "--after={}"], ["dead", "--limit={}"], ["redrive", "--", "{}"], ["redrive", "--group={}"], ["redrive"],
        ["publish", "--priority={}", "--", "g", "k"], ["publish", "--header={}", "--", "g", "k"], ["publish", "--",
         "g", "k", "{}"],
        ["publish", "--file={}"], ["publish", "--", "{}"], ["schema", "--", "{}"], ["{}"], ["--{}"], ["hold"],
         ["hold", "--", "{}", "{}"],
        ["worker", "--", "{}"], ["purge", "--", "{}"],
    ]  # fmt: skip
    for shape in shapes:
        for text in texts[::every]:
            arguments = [part.replace("{}", text) for part in shape]
            outcome = _said(url, *arguments)
            with _noted(book, f"harel {' '.join(map(ascii, arguments))}"):
                _must_be_readable(outcome)
            what = "refused" if outcome.status else "answered"
            book.note("the command", "arguments", " ".join(shape), what, outcome.err.strip() or "taken")  # type: ignore[arg-type]
    _said(url, "purge", "--yes", "--", "g")
    for form in FORMS[::every]:
        for scheme in ("sqlite", "http", "sqs"):  # that need no server to find out that they are wrong
            hostile = f"{scheme}://localhost:{form.format(s=SECRET)}@127.0.0.1:1"
            outcome = _ran("stats", f"--transport={hostile}")
            with _noted(book, f"harel stats --transport={hostile!a}"):
                if SECRET in outcome.out + outcome.err:
                    raise Unkept(f"the password is shown: {outcome.err[:300]!a}")
                _must_be_readable(outcome)
            book.note("the command", "passwords", scheme, "refused", outcome.err.strip())


def _refused(book: Book, url: str, kind: str, arguments: list[str], value: object) -> None:
    outcome = _said(url, *arguments)
    with _noted(book, f"harel {arguments[0]} with {named(value)}"):
        _must_be_readable(outcome)
        if outcome.status != 2:
            raise Unkept(f"it ended with {outcome.status}")
    book.note("the command", kind, arguments[0], "refused", outcome.err.strip())


@contextlib.contextmanager
def _noted(book: Book, what: str) -> Iterator[None]:
    try:
        yield
    except Unkept as unkept:
        book.fail("the command", f"{what}: {unkept}")


def _must_be_readable(outcome: Outcome) -> None:
    if outcome.status not in STATUSES:
        raise Unkept(f"it ended with {outcome.status}: {outcome.err[:300]!a}")
    if "Unexpected" in outcome.err or "Traceback" in outcome.err:
        raise Unkept(f"it ended as no command should: {outcome.err[:300]!a}")
    lines = outcome.err.splitlines()
    if not all(line.isprintable() for line in [*lines, *outcome.out.split("\n")]):
        raise Unkept(f"what it printed may do something to a terminal: {(outcome.err + outcome.out)[:300]!a}")
    if outcome.status == 2 and len(lines) != 1:
        raise Unkept(f"what was wrong is not said in one line: {outcome.err[:300]!a}")


def _succeeded(url: str, *arguments: str) -> str:
    outcome = _said(url, *arguments)
    _must_be_readable(outcome)
    if outcome.status:
        raise Unkept(f"{arguments[0]} ended with {outcome.status}: {outcome.err[:300]!a}")
    return outcome.out


def _documents(url: str, command: str, *arguments: str) -> list[Any]:
    outcome = _said(url, command, "--json", *arguments)
    if outcome.status:
        raise Unkept(f"{command} ended with {outcome.status}: {outcome.err[:300]!a}")
    return [json.loads(line) for line in outcome.out.split("\n") if line]


def _said(url: str, command: str, *arguments: str) -> Outcome:
    if command in ("schema", "worker") or command.startswith("-"):
        return _ran(command, *arguments)
    return _ran(command, f"--transport={url}", *arguments)


def _ran(*arguments: str) -> Outcome:
    """Run the command in this process, on streams as a terminal's, that print whatever they are given."""
    out, err = _stream(), _stream()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = run(arguments)
        except BaseException as error:
            return Outcome(-1, "", f"{type(error).__name__}: {error!a}")
    return Outcome(status, _written(out), _written(err))


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", newline="\n")


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
