"""The operations inside a transaction of the caller's.

The transaction writes documents that nobody else has to write: the message, its dead letter, and a ticket
(``tickets.py``). It never writes a lock; numbers are taken outside of it, too, so that it never holds the counter.

**The fence.** A settlement first writes the message in the transaction: it deletes it, or touches it. Then, *outside*,
it marks the lock as ``bound`` by its token, if the token is still the current one; if not, the lease was lost. The mark
stays whatever becomes of the lease: it may run out, or be given back. Who takes the lock then asks, before it hands
anything out, what became of the transaction (``MongoOps._unmark``). If it is open, it has written the message, and a
write that only tries to meets it: then the group is left alone for a moment. If it has committed, its ticket is there.
If neither, it was rolled back, since it had written the message before it marked the lock; then the mark goes. Who
took the lock *before* it was marked need not ask: the transaction does not get its mark, and does not commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harel.engine.queue.contract import Lease, Packed
from harel.engine.queue.mongo.counting import Lock
from harel.engine.queue.mongo.ops import MongoOps, parts
from harel.engine.queue.mongo.requests import (
    Abort,
    BeginAnew,
    DeleteOne,
    Document,
    Duplicate,
    Find,
    FindAndUpdate,
    InsertEach,
    UpdateOne,
    Within,
)
from harel.engine.queue.mongo.schema import DEAD_LETTERS, LOCKS, MESSAGES
from harel.engine.queue.mongo.steps import insert_messages, next_seq, number_is_taken
from harel.engine.queue.mongo.tickets import name_of_settling, publishing, settling
from harel.engine.queue.op import Op

__all__ = ["BoundMongoOps"]


class BoundMongoOps:
    """What :class:`~harel.engine.queue.contract.Bound` asks of the operations.

    Parameters
    ----------
    ops : MongoOps
        Those outside of transactions.
    tickets : list
        Gets the names of the tickets that are written.
    """

    def __init__(self, ops: MongoOps, tickets: list[Document]) -> None:
        self.queue = ops.queue
        self.capabilities = ops.capabilities
        self._ops = ops
        self._tickets = tickets

    def publish(self, messages: Sequence[Packed]) -> Op[None]:
        moment = yield from self._ops.moment()
        seq = yield from next_seq(len(messages))
        for part in parts(messages):
            try:
                yield Within(insert_messages(part, seq))
            except Duplicate as refused:
                raise number_is_taken(seq + refused.places[0]) from refused
            yield from self._leave(publishing(part, seq, self._ops.number_of_a_new_group(moment.now)))
            seq += len(part)

    def ack(self, leases: Sequence[Lease]) -> Op[list[bool]]:
        answers = []
        for lease in leases:
            lock = yield from self._fenced(lease, deletes=True)
            if lock is not None:
                yield from self._settle(lease, None)
            answers.append(lock is not None)
        return answers

    def nack(self, lease: Lease, delay: float) -> Op[bool]:
        lock = yield from self._fenced(lease, deletes=False)
        if lock is None:
            return False
        yield from self._settle(lease, delay)
        return True

    def reject(self, lease: Lease, reason: str) -> Op[bool]:
        lock = yield from self._fenced(lease, deletes=True)
        if lock is None:
            return False
        moment = yield from self._ops.moment()
        letter = {
            "group_id": lease.group_id,
            "event": lease.raw,
            "attempts": lease.attempt,
            "priority": lock["priority"],
            "reason": reason,
            "rejected_at": moment.now,
            "state": "dead",
        }
        pending = {"_id": lease.seq, "state": "pending"}
        yield Within(
            UpdateOne(DEAD_LETTERS, pending, {"$set": letter, "$unset": {"tokens": ""}}, upsert=True),
        )
        yield from self._settle(lease, None)
        return True

    def _fenced(self, lease: Lease, *, deletes: bool) -> Op[Lock | None]:
        """Write the message in the transaction, and mark the lock outside of it; return it if the lease is current."""
        # What was touched with this token is settled already, in this transaction or in another one.
        message = {"_id": lease.seq, "group_id": lease.group_id, "fence": {"$ne": lease.token}}
        touch = {"$set": {"fence": lease.token}}
        written = yield Within(DeleteOne(MESSAGES, message) if deletes else UpdateOne(MESSAGES, message, touch))
        if not written:
            yield from self._must_be_settled(lease)
            return None
        self._ops.remember(lease.token)
        lock: Lock | None = yield FindAndUpdate(
            LOCKS,
            {"_id": lease.group_id, "token": lease.token},
            {"$set": {"bound": lease.token, "bound_seq": lease.seq}},
        )
        if lock is None:
            # The message is deleted here already; that must not commit, whatever the caller makes of it.
            yield Abort()
        return lock

    def _must_be_settled(self, lease: Lease) -> Op[None]:
        """Raise, if a message that is not there for this transaction is there for others."""
        if (yield Within(Find(LOCKS, {"_id": name_of_settling(lease.token)}, fields=("_id",)))):
            return
        current = {"_id": lease.group_id, "token": lease.token}
        if (yield Find(LOCKS, current, fields=("_id",))) and (
            yield Find(MESSAGES, {"_id": lease.seq}, fields=("_id",))
        ):
            yield BeginAnew()

    def _settle(self, lease: Lease, delay: float | None) -> Op[None]:
        moment = yield from self._ops.moment()
        yield from self._leave(settling(lease, moment.now, None if delay is None else moment.now + delay))

    def _leave(self, ticket: Any) -> Op[None]:
        yield Within(InsertEach(LOCKS, [ticket]))
        self._tickets.append(ticket["_id"])
