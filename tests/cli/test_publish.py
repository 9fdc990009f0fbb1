"""``harel publish``."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from harel import Capabilities, Event, InvalidArgument, Transport, TransportUnavailable
from harel.cli import publish
from harel.cli.failure import Failure
from harel.cli.publish import Source, publish_lines
from harel.engine.transport import InMemoryTransport
from harel.events import Message
from tests.cli.conftest import Harel


def lines(count: int, **more: Any) -> bytes:
    """Make the lines of a file: event ``n`` of group ``n % 3``."""
    rows = ({"group_id": f"g{n % 3}", "kind": "k", "payload": {"n": n}, **more} for n in range(count))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def source(data: bytes) -> Source:
    return Source("F", io.BufferedReader(io.BytesIO(data)))


class Noting(InMemoryTransport):
    """Notes the sizes of the batches, and fails at the one that it is told to."""

    def __init__(
        self, fails_at: int = -1, error: BaseException | None = None, capabilities: Capabilities | None = None
    ) -> None:
        super().__init__()
        self.replaced = capabilities
        self.batches: list[int] = []
        self.fails_at = fails_at
        self.error = error

    @property
    def capabilities(self) -> Capabilities:
        return self.replaced or super().capabilities

    def publish_many(self, messages: Iterable[Message]) -> None:
        batch = list(messages)
        if self.error is not None and len(self.batches) == self.fails_at:
            raise self.error
        super().publish_many(batch)
        self.batches.append(len(batch))


def test_an_event_with_all_that_it_can_have(harel: Harel, queue: Transport) -> None:
    said = harel(
        *("publish", "order-1", "order.placed", '{"amount": [1, null]}', "--id", "e-1", "--priority", "3"),
        *("--header", "trace=a=b", "--header", "empty="),
    ).succeeded()
    assert said == "order.placed published to group order-1, with the id e-1.\n"
    (message,) = queue.peek("order-1")
    assert message.event == Event("order.placed", {"amount": [1, None]}, "e-1", {"trace": "a=b", "empty": ""})
    assert queue.groups()[0].priority == 3


def test_an_event_with_the_least(harel: Harel, queue: Transport) -> None:
    (printed,) = harel("publish", "g", "k", "--json").json
    (message,) = queue.peek("g")
    assert printed == {"published": 1, "group_id": "g", "id": message.event.id}
    assert (message.event.payload, message.event.headers, queue.groups()[0].priority) == ({}, {}, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Say what to publish: GROUP KIND [JSON], or --file F.jsonl."),
        (("g",), "Say what to publish: GROUP KIND [JSON], or --file F.jsonl."),
        (("g", "k", "{amount: 5}"), "The payload is not JSON: "),
        (("g", "k", "NaN"), "The payload is not JSON: "),
        (("g", "k", "[" * 100_000), "The payload is not JSON: "),
        (("g", "k", "[1]"), """The payload must be a JSON object such as '{"amount": 5}', not [1]."""),
        (("g", "k", "--header", "trace"), "A header is given as NAME=VALUE, not 'trace'."),
        (("g", "k", "--priority", "5"), "priority must be an int from 0 to 4, not 5."),
        (("", "k"), "group_id must be a string that is not empty, not ''."),
        (("g", ""), "event.kind must be a string that is not empty, not ''."),
        (("g", "k", "--id", ""), "event.id must be a string that is not empty, not ''."),
        (("g", "k", "--file", "F"), "With --file the groups, events and priorities are in the file"),
        (("--file", "F", "--priority", "1"), "With --file the groups, events and priorities are in the file"),
        (("--file", "F", "--header", "a=b"), "With --file the groups, events and priorities are in the file"),
        (("--file", "missing.jsonl"), "missing.jsonl: No such file or directory."),
        (("--file", "."), ".: Is a directory."),
    ],
)
def test_what_is_wrong_is_a_sentence_and_nothing_is_published(
    harel: Harel, queue: Transport, arguments: tuple[str, ...], said: str
) -> None:
    assert harel("publish", *arguments).failed().startswith(said)
    assert queue.stats().messages == 0


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_file_is_published_in_its_order(harel: Harel, queue: Transport, tmp_path: Path, compress: Any) -> None:
    """Compressed or not is seen from what is in it, whatever its name."""
    (tmp_path / "events").write_bytes(compress(lines(1_203)))
    assert harel("publish", "--file", "events").succeeded() == "1,203 events published.\n"
    assert [m.event.payload["n"] for m in queue.peek("g1", 10_000)] == list(range(1, 1_203, 3))


def test_a_line_may_have_an_id_headers_and_a_priority(harel: Harel, queue: Transport, tmp_path: Path) -> None:
    (tmp_path / "F").write_bytes(b"\n" + lines(1, id="e", headers={"a": "b"}, priority=2) + b"  \r\n\n")
    assert harel("publish", "--file", "F", "--json").json == [{"published": 1}]
    (message,) = queue.peek("g0")
    assert message.event == Event("k", {"n": 0}, "e", {"a": "b"})
    assert queue.groups()[0].priority == 2


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_standard_input_is_a_file_too(process: Harel, queue: Transport, compress: Any) -> None:
    assert process("publish", "--file", "-", stdin=compress(lines(7))).succeeded() == "7 events published.\n"
    assert queue.stats().messages == 7


@pytest.mark.parametrize("name", ["a\0b", "\ud800"], ids=ascii)
def test_what_cannot_be_the_name_of_a_file_is_said(name: str) -> None:
    with pytest.raises(Failure, match="cannot be the name of a file"), publish._opened(name):
        pass


def test_an_empty_file_is_nothing(harel: Harel, tmp_path: Path) -> None:
    (tmp_path / "F").touch()
    assert harel("publish", "--file", "F").succeeded() == "0 events published.\n"


GOOD = lines(1).decode().strip()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{oops}", "JSON is malformed"),
        ("[]", "Expected `object`, got `array`"),
        ('{"group_id": "g", "payload": {}}', "missing required field `kind`"),
        ('{"group_id": "g", "kind": "k"}', "missing required field `payload`"),
        ('{"group_id": 5, "kind": "k", "payload": {}}', "Expected `str`, got `int` - at `$.group_id`"),
        (GOOD.replace("}}", '}, "prority": 1}'), "unknown field `prority`"),
        (GOOD.replace("}}", '}, "priority": 9}'), "priority must be an int from 0 to 4, not 9"),
        (GOOD.replace("g0", ""), "group_id must be a string that is not empty"),
        (GOOD.replace("g0", "g" * 513), "group_id takes 513 bytes; at most 512 are allowed"),
        ("\udcff" + GOOD, "JSON is malformed"),
        (GOOD.replace('"k"', '"\udcff"'), "utf-8"),
    ],
)
def test_a_wrong_line_is_named_and_all_before_it_are_published(
    harel: Harel, queue: Transport, tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "F").write_bytes(lines(2) + line.encode(errors="surrogateescape") + b"\n" + lines(600))
    sentence = harel("publish", "--file", "F").failed()
    assert sentence.startswith("F, line 3: ")
    assert said.lower() in sentence.lower()
    assert sentence.endswith(" 2 events were published before it.")
    assert queue.stats().messages == 2


@pytest.mark.parametrize(("before", "said"), [(0, "0 events were"), (1, "1 event was"), (1_001, "1,001 events were")])
@pytest.mark.parametrize("line", ["{oops}", GOOD.replace("g0", "")], ids=["not JSON", "refused by the queue"])
def test_wherever_the_wrong_line_is(
    harel: Harel, queue: Transport, tmp_path: Path, line: str, before: int, said: str
) -> None:
    (tmp_path / "F").write_bytes(lines(before) + line.encode() + b"\n" + lines(600))
    sentence = harel("publish", "--file", "F").failed()
    assert sentence.startswith(f"F, line {before + 1}: ")
    assert sentence.endswith(f" {said} published before it.")
    assert queue.stats().messages == before


def test_of_two_wrong_lines_the_first_is_named(harel: Harel, queue: Transport, tmp_path: Path) -> None:
    """The queue refuses line 3, which waits in the batch when line 5 turns out not to be JSON."""
    refused = lines(1).replace(b"g0", b"")
    (tmp_path / "F").write_bytes(lines(2) + refused + lines(1) + b"{oops}\n")
    sentence = harel("publish", "--file", "F").failed()
    assert sentence.startswith("F, line 3: group_id must be")
    assert sentence.endswith("2 events were published before it.")
    assert queue.stats().messages == 2


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:60] + bytes(40) + data[100:]])
def test_damaged_compressed_data_is_named(harel: Harel, tmp_path: Path, damage: Any) -> None:
    (tmp_path / "F").write_bytes(damage(gzip.compress(lines(2_000))))
    sentence = harel("publish", "--file", "F").failed()
    assert sentence.startswith("F, line ")
    assert "The compressed data ends early or is damaged" in sentence


def test_batches_hold_few_messages_and_few_bytes() -> None:
    """Memory stays the same however long the file and its lines are."""
    with Noting() as queue:
        assert publish_lines(queue, source(lines(1_100))) == 1_100
        assert queue.batches == [500, 500, 100]
    with Noting() as queue:
        large = lines(1, headers={"h": "x" * (publish.BATCH_BYTES // 4)})
        assert publish_lines(queue, source(large * 10)) == 10
        assert queue.batches == [4, 4, 2]


def test_a_line_longer_than_any_event_is_not_read_to_its_end() -> None:
    stream: Any = io.BufferedReader(io.BytesIO(lines(1) + b"x" * 10_000_000))
    small = Capabilities(max_event_bytes=10, max_visibility_s=1.0)
    with (
        Noting(capabilities=small) as queue,
        pytest.raises(Failure, match=r"F, line 2: It is longer than 65,566 bytes"),
    ):
        publish_lines(queue, Source("F", stream))
    assert stream.tell() < 1_000_000


def test_a_queue_that_goes_away_is_said_with_how_far_it_came() -> None:
    error = TransportUnavailable("The disk is on fire.")
    with Noting(1, error) as queue, pytest.raises(Failure) as failure:
        publish_lines(queue, source(lines(1_100)))
    assert str(failure.value) == "F: The disk is on fire. 500 events were published before that."
    assert failure.value.status == 2


def test_an_interruption_is_said_with_how_far_it_came() -> None:
    with Noting(2, KeyboardInterrupt()) as queue, pytest.raises(Failure, match=r"Interrupted: 1,000 events") as failure:
        publish_lines(queue, source(lines(1_100)))
    assert failure.value.status == 130


def test_a_batch_that_the_queue_finds_too_large_goes_one_by_one() -> None:
    """A backend may refuse the whole where it takes each."""
    with Noting(1, InvalidArgument("This is too much at once.")) as queue:
        assert publish_lines(queue, source(lines(600))) == 600
        assert queue.stats().messages == 600
