"""The operations step by step, without a server: what is asked, what is asked again, and whose lease it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from harel import Event, InvalidArgument, PartlyPublished, TransportUnavailable
from harel.engine.queue.contract import Lease, Packed
from harel.engine.queue.op import Op, Sleep, run
from harel.engine.queue.sqs.asking import TRIES, Call, Together
from harel.engine.queue.sqs.opening import Names
from harel.engine.queue.sqs.ops import LONGEST_S, SqsOps
from harel.engine.queue.sqs.refusals import Refused, Unanswered
from harel.errors import HarelError
from harel.events import encode_event

URL = "https://sqs.eu-west-1.amazonaws.com/1/q.fifo"

LOST = Unanswered("the reply", sent=True)
EXPIRED = Refused("InvalidParameterValue", "Reason: The receipt handle has expired.")
THROTTLED = Refused("RequestThrottled", "too fast", 400)

Reply = Any


def message(group: str = "g", number: int = 1) -> dict[str, Any]:
    return {
        "MessageId": f"{group}{number}",
        "ReceiptHandle": f"receipt of {group}{number}",
        "Body": encode_event(Event("k", id="i")),
        "Attributes": {"MessageGroupId": group, "ApproximateReceiveCount": "1", "SequenceNumber": str(number)},
    }


def received(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"Messages": list(messages)}


def done(*ids: int, failed: dict[int, tuple[str, bool]] | None = None) -> dict[str, Any]:
    """Answer a batch: these entries succeeded, those failed with a code, by the sender's fault or not."""
    failures = [
        {"Id": str(place), "Code": code, "SenderFault": fault, "Message": "no"}
        for place, (code, fault) in (failed or {}).items()
    ]
    return {"Successful": [{"Id": str(place)} for place in ids], "Failed": failures}


class Server:
    """Says what it is told to, in turn; keeps what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.now = 1_000.0
        self.replies = list(replies)
        self.asked: list[Call] = []
        self.pauses: list[float] = []
        self.ops = SqsOps(
            Names.of_url(URL, URL.replace("q.fifo", "q-dead.fifo")),
            where="sqs:443",
            poll_interval_s=1.0,
            max_message_bytes=262_144,
            patience_s=5.0,
            monotonic=lambda: self.now,
        )

    def run(self, op: Op[Any], *replies: Reply) -> Any:
        self.replies += replies
        self.asked.clear()
        self.pauses.clear()
        result = run(op, self.send)
        assert self.replies == [], "fewer calls were made than expected"
        return result

    def send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            self.pauses.append(request.seconds)
            return request.seconds
        assert isinstance(request, Together)
        return [self.answer(call) for call in request.calls]

    def answer(self, call: Call) -> Any:
        self.asked.append(call)
        reply = self.replies.pop(0)
        return reply() if callable(reply) else reply

    def claimed(self, visibility: float = 30.0) -> Lease:
        (lease,) = self.run(self.ops.claim("w", visibility, 1, 0), received(message()))
        return lease  # type: ignore[no-any-return]

    def takes(self, seconds: float, reply: Reply) -> Callable[[], Reply]:
        """Return the reply, so many seconds later."""

        def later() -> Reply:
            self.now += seconds
            return reply

        return later

    @property
    def actions(self) -> list[str]:
        return [call.action for call in self.asked]

    def seconds_asked(self) -> list[int]:
        return [entry["VisibilityTimeout"] for call in self.asked for entry in call.params["Entries"]]


def pack(*groups: str) -> list[Packed]:
    return [Packed(group, encode_event(Event("k", id="i")), 0) for group in groups]


def test_a_call_whose_answer_was_lost_is_sent_again_as_it_was() -> None:
    server = Server()
    server.run(server.ops.publish(pack("a", "b")), LOST, LOST, done(0, 1))
    assert server.asked[0].params == server.asked[1].params == server.asked[2].params
    assert len(server.pauses) == 2
    assert all(0.0 < pause <= 0.4 for pause in server.pauses)


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (LOST, "sqs:443 was lost: the reply. The operation may have happened or not"),
        (Unanswered("refused", sent=False), "sqs:443 cannot be reached: refused"),
        (THROTTLED, "sqs:443 does not do this just now .*RequestThrottled"),
        (Refused("InternalError", "oops", 500), "just now"),
        (Refused("AWS.SimpleQueueService.OverLimit", "many", 403), "as many messages in flight as SQS allows"),
        (Refused("com.amazonaws.sqs#KmsAccessDenied", "no", 400), "cannot use the KMS key"),
        (Refused("KMS.DisabledException", "no", 400), "cannot use the KMS key"),
    ],
)
def test_what_passes_is_unavailable_and_says_what_to_do(failure: Refused | Unanswered, says: str) -> None:
    server = Server()
    tries = 1 if isinstance(failure, Refused) and failure.code.lower().startswith("kms") else TRIES
    with pytest.raises(TransportUnavailable, match=says):
        server.run(server.ops.publish(pack("a")), *([failure] * tries))
    assert len(server.asked) == tries


def test_nothing_is_sent_again_after_half_of_the_timeout() -> None:
    server = Server()
    with pytest.raises(TransportUnavailable):
        server.run(server.ops.publish(pack("a")), server.takes(3.0, LOST), server.takes(3.0, LOST))
    assert len(server.asked) == 2


def test_a_receive_without_an_answer_is_repeated_as_the_same_attempt() -> None:
    server = Server()
    (lease,) = server.run(server.ops.claim("w", 30.0, 1, 0), LOST, received(message()))
    first, second = (call.params["ReceiveRequestAttemptId"] for call in server.asked)
    assert first == second
    assert lease.group_id == "g"


def test_a_receive_that_was_refused_is_repeated_as_another_attempt() -> None:
    server = Server()
    server.run(server.ops.claim("w", 30.0, 1, 0), THROTTLED, received())
    first, second = (call.params["ReceiveRequestAttemptId"] for call in server.asked)
    assert first != second


def test_each_claim_is_another_attempt_and_asks_for_one_message_without_waiting() -> None:
    server = Server()
    server.run(server.ops.claim("w", 0.2, 1, 0), {})
    server.run(server.ops.claim("w", 29.2, 1, 0), {})
    (call,) = server.asked
    assert (call.params["MaxNumberOfMessages"], call.params["WaitTimeSeconds"]) == (1, 0)
    assert call.params["VisibilityTimeout"] == 30


def test_a_claim_of_many_asks_for_more_at_a_time_while_all_find_something() -> None:
    server = Server()
    leases = server.run(
        server.ops.claim("w", 30.0, 100, 0),
        received(message("a")),
        *(received(message(group)) for group in "bcd"),
        *(received(message(group)) for group in "efgh"),
        *[{}] * 5,
    )
    assert [lease.group_id for lease in leases] == list("abcdefgh")


def test_a_claim_of_many_is_no_more_than_that() -> None:
    server = Server()
    leases = server.run(
        server.ops.claim("w", 30.0, 3, 0), received(message("a")), received(message("b")), received(message("c"))
    )
    assert len(leases) == 3


def test_what_was_claimed_is_not_lost_when_the_rest_fails() -> None:
    server = Server()
    leases = server.run(
        server.ops.claim("w", 30.0, 4, 0),
        received(message("a")),
        Refused("AccessDenied", "no more", 403),
        received(message("b")),
        Refused("AccessDenied", "no more", 403),
    )
    assert [lease.group_id for lease in leases] == ["a", "b"]


def test_a_claim_never_returns_two_messages_of_one_group() -> None:
    """Its first lease ran out while the others were asked for."""
    server = Server()
    again = {**message(), "ReceiptHandle": "a later one"}
    claim = server.ops.claim("w", 1.0, 9, 0)
    (lease,) = server.run(claim, received(message()), received(), server.takes(5.0, received(again)), received())
    assert lease.receipt == "a later one"


@pytest.mark.parametrize("way", ["ack", "nack", "park", "extend", "reject"])
def test_a_lease_that_may_have_run_out_is_lost_and_nothing_is_sent_promise_5(way: str) -> None:
    """Whatever SQS would say: it is judged from before the receive was sent."""
    server = Server()
    (lease,) = server.run(server.ops.claim("w", 30.0, 1, 0), server.takes(4.0, received(message())))
    server.now += 26.0
    ways: dict[str, Op[Any]] = {
        "ack": server.ops.ack([lease]),
        "nack": server.ops.nack(lease, 0.0),
        "park": server.ops.nack(lease, 60.0),
        "extend": server.ops.extend([lease], 60.0),
        "reject": server.ops.reject(lease, "why"),
    }
    assert server.run(ways[way]) in (False, [False], [None])
    assert server.asked == []


def test_a_lease_is_this_workers_until_then_and_longer_when_it_was_extended() -> None:
    server = Server()
    lease = server.claimed(30.0)
    server.now += 29.9
    assert server.run(server.ops.extend([lease], 30.0), done(0)) != [None]
    server.now += 29.9
    assert server.run(server.ops.ack([lease]), done(0)) == [True]


def test_a_lease_whose_shortening_got_no_answer_may_be_short() -> None:
    server = Server()
    lease = server.claimed(600.0)
    with pytest.raises(TransportUnavailable):
        server.run(server.ops.extend([lease], 10.0), *[LOST] * TRIES)
    server.now += 11.0
    assert server.run(server.ops.ack([lease])) == [False]


def test_a_lease_that_sqs_calls_expired_is_lost_row_23() -> None:
    server = Server()
    lease = server.claimed()
    refusal = done(failed={0: ("InvalidParameterValue", True)})
    assert server.run(server.ops.extend([lease], 30.0), refusal) == [None]
    assert server.run(server.ops.ack([lease]), done(failed={0: ("ReceiptHandleIsInvalid", True)})) == [False]
    assert server.run(server.ops.ack([lease])) == [False], "and it stays lost, without asking"


def test_a_give_back_whose_answer_was_lost_is_not_a_lost_lease() -> None:
    server = Server()
    lease = server.claimed()
    refusal = done(failed={0: ("InvalidParameterValue", True)})
    assert server.run(server.ops.nack(lease, 0.0), LOST, refusal) is True


def test_a_give_back_that_was_refused_at_once_is_a_lost_lease() -> None:
    server = Server()
    refusal = done(failed={0: ("InvalidParameterValue", True)})
    assert server.run(server.ops.nack(server.claimed(), 0.0), refusal) is False
    unsent = Unanswered("no connection", sent=False)
    assert server.run(server.ops.nack(server.claimed(), 0.0), unsent, refusal) is False


def test_a_give_back_that_got_no_answer_before_the_lease_ran_out_is_neither_done_nor_not() -> None:
    server = Server()
    refusal = done(failed={0: ("InvalidParameterValue", True)})
    lease = server.claimed(4.0)
    with pytest.raises(TransportUnavailable, match="may have been given back before or not"):
        server.run(server.ops.nack(lease, 0.0), server.takes(4.0, LOST), refusal)
    assert server.run(server.ops.nack(lease, 0.0)) is False


def test_an_error_leaves_the_lease_to_be_settled_again() -> None:
    server = Server()
    lease = server.claimed()
    with pytest.raises(TransportUnavailable):
        server.run(server.ops.ack([lease]), *[LOST] * TRIES)
    assert server.run(server.ops.ack([lease]), done(0)) == [True]
    assert server.run(server.ops.ack([lease])) == [False]


@pytest.mark.parametrize("ends", ["cancelled", "abandoned"])
def test_an_operation_that_is_cancelled_leaves_the_lease_to_be_settled_again(ends: str) -> None:
    server = Server()
    lease = server.claimed()
    op = server.ops.ack([lease])
    next(op)
    if ends == "cancelled":
        with pytest.raises(asyncio.CancelledError):
            op.throw(asyncio.CancelledError())
    else:
        op.close()
    assert server.run(server.ops.ack([lease]), done(0)) == [True]


def test_acks_of_which_one_cannot_be_done_just_now_can_all_be_done_again() -> None:
    server = Server()
    leases = server.run(server.ops.claim("w", 30.0, 2, 0), received(message("a")), received(message("b")))
    busy = {1: ("InternalError", False)}
    again = [done(failed=busy)] * (TRIES - 1)
    with pytest.raises(TransportUnavailable):
        server.run(server.ops.ack(leases), done(0, failed=busy), *again)
    assert server.run(server.ops.ack(leases), done(0, 1)) == [True, True]


def test_only_the_entries_that_failed_for_the_moment_are_sent_again() -> None:
    server = Server()
    server.run(server.ops.publish(pack("a", "b", "c")), done(0, 2, failed={1: ("ServiceUnavailable", False)}), done(1))
    whole, rest = (call.params["Entries"] for call in server.asked)
    assert rest == [whole[1]]


def test_an_entry_that_the_answer_leaves_out_is_sent_again() -> None:
    server = Server()
    server.run(server.ops.publish(pack("a", "b")), done(0), done(1))
    assert [len(call.params["Entries"]) for call in server.asked] == [2, 1]


def test_a_batch_that_fails_in_part_says_how_many_and_sends_nothing_after_it_row_20() -> None:
    server = Server()
    refused = {1: ("InvalidMessageContents", True)}
    with pytest.raises(PartlyPublished) as raised:
        server.run(server.ops.publish(pack("a", "b", "c", "b", "a")), done(0, 2, failed=refused))
    assert raised.value.published == 1
    assert isinstance(raised.value.__cause__, InvalidArgument)
    assert len(server.asked) == 1, "later messages of these groups would come before the one that failed"


def test_a_later_batch_that_fails_says_how_many_were_published() -> None:
    server = Server()
    with pytest.raises(PartlyPublished, match="Of 3 messages the first 2") as raised:
        server.run(server.ops.publish(pack("a", "b", "a")), done(0, 1), *[LOST] * TRIES)
    assert raised.value.published == 2
    assert isinstance(raised.value.__cause__, TransportUnavailable)


def test_a_batch_of_which_nothing_is_stored_says_why() -> None:
    server = Server()
    with pytest.raises(TransportUnavailable):
        server.run(server.ops.publish(pack("a", "b")), *[LOST] * TRIES)
    with pytest.raises(InvalidArgument):
        server.run(server.ops.publish(pack("a")), done(failed={0: ("InvalidMessageContents", True)}))


def test_the_first_of_a_batch_that_failed_while_others_are_stored_is_told() -> None:
    server = Server()
    with pytest.raises(PartlyPublished) as raised:
        server.run(server.ops.publish(pack("a", "b")), done(1, failed={0: ("InvalidMessageContents", True)}))
    assert raised.value.published == 0


def test_a_part_of_a_batch_is_stored_and_then_there_is_no_answer() -> None:
    server = Server()
    busy = {1: ("InternalError", False)}
    with pytest.raises(PartlyPublished) as raised:
        server.run(server.ops.publish(pack("a", "b")), done(0, failed=busy), *[LOST] * TRIES)
    assert raised.value.published == 1


def test_a_rejection_renews_the_lease_first_then_sends_then_deletes() -> None:
    server = Server()
    lease = server.claimed(2.0)
    assert server.run(server.ops.reject(lease, "why"), done(0), done(0), done(0)) is True
    assert server.actions == ["change_message_visibility_batch", "send_message_batch", "delete_message_batch"]
    assert server.asked[0].params["Entries"][0]["VisibilityTimeout"] == 5
    assert server.asked[1].params["QueueUrl"].endswith("q-dead.fifo")


def test_a_rejection_of_a_lost_lease_sends_no_dead_letter_promise_5() -> None:
    server = Server()
    refusal = done(failed={0: ("InvalidParameterValue", True)})
    assert server.run(server.ops.reject(server.claimed(), "why"), refusal) is False
    assert len(server.asked) == 1


def test_a_rejection_does_not_shorten_a_long_lease() -> None:
    server = Server()
    lease = server.claimed(600.0)
    server.now += 100.0
    server.run(server.ops.reject(lease, "why"), done(0), done(0), done(0))
    assert server.asked[0].params["Entries"][0]["VisibilityTimeout"] == 500


def test_a_rejection_without_an_answer_can_be_done_again() -> None:
    server = Server()
    lease = server.claimed(600.0)
    with pytest.raises(TransportUnavailable):
        server.run(server.ops.reject(lease, "why"), done(0), *[LOST] * TRIES)
    assert server.run(server.ops.reject(lease, "why"), done(0), done(0), done(0)) is True


def test_a_lease_or_a_park_of_more_than_twelve_hours_in_all_is_refused() -> None:
    server = Server()
    lease = server.claimed(LONGEST_S)
    server.now += 3_600.0
    for asked in (server.ops.extend([lease], LONGEST_S), server.ops.nack(lease, LONGEST_S)):
        with pytest.raises(InvalidArgument, match=r"43,200 seconds at most.*for this lease 39,599 seconds are left"):
            server.run(asked)
    assert server.asked == []
    assert server.run(server.ops.nack(lease, 39_599.0), done(0)) is True


def test_an_end_that_is_a_little_beyond_the_twelve_hours_is_brought_forward() -> None:
    server = Server()
    lease = server.claimed(LONGEST_S)
    server.now += 10.0
    server.run(server.ops.extend([lease], LONGEST_S), done(0))
    assert server.seconds_asked() == [LONGEST_S - 11]
    server.now += LONGEST_S - 30.0
    server.run(server.ops.extend([lease], 30.0), done(0))
    assert server.seconds_asked() == [19]
    server.now += 18.5
    assert server.run(server.ops.extend([lease], 30.0)) == [None], "an extension by nothing would give it back"


def test_what_sqs_itself_calls_too_long_is_an_invalid_argument() -> None:
    server = Server()
    lease = server.claimed()
    refusal = done(failed={0: ("InvalidParameterValue", True)})
    refusal["Failed"][0]["Message"] = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
    with pytest.raises(InvalidArgument, match="43,200 seconds at most"):
        server.run(server.ops.extend([lease], 40_000.0), refusal)


def test_a_lease_that_is_no_lease_of_sqs_is_refused() -> None:
    lease = Lease(group_id="g", raw="", seq=1, token="w:1", attempt=1, expires_at=0.0, queue="sqs://q.fifo")
    with pytest.raises(InvalidArgument, match="no receipt of SQS"):
        Server().run(Server().ops.ack([lease]))


def test_a_wait_pauses_and_says_whether_there_may_be_more_time() -> None:
    server = Server()
    assert server.run(server.ops.wait(5.0)) is True
    assert server.run(server.ops.wait(0.5)) is False
    assert server.pauses == [0.5]
    assert server.run(server.ops.wait(0.0)) is False
    assert server.pauses == []


def test_a_refusal_that_stays_is_an_error_of_harels() -> None:
    server = Server()
    with pytest.raises(HarelError, match="refused an operation"):
        server.run(server.ops.publish(pack("a")), Refused("SomethingNew", "no", 400))
