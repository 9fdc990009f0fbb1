"""Bad and hostile input: the short list of ``torture/hostile.py``, and faults planted to see that it finds them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harel import Event, HarelError, InvalidArgument, Message, Transport
from harel.config import connect
from tests.backends import BACKENDS, Backend
from torture.hostile import SHORT, run, try_backend
from torture.hostile_bench import Book, Unkept, Wrap, on_bench
from torture.hostile_calls import ARGUMENTS, try_event_parts, try_values
from torture.hostile_places import must_keep_a_secret
from torture.hostile_values import SECRET, exactly
from torture.part import Options, table

QUICK = ("sqlite-sync", "redis-sync", "postgres-sync", "mongo-sync")
"""Backends whose servers answer quickly; the others are in the full run."""


def backend_called(name: str) -> Backend:
    return next(backend for backend in BACKENDS if backend.name == name)


@pytest.mark.parametrize("name", ["memory-sync", *QUICK])
def test_hostile_input_is_refused_or_kept_exactly(name: str, tmp_path: Path) -> None:
    book = Book()
    try_backend(book, backend_called(name), tmp_path, SHORT, seed=1)
    assert book.failures == []
    assert book.tried[name, "refused"] > 2_000
    assert book.tried[name, "stored"] > 50


def test_the_report_says_what_was_tried_and_what_each_said(tmp_path: Path) -> None:
    report = run(Options(backends=(), seed=1, size="short", folder=tmp_path))
    assert report.failures == []
    assert "| memory-sync |" in report.text
    assert "NUL" in report.text
    assert "worker_id must be a string that is not empty" in report.text


class Wrapper:
    """A transport with a fault."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Normalising(Wrapper):
    """Takes two spellings of a name for one."""

    def publish(self, group_id: str, *rest: Any) -> None:
        self.inner.publish(_normal(group_id), *rest)

    def publish_many(self, messages: Any) -> None:
        self.inner.publish_many([Message(_normal(each[0]), *each[1:]) for each in messages])


def _normal(name: Any) -> Any:
    return unicodedata.normalize("NFC", name) if isinstance(name, str) else name


class Matching(Wrapper):
    """Takes a star for any name."""

    def peek(self, group_id: str, limit: int = 10) -> Any:
        if group_id == "*":
            infos = self.inner.groups()
            return self.inner.peek(infos[0].group_id, limit) if infos else []
        return self.inner.peek(group_id, limit)


class Trimming(Wrapper):
    """Looks for names without the blanks around them."""

    def hold(self, group_id: Any) -> bool:
        return self.inner.hold(group_id.strip() or group_id if isinstance(group_id, str) else group_id)


class Forgiving(Wrapper):
    """Makes a limit of what is none."""

    def groups(self, *, limit: Any = 100, **rest: Any) -> Any:
        return self.inner.groups(limit=1 if limit is True else limit, **rest)


class Sending(Wrapper):
    """Asks the server before it refuses."""

    def claim(self, worker_id: str, visibility: float, min_priority: int = 0) -> Any:
        self.inner.stats()
        return self.inner.claim(worker_id, visibility, min_priority)


class Blurting(Wrapper):
    """Lets an error out that is none of harel's."""

    def nack(self, lease: Any, delay: float = 0.0) -> bool:
        if delay is None:
            raise TypeError("unsupported operand type(s)")
        return self.inner.nack(lease, delay)


class Muttering(Wrapper):
    """Refuses without a sentence."""

    def purge(self, group_id: Any) -> int:
        try:
            return self.inner.purge(group_id)
        except InvalidArgument:
            raise InvalidArgument(f"bad\n{group_id}") from None


class Rounding(Wrapper):
    """Stores numbers as floats."""

    def publish_many(self, messages: Any) -> None:
        self.inner.publish_many([Message(each[0], _rounded(each[1]), *each[2:]) for each in messages])

    def publish(self, group_id: str, event: Event, *rest: Any) -> None:
        self.inner.publish(group_id, _rounded(event), *rest)


def _rounded(event: Any) -> Any:
    if type(event) is not Event or type(event.payload) is not dict or type(event.payload.get("part")) is not int:
        return event
    return Event(event.kind, {**event.payload, "part": float(event.payload["part"])}, event.id, event.headers)


PLANTED: dict[str, tuple[Wrap, str]] = {
    "names are normalised": (Normalising, "groups called"),
    "a star is a wildcard": (Matching, "peek('*')"),
    "blanks are trimmed": (Trimming, "hold("),
    "a bool is a limit": (Forgiving, "groups limit = bool True: it was taken"),
    "it asks before it refuses": (Sending, "it was refused only after 1 requests"),
    "it raises TypeError": (Blurting, "nack delay = NoneType None: an error that is none of harel's: TypeError"),
    "it says no sentence": (Muttering, "the refusal is no clear sentence"),
    "a number becomes a float": (Rounding, "payload was"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path) -> None:
    wrap, sentence = PLANTED[fault]
    book = Book()
    few = SHORT._replace(examples=1, neighbours=0)
    try_backend(book, backend_called("memory-sync"), tmp_path, few, seed=1, wrap=wrap)
    assert any(sentence in failure for failure in book.failures), book.failures[:5]


def test_a_call_that_is_refused_and_changes_something_is_found(tmp_path: Path) -> None:
    def wrap(inner: Transport) -> Any:
        class Changing(Wrapper):
            def claim_many(self, *args: Any) -> Any:
                try:
                    return inner.claim_many(*args)
                except InvalidArgument:
                    inner.hold("g")
                    raise

        return Changing(inner)

    book = Book()
    argument = next(each for each in ARGUMENTS if each.name == "claim_many limit")
    with on_bench(backend_called("memory-sync"), tmp_path, book, wrap) as bench:
        try_values(bench, argument, "bools", [True])
    (failure,) = book.failures
    assert failure.startswith("memory-sync: claim_many limit = bool True: it was refused only after 1 requests")


def test_a_disturbed_neighbour_is_found(tmp_path: Path) -> None:
    book = Book()
    folder = tmp_path / "bench"
    folder.mkdir()
    with (
        on_bench(backend_called("sqlite-sync"), folder, book, few=1) as bench,
        connect(f"sqlite:///{bench.home}/queue.db?prefix=transport_") as neighbour,
    ):
        neighbour.purge("q:a")
    assert book.failures == ["sqlite-sync: the queue 'transport_' beside the queue under test did not stay as it was."]


LEAKS: dict[str, Callable[[], Any]] = {
    "in its message": lambda: _raise(HarelError(f"no connection to redis://u:{SECRET}@h.")),
    "in its cause": lambda: _raise(HarelError("no connection."), ValueError(f"bad port {SECRET!r}")),
    "in what it returns": lambda: f"<Transport redis://u:{SECRET}@h>",
    "in another error": lambda: _raise(ValueError(SECRET)),
}


def _raise(error: Exception, cause: Exception | None = None) -> None:
    raise error from cause


@pytest.mark.parametrize("leak", LEAKS)
def test_a_password_that_is_shown_is_found(leak: str) -> None:
    with pytest.raises(Unkept):
        must_keep_a_secret(LEAKS[leak], SECRET)


def test_a_password_that_is_not_shown_is_none() -> None:
    assert must_keep_a_secret(lambda: _raise(HarelError("No connection.")), SECRET) == "HarelError: No connection."


def test_what_only_seems_to_come_back_is_told_apart() -> None:
    pairs: list[tuple[Any, Any]] = [(1, 1.0), (0.0, -0.0), (True, 1), ([1], (1,)), ({"a": 1}, {"a": True}), ("1", 1)]
    for one, other in pairs:
        assert exactly({"value": [one]}, {"value": [one]})
        assert not exactly({"value": [one]}, {"value": [other]}), (one, other)
    assert not exactly({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_a_value_that_json_changes_is_found(tmp_path: Path) -> None:
    def wrap(inner: Transport) -> Any:
        class Stringly(Wrapper):
            def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
                payload = {key: str(value) for key, value in event.payload.items()}
                inner.publish(group_id, Event(event.kind, payload), priority)

        return Stringly(inner)

    book = Book()
    with on_bench(backend_called("memory-sync"), tmp_path, book, wrap) as bench:
        try_event_parts(bench, "bytes", [b"a"])
    assert all("came back as something else" in failure for failure in book.failures)
    assert len(book.failures) == 3


def test_a_page_stays_text_whatever_its_tables_name() -> None:
    assert table(("a",), [("x|y\x00\x1b\n",)]).splitlines()[-1] == r"| x\|y\x00\x1b\n |"
