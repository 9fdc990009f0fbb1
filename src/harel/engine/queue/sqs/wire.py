"""How a message travels: what of it goes where in a message of SQS, and back.

**The body** is the event's JSON text as it is, for other programs to read. SQS takes no control characters, no U+FFFE
and U+FFFF, and no empty body; a text with one of those goes as a JSON string, and the attribute ``harel-text`` says so.

**The group.** SQS takes up to 128 ASCII letters, digits and punctuation marks, and harel any text of 512 bytes. An id
that fits goes as it is. Of another one, its SHA-256 does, after a prefix that no id goes with as it is, and the id
itself travels in the attribute ``harel-group``: so that two ids are never one group to SQS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any, TypeAlias
from uuid import uuid4

import msgspec

from harel.engine.queue.contract import Lease, Packed
from harel.engine.queue.tokens import new_token
from harel.errors import InvalidArgument

__all__ = [
    "ATTRIBUTES",
    "SYSTEM_ATTRIBUTES",
    "Entry",
    "SqsLease",
    "batches",
    "dead_letter",
    "entry",
    "lease_of",
    "seen_at",
]

GROUP = "harel-group"
TEXT = "harel-text"
ATTRIBUTES = [GROUP, TEXT]
"""What a receive asks for of ours."""

SYSTEM_ATTRIBUTES = ["ApproximateReceiveCount", "MessageGroupId", "SequenceNumber"]
"""What a receive asks for of SQS's."""

MOST_IN_A_BATCH = 10

ROOM = 1_024
"""Bytes of a message that are kept for what travels beside the event."""

_HASHED = "harel-sha256-"
_FITS = re.compile(r"[!-~]{1,128}")
_REFUSED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Entry: TypeAlias = dict[str, Any]
"""One message, as ``SendMessageBatch`` takes it."""


class SqsLease(Lease, kw_only=True, eq=False):
    """A lease, and what SQS and this client know it by.

    Attributes
    ----------
    receipt : str
        SQS's handle of this delivery.
    message_id : str
    received : float
        When it was asked for: seconds by the client's monotonic clock.
    until : float
        Before this, by the same clock, it has surely not run out.
    settled : bool
        Whether it is settled, or being settled.
    """

    receipt: str
    message_id: str
    received: float
    until: float
    settled: bool = False


def entry(message: Packed, most_bytes: int) -> Entry:
    """Write a message. Its deduplication id is new: what is sent again on purpose is a message of its own."""
    made = _entry(message.group_id, message.raw, uuid4().hex)
    if (size := _size(made)) > most_bytes:
        raise InvalidArgument(
            f"The event takes {size:,} bytes as a message of SQS, with its characters escaped that SQS does not take; "
            f"at most {most_bytes:,} are allowed. Keep what is large elsewhere and send where it is."
        )
    return made


def dead_letter(lease: SqsLease, reason: str, most_bytes: int) -> Entry:
    """Write what goes to the dead letters: the message, and why. Written twice, SQS takes it for one."""
    made = _entry(lease.group_id, lease.raw, lease.message_id)
    attributes = made["MessageAttributes"]
    attributes["harel-seq"] = {"DataType": "Number.int", "StringValue": str(lease.seq)}
    attributes["harel-attempts"] = {"DataType": "Number.int", "StringValue": str(lease.attempt)}
    room = most_bytes - _size(made) - len("harel-reason") - len("String")
    text = _REFUSED.sub("\ufffd", reason).encode()[: max(room, 0)].decode(errors="ignore")
    if text:
        attributes["harel-reason"] = {"DataType": "String", "StringValue": text}
    return made


def batches(entries: Sequence[Entry], most_bytes: int) -> Iterator[list[Entry]]:
    """Cut what is to be sent, in its order, into batches.

    SQS may take some entries of a batch and not others. So a batch holds at most one message of a group: no message
    is stored while one before it, of its group, is not.
    """
    batch: list[Entry] = []
    groups: set[str] = set()
    size = 0
    for each in entries:
        more = _size(each)
        if len(batch) == MOST_IN_A_BATCH or each["MessageGroupId"] in groups or size + more > most_bytes:
            yield batch
            batch, groups, size = [], set(), 0
        batch.append(each)
        groups.add(each["MessageGroupId"])
        size += more
    if batch:
        yield batch


def lease_of(
    message: Mapping[str, Any], *, worker_id: str, queue: str, received: float, seconds: int, expires_at: float
) -> SqsLease:
    """Read what a receive returned."""
    system = message.get("Attributes", {})
    return SqsLease(
        group_id=_group_of(message),
        raw=_text_of(message),
        seq=int(system.get("SequenceNumber", 0)),
        token=new_token(worker_id),
        attempt=int(system.get("ApproximateReceiveCount", 1)),
        expires_at=expires_at,
        queue=queue,
        receipt=message["ReceiptHandle"],
        message_id=message["MessageId"],
        received=received,
        until=received + seconds,
    )


def seen_at(reply: Mapping[str, Any]) -> float | None:
    """Return the time that SQS gave its answer, epoch seconds to the whole second, if it says."""
    date = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def _entry(group_id: str, raw: str, deduplication_id: str) -> Entry:
    attributes: dict[str, Any] = {}
    group = group_id
    if not _FITS.fullmatch(group_id) or group_id.startswith(_HASHED):
        group = _hashed(group_id)
        attributes[GROUP] = {"DataType": "Binary", "BinaryValue": group_id.encode()}
    if not raw or _REFUSED.search(raw):
        text = json.dumps(raw, ensure_ascii=False)
        raw = _REFUSED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
        attributes[TEXT] = {"DataType": "String", "StringValue": "json"}
    return {
        "MessageBody": raw,
        "MessageGroupId": group,
        "MessageDeduplicationId": deduplication_id,
        "MessageAttributes": attributes,
    }


def _size(made: Entry) -> int:
    """Count as SQS does: the body, and of each attribute its name, type and value."""
    body: str = made["MessageBody"]
    size = len(body) if body.isascii() else len(body.encode())
    for name, value in made["MessageAttributes"].items():
        text = value.get("BinaryValue") or value["StringValue"].encode()
        size += len(name) + len(value["DataType"]) + len(text)
    return size


def _group_of(message: Mapping[str, Any]) -> str:
    group: str = message.get("Attributes", {}).get("MessageGroupId", "")
    written = message.get("MessageAttributes", {}).get(GROUP, {}).get("BinaryValue")
    if written is not None:
        group_id = bytes(written).decode(errors="replace")
        if _hashed(group_id) == group:
            return group_id
    return group  # also what another program sent


def _text_of(message: Mapping[str, Any]) -> str:
    body: str = message["Body"]
    if TEXT in message.get("MessageAttributes", {}):
        try:
            return msgspec.json.decode(body, type=str)
        except msgspec.MsgspecError:
            pass  # not written by us: its holder sees it as it is
    return body


def _hashed(group_id: str) -> str:
    return _HASHED + sha256(group_id.encode()).hexdigest()
