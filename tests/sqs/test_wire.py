"""How messages travel: names are never mixed up, any text arrives, sizes are SQS's, batches keep each group's order."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harel import Event, InvalidArgument
from harel.engine.queue.contract import Packed
from harel.engine.queue.sqs.wire import Entry, SqsLease, batches, dead_letter, entry, lease_of
from harel.events import encode_event

MOST = 262_144

GROUP = re.compile(r"[a-zA-Z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
"""As the documentation of SQS says it."""

TEXT = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")


def received(made: Entry, **system: str) -> SqsLease:
    """Read an entry as if SQS had delivered it."""
    message = {
        "MessageId": "m",
        "ReceiptHandle": "r",
        "Body": made["MessageBody"],
        "Attributes": {"MessageGroupId": made["MessageGroupId"], "SequenceNumber": "1", **system},
        "MessageAttributes": made["MessageAttributes"],
    }
    return lease_of(message, worker_id="w", queue="q", received=0.0, seconds=1, expires_at=1.0)


def written(group_id: str = "g", raw: str = "{}") -> Entry:
    return entry(Packed(group_id, raw, 0), MOST)


IDS = [
    "a", "A", "a ", " a", " ", "á", "a\u0301", "x" * 128, "x" * 129, "x" * 512, "é" * 256, "\U0001f418" * 128,
    "a\n", "a\x01", "\uffff", "~", "!", "harel-sha256-", "harel-sha256-a", "HAREL-SHA256-a", '{"a":1}', "\\",
]  # fmt: skip


@pytest.mark.parametrize("group_id", IDS)
def test_a_group_id_is_what_sqs_takes_and_comes_back(group_id: str) -> None:
    made = written(group_id)
    assert GROUP.fullmatch(made["MessageGroupId"])
    assert received(made).group_id == group_id


def test_an_id_that_fits_goes_as_it_is() -> None:
    assert written("order/17")["MessageGroupId"] == "order/17"
    assert written("order/17")["MessageAttributes"] == {}


def test_no_two_ids_are_one_group() -> None:
    # Also those that another one is sent as.
    ids = {*IDS, *(written(group_id)["MessageGroupId"] for group_id in IDS)}
    assert len({written(group_id)["MessageGroupId"] for group_id in ids}) == len(ids)


def test_a_group_id_that_is_not_the_one_it_was_sent_as_is_not_believed() -> None:
    made = written("é")
    made["MessageAttributes"]["harel-group"]["BinaryValue"] = b"somebody else"
    assert received(made).group_id == made["MessageGroupId"]


def test_what_another_program_sent_is_shown_as_it_is() -> None:
    message = {"MessageId": "m", "ReceiptHandle": "r", "Body": "hello", "Attributes": {"MessageGroupId": "g"}}
    lease = lease_of(message, worker_id="w", queue="q", received=0.0, seconds=1, expires_at=1.0)
    assert (lease.group_id, lease.raw) == ("g", "hello")
    made = written()
    made["MessageAttributes"] = {"harel-text": {"DataType": "String", "StringValue": "json"}}
    made["MessageBody"] = "no JSON"
    assert received(made).raw == "no JSON"


@settings(max_examples=80, derandomize=True, database=None, deadline=None)
@given(st.text() | st.text(alphabet='\ufffe\uffff\\"u\0\x1f\x7f\r\n'))
def test_any_text_is_what_sqs_takes_and_comes_back(raw: str) -> None:
    made = written("g", raw)
    assert TEXT.fullmatch(made["MessageBody"])
    assert received(made).raw == raw


def test_an_events_json_goes_as_it_is() -> None:
    raw = encode_event(Event("k", {"text": "NUL \0 escape \x1b \u2028 é \U0001f418"}))
    made = written("g", raw)
    assert (made["MessageBody"], made["MessageAttributes"]) == (raw, {})


def test_every_send_has_a_deduplication_id_of_its_own() -> None:
    assert written()["MessageDeduplicationId"] != written()["MessageDeduplicationId"]


def test_a_dead_letter_written_twice_has_one_deduplication_id() -> None:
    lease = received(written(), ApproximateReceiveCount="3")
    one, other = (dead_letter(lease, reason, MOST) for reason in ("first", "second"))
    assert one["MessageDeduplicationId"] == other["MessageDeduplicationId"] == "m"
    assert one["MessageGroupId"] == "g"


def attributes(made: Entry) -> dict[str, Any]:
    return {name: value.get("StringValue") for name, value in made["MessageAttributes"].items()}


def test_a_dead_letter_says_how_often_and_why() -> None:
    lease = received(written("é", '{"a":"\uffff"}'), ApproximateReceiveCount="3")
    letter = dead_letter(lease, "why \0 not \uffff", MOST)
    assert attributes(letter) == {
        "harel-group": None,
        "harel-text": "json",
        "harel-seq": "1",
        "harel-attempts": "3",
        "harel-reason": "why \ufffd not \ufffd",
    }
    assert received(letter).raw == lease.raw


@pytest.mark.parametrize("room", [0, 1, 2, 30])
def test_a_reason_is_cut_so_that_the_dead_letter_is_not_too_large(room: int) -> None:
    lease = received(written())
    least = dead_letter(lease, "", MOST)
    assert "harel-reason" not in least["MessageAttributes"]
    beside = 2 + sum(
        len(name) + len(value["DataType"]) + len(value["StringValue"])
        for name, value in least["MessageAttributes"].items()
    )
    letter = dead_letter(lease, "é" * 1_000, beside + len("harel-reason") + len("String") + room)
    assert attributes(letter).get("harel-reason", "") == "é" * (room // 2)


def test_a_message_too_large_for_sqs_is_refused() -> None:
    entry(Packed("g", "x" * MOST, 0), MOST)
    with pytest.raises(InvalidArgument, match=r"takes 262,145 bytes .* at most 262,144"):
        entry(Packed("g", "x" * (MOST + 1), 0), MOST)
    with pytest.raises(InvalidArgument, match="at most 262,144"):
        entry(Packed("é", "x" * MOST, 0), MOST)  # the group id travels beside it
    with pytest.raises(InvalidArgument, match="escaped"):
        entry(Packed("g", "\uffff" * (MOST // 6), 0), MOST)


def test_a_batch_holds_one_message_of_a_group_ten_messages_and_no_more_bytes_than_sqs_takes() -> None:
    entries = [written(group) for group in "abcab" + "cdefghijklmn"]
    cut = list(batches(entries, MOST))
    assert [[each["MessageGroupId"] for each in batch] for batch in cut] == [
        list("abc"),
        list("abcdefghij"),
        list("klmn"),
    ]
    assert [each for batch in cut for each in batch] == entries
    large = [written(group, "é" * 50_000) for group in "abcde"]
    assert [len(batch) for batch in batches(large, MOST)] == [2, 2, 1]
    assert list(batches([], MOST)) == []
