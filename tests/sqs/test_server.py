"""What this backend rests on, asked of the server itself: the stand-in, or with ``HAREL_TEST_SQS_URL`` one's own.

Those facts that need a clock are asked of the stand-in alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from tests.servers.sqs import client, is_standin, queue_in

RECEIVE = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}


class Server:
    """A queue, by a plain client; the stand-in goes by ``now``."""

    def __init__(self, name: str) -> None:
        self.now = 1_700_000_000.0
        self.client = client()
        if is_standin():
            self.client.meta.events.register("before-call.sqs", self._tell_the_time)
        attributes = {
            "FifoQueue": "true",
            "DeduplicationScope": "messageGroup",
            "FifoThroughputLimit": "perMessageGroupId",
        }
        self.url = self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    def _tell_the_time(self, params: dict[str, Any], **_: Any) -> None:
        params["headers"]["X-Harel-Time"] = repr(self.now)

    def send(self, *entries: dict[str, Any]) -> dict[str, Any]:
        whole = [
            {"Id": str(n), "MessageBody": "b", "MessageGroupId": "g", "MessageDeduplicationId": f"d{n}", **entry}
            for n, entry in enumerate(entries)
        ]
        reply: dict[str, Any] = self.client.send_message_batch(QueueUrl=self.url, Entries=whole)
        return reply

    def receive(self, visibility: int = 30, most: int = 1, **more: Any) -> list[dict[str, Any]]:
        asked = {"MaxNumberOfMessages": most, "VisibilityTimeout": visibility, **RECEIVE, **more}
        found: list[dict[str, Any]] = self.client.receive_message(QueueUrl=self.url, **asked).get("Messages", [])
        return found

    def delete(self, message: dict[str, Any]) -> list[str]:
        """Return the codes of what failed."""
        entries = [{"Id": "1", "ReceiptHandle": message["ReceiptHandle"]}]
        reply = self.client.delete_message_batch(QueueUrl=self.url, Entries=entries)
        return [failed["Code"] for failed in reply.get("Failed", ())]

    def change(self, message: dict[str, Any], seconds: int) -> list[str]:
        entries = [{"Id": "1", "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": seconds}]
        reply = self.client.change_message_visibility_batch(QueueUrl=self.url, Entries=entries)
        return [failed["Code"] for failed in reply.get("Failed", ())]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(queue_in(tmp_path))
    yield server
    server.client.close()


@pytest.fixture
def timed(server: Server) -> Server:
    """The same, where it can be told what time it is."""
    if not is_standin():
        pytest.skip("an SQS of one's own cannot be told what time it is")
    return server


LOST = {"InvalidParameterValue", "ReceiptHandleIsInvalid"}


def test_of_a_group_nothing_is_received_while_a_message_of_it_is_in_flight(server: Server) -> None:
    server.send({}, {}, {"MessageGroupId": "h"})
    received = [server.receive() for _ in range(3)]
    assert sorted(message["Attributes"]["MessageGroupId"] for messages in received for message in messages) == [
        "g",
        "h",
    ]
    assert received[2] == []


def test_a_receive_of_many_is_filled_up_with_one_group(server: Server) -> None:
    server.send({}, {}, {})
    assert len(server.receive(most=10)) > 1


def test_sequence_numbers_grow_within_a_group_beyond_64_bits(server: Server) -> None:
    numbers = [int(each["SequenceNumber"]) for each in server.send({}, {}, {})["Successful"]]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > 2**63


def test_a_message_sent_twice_with_one_deduplication_id_is_one(server: Server) -> None:
    first = server.send({"MessageDeduplicationId": "same"})["Successful"][0]
    second = server.send({"MessageDeduplicationId": "same", "MessageBody": "other"})["Successful"][0]
    assert (first["MessageId"], first["SequenceNumber"]) == (second["MessageId"], second["SequenceNumber"])
    (message,) = server.receive()
    assert server.delete(message) == []
    server.send({"MessageDeduplicationId": "same"})
    assert server.receive() == [], "also when the first is gone"
    server.send({"MessageDeduplicationId": "same", "MessageGroupId": "h"})
    assert len(server.receive()) == 1, "but not in another group"


def test_after_five_minutes_it_is_another_message(timed: Server) -> None:
    timed.send({"MessageDeduplicationId": "same"})
    timed.now += 300.0
    timed.send({"MessageDeduplicationId": "same"})
    assert len(timed.receive(most=10)) == 2


def test_a_receipt_that_ran_out_is_refused_though_nobody_received_the_message_since(timed: Server) -> None:
    timed.send({})
    (message,) = timed.receive(30)
    timed.now += 30.0
    assert timed.delete(message)[0] in LOST
    assert timed.change(message, 30)[0] in LOST
    assert len(timed.receive()) == 1


def test_a_receipt_is_refused_once_another_has_the_message(timed: Server) -> None:
    timed.send({})
    (old,) = timed.receive(30)
    timed.now += 31.0
    (current,) = timed.receive(30)
    assert current["Attributes"]["ApproximateReceiveCount"] == "2"
    assert timed.delete(old)[0] in LOST
    assert timed.change(old, 0)[0] in LOST
    assert timed.delete(current) == []


def test_a_receipt_is_refused_after_its_message_was_given_back(server: Server) -> None:
    server.send({})
    (message,) = server.receive()
    assert server.change(message, 0) == []
    assert server.delete(message)[0] in LOST
    assert server.change(message, 0)[0] in LOST


def test_a_receipt_is_still_good_while_its_message_is_parked(server: Server) -> None:
    """Which is why a lease that was settled is remembered on this side."""
    server.send({})
    (message,) = server.receive()
    assert server.change(message, 600) == []
    assert server.delete(message) == []


def test_deleting_what_is_deleted_succeeds_and_changing_it_does_not(server: Server) -> None:
    server.send({})
    (message,) = server.receive()
    assert server.delete(message) == []
    assert server.delete(message) == []
    assert server.change(message, 30)[0] in LOST


def test_no_visibility_reaches_beyond_twelve_hours_from_the_receive(timed: Server) -> None:
    timed.send({})
    (message,) = timed.receive(43_200)
    timed.now += 1_000.0
    assert timed.change(message, 42_201) == ["InvalidParameterValue"]
    assert timed.change(message, 42_200) == []
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        timed.receive(43_201)


def test_a_receive_that_is_repeated_as_the_same_attempt_returns_the_same(server: Server) -> None:
    server.send({})
    first = server.receive(ReceiveRequestAttemptId="a")
    again = server.receive(ReceiveRequestAttemptId="a")
    assert [message["MessageId"] for message in first] == [message["MessageId"] for message in again]
    assert server.receive(ReceiveRequestAttemptId="b") == []
    assert server.delete(again[0]) == []
    with pytest.raises(ClientError, match="ReceiveRequestAttemptId"):
        server.receive(ReceiveRequestAttemptId="a")


def test_what_is_older_than_the_retention_is_deleted(timed: Server) -> None:
    timed.send({})
    timed.now += 4 * 86_400.0
    assert timed.receive() == []


BINARY = {"DataType": "Binary", "BinaryValue": b"\0\xff"}


def test_an_attribute_of_bytes_comes_back(server: Server) -> None:
    server.send({"MessageAttributes": {"a": BINARY}})
    (message,) = server.receive()
    assert message["MessageAttributes"]["a"]["BinaryValue"] == b"\0\xff"


@pytest.mark.parametrize(
    "entry",
    [
        {"MessageBody": ""},
        {"MessageBody": "\0"},
        {"MessageBody": "\x1b"},
        {"MessageBody": "\uffff"},
        {"MessageBody": "x" * 1_048_577},
        {"MessageGroupId": "a b"},
        {"MessageGroupId": "é"},
        {"MessageGroupId": "x" * 129},
        {"MessageDeduplicationId": "a b"},
        {"MessageDeduplicationId": "x" * 129},
        {"DelaySeconds": 1},
        {"Id": "a b"},
        {"MessageAttributes": {"a": {"DataType": "String", "StringValue": ""}}},
        {"MessageAttributes": {"a": {"DataType": "String", "StringValue": "\x01"}}},
        {"MessageAttributes": {"AWS.a": {"DataType": "String", "StringValue": "x"}}},
        {"MessageAttributes": {"a b": {"DataType": "String", "StringValue": "x"}}},
        {"MessageAttributes": {"a": {"DataType": "Text", "StringValue": "x"}}},
        {"MessageAttributes": {f"a{n}": BINARY for n in range(11)}},
    ],
    ids=lambda entry: f"{next(iter(entry))} {str(next(iter(entry.values())))[:12]!r}",
)
def test_a_message_that_sqs_does_not_take_is_refused(server: Server, entry: dict[str, Any]) -> None:
    try:
        refused = bool(server.send(entry).get("Failed"))
    except ClientError:
        refused = True
    assert refused
    assert server.receive() == []


def test_a_batch_is_at_most_ten_messages_of_a_megabyte_together_with_different_ids(server: Server) -> None:
    batches: list[list[dict[str, Any]]] = [
        [{}] * 11,
        [{"MessageBody": "x" * 600_000}] * 2,
        [{"Id": "a"}, {"Id": "a"}],
        [],
    ]
    for entries in batches:
        with pytest.raises(ClientError):
            server.send(*entries)
    with pytest.raises(ClientError):
        server.receive(most=11)
    assert server.receive() == []


def test_a_name_that_is_no_fifo_queues_or_attributes_that_do_not_fit_are_refused(server: Server) -> None:
    for name, attributes in (
        ("a.b.fifo", {"FifoQueue": "true"}),
        ("x" * 76 + ".fifo", {"FifoQueue": "true"}),
        ("q.fifo", {"FifoQueue": "true", "FifoThroughputLimit": "perMessageGroupId"}),
        ("q.fifo", {"FifoQueue": "true", "MessageRetentionPeriod": "1209601"}),
        ("q.fifo", {"FifoQueue": "true", "Unheard": "1"}),
    ):
        with pytest.raises(ClientError):
            server.client.create_queue(QueueName=name, Attributes=attributes)


def test_a_queue_with_other_attributes_is_not_made_again(server: Server) -> None:
    name = server.url.rpartition("/")[2]
    with pytest.raises(ClientError, match=r"QueueAlreadyExists|QueueNameExists"):
        server.client.create_queue(QueueName=name, Attributes={"FifoQueue": "true", "VisibilityTimeout": "7"})
