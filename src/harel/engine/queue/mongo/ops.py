"""The operations on MongoDB 5.0 and later, without I/O: what to ask, and what the answer means.

No operation needs a transaction of several documents; what goes on in one of a caller's is in ``bound.py``. **A group's
lock document decides everything**: who has the lease, when the group may next be claimed, what was settled. A lease is
taken, given back or settled in one change of that document, which names the settled message; the message is deleted
after that, by whoever comes first, the one who settled it or the next to claim. ``steps.py`` has what operations share,
``schema.py`` the fields.

=========== ========================================================================================================
publish     number the messages; store them; count them in their locks, which makes a lock that is not there
claim       take the first lock in the order of the index; read the head
ack         settle in the lock; delete the message. If it seems to be the last: look, and drop the lock
nack        one change of the lock
extend      one change of the lock
reject      store a dead letter that does not show yet; settle in the lock; make it show; delete the message
redrive     store the new message, marked; count it; decide in the dead letter that it is the one; unmark; delete that
=========== ========================================================================================================

**What is promised under which setting.** With write concern ``majority`` (what a transport asks for unless the URL or
the client says otherwise) every step that returned survives a failover, and reads that decide see only what does;
retryable writes repeat a step whose answer was lost, once. Everything goes to the primary. With ``w=1`` or another
number below a majority a failover may undo what was answered: a publish may be lost, a settled message be delivered
again, and a lease be given twice; on one server alone ``majority`` is that server, and its journal. When a primary
steps down in the middle of an operation, the driver finds the next one and sends the step again; what does not succeed
in time raises :exc:`~harel.TransportUnavailable`, may have happened or not, and strands nothing.

Attempts are counted on the lock, which knows which message is in flight only as its group's first one. Of two publishes
to one group at the same moment the smaller number may be stored second; if the other was claimed meanwhile and
given back, the attempts of both are counted together until one is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from harel.engine.queue.assets import check_identifier
from harel.engine.queue.contract import (
    Capabilities,
    DeadLetter,
    GroupInfo,
    GroupState,
    Lease,
    Packed,
    QueueStats,
    StoredMessage,
)
from harel.engine.queue.mongo import looks
from harel.engine.queue.mongo.clock import Moment, ServerClock
from harel.engine.queue.mongo.counting import Lock, drop, same_and_empty
from harel.engine.queue.mongo.requests import (
    DeleteEach,
    DeleteMany,
    DeleteOne,
    Document,
    Duplicate,
    Find,
    FindAndUpdate,
    Hello,
    Probe,
    UpdateEach,
    UpdateOne,
)
from harel.engine.queue.mongo.schema import (
    DEAD_LETTERS,
    LOCKS,
    MESSAGES,
    claimable_index,
    prepare_schema,
    schema_ddl,
)
from harel.engine.queue.mongo.steps import (
    append,
    decide_redrive,
    delete_unredriven,
    drop_if_drained,
    drop_if_empty,
    drop_if_last,
    finish,
    head_of,
    heads_of,
    next_seq,
)
from harel.engine.queue.mongo.tickets import carry_out, is_ticket, name_of_settling, take_in, take_in_these
from harel.engine.queue.op import Op, Sleep, rests
from harel.engine.queue.schedule import FRESH, LONGEST_S
from harel.engine.queue.tokens import new_token
from harel.errors import ConfigError, HarelError, PartlyPublished, TransportUnavailable

__all__ = ["MAX_EVENT_BYTES", "MongoOps", "parts", "schema_ddl"]

MAX_EVENT_BYTES = 15 * 2**20
"""MongoDB's documents are smaller than 16 MiB, and a dead letter is an event, its group and a reason."""

_OLDEST_WIRE_VERSION = 13
"""MongoDB 5.0: several partial indexes on the same fields."""
_MESSAGES_AT_ONCE = 1_000
_BYTES_AT_ONCE = 16 * 2**20
"""A batch is stored in parts, each of which fits one message of the protocol."""
_GROUPS_AT_ONCE = 1_000
_BUSY_S = 0.2
"""A group that a transaction is settling is looked at again after so many seconds."""
_TOKENS_KEPT = 10_000
"""Of leases that transactions settle, so many and as many again are known by this transport, for when it is asked."""
_PURGE_S = 30.0
"""For so long a purge has its group to itself; one that died there has it no longer."""

_IN_TURN = (("available_at", 1), ("arrival", 1))


class MongoOps:
    """The operations over MongoDB.

    Parameters
    ----------
    queue : str
        What the queue is called in messages, and what leases are checked against.
    prefix : str
        What the names of the collections begin with.
    clock : callable or None
        Returns epoch seconds; ``None`` is the server's clock.
    fresh_first : bool
        Whether groups that were never served go before those that were.
    poll_interval_s : float
        How often a wait looks, in seconds, when it has looked a few times.
    create_schema : bool
        Whether to make what is missing of collections and indexes.

    Attributes
    ----------
    server_clock : ServerClock
    """

    def __init__(
        self,
        queue: str,
        prefix: str,
        *,
        clock: Callable[[], float] | None,
        fresh_first: bool,
        poll_interval_s: float,
        create_schema: bool,
    ) -> None:
        self.queue = queue
        # Whether there are transactions the server says, when it is asked for the first time.
        self.capabilities = Capabilities(
            atomic_batches=False, bind=True, max_event_bytes=MAX_EVENT_BYTES, max_visibility_s=LONGEST_S
        )
        self.server_clock = ServerClock()
        self._messages = f"{check_identifier('prefix', prefix)}_{MESSAGES}"
        self._clock = clock
        self._ahead = FRESH if fresh_first else 0.0
        self._poll_interval_s = poll_interval_s
        self._create_schema = create_schema
        self._bound_here: set[str] = set()
        self._bound_before: set[str] = set()

    def prepare(self) -> Op[None]:
        hello = yield Hello()
        if hello.wire_version < _OLDEST_WIRE_VERSION:
            raise ConfigError(f"harel needs MongoDB 5.0 or later; {self.queue} is older.")
        if not hello.has_transactions:
            self.capabilities = msgspec.structs.replace(self.capabilities, bind=False)
        self.server_clock.learn(hello)
        yield from prepare_schema(self.queue, create=self._create_schema)

    def publish(self, messages: Sequence[Packed]) -> Op[None]:
        moment = yield from self.moment()
        seq = yield from next_seq(len(messages))
        available_at = self.number_of_a_new_group(moment.now)
        if len(messages) == 1:
            yield from append(messages, seq, available_at, moment.now)
            return
        done = 0
        for part in parts(messages):
            try:
                yield from append(part, seq + done, available_at, moment.now)
            except HarelError as error:
                raise PartlyPublished(done, len(messages)) from error
            done += len(part)

    def number_of_a_new_group(self, now: float) -> float:
        """Say where in line a group begins."""
        return now - self._ahead

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int) -> Op[list[Lease]]:
        if limit == 1:
            return self._claim_one(worker_id, visibility, min_priority)
        return self._claim_some(worker_id, visibility, limit, min_priority)

    def _claim_one(self, worker_id: str, visibility: float, floor: int) -> Op[list[Lease]]:
        while True:
            moment = yield from self.moment()
            lock = yield FindAndUpdate(
                LOCKS,
                _claimable(floor, moment.now),
                _take(new_token(worker_id), moment, visibility),
                order=_IN_TURN,
                hint=claimable_index(floor),
            )
            if lock is None:
                return []
            if is_ticket(lock):
                yield from carry_out(lock, moment.now)
                continue
            lease = yield from self._lease_on(lock)
            if lease is not None:
                return [lease]

    def _claim_some(self, worker_id: str, visibility: float, limit: int, floor: int) -> Op[list[Lease]]:
        """Look which are first, take them if they are still to be had, and see which ones one has."""
        leases: list[Lease] = []
        while len(leases) < limit:
            moment = yield from self.moment()
            most = min(limit - len(leases), _GROUPS_AT_ONCE)
            claimable = _claimable(floor, moment.now)
            first = yield Find(
                LOCKS, claimable, order=_IN_TURN, limit=most, fields=("_id",), hint=claimable_index(floor)
            )
            tickets = [lock["_id"] for lock in first if is_ticket(lock)]
            if tickets:
                yield from take_in_these(tickets, moment.now)
                continue
            tokens = {lock["_id"]: new_token(worker_id) for lock in first}
            if not tokens:
                break
            yield UpdateEach(
                LOCKS,
                [
                    ({"_id": group_id, **claimable}, _take(token, moment, visibility))
                    for group_id, token in tokens.items()
                ],
            )
            locks = yield from heads_of(list(tokens), self._messages, whole=True)
            for group_id, token in tokens.items():
                lock = locks.get(group_id)
                if lock is not None and lock["token"] == token:
                    lease = yield from self._lease_on(lock)
                    leases += [] if lease is None else [lease]
            if len(tokens) < most:
                break
        return leases

    def _lease_on(self, lock: Lock) -> Op[Lease | None]:
        """Make the lease of a lock that was just taken, or drop the group if nothing is in it."""
        taken: Lock | None = lock
        if lock.get("bound") is not None:
            taken = yield from self._unmark(lock)
        while taken is not None:
            heads = taken.get("heads")
            if heads and not _irregular(taken, heads[0]):
                return self._lease(taken, heads[0])
            head = yield from head_of(taken)
            if head is not None:
                return self._lease(taken, head)
            if taken["held"]:
                yield from self._free(taken)
                return None
            moment = yield from self.moment()
            if (yield from drop(taken, moment.now)):
                return None
            # A publish came in between, or a hold; or the lease is lost.
            found = yield Find(LOCKS, {"_id": taken["_id"], "token": taken["token"]})
            taken = found[0] if found else None
        return None

    def _unmark(self, lock: Lock, claims: int = 1) -> Op[Lock | None]:
        """Find out what became of the transaction that was settling this group, whose lock was just taken.

        Parameters
        ----------
        lock : Lock
        claims : int
            How many claims the taking counted as.

        Returns
        -------
        Lock or None
            The lock without the mark, if the transaction was rolled back; else ``None``, and the group is let go.
        """
        token = lock["bound"]
        mine = {"_id": lock["_id"], "token": lock["token"]}
        if not (yield Probe(MESSAGES, lock["bound_seq"], lock["token"])):
            moment = yield from self.moment()
            later = {"token": None, "available_at": moment.now + _BUSY_S, "since": moment.now}
            yield UpdateOne(LOCKS, mine, {"$set": later, "$inc": {"attempts": -claims}})
            return None
        if (yield from self._take_in_of(token)):
            return None
        unmarked: Lock | None = yield FindAndUpdate(LOCKS, {**mine, "bound": token}, {"$set": {"bound": None}})
        return unmarked

    def remember(self, token: str) -> None:
        """Have in mind that a transaction may settle with this token."""
        if len(self._bound_here) >= _TOKENS_KEPT:
            self._bound_before, self._bound_here = self._bound_here, set()
        self._bound_here.add(token)

    def _was_bound(self, lease: Lease) -> bool:
        return lease.token in self._bound_here or lease.token in self._bound_before

    def _change(self, lease: Lease, request: FindAndUpdate | UpdateOne) -> Op[Any]:
        """Send what settles a lease, or gives it back: a change of its lock as ``_held_by`` names it."""
        while True:
            reply = yield request
            if reply or not self._was_bound(lease) or not (yield from self._is_worth_another_try(lease)):
                return reply

    def _is_worth_another_try(self, lease: Lease) -> Op[bool]:
        """Take the mark off a lease's lock, if a transaction that was settling with it was rolled back."""
        current = {"_id": lease.group_id, "token": lease.token}
        if not (yield Find(LOCKS, current, fields=("_id",))):
            return False
        if not (yield Probe(MESSAGES, lease.seq, lease.token)):
            raise TransportUnavailable(
                f"The lease of group {lease.group_id!r}, seq {lease.seq} is being settled in a transaction that is "
                "open; commit it, or roll it back."
            )
        if (yield from self._take_in_of(lease.token)):
            return False
        yield UpdateOne(LOCKS, {**current, "bound": lease.token}, {"$set": {"bound": None}})
        return True

    def _take_in_of(self, token: str) -> Op[bool]:
        """Carry out the ticket that settles with a token, if there is one."""
        # A change, since a read may not show yet what committed just now.
        ticket = yield FindAndUpdate(LOCKS, {"_id": name_of_settling(token)}, {"$inc": {"attempts": 1}})
        if ticket is not None:
            moment = yield from self.moment()
            yield from carry_out(ticket, moment.now)
        return ticket is not None

    def take_in_these(self, names: Sequence[Document]) -> Op[None]:
        """Do to locks what a transaction left to be done, now that it has committed."""
        moment = yield from self.moment()
        yield from take_in_these(names, moment.now)

    def _lease(self, lock: Lock, head: Document) -> Lease:
        return Lease(
            group_id=lock["_id"],
            raw=head["event"],
            seq=head["_id"],
            token=lock["token"],
            attempt=lock["attempts"],
            expires_at=lock["available_at"],
            queue=self.queue,
        )

    def _free(self, lock: Lock, settled: int = 0) -> Op[None]:
        """Let go of a group whose messages are gone."""
        moment = yield from self.moment()
        yield UpdateOne(
            LOCKS,
            {"_id": lock["_id"], "token": lock["token"]},
            {
                "$set": {"token": None, "attempts": 0, "available_at": moment.now, "since": moment.now},
                "$inc": {"settled": settled},
            },
        )

    def ack(self, leases: Sequence[Lease]) -> Op[list[bool]]:
        answers = []
        settled: list[tuple[Lease, Lock]] = []
        for lease in leases:
            lock = yield from self._settle(lease, None)
            answers.append(lock is not None)
            if lock is not None:
                settled.append((lease, lock))
        if len(settled) == 1:
            yield from self._clear(*settled[0])
        elif settled:
            yield from self._clear_each(settled)
        return answers

    def _settle(self, lease: Lease, rejected: Document | None) -> Op[Lock | None]:
        """Settle a message, if the lease is current: from here on it is done, whoever does the rest."""
        moment = yield from self.moment()
        if rejected is not None:
            rejected = {**rejected, "rejected_at": moment.now}
        change = FindAndUpdate(
            LOCKS,
            _held_by(lease),
            {
                "$set": {
                    "token": None,
                    "available_at": moment.now,
                    "attempts": 0,
                    "since": moment.now,
                    "acked": lease.seq,
                    "rejected": rejected,
                },
                "$inc": {"settled": 1},
            },
        )
        lock: Lock | None = yield from self._change(lease, change)
        return lock

    def _clear(self, lease: Lease, lock: Lock) -> Op[None]:
        """Delete a message that was acked, and its group if it was the last."""
        if lease.attempt > 1:
            yield DeleteOne(DEAD_LETTERS, {"_id": lease.seq, "state": "pending"})
        yield DeleteOne(MESSAGES, _message(lease))
        yield from drop_if_last(lock, lock["since"])

    def _clear_each(self, settled: Sequence[tuple[Lease, Lock]]) -> Op[None]:
        retried = [lease.seq for lease, _ in settled if lease.attempt > 1]
        if retried:
            yield DeleteEach(DEAD_LETTERS, [{"_id": seq, "state": "pending"} for seq in retried])
        yield DeleteEach(MESSAGES, [_message(lease) for lease, _ in settled])
        last = {lock["_id"]: lock for _, lock in settled if lock["settled"] >= lock["version"] and not lock["held"]}
        if not last:
            return
        now = yield from heads_of(list(last), self._messages, whole=False)
        empty = [lock for group_id, lock in last.items() if group_id in now and not now[group_id]["heads"]]
        # Not those that would owe, nor those that changed.
        agreeing = [{**same_and_empty(lock), "settled": lock["version"]} for lock in empty]
        if agreeing and (yield DeleteEach(LOCKS, agreeing)) < len(agreeing):
            for lock in empty:
                yield from drop_if_drained(lock["_id"], lock["since"])

    def nack(self, lease: Lease, delay: float) -> Op[bool]:
        moment = yield from self.moment()
        change = {"$set": {"token": None, "available_at": moment.now + delay, "since": moment.now}}
        given_back: bool = yield from self._change(lease, UpdateOne(LOCKS, _held_by(lease), change))
        return given_back

    def extend(self, leases: Sequence[Lease], visibility: float) -> Op[list[float | None]]:
        for lease in leases:
            if self._was_bound(lease):
                yield from self._take_in_of(lease.token)
        moment = yield from self.moment()
        expires_at = moment.latest + visibility
        changes = [
            ({"_id": lease.group_id, "token": lease.token}, {"$set": {"available_at": expires_at}}) for lease in leases
        ]
        if len(leases) == 1:
            return [expires_at if (yield UpdateOne(LOCKS, *changes[0])) else None]
        yield UpdateEach(LOCKS, changes)
        names = list({lease.group_id for lease in leases})
        found = yield Find(LOCKS, {"_id": {"$in": names}}, fields=("_id", "token"))
        tokens = {lock["_id"]: lock["token"] for lock in found}
        return [expires_at if tokens.get(lease.group_id) == lease.token else None for lease in leases]

    def reject(self, lease: Lease, reason: str) -> Op[bool]:
        pending = {"_id": lease.seq, "state": "pending"}
        mine = {"$addToSet": {"tokens": lease.token}}
        letter = {"group_id": lease.group_id, "event": lease.raw}
        try:
            yield UpdateOne(DEAD_LETTERS, pending, {**mine, "$setOnInsert": letter}, upsert=True)
        except Duplicate:
            # Another's, that came in this moment; or a dead letter already, and then the lock knows better.
            yield UpdateOne(DEAD_LETTERS, pending, mine)
        lock = yield from self._settle(lease, {"token": lease.token, "reason": reason, "attempts": lease.attempt})
        if lock is None:
            # What is pending may by now be the dead letter of the one who has the message; not if nobody has it.
            if not (yield Find(MESSAGES, {"_id": lease.seq}, fields=("_id",))):
                yield DeleteOne(DEAD_LETTERS, pending)
            return False
        yield from finish(lock)
        yield from drop_if_last(lock, lock["since"])
        return True

    def wait(self, timeout: float) -> Op[bool]:
        """Look, at first often and then every poll interval, and when the next lease or park ends."""
        left = timeout
        for rest in rests(self._poll_interval_s):
            pause = yield from self._seconds_to_claimable()
            if pause <= 0.0:
                return True
            if left <= 0.0:
                break
            left -= yield Sleep(min(pause, left, rest))
        return False

    def _seconds_to_claimable(self) -> Op[float]:
        moment = yield from self.moment()
        first = yield Find(
            LOCKS, {"held": False}, order=_IN_TURN, limit=1, fields=("available_at",), hint=claimable_index(0)
        )
        return float(first[0]["available_at"]) - moment.now if first else float("inf")

    def stats(self) -> Op[QueueStats]:
        moment = yield from self.moment()
        yield from take_in(moment.now)
        return (yield from looks.stats(moment.now))

    def groups(self, state: GroupState | None, limit: int, after: str | None) -> Op[list[GroupInfo]]:
        moment = yield from self.moment()
        yield from take_in(moment.now)
        return (yield from looks.groups(self._messages, moment.now, state, limit, after))

    def peek(self, group_id: str, limit: int) -> Op[list[StoredMessage]]:
        moment = yield from self.moment()
        return (yield from looks.peek(group_id, limit, moment.now))

    def dead_letters(self, group_id: str | None, limit: int, after: int | None) -> Op[list[DeadLetter]]:
        return looks.dead_letters(group_id, limit, after)

    def hold(self, group_id: str) -> Op[bool]:
        moment = yield from self.moment()
        held = {"$set": {"held": True, "held_since": moment.now}}
        there = {"_id": group_id, "owed": None}
        which = {**there, "held": False}
        if (yield UpdateOne(LOCKS, which, held)) or (yield Find(LOCKS, there, fields=("_id",))):
            return True
        yield from take_in(moment.now)  # its first publish may have committed just now
        return bool((yield UpdateOne(LOCKS, which, held)))

    def release(self, group_id: str) -> Op[bool]:
        while True:
            found = yield Find(LOCKS, {"_id": group_id, "held": True}, fields=("token",))
            if not found:
                return False
            token = found[0]["token"]
            moment = yield from self.moment()
            released: dict[str, Any] = {"$set": {"held": False, "held_since": None, "since": moment.now}}
            if token is None:
                released["$set"]["available_at"] = moment.now
            else:
                released["$max"] = {"available_at": moment.now}
            lock = yield FindAndUpdate(LOCKS, {"_id": group_id, "held": True, "token": token}, released)
            if lock is None:
                continue
            if token is None:
                yield from drop_if_empty(lock, moment.now)
            return True

    def purge(self, group_id: str) -> Op[int]:
        took_in = False
        while True:
            found = yield Find(LOCKS, {"_id": group_id, "owed": None})
            moment = yield from self.moment()
            if not took_in and (not found or found[0].get("bound") is not None):
                took_in = True  # what has committed and stands in no lock yet
                yield from take_in(moment.now)
                continue
            if not found:
                return 0
            lock = found[0]
            if lock["token"] is not None and lock["available_at"] > moment.now:
                return (yield from self._purge_behind_head(lock))
            as_it_was = {key: lock[key] for key in ("_id", "arrival", "token", "available_at")}
            token = new_token("purge")
            taken = yield FindAndUpdate(
                LOCKS,
                as_it_was,
                {"$set": {"token": token, "available_at": moment.latest + _PURGE_S, "since": moment.now}},
            )
            if taken is not None and taken.get("bound") is not None:
                lock, taken = taken, (yield from self._unmark(taken, claims=0))
                if taken is None and (yield Find(LOCKS, {"_id": group_id, "bound": lock["bound"]}, fields=("_id",))):
                    return (yield from self._purge_behind_head(lock))
            if taken is not None:
                return (yield from self._purge_all(taken))

    def _purge_behind_head(self, lock: Lock) -> Op[int]:
        """Purge what nobody has; the head is its holder's, and what a transaction is settling is that one's."""
        if lock["acked"] is not None:
            yield from finish(lock)
        group_id = lock["_id"]
        heads = yield Find(MESSAGES, {"group_id": group_id}, order=(("_id", 1),), limit=1, fields=("_id",))
        if not heads:
            return 0
        behind = {"$gt": heads[0]["_id"]}
        if lock.get("bound") is not None:
            behind["$ne"] = lock["bound_seq"]
        count: int = yield DeleteMany(MESSAGES, {"group_id": group_id, "_id": behind})
        yield UpdateOne(LOCKS, {"_id": group_id, "arrival": lock["arrival"]}, {"$inc": {"settled": count}})
        # The holder may have settled the head meanwhile, and found the group not empty yet.
        moment = yield from self.moment()
        yield from drop_if_drained(group_id, moment.now)
        return count

    def _purge_all(self, lock: Lock) -> Op[int]:
        """Purge a group that nobody has, while nobody can claim it."""
        if lock["acked"] is not None:
            yield from finish(lock)
        count: int = yield DeleteMany(MESSAGES, {"group_id": lock["_id"]})
        if lock["attempts"]:
            yield DeleteMany(DEAD_LETTERS, {"group_id": lock["_id"], "state": "pending"})
        moment = yield from self.moment()
        if lock["held"] or not (yield from drop(lock, moment.now, purged=count)):
            yield from self._free(lock, count)
            yield from drop_if_drained(lock["_id"], moment.now)
        return count

    def redrive(self, seq: int) -> Op[bool]:
        letters = yield Find(DEAD_LETTERS, {"_id": seq, "state": "dead"})
        if not letters:
            return False
        letter = letters[0]
        moment = yield from self.moment()
        message = Packed(letter["group_id"], letter["event"], letter["priority"])
        number = yield from next_seq(1)
        # Whoever finds the message before it is decided that it is the one decides it, so it may be found.
        yield from append((message,), number, moment.now - self._ahead, moment.now, redrive_of=seq)
        if not (yield from decide_redrive(seq, number)):
            yield from delete_unredriven({"_id": number, "redrive_of": seq, "group_id": message.group_id})
            yield from drop_if_drained(message.group_id, moment.now)
            return False
        yield UpdateOne(MESSAGES, {"_id": number}, {"$unset": {"redrive_of": ""}})
        yield DeleteOne(DEAD_LETTERS, {"_id": seq, "state": "gone", "into": number})
        return True

    def moment(self) -> Op[Moment]:
        """Say what time it is; this asks the server now and then."""
        if self._clock is not None:
            now = self._clock()
            return Moment(now, now)
        moment = self.server_clock.moment()
        while moment is None:
            self.server_clock.learn((yield Hello()))
            moment = self.server_clock.moment()
        return moment


def _message(lease: Lease) -> Document:
    """Return what matches a lease's message; with the group, lest a lease that was altered reach another group's."""
    return {"_id": lease.seq, "group_id": lease.group_id}


def _claimable(floor: int, now: float) -> dict[str, Any]:
    claimable: dict[str, Any] = {"held": False, "available_at": {"$lte": now}}
    if floor:
        claimable["priority"] = {"$gte": floor}
    return claimable


def _held_by(lease: Lease) -> Document:
    """Return what matches the lock of a lease that is current, and that no transaction is settling."""
    return {"_id": lease.group_id, "token": lease.token, "bound": None}


def _take(token: str, moment: Moment, visibility: float) -> Document:
    # The lease lasts, though the time may be later than it seems.
    lease = {"token": token, "available_at": moment.latest + visibility, "since": moment.now, "owed": None}
    return {"$set": lease, "$inc": {"attempts": 1}}


def _irregular(lock: Lock, head: Document) -> bool:
    """Say whether something has to be done before a head can be handed out; see ``head_of``."""
    return "redrive_of" in head or (lock["acked"] is not None and head["_id"] <= lock["acked"])


def parts(messages: Sequence[Packed]) -> Iterator[Sequence[Packed]]:
    """Cut a batch into parts that are stored each by one command."""
    begin = size = 0
    for place, message in enumerate(messages):
        bytes_at_most = 4 * (len(message.raw) + len(message.group_id)) + 100
        if place - begin == _MESSAGES_AT_ONCE or (size + bytes_at_most > _BYTES_AT_ONCE and place > begin):
            yield messages[begin:place]
            begin, size = place, 0
        size += bytes_at_most
    yield messages[begin:]
