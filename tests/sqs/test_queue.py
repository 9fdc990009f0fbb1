"""The queue on a server: what users of SQS suffer, and what becomes of a call whose answer is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harel import ConfigError, Event, InvalidArgument, Message, PartlyPublished, Transport, TransportUnavailable
from harel.engine.queue.contract import Lease
from harel.testing.conformance.kit import assert_nothing_claimable, drain, put, put_batch, take
from tests.servers.sqs_server import KEY_ID
from tests.sqs.conftest import Onlooker, Twin


def test_a_message_that_is_published_again_at_once_is_delivered_again_row_19(queue: Transport) -> None:
    event = Event("k", {"n": 1}, id="the same")
    for _ in range(2):
        queue.publish("g", event)
        queue.publish("g", event)
        for _ in range(2):
            lease = take(queue)
            assert lease.event == event
            assert queue.ack(lease)
        assert_nothing_claimable(queue)


def test_two_messages_of_a_group_are_never_in_flight_however_many_are_asked_for(queue: Transport) -> None:
    put_batch(queue, *(f"a m{n}" for n in range(30)), "b m0")
    for n in range(3):
        leases = queue.claim_many("w", 30.0, 10)
        assert sorted(lease.group_id for lease in leases) == (["a", "b"] if n == 0 else ["a"])
        assert next(lease.event.kind for lease in leases if lease.group_id == "a") == f"m{n}"
        assert {lease.attempt for lease in leases} == {1}, "nothing was taken that had to be put back"
        assert queue.ack_many(leases) == [True] * len(leases)


def test_a_batch_of_which_one_entry_fails_for_the_moment_keeps_each_groups_order_row_20(
    twin: Twin, queue: Transport
) -> None:
    twin.goes_wrong("SendMessageBatch", "entries", entries=[1], code="ServiceUnavailable", status=503)
    put_batch(queue, "a m1", "b m1", "c m1", "b m2", "a m2")
    came = drain(queue)
    assert [each for each in came if each.startswith("b")] == ["b m1", "b m2"]
    assert len(came) == 5


def test_a_batch_of_which_one_entry_fails_for_good_says_how_many_were_published_row_20(
    twin: Twin, queue: Transport
) -> None:
    twin.goes_wrong("SendMessageBatch", "entries", entries=[1], code="InvalidMessageContents", status=400)
    with pytest.raises(PartlyPublished) as raised:
        put_batch(queue, "a m1", "b m1", "c m1", "b m2", "a m2")
    assert raised.value.published == 1
    assert isinstance(raised.value.__cause__, InvalidArgument)
    assert sorted(drain(queue)) == ["a m1", "c m1"], "no later message of a group whose message failed"


def test_of_acks_of_which_one_fails_the_others_are_done_and_its_group_keeps_order_row_20(
    twin: Twin, queue: Transport
) -> None:
    put_batch(queue, "a m1", "b m1", "c m1", "a m2", "b m2", "c m2")
    leases = sorted(queue.claim_many("w", 30.0, 10), key=lambda lease: lease.group_id)
    lost: dict[str, Any] = {"code": "ReceiptHandleIsInvalid", "status": 404}
    twin.goes_wrong("DeleteMessageBatch", "entries", entries=[1], **lost)
    assert queue.ack_many(leases) == [True, False, True]
    assert sorted(drain(queue)) == ["a m2", "c m2"], "b's first message is still in flight"


LATE: dict[str, Callable[[Transport, Lease], object]] = {
    "ack": lambda queue, lease: queue.ack(lease),
    "nack": lambda queue, lease: queue.nack(lease),
    "park": lambda queue, lease: queue.nack(lease, 60.0),
    "extend": lambda queue, lease: queue.extend(lease, 60.0),
    "reject": lambda queue, lease: queue.reject(lease, "why"),
}


@pytest.mark.parametrize("way", LATE)
def test_a_lease_that_this_client_knows_ran_out_is_lost_and_sqs_is_not_asked_row_23(
    twin: Twin, queue: Transport, way: str
) -> None:
    put(queue, "g", "m1", "m2")
    lease: Any = take(queue, visibility=30.0)
    lease.until -= 30.0
    twin.calls()
    assert LATE[way](queue, lease) is False
    assert twin.calls() == []


def test_what_is_parked_cannot_be_settled_though_sqs_would_let_it(queue: Transport) -> None:
    put(queue, "g", "m1", "m2")
    lease = take(queue)
    assert queue.nack(lease, 600.0) is True
    assert [LATE[way](queue, lease) for way in LATE] == [False] * 5
    assert_nothing_claimable(queue)


def test_a_publish_whose_answer_is_lost_is_one_message(twin: Twin, queue: Transport) -> None:
    twin.goes_wrong("SendMessageBatch", "drop after", times=2)
    queue.publish_many([Message("a", Event("m")), Message("b", Event("m"))])
    assert sorted(drain(queue)) == ["a m", "b m"]
    assert twin.calls().count("SendMessageBatch") == 3


def test_a_publish_that_never_arrives_is_sent_again(twin: Twin, queue: Transport) -> None:
    twin.goes_wrong("SendMessageBatch", "drop before", times=2)
    put(queue, "g", "m")
    assert drain(queue) == ["g m"]


def test_a_claim_whose_answer_is_lost_gets_the_message_all_the_same(twin: Twin, queue: Transport) -> None:
    put(queue, "g", "m")
    twin.goes_wrong("ReceiveMessage", "drop after", times=2)
    lease = take(queue)
    assert (lease.event.kind, lease.attempt) == ("m", 1)
    assert queue.ack(lease)


def test_a_claim_that_is_throttled_asks_again(twin: Twin, queue: Transport) -> None:
    put(queue, "g", "m")
    twin.goes_wrong("ReceiveMessage", "error", code="RequestThrottled", status=400)
    assert take(queue).event.kind == "m"


@pytest.mark.parametrize("way", LATE)
def test_what_is_settled_or_renewed_without_an_answer_is_done_once_and_says_so(
    twin: Twin, queue: Transport, way: str
) -> None:
    put(queue, "g", "m1", "m2")
    lease = take(queue)
    for action in ("DeleteMessageBatch", "ChangeMessageVisibilityBatch"):
        twin.goes_wrong(action, "drop after")
    assert LATE[way](queue, lease) is True
    if way in ("ack", "reject"):
        assert take(queue).event.kind == "m2"
    elif way == "nack":
        assert (take(queue).event.kind, lease.attempt) == ("m1", 1)
    else:
        assert_nothing_claimable(queue)


def test_a_rejection_whose_answers_are_lost_leaves_one_dead_letter(
    twin: Twin, queue: Transport, onlooker: Onlooker
) -> None:
    put(queue, "g", "m1")
    twin.goes_wrong("SendMessageBatch", "drop after", queue=twin.dead)
    assert queue.reject(take(queue), "why")
    assert len(onlooker.messages_in(twin.dead)) == 1


def test_a_rejection_that_is_done_again_leaves_one_dead_letter(
    twin: Twin, queue: Transport, onlooker: Onlooker
) -> None:
    put(queue, "g", "m1")
    lease = take(queue)
    twin.goes_wrong("DeleteMessageBatch", "drop before", times=4)
    with pytest.raises(TransportUnavailable):
        queue.reject(lease, "why")
    assert queue.reject(lease, "why") is True
    assert len(onlooker.messages_in(twin.dead)) == 1


def test_a_dead_letter_is_the_message_with_the_reason(twin: Twin, queue: Transport, onlooker: Onlooker) -> None:
    event = Event("k", {"n": 1})
    queue.publish("g", event)
    assert queue.nack(take(queue))
    lease = take(queue)
    assert queue.reject(lease, "no stock")
    (letter,) = onlooker.messages_in(twin.dead)
    assert letter["Body"] == lease.raw
    assert letter["Attributes"]["MessageGroupId"] == "g"
    said = {name: value["StringValue"] for name, value in letter["MessageAttributes"].items()}
    assert said == {"harel-seq": str(lease.seq), "harel-attempts": "2", "harel-reason": "no stock"}


def test_a_rejection_of_a_lease_that_is_lost_leaves_no_dead_letter_promise_5(
    twin: Twin, queue: Transport, onlooker: Onlooker
) -> None:
    put(queue, "g", "m1")
    lost: dict[str, Any] = {"code": "InvalidParameterValue", "status": 400, "text": "The receipt handle has expired"}
    twin.goes_wrong("ChangeMessageVisibilityBatch", "entries", entries=[0], **lost)
    assert queue.reject(take(queue), "why") is False
    assert onlooker.messages_in(twin.dead) == []


def test_sqs_itself_moves_a_message_to_the_dead_letters_after_so_many_attempts(twin: Twin, onlooker: Onlooker) -> None:
    queue = twin.open(max_attempts=3)
    put(queue, "g", "m1", "m2")
    for attempt in (1, 2, 3):
        lease = take(queue)
        assert (lease.event.kind, lease.attempt) == ("m1", attempt)
        assert queue.nack(lease)
    assert take(queue).event.kind == "m2"
    (letter,) = onlooker.messages_in(twin.dead)
    assert letter["Attributes"]["MessageGroupId"] == "g"


def test_what_aws_redrives_is_delivered_as_any_message(twin: Twin, queue: Transport, onlooker: Onlooker) -> None:
    """As its console moves it: the message's body and attributes, to its group's tail."""
    queue.publish("é", Event("m1"))
    assert queue.reject(take(queue), "why")
    put(queue, "é", "m2")
    (letter,) = onlooker.messages_in(twin.dead)
    attributes = {
        name: {key: value for key, value in each.items() if value} for name, each in letter["MessageAttributes"].items()
    }
    onlooker.client.send_message_batch(
        QueueUrl=onlooker.client.get_queue_url(QueueName=twin.queue)["QueueUrl"],
        Entries=[
            {
                "Id": "1",
                "MessageBody": letter["Body"],
                "MessageGroupId": letter["Attributes"]["MessageGroupId"],
                "MessageDeduplicationId": "redriven",
                "MessageAttributes": attributes,
            }
        ],
    )
    assert drain(queue) == ["é m2", "é m1"]


def test_a_batch_is_cut_to_what_sqs_takes_at_once(twin: Twin, queue: Transport) -> None:
    text = "é" * 50_000
    queue.publish_many([Message(f"g{n}", Event("k", {"text": text})) for n in range(5)])
    assert twin.calls().count("SendMessageBatch") == 3
    assert len(drain(queue)) == 5


def test_a_million_bytes_where_the_queue_takes_them(twin: Twin) -> None:
    queue = twin.open(max_message_bytes=1_048_576)
    event = Event("k", {"text": "x" * 1_000_000})
    queue.publish("g", event)
    assert take(queue).event == event
    with pytest.raises(InvalidArgument, match="at most 1,047,552"):
        queue.publish("g", Event("k", {"text": "x" * 1_048_000}))


def test_characters_that_sqs_does_not_take_make_a_message_longer_and_that_is_checked(
    twin: Twin, queue: Transport
) -> None:
    twin.calls()
    with pytest.raises(InvalidArgument, match="escaped"):
        queue.publish_many([Message("a", Event("k")), Message("g", Event("k", {"text": "\uffff" * 80_000}))])
    assert twin.calls() == []


def test_acks_and_renewals_go_ten_at_a_time_and_a_claim_is_one_call_when_there_is_nothing(
    twin: Twin, queue: Transport
) -> None:
    queue.publish_many([Message(f"g{n}", Event("m")) for n in range(25)])
    leases = queue.claim_many("w", 30.0, 25)
    assert len(leases) == 25
    twin.calls()
    assert queue.extend_many(leases, 60.0) == [True] * 25
    assert queue.ack_many(leases) == [True] * 25
    assert queue.claim_many("w", 30.0, 25) == []
    calls = ["ChangeMessageVisibilityBatch"] * 3 + ["DeleteMessageBatch"] * 3 + ["ReceiveMessage"]
    assert twin.calls() == calls


def test_the_core_operations_are_one_call_each_promise_10(twin: Twin, queue: Transport) -> None:
    put(queue, "g", "m1")
    put(queue, "g", "m2")
    twin.calls()
    queue.publish("g", Event("m3"))
    lease = take(queue)
    assert queue.nack(lease)
    assert queue.ack(take(queue))
    assert twin.calls() == [
        "SendMessageBatch",
        "ReceiveMessage",
        "ChangeMessageVisibilityBatch",
        "ReceiveMessage",
        "DeleteMessageBatch",
    ]


def test_a_limit_of_the_account_is_said_with_what_to_do(twin: Twin, queue: Transport) -> None:
    twin.goes_wrong("ReceiveMessage", "error", code="OverLimit", text="too many", status=403, times=4)
    with pytest.raises(TransportUnavailable, match="as many messages in flight as SQS allows"):
        queue.claim("w", 1.0)


def test_rights_that_are_taken_away_are_an_error_of_configuration(twin: Twin, queue: Transport) -> None:
    twin.goes_wrong("SendMessageBatch", "error", code="AccessDeniedException", text="not authorized", status=400)
    with pytest.raises(ConfigError, match="sqs:SendMessage") as raised:
        put(queue, "g", "m")
    assert raised.value.__cause__ is not None
    assert KEY_ID not in str(raised.value)


def test_a_queue_that_is_gone_says_so(twin: Twin, onlooker: Onlooker) -> None:
    made = twin.open()
    made.close()
    queue = twin.open()
    onlooker.client.delete_queue(QueueUrl=onlooker.client.get_queue_url(QueueName=twin.queue)["QueueUrl"])
    with pytest.raises(ConfigError, match="has no such queue"):
        queue.claim("w", 1.0)
