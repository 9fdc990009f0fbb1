"""Bad and hostile input, everywhere, on every backend: refused before anything is sent, or kept exactly."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from harel import Event
from tests.backends import URLS, Backend
from torture import hostile_cli, hostile_places
from torture.hostile_bench import Bench, Book, Unkept, Wrap, backends_of, on_bench
from torture.hostile_calls import (
    ARGUMENTS,
    EVENT_ARGUMENTS,
    Argument,
    cleared,
    must_be_as_it_was,
    named,
    try_event_parts,
    try_values,
)
from torture.hostile_journeys import Traveller, journey
from torture.hostile_leases import try_leases
from torture.hostile_values import (
    ALIKE,
    EVENT_PARTS,
    JUNK,
    NO_EVENT_PARTS,
    TEXTS,
    given_events,
    given_junk,
    given_texts,
)
from torture.part import Options, Report, table

__all__ = ["AWAITED", "Size", "run", "try_backend"]

AWAITED: frozenset[str] = frozenset({"passwords", "options", "commands"})
"""What the short run leaves out: servers that are not there are waited for; ``tests/test_config.py`` has some."""


class Size(NamedTuple):
    """How much of everything is tried on a backend."""

    examples: int
    """Of what chance makes, for each thing that it makes."""
    every: int
    """Of a list, every so many-th."""
    leases: tuple[str, ...]
    """In which ways forged leases are used."""
    neighbours: int
    without: frozenset[str] = frozenset()


FULL = Size(
    examples=60,
    every=1,
    leases=("ack", "ack_many", "nack", "nack with a delay", "extend", "extend_many", "reject"),
    neighbours=7,
)
TWIN = FULL._replace(examples=20, every=4, leases=("ack", "reject"), neighbours=2)
SHORT = Size(examples=12, every=4, leases=("ack", "reject"), neighbours=2, without=AWAITED)


def run(options: Options) -> Report:
    """Try it all on the backends and on the one in memory; full, on both twins of each."""
    book = Book()
    full = options.size == "full"
    size = FULL if full else SHORT
    with _credentials():
        for backend in backends_of(options.backends, is_async=full):
            # The twins share all but the sending, so the second one gets a part of it.
            part = TWIN if full and backend.is_async else size
            try_backend(book, backend, options.folder, part, options.seed)
        _try_places(book, options, size)
    failures = [*book.failures, *_not_shown(book)]
    return Report(title="Bad and hostile input", text=_text(book, options), failures=failures)


def try_backend(book: Book, backend: Backend, folder: Path, size: Size, seed: int, wrap: Wrap | None = None) -> None:
    """Try names, events, arguments and leases on one backend."""
    home = Path(tempfile.mkdtemp(prefix=f"{backend.name}-", dir=folder))
    with on_bench(backend, home, book, wrap, size.neighbours) as bench:
        _try_names(bench, size)
        _try_arguments(bench, size)
        for kind, values in NO_EVENT_PARTS.items():
            if kind not in size.without:
                try_event_parts(bench, kind, values)
        if "leases" not in size.without:
            try_leases(bench, size.leases, 1 if size.every == 1 else 3)
        _try_what_chance_makes(bench, size, seed)


def _try_names(bench: Bench, size: Size) -> None:
    """Send the names of the list through all that a queue does: a kind at once, and those that are alike."""
    parts = itertools.cycle(EVENT_PARTS)
    for kind, names in {**TEXTS, "names that look alike": ALIKE}.items():
        for start in range(0, len(names), 1_000):
            some = names[start : start + 1_000]
            travellers = [_traveller(name, next(parts)) for name in some]
            _go(bench, kind, travellers)
        for name in names[:: size.every]:
            _go(bench, kind, [_traveller(name, None)._replace(worker_id=_cut(name, 200))])
    most = bench.can.max_event_bytes
    if most <= 2**20 or (size.every == 1 and most <= 2**24):
        _try_the_largest(bench, most)


def _try_the_largest(bench: Bench, most: int) -> None:
    """Publish an event as large as the backend takes, and one that is a byte less; one more is refused."""
    room = most - len('{"kind":"k","payload":{"text":""},"id":"i","headers":{}}')
    for text in ("x" * room, "é" * (room // 2) + "x" * (room % 2), "x" * (room - 1)):
        _go(bench, "enormous", [Traveller("large", {"kind": "k", "payload": {"text": text}, "id": "i"})])
    argument = Argument("publish event.payload", lambda q, _, v: _publish_payload(q, v), lambda _v, _c: False)
    try_values(bench, argument, "enormous", [{"text": "x" * (room + 1)}, {"text": "é" * (room // 2 + 1)}])
    cleared(bench)


def _publish_payload(queue: Any, payload: dict[str, Any]) -> None:
    queue.publish("r", Event("k", payload, "i"))


def _traveller(name: str, part: object) -> Traveller:
    parts = {"kind": name, "payload": {name: name, "part": part}, "id": name, "headers": {name: name}}
    return Traveller(name, parts, reason=name)


def _cut(name: str, most: int) -> str:
    return name.encode()[:most].decode(errors="ignore")


def _go(bench: Bench, kind: str, travellers: list[Traveller]) -> None:
    try:
        journey(bench, travellers)
    except Unkept as unkept:
        bench.renew()
        smallest = travellers if len(travellers) == 1 else _alone(bench, travellers)
        names = ", ".join(named(each.group_id) for each in smallest[:5])
        bench.book.fail(bench.name, f"{kind}, groups called {names}: {unkept}")
    else:
        bench.book.note(bench.name, kind, "groups, events, reasons", "stored", "stored")


def _alone(bench: Bench, travellers: list[Traveller]) -> list[Traveller]:
    """Return one that fails by itself, or two that fail together, or all."""
    for some in [*([each] for each in travellers), *map(list, itertools.combinations(travellers, 2))]:
        try:
            journey(bench, some)
        except Unkept:
            bench.renew()
            return some
    return travellers


def _try_arguments(bench: Bench, size: Size) -> None:
    for kind, values in JUNK.items():
        if kind in size.without:
            continue
        for argument in (*ARGUMENTS, *EVENT_ARGUMENTS):
            few = values if size.every == 1 else _mostly_wrong(bench, argument, values)
            try_values(bench, argument, kind, few)
        must_be_as_it_was(bench, kind)


def _mostly_wrong(bench: Bench, argument: Argument, values: list[Any]) -> Iterator[Any]:
    """Leave out what is taken: that needs another queue each time. The list's last one stays."""
    return (value for value in values if argument.may(value, bench.can) is False)


def _try_what_chance_makes(bench: Bench, size: Size, seed_of_all: int) -> None:
    """Let Hypothesis make names, events, reasons and arguments; what it finds it makes small."""
    traveller = st.builds(
        Traveller,
        given_texts(),
        given_events(),
        given_texts().map(lambda text: _cut(text, 200)).filter(bool),
        st.text(st.characters(), max_size=40),
    )
    groups = st.lists(traveller, min_size=1, max_size=4, unique_by=lambda each: each.group_id)
    cleared(bench)

    def travel(travellers: list[Traveller]) -> None:
        try:
            journey(bench, travellers)
        except Unkept:
            bench.renew()
            raise
        bench.book.note(bench.name, "what chance makes", "groups, events, reasons", "stored", "stored")

    _explore(bench, size, seed_of_all, groups, travel)
    calls = st.tuples(st.sampled_from((*ARGUMENTS, *EVENT_ARGUMENTS)), given_junk())

    def call(made: tuple[Argument, Any]) -> None:
        argument, value = made
        if "objects that raise" in size.without and type(value).__module__ != "builtins":
            return
        before = len(bench.book.failures)
        try_values(bench, argument, "what chance makes", [value])
        must_be_as_it_was(bench, f"{argument.name} = {named(value)}")
        if len(bench.book.failures) > before:
            raise Unkept(bench.book.failures.pop().partition(": ")[2])

    _explore(bench, size, seed_of_all, calls, call)


def _explore(
    bench: Bench, size: Size, seed_of_all: int, strategy: st.SearchStrategy[Any], body: Callable[[Any], None]
) -> None:
    last: list[Any] = []

    def remembered(made: Any) -> None:
        last[:] = [made]
        body(made)

    wrapped = seed(seed_of_all)(
        settings(
            max_examples=size.examples,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )(given(strategy)(remembered))
    )
    try:
        wrapped()
    except Unkept as unkept:
        bench.book.fail(bench.name, f"of what chance made with seed {seed_of_all}, {ascii(last[0])[:1_000]}: {unkept}")


def _try_places(book: Book, options: Options, size: Size) -> None:
    """Try URLs, options, settings and the command."""
    if "passwords" not in size.without:
        hostile_places.try_passwords(book, options.folder / "passwords", every=1 if size.every == 1 else 6)
        hostile_places.try_environments(book)
    if "options" not in size.without:
        for name in ("memory", *options.backends):
            home = Path(tempfile.mkdtemp(prefix=f"options-{name}-", dir=options.folder))
            hostile_places.try_options(book, name, home, size.every)
            hostile_places.try_names(book, name, home)
    home = Path(tempfile.mkdtemp(prefix="command-", dir=options.folder))
    url = f"{URLS['sqlite'](home)}?synchronous=OFF"
    hostile_cli.try_groups(book, url, 4 if size.every == 1 else 40)
    if "commands" not in size.without:
        hostile_cli.try_files(book, url, home)
        hostile_cli.try_commands(book, url, 1 if size.every == 1 else 12)


@contextmanager
def _credentials() -> Iterator[None]:
    """Leave no variable that says which queue."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("STM_")}
    try:
        yield
    finally:
        os.environ.update(kept)


def _not_shown(book: Book) -> list[str]:
    kept = Counter(failure.partition(": ")[0] for failure in book.failures)
    return [
        f"{backend}: there were {count - kept[backend]:,} more of the same kinds."
        for backend, count in book.failed.items()
        if count > kept[backend]
    ]


def _text(book: Book, options: Options) -> str:
    counted: Mapping[tuple[str, str], int] = book.tried
    places = list(dict.fromkeys(place for place, _ in counted))
    whats = ("stored", "answered", "refused")
    rows: list[tuple[object, ...]] = [
        (place, *(f"{counted.get((place, what), 0):,}" for what in whats)) for place in places
    ]
    total = sum(counted.values())
    counts = table(
        ("where", "stored and came back exactly", "taken or answered", "refused before anything was sent"), rows
    )
    said = table(("input", "where", "said"), _sayings(book))
    return (
        f"{total:,} inputs with seed {options.seed}, each on a queue beside others whose names are nearly the same.\n\n"
        f"{counts}\n\nWhat each kind was answered at first (a line where several places said the same):\n\n{said}"
    )


def _sayings(book: Book) -> list[tuple[object, ...]]:
    """Say of each kind of input where it was what, the places of the same answer together."""
    together: dict[tuple[str, str, str], list[str]] = {}
    for (kind, where), by_backend in book.says.items():
        answers: dict[str, list[str]] = {}
        for backend, answer in by_backend.items():
            answers.setdefault(_one_line(answer), []).append(backend)
        for answer, backends in answers.items():
            on = "everywhere" if len(answers) == 1 else ", ".join(backends)
            together.setdefault((kind, on, answer), []).append(where)
    return [
        (kind, f"{', '.join(wheres[:4])}{' …' if len(wheres) > 4 else ''} ({on})", answer)
        for (kind, on, answer), wheres in together.items()
    ]


def _one_line(answer: str) -> str:
    line = ascii(answer)[1:-1] if not answer.isprintable() else answer
    return line if len(line) <= 160 else f"{line[:160]}…"
