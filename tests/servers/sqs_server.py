"""A stand-in for Amazon SQS, FIFO queues alone, in a process of its own: ``python -m tests.servers.sqs_server``.

moto keeps the queues and their attributes, and knows which SQS accepts; what it is kinder in than AWS is said here: the
sizes, characters and names that AWS refuses, the locking of groups, receipts that run out, twelve hours of visibility,
five minutes of deduplication, retries of a receive, redrive, retention. It answers in the JSON protocol of boto3, on a
port that it says on its first line, until its standard input ends.

What AWS leaves open it does in an inconvenient way: groups are served in an order of their names' hashes, and sequence
numbers grow within a group alone.

Two things are not SQS's. A request's header ``X-Harel-Time`` is the time that it goes by, so that tests set it. And
``POST /_harel`` takes rules that make calls fail, and tells which calls were made.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from itertools import count
from typing import Any, TypeAlias
from uuid import uuid4

from moto.core.exceptions import ServiceException
from moto.sqs.models import Message as MotoMessage
from moto.sqs.models import sqs_backends

Answer: TypeAlias = dict[str, Any]

KEY_ID = "harel-test-key"
KEY_WITHOUT_RIGHTS = "harel-test-key-without-rights"
KEY_WITH_ANOTHER_SECRET = "harel-test-key-with-another-secret"
ACCOUNT = "123456789012"

LONGEST_VISIBILITY_S = 43_200
DEDUPLICATION_S = 300
MOST_BYTES = 1_048_576

_NAME = re.compile(r"[!-~]{1,128}")
_BATCH_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ATTRIBUTE_NAME = re.compile(r"(?!(?i:aws|amazon)\.)(?!\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_REFUSED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CREDENTIAL = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/\d{8}/([a-z0-9-]+)/sqs/aws4_request")

_RANGES = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1_024, MOST_BYTES),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, LONGEST_VISIBILITY_S),
}
_CHOICES = {
    "FifoQueue": {"true"},
    "ContentBasedDeduplication": {"true", "false"},
    "DeduplicationScope": {"messageGroup", "queue"},
    "FifoThroughputLimit": {"perQueue", "perMessageGroupId"},
}


class Fault(Exception):
    """An error as SQS says it."""

    def __init__(self, code: str, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.status = status


def _invalid(value: object, name: str, why: str) -> Fault:
    return Fault("InvalidParameterValue", f"Value {value} for parameter {name} is invalid. Reason: {why}")


@dataclass(eq=False)
class Receipt:
    """One delivery of a message."""

    handle: str
    message: Message
    received: float
    deleted: bool = False
    changed: bool = False


class Message:
    """A message, and which delivery of it is the current one."""

    def __init__(self, entry: Mapping[str, Any], sequence: int, now: float) -> None:
        self.id = str(uuid4())
        self.body: str = entry["MessageBody"]
        self.group_id: str = entry["MessageGroupId"]
        self.deduplication_id: str = entry["MessageDeduplicationId"]
        self.attributes = _decoded(entry.get("MessageAttributes", {}))
        self.sequence = sequence
        self.sent = now
        self.visible_from = now
        self.receive_count = 0
        self.receipt: Receipt | None = None
        # Which knows how their digests are made.
        self.digests = MotoMessage(self.id, self.body)
        self.digests.message_attributes = self.attributes


@dataclass
class Group:
    name: str
    messages: deque[Message] = field(default_factory=deque)

    def __post_init__(self) -> None:
        digest = md5(self.name.encode()).digest()
        self.place = digest
        # Twenty digits, above 2**64, as AWS's; each group's begin elsewhere.
        self.first_sequence = 18_850_000_000_000_000_000 + digest[0] * 10**15


class Fifo:
    """The messages of one queue."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self.groups: dict[str, Group] = {}
        self.receipts: dict[str, Receipt] = {}
        self.sent: dict[tuple[str, str], tuple[float, Message]] = {}
        self.attempts: dict[str, tuple[float, list[Receipt]]] = {}
        self.numbers = count(1)

    def send(self, entry: Mapping[str, Any], now: float) -> Answer:
        group_id, deduplication_id = entry["MessageGroupId"], entry["MessageDeduplicationId"]
        group = self.groups.get(group_id) or Group(group_id)
        scope = group_id if self.queue.attributes["DeduplicationScope"] == "messageGroup" else ""
        sent_at, message = self.sent.get((scope, deduplication_id), (0.0, None))
        if message is None or now - sent_at >= DEDUPLICATION_S:
            message = Message(entry, group.first_sequence + 256 * next(self.numbers), now)
            self.sent[scope, deduplication_id] = (now, message)
            self.add(message)
        answer = {
            "MessageId": message.id,
            "MD5OfMessageBody": message.digests.body_md5,
            "SequenceNumber": str(message.sequence),
        }
        if message.attributes:
            answer["MD5OfMessageAttributes"] = message.digests.attribute_md5
        return answer

    def add(self, message: Message) -> None:
        self.groups.setdefault(message.group_id, Group(message.group_id)).messages.append(message)

    def remove(self, message: Message) -> None:
        group = self.groups[message.group_id]
        group.messages.remove(message)
        if not group.messages:
            del self.groups[group.name]

    def receive(self, most: int, visibility: int, attempt_id: str | None, now: float) -> list[Receipt]:
        if attempt_id is not None and attempt_id in self.attempts:
            return self._received_before(attempt_id, visibility, now)
        self._forget(now)
        receipts: list[Receipt] = []
        for group in sorted(self.groups.values(), key=lambda group: group.place):
            for message in list(group.messages):
                if len(receipts) == most or message.visible_from > now:
                    break
                receipts.append(self._deliver(message, visibility, now))
        if attempt_id is not None:
            self.attempts[attempt_id] = (now, receipts)
        return receipts

    def _deliver(self, message: Message, visibility: int, now: float) -> Receipt:
        handle = base64.b64encode(md5(message.id.encode()).digest() * 4 + uuid4().bytes * 4).decode()
        message.receipt = self.receipts[handle] = Receipt(handle, message, now)
        message.visible_from = now + visibility
        message.receive_count += 1
        return message.receipt

    def _received_before(self, attempt_id: str, visibility: int, now: float) -> list[Receipt]:
        received_at, receipts = self.attempts[attempt_id]
        current = all(
            receipt.message.receipt is receipt and not receipt.changed and receipt.message.visible_from > now
            for receipt in receipts
        )
        if not current or now - received_at >= DEDUPLICATION_S:
            raise _invalid(attempt_id, "ReceiveRequestAttemptId", "the receive call is not retryable.")
        for receipt in receipts:
            receipt.message.visible_from = now + visibility
        return receipts

    def _forget(self, now: float) -> None:
        """Delete what is too old, and move what was received too often."""
        policy = self.queue.redrive_policy
        for message in [group.messages[0] for group in self.groups.values()]:
            if message.visible_from > now:
                continue
            if now - message.sent >= self.queue.message_retention_period:
                self.remove(message)
            elif policy and message.receive_count >= policy["maxReceiveCount"]:
                self.remove(message)
                other = FIFOS[self.queue.dead_letter_queue.queue_arn]
                message.visible_from = message.sent = now
                message.sequence = Group(message.group_id).first_sequence + 256 * next(other.numbers)
                message.receipt = None
                other.add(message)

    def _receipt(self, handle: str) -> Receipt:
        receipt = self.receipts.get(handle)
        if receipt is None:
            raise Fault(
                "ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not a valid receipt handle.', 404
            )
        return receipt

    def delete(self, entry: Mapping[str, Any], now: float) -> Answer:
        receipt = self._receipt(entry["ReceiptHandle"])
        message = receipt.message
        if receipt.deleted:
            return {}
        if message.receipt is not receipt or message.visible_from <= now:
            raise _invalid(receipt.handle, "ReceiptHandle", "The receipt handle has expired.")
        receipt.deleted = receipt.changed = True
        self.remove(message)
        return {}

    def change_visibility(self, entry: Mapping[str, Any], now: float) -> Answer:
        receipt, seconds = self._receipt(entry["ReceiptHandle"]), entry["VisibilityTimeout"]
        message = receipt.message
        if not isinstance(seconds, int) or not 0 <= seconds <= LONGEST_VISIBILITY_S:
            raise _invalid(seconds, "VisibilityTimeout", "VisibilityTimeout must be an integer between 0 and 43200.")
        if receipt.deleted or message.receipt is not receipt:
            why = "Message does not exist or is not available for visibility timeout change."
            raise _invalid(receipt.handle, "ReceiptHandle", why)
        if message.visible_from <= now:
            raise _invalid(receipt.handle, "ReceiptHandle", "The receipt handle has expired.")
        if now - receipt.received + seconds > LONGEST_VISIBILITY_S:
            why = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]."
            raise _invalid(seconds, "VisibilityTimeout", why)
        message.visible_from = now + seconds
        receipt.changed = True
        return {}


FIFOS: dict[str, Fifo] = {}
"""By the queue's ARN."""


def _decoded(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {
            **value,
            **({"BinaryValue": base64.b64decode(value["BinaryValue"])} if "BinaryValue" in value else {}),
        }
        for name, value in attributes.items()
    }


def _shown(message: Message, receipt: Receipt, system: Iterable[str], names: Iterable[str]) -> Answer:
    every = {
        "ApproximateReceiveCount": str(message.receive_count),
        "ApproximateFirstReceiveTimestamp": str(int(receipt.received * 1_000)),
        "MessageDeduplicationId": message.deduplication_id,
        "MessageGroupId": message.group_id,
        "SenderId": message.digests.sender_id,
        "SentTimestamp": str(int(message.sent * 1_000)),
        "SequenceNumber": str(message.sequence),
    }
    asked, wanted = set(system), set(names)
    shown = {"MessageId": message.id, "ReceiptHandle": receipt.handle, "Body": message.body}
    shown["MD5OfBody"] = message.digests.body_md5
    attributes: Any = {name: value for name, value in every.items() if name in asked or "All" in asked}
    given: Any = {
        name: {
            **value,
            **({"BinaryValue": base64.b64encode(value["BinaryValue"]).decode()} if "BinaryValue" in value else {}),
        }
        for name, value in message.attributes.items()
        if name in wanted or "All" in wanted
    }
    if attributes:
        shown["Attributes"] = attributes
    if given:
        shown["MessageAttributes"] = given
    return shown


def _check_text(text: object, name: str) -> None:
    if not isinstance(text, str) or not text:
        raise Fault("MissingParameter", f"The request must contain the parameter {name}.")
    if _REFUSED.search(text):
        raise Fault("InvalidMessageContents", f"Invalid characters found in {name}: valid are #x9 | #xA | #xD | ...")


def _size_of(entry: Mapping[str, Any]) -> int:
    size = len(str(entry["MessageBody"]).encode())
    for name, value in entry.get("MessageAttributes", {}).items():
        content = value.get("StringValue", "").encode() or base64.b64decode(value.get("BinaryValue", ""))
        size += len(name.encode()) + len(value["DataType"].encode()) + len(content)
    return size


def _check_attribute(name: str, value: Mapping[str, Any]) -> None:
    kind = str(value.get("DataType", "")).partition(".")[0]
    if not _ATTRIBUTE_NAME.fullmatch(name) or kind not in ("String", "Number", "Binary"):
        raise _invalid(name, "MessageAttributes", "the name or the type of the attribute is not allowed.")
    if kind == "Binary":
        if not value.get("BinaryValue"):
            raise _invalid(name, "MessageAttributes", "the value must not be empty.")
        base64.b64decode(value["BinaryValue"], validate=True)
        return
    _check_text(value.get("StringValue"), name)
    if kind == "Number":
        float(value["StringValue"])


def _check_message(entry: Mapping[str, Any], most_bytes: int) -> None:
    _check_text(entry.get("MessageBody"), "MessageBody")
    for name in ("MessageGroupId", "MessageDeduplicationId"):
        if not entry.get(name):
            raise Fault("MissingParameter", f"The request must contain the parameter {name}.")
        if not _NAME.fullmatch(entry[name]):
            why = f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length."
            raise _invalid(entry[name], name, why)
    if "DelaySeconds" in entry:
        why = "The request include parameter that is not valid for this queue type."
        raise _invalid(entry["DelaySeconds"], "DelaySeconds", why)
    attributes = entry.get("MessageAttributes", {})
    if len(attributes) > 10:
        raise _invalid(len(attributes), "MessageAttributes", "Number of message attributes exceeds the maximum [10].")
    for name, value in attributes.items():
        _check_attribute(name, value)
    if _size_of(entry) > most_bytes:
        why = f"One or more parameters are invalid. Reason: Message must be shorter than {most_bytes} bytes."
        raise Fault("InvalidParameterValue", why)


def _check_batch(entries: list[dict[str, Any]]) -> None:
    if not entries:
        raise Fault("AWS.SimpleQueueService.EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > 10:
        text = f"Maximum number of entries per request are 10. You have sent {len(entries)}."
        raise Fault("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", text)
    ids = [entry.get("Id", "") for entry in entries]
    if not all(map(_BATCH_ID.fullmatch, ids)):
        raise Fault("AWS.SimpleQueueService.InvalidBatchEntryId", "A batch entry id can only contain ...")
    if len(set(ids)) < len(ids):
        raise Fault("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "Id repeated.")


def _check_queue_attributes(name: str, attributes: Mapping[str, str]) -> None:
    if not name.endswith(".fifo") or attributes.get("FifoQueue") != "true":
        raise _invalid(name, "QueueName", "this stand-in has FIFO queues alone: a name with .fifo, FifoQueue=true.")
    per_group = attributes.get("FifoThroughputLimit") == "perMessageGroupId"
    if per_group and attributes.get("DeduplicationScope") != "messageGroup":
        raise _invalid("perMessageGroupId", "FifoThroughputLimit", "DeduplicationScope must be messageGroup.")
    for attribute, value in attributes.items():
        if attribute in _CHOICES:
            usable = value in _CHOICES[attribute]
        elif attribute in _RANGES:
            least, most = _RANGES[attribute]
            usable = value.isdigit() and least <= int(value) <= most
        elif attribute == "RedrivePolicy":
            usable = 1 <= int(json.loads(value)["maxReceiveCount"]) <= 1_000
        else:
            raise Fault("InvalidAttributeName", f"Unknown Attribute {attribute}.")
        if not usable:
            raise Fault("InvalidAttributeValue", f"Invalid value for the parameter {attribute}.")


class Service:
    """The actions, on the queues of one region."""

    def __init__(self, region: str, address: str) -> None:
        self.backend = sqs_backends[ACCOUNT][region]
        self.address = address

    def fifo(self, url: str) -> Fifo:
        queue = self.backend.get_queue(url.rpartition("/")[2])
        return FIFOS[queue.queue_arn]

    def url_of(self, queue: Any) -> str:
        return f"{self.address}/{ACCOUNT}/{queue.name}"

    def create_queue(self, params: Any, now: float) -> Answer:
        attributes = params.get("Attributes", {})
        _check_queue_attributes(params["QueueName"], attributes)
        queue = self.backend.create_queue(params["QueueName"], region=self.backend.region_name, **attributes)
        FIFOS.setdefault(queue.queue_arn, Fifo(queue))
        return {"QueueUrl": self.url_of(queue)}

    def delete_queue(self, params: Any, now: float) -> Answer:
        fifo = self.fifo(params["QueueUrl"])
        self.backend.delete_queue(fifo.queue.name)
        del FIFOS[fifo.queue.queue_arn]
        return {}

    def get_queue_url(self, params: Any, now: float) -> Answer:
        return {"QueueUrl": self.url_of(self.backend.get_queue(params["QueueName"]))}

    def get_queue_attributes(self, params: Any, now: float) -> Answer:
        queue = self.fifo(params["QueueUrl"]).queue
        found = self.backend.get_queue_attributes(queue.name, params.get("AttributeNames", []))
        return {"Attributes": {name: str(value) for name, value in found.items() if value is not None}}

    def set_queue_attributes(self, params: Any, now: float) -> Answer:
        queue = self.fifo(params["QueueUrl"]).queue
        _check_queue_attributes(queue.name, {"FifoQueue": "true", **params["Attributes"]})
        self.backend.set_queue_attributes(queue.name, params["Attributes"])
        return {}

    def send_message_batch(self, params: Any, now: float) -> Answer:
        fifo = self.fifo(params["QueueUrl"])
        entries = params["Entries"]
        _check_batch(entries)
        for entry in entries:
            _check_message(entry, fifo.queue.maximum_message_size)
        if (size := sum(map(_size_of, entries))) > MOST_BYTES:
            text = f"Batch requests cannot be longer than {MOST_BYTES} bytes. You have sent {size} bytes."
            raise Fault("AWS.SimpleQueueService.BatchRequestTooLong", text)
        return _batch(entries, now, fifo.send)

    def receive_message(self, params: Any, now: float) -> Answer:
        fifo = self.fifo(params["QueueUrl"])
        most, visibility = params.get("MaxNumberOfMessages", 1), params.get("VisibilityTimeout", 30)
        if not 1 <= most <= 10 or not 0 <= visibility <= LONGEST_VISIBILITY_S or params.get("WaitTimeSeconds"):
            raise _invalid(most, "MaxNumberOfMessages", "a number or a visibility is out of range, or a wait is asked.")
        attempt_id = params.get("ReceiveRequestAttemptId")
        if attempt_id is not None and not _NAME.fullmatch(attempt_id):
            raise _invalid(attempt_id, "ReceiveRequestAttemptId", "1 to 128 alphanumeric and punctuation characters.")
        system = [*params.get("MessageSystemAttributeNames", ()), *params.get("AttributeNames", ())]
        names = params.get("MessageAttributeNames", ())
        receipts = fifo.receive(most, visibility, attempt_id, now)
        # AWS leaves the list out when there is nothing.
        return {"Messages": [_shown(each.message, each, system, names) for each in receipts]} if receipts else {}

    def delete_message_batch(self, params: Any, now: float) -> Answer:
        _check_batch(params["Entries"])
        return _batch(params["Entries"], now, self.fifo(params["QueueUrl"]).delete)

    def change_message_visibility_batch(self, params: Any, now: float) -> Answer:
        _check_batch(params["Entries"])
        return _batch(params["Entries"], now, self.fifo(params["QueueUrl"]).change_visibility)


def _batch(entries: list[dict[str, Any]], now: float, do: Callable[[Mapping[str, Any], float], Answer]) -> Answer:
    done, failed = [], []
    for entry in entries:
        try:
            if "_fails" in entry:
                raise entry["_fails"]
            done.append({"Id": entry["Id"], **do(entry, now)})
        except Fault as fault:
            failed.append(
                {"Id": entry["Id"], "Code": fault.code, "Message": fault.text, "SenderFault": fault.status < 500}
            )
    answer = {"Successful": done, "Failed": failed}
    return {name: found for name, found in answer.items() if found}


@dataclass
class Rule:
    """What goes wrong with calls of one action on one queue.

    Attributes
    ----------
    how : str
        ``error``: the answer is ``code``, and nothing happens. ``entries``: of a batch these entries, by place, fail
        with it. ``drop before``, ``drop after``: the connection ends before the call is done, or after it.
    """

    action: str
    queue: str
    how: str
    times: int = 1
    skip: int = 0
    code: str = "InternalError"
    text: str = "made to fail"
    status: int = 500
    entries: list[int] = field(default_factory=list)


class Standin:
    """What all connections share: the rules, and the calls that were made."""

    def __init__(self) -> None:
        self.address = ""
        self.rules: list[Rule] = []
        self.calls: list[tuple[str, str]] = []

    def rule_for(self, action: str, queue: str) -> Rule | None:
        for rule in self.rules:
            if rule.action == action and rule.queue == queue:
                if rule.skip:
                    rule.skip -= 1
                    continue
                rule.times -= 1
                if not rule.times:
                    self.rules.remove(rule)
                return rule
        return None

    def administer(self, wish: Mapping[str, Any]) -> Answer:
        if "rule" in wish:
            self.rules.append(Rule(**wish["rule"]))
        queue = wish.get("queue")
        made = [action for action, name in self.calls if name == queue]
        if wish.get("forget"):
            self.calls = [call for call in self.calls if call[1] != queue]
            self.rules = [rule for rule in self.rules if rule.queue != queue]
        return {"calls": made}

    def answer(self, headers: Mapping[str, str], body: bytes) -> tuple[int, Answer, float] | None:
        """Return status, answer and time; ``None`` drops the connection."""
        now = float(headers.get("x-harel-time") or time.time())
        try:
            return 200, self._acted(headers, json.loads(body), now), now
        except ConnectionAbortedError:
            return None
        except Fault as fault:
            return fault.status, {"__type": f"com.amazonaws.sqs#{fault.code}", "message": fault.text}, now
        except ServiceException as error:
            return 400, {"__type": f"com.amazonaws.sqs#{error.code}", "message": error.message}, now

    def _acted(self, headers: Mapping[str, str], params: Any, now: float) -> Answer:
        target = headers["x-amz-target"].removeprefix("AmazonSQS.")
        queue = str(params.get("QueueUrl") or params.get("QueueName")).rpartition("/")[2]
        self.calls.append((target, queue))
        region = _region_of(headers)
        action = getattr(Service(region, self.address), re.sub(r"(?<!^)(?=[A-Z])", "_", target).lower())
        rule = self.rule_for(target, queue)
        if rule is None:
            return dict(action(params, now))
        if rule.how == "drop before":
            raise ConnectionAbortedError
        if rule.how == "error":
            raise Fault(rule.code, rule.text, rule.status)
        if rule.how == "entries":
            for place in rule.entries:
                params["Entries"][place]["_fails"] = Fault(rule.code, rule.text, rule.status)
        answer = dict(action(params, now))
        if rule.how == "drop after":
            raise ConnectionAbortedError
        return answer


def _region_of(headers: Mapping[str, str]) -> str:
    signature = headers.get("authorization")
    if signature is None:
        raise Fault("MissingAuthenticationToken", "Request is missing Authentication Token", 403)
    found = _CREDENTIAL.match(signature)
    if found is None:
        raise Fault("IncompleteSignature", "The request signature does not conform to AWS standards.", 403)
    key_id, region = found.groups()
    if key_id == KEY_WITHOUT_RIGHTS:
        text = f"User: arn:aws:iam::{ACCOUNT}:user/someone is not authorized to perform: sqs:getqueueurl"
        raise Fault("AccessDenied", text, 403)
    if key_id == KEY_WITH_ANOTHER_SECRET:
        signed = "".join(f"{name}:{value}\\n" for name, value in sorted(headers.items()))
        text = f"The request signature we calculated does not match. The Canonical String should have been '{signed}'"
        raise Fault("SignatureDoesNotMatch", text, 403)
    if key_id != KEY_ID:
        raise Fault("InvalidClientTokenId", "The security token included in the request is invalid.", 403)
    return region


class Connection(asyncio.Protocol):
    """HTTP/1.1, as much of it as SQS's clients speak."""

    def __init__(self, standin: Standin) -> None:
        self.standin = standin
        self.unread = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.unread += data
        while (end := self.unread.find(b"\r\n\r\n")) >= 0:
            request, *lines = self.unread[:end].decode("latin-1").split("\r\n")
            headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
            stop = end + 4 + int(headers.get("content-length", "0"))
            if len(self.unread) < stop:
                return
            body, self.unread = self.unread[end + 4 : stop], self.unread[stop:]
            self.reply(request.split(" ")[1], headers, body)

    def reply(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        if path == "/_harel":
            self.write(200, self.standin.administer(json.loads(body)), time.time())
            return
        answer = self.standin.answer(headers, body)
        if answer is None:
            self.transport.abort()
        else:
            self.write(*answer)

    def write(self, status: int, answer: Answer, now: float) -> None:
        content = json.dumps(answer).encode()
        head = (
            f"HTTP/1.1 {status} X\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {len(content)}\r\n"
            f"Date: {formatdate(now, usegmt=True)}\r\nx-amzn-RequestId: {uuid4()}\r\n"
        )
        if status != 200:
            head += f"x-amzn-query-error: {answer['__type'].partition('#')[2]};Sender\r\n"
        self.transport.write(head.encode() + b"\r\n" + content)


async def _serve() -> None:
    standin = Standin()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(standin), "127.0.0.1", 0)
    standin.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    print(standin.address, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve())
