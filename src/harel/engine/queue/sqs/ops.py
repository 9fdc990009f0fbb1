"""The operations on Amazon SQS FIFO, without I/O: what to say, and what the answer means.

The queue is the state, and SQS keeps the promises that make it: of one ``MessageGroupId`` one message is in flight, in
order, and a receipt is no good once its visibility ran out. What is left to say here:

**Claim.** A receive of several messages fills up with one group's, and what it must not keep it cannot give back
without counting an attempt. So each lease is a receive of its own: one first, and, while all find something, more at
the same time. Each has a new ``ReceiveRequestAttemptId``: when its answer is lost, asking again
with the same one gives the same message, and no group waits out a visibility that nobody knows of.

**Fenced** (promise 5), twice over. SQS refuses a receipt of a FIFO queue that ran out, whoever has the message now. And
this client judges by its own monotonic clock, from before it asked: of a lease that may have run out it says
``False`` and sends nothing. So ``True`` never rests on a receipt that SQS should have refused and did not; and a lease
that ran out is lost, also when nobody took it over (``late_settle``). A receipt that was used for a park is still good
to SQS until the park ends. So that a lease is settled is kept on the lease itself: that a copy of it, in another
process, is settled a second time meanwhile, nobody finds out.

**Lost answers.** A call is sent again a few times. A message that is sent again has the same deduplication id and is
one message; deleting what is deleted succeeds; and a message given back twice is refused the second time, which is
told from a lost lease by the client's own clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar
from uuid import uuid4

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
from harel.engine.queue.op import Op, Sleep
from harel.engine.queue.sqs.asking import Answer, Asker, Call, Outcome
from harel.engine.queue.sqs.opening import Names, find, open_queues
from harel.engine.queue.sqs.refusals import Refused, explained
from harel.engine.queue.sqs.wire import (
    ATTRIBUTES,
    MOST_IN_A_BATCH,
    ROOM,
    SYSTEM_ATTRIBUTES,
    SqsLease,
    batches,
    dead_letter,
    entry,
    lease_of,
    seen_at,
)
from harel.errors import (
    ConfigError,
    HarelError,
    InvalidArgument,
    NotSupported,
    PartlyPublished,
    TransportUnavailable,
)

__all__ = ["LONGEST_S", "SqsOps"]

T = TypeVar("T")

LONGEST_S = 43_200
"""SQS keeps a message from others for twelve hours at most, counted from its receive."""

_BROUGHT_FORWARD_S = 60
"""A lease or park that would end no more than this beyond the twelve hours ends with them instead."""

_TOO_LONG = f"SQS keeps a message from others for {LONGEST_S:,} seconds at most, counted from when it was claimed"

_TIMES_MORE = 3
_AT_ONCE = 10
"""A claim of many receives one, then three at the same time, then nine, then ten: AWS charges for those in vain too."""

_SHORTEST_REJECT_S = 5
"""A lease that is being rejected is renewed first, for at least this long; a worker that dies meanwhile leaves it so.
It is longer than the calls take that follow, and no longer than a group may wait for a dead worker."""


class SqsOps:
    """The operations over SQS.

    Parameters
    ----------
    names : Names
        Which queues, and whether to create them.
    where : str
        The endpoint's host and port, for messages.
    poll_interval_s : float
        For how long a wait pauses, in seconds.
    max_message_bytes : int
        The largest message, and the largest batch.
    patience_s : float
        For how long after it was first sent a call is sent again, in seconds.
    monotonic : callable
        Seconds, by which leases are judged on this side.
    """

    def __init__(
        self,
        names: Names,
        *,
        where: str,
        poll_interval_s: float,
        max_message_bytes: int,
        patience_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        # Its name alone, which is known before SQS was asked. A receipt of another account's or region's queue of this
        # name is refused by SQS.
        self.queue = f"sqs://{names.queue_name}"
        self.capabilities = Capabilities(
            atomic_batches=False,
            priority=False,
            fair=False,
            peek=False,
            groups=False,
            hold=False,
            purge=False,
            dead_letters=False,
            stats=False,
            watch=False,
            late_settle=False,
            queue_seq=False,
            max_event_bytes=max_message_bytes - ROOM,
            max_visibility_s=float(LONGEST_S),
            time_step_s=1.0,
        )
        self._names = names
        self._poll_interval_s = poll_interval_s
        self._max_message_bytes = max_message_bytes
        self.asker = Asker(where, patience_s, monotonic)
        self._url = names.queue_url or ""
        self._dead_letter_url = names.dead_letter_url

    def prepare(self) -> Op[None]:
        """Find the queue and the one for its dead letters, and create what is missing."""
        if not self._url:
            self._url, self._dead_letter_url = yield from open_queues(self.asker, self._names)

    def publish(self, messages: Sequence[Packed]) -> Op[None]:
        """Send the messages in batches, each when the one before it is stored."""
        entries = [entry(message, self._max_message_bytes) for message in messages]
        done = 0
        for batch in batches(entries, self._max_message_bytes):
            outcomes = yield from self.asker.each("send_message_batch", self._url, batch)
            stored = [outcome.failure is None for outcome in outcomes]
            if not all(stored):
                done += stored.index(False)
                error = self._explained(outcomes[stored.index(False)])
                if done == 0 and not any(stored):
                    raise error
                raise PartlyPublished(done, len(entries)) from error
            done += len(batch)

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int) -> Op[list[Lease]]:  # noqa: ARG002
        """Receive one message each, more and more at the same time, until some find none or it is enough."""
        seconds = _whole(visibility)
        leases: dict[str, Lease] = {}
        wanted = 1
        while True:
            found, trouble = yield from self._receive(worker_id, seconds, wanted)
            before = len(leases)
            # Of one group there are two only if the first one ran out while the others were asked for.
            leases.update((lease.group_id, lease) for lease in found)
            if trouble is not None and not leases:
                raise trouble
            if trouble is not None or len(leases) < before + wanted or len(leases) >= limit:
                return list(leases.values())
            wanted = min(limit - len(leases), _TIMES_MORE * wanted, _AT_ONCE)

    def ack(self, leases: Sequence[Lease]) -> Op[list[bool]]:
        with self._settling(leases) as mine:
            held = yield from self._delete(mine)
        return [held.pop(id(lease), False) for lease in leases]

    def nack(self, lease: Lease, delay: float) -> Op[bool]:
        seconds = self._fitting(lease, _whole(delay))
        with self._settling([lease]) as mine:
            if not mine:
                return False
            (outcome,) = yield from self._keep(mine, [seconds])
            if self._is_held(outcome):
                return True
            if not outcome.answer.again:
                return False
            # What was given back is refused the second time; and surely not because the lease ran out.
            if seconds == 0 and self._is_live(mine[0]):
                return True
            raise TransportUnavailable(
                f"The answer of {self.asker.where} was lost, and then the lease ran out. The message may have been "
                "given back before or not; either way it is not this worker's any more."
            )

    def extend(self, leases: Sequence[Lease], visibility: float) -> Op[list[float | None]]:
        live = [_own(lease) for lease in leases if not _own(lease).settled and self._is_live(lease)]
        seconds = {id(lease): self._fitting(lease, _whole(visibility)) for lease in live}
        live = [lease for lease in live if seconds[id(lease)]]  # none left: it is as good as lost
        outcomes = yield from self._keep(live, [seconds[id(lease)] for lease in live])
        ends = {
            id(lease): _ends_at(outcome.answer, seconds[id(lease)])
            for lease, outcome in zip(live, outcomes, strict=True)
            if self._is_held(outcome)
        }
        return [ends.get(id(lease)) for lease in leases]

    def reject(self, lease: Lease, reason: str) -> Op[bool]:
        """Renew the lease, so that it is this worker's and stays it; send the dead letter; delete the message.

        A client that dies between the last two leaves a dead letter of a message that is delivered again.
        """
        with self._settling([lease]) as mine:
            if not mine:
                return False
            (one,) = mine
            seconds = max(math.ceil(one.until - self.asker.monotonic()), _SHORTEST_REJECT_S)
            seconds = min(seconds, self._room(one))
            if seconds < 1:
                return False
            (outcome,) = yield from self._keep(mine, [seconds])
            if not self._is_held(outcome):
                return False
            letter = dead_letter(one, reason, self._max_message_bytes)
            url = yield from self._where_dead_letters_go()
            (outcome,) = yield from self.asker.each("send_message_batch", url, [letter])
            if outcome.failure is not None:
                raise self._explained(outcome)
            held = yield from self._delete(mine)
            return held[id(one)]

    def wait(self, timeout: float) -> Op[bool]:
        """Pause. Only a receive could look, and it would take."""
        if timeout > 0.0:
            yield Sleep(min(timeout, self._poll_interval_s))
        return timeout > self._poll_interval_s

    def stats(self) -> Op[QueueStats]:
        _cannot("stats")

    def groups(self, state: GroupState | None, limit: int, after: str | None) -> Op[list[GroupInfo]]:  # noqa: ARG002
        _cannot("groups")

    def peek(self, group_id: str, limit: int) -> Op[list[StoredMessage]]:  # noqa: ARG002
        _cannot("peek")

    def hold(self, group_id: str) -> Op[bool]:  # noqa: ARG002
        _cannot("hold")

    def release(self, group_id: str) -> Op[bool]:  # noqa: ARG002
        _cannot("hold")

    def purge(self, group_id: str) -> Op[int]:  # noqa: ARG002
        _cannot("purge")

    def dead_letters(self, group_id: str | None, limit: int, after: int | None) -> Op[list[DeadLetter]]:  # noqa: ARG002
        _cannot("dead_letters")

    def redrive(self, seq: int) -> Op[bool]:  # noqa: ARG002
        _cannot("dead_letters")

    def _receive(self, worker_id: str, seconds: int, wanted: int) -> Op[tuple[list[SqsLease], HarelError | None]]:
        """Receive a message each, that many times at once; return what came, and what else went wrong."""
        asked_at = self.asker.monotonic()
        answers = yield from self.asker.ask_all([self._receive_call(seconds) for _ in range(wanted)])
        leases = []
        trouble = None
        for answer in answers:
            if not isinstance(answer, Answer):
                trouble = explained(answer, self.asker.where)
                continue
            expires_at = _ends_at(answer, seconds)
            leases += [
                lease_of(
                    message,
                    worker_id=worker_id,
                    queue=self.queue,
                    received=asked_at,
                    seconds=seconds,
                    expires_at=expires_at,
                )
                for message in answer.reply.get("Messages", ())
            ]
        return leases, trouble

    def _receive_call(self, seconds: int) -> Call:
        params: dict[str, Any] = {
            "QueueUrl": self._url,
            "MaxNumberOfMessages": 1,
            "VisibilityTimeout": seconds,
            "WaitTimeSeconds": 0,
            "ReceiveRequestAttemptId": uuid4().hex,
            "MessageSystemAttributeNames": SYSTEM_ATTRIBUTES,
            "MessageAttributeNames": ATTRIBUTES,
        }
        return Call("receive_message", params)

    def _delete(self, leases: Sequence[SqsLease]) -> Op[dict[int, bool]]:
        held: dict[int, bool] = {}
        for part in _parts(leases):
            entries = [{"ReceiptHandle": lease.receipt} for lease in part]
            outcomes = yield from self.asker.each("delete_message_batch", self._url, entries)
            held.update((id(lease), self._is_held(outcome)) for lease, outcome in zip(part, outcomes, strict=True))
        return held

    def _keep(self, leases: Sequence[SqsLease], seconds: Sequence[int]) -> Op[list[Outcome]]:
        """Keep messages from others for so many seconds from now."""
        found: list[Outcome] = []
        for part in _parts(list(zip(leases, seconds, strict=True))):
            now = self.asker.monotonic()
            for lease, whole in part:
                lease.until = min(lease.until, now + whole) if whole else lease.until
            entries = [{"ReceiptHandle": lease.receipt, "VisibilityTimeout": whole} for lease, whole in part]
            outcomes = yield from self.asker.each("change_message_visibility_batch", self._url, entries)
            for (lease, whole), outcome in zip(part, outcomes, strict=True):
                if outcome.failure is None and whole:
                    lease.until = now + whole
            found += outcomes
        return found

    def _where_dead_letters_go(self) -> Op[str]:
        if self._dead_letter_url is None:
            name = self._names.dead_letter_name
            self._dead_letter_url = yield from find(self.asker, name)
            if self._dead_letter_url is None:
                raise ConfigError(
                    f"{self.asker.where} has no queue {name} for the dead letters. Create it, a FIFO queue, or pass "
                    "the URL of another one as dead_letter_url."
                )
        return self._dead_letter_url

    @contextmanager
    def _settling(self, leases: Sequence[Lease]) -> Iterator[list[SqsLease]]:
        """Mark those that may be settled, each once; after an error they may be again."""
        mine = []
        for lease in map(_own, leases):
            if not lease.settled and self._is_live(lease):
                lease.settled = True
                mine.append(lease)
        try:
            yield mine
        except BaseException:
            for lease in mine:
                lease.settled = False
            raise

    def _is_live(self, lease: Lease) -> bool:
        """Whether the lease has surely not run out."""
        return self.asker.monotonic() < _own(lease).until

    def _is_held(self, outcome: Outcome) -> bool:
        failure = outcome.failure
        if failure is None or (isinstance(failure, Refused) and failure.is_lost):
            return failure is None
        raise self._explained(outcome)

    def _explained(self, outcome: Outcome) -> HarelError:
        failure = outcome.failure
        assert failure is not None
        if isinstance(failure, Refused) and failure.is_too_long:
            return InvalidArgument(_TOO_LONG + ".")
        return explained(failure, self.asker.where)

    def _room(self, lease: Lease) -> int:
        """Return for how many seconds SQS still keeps a lease's message from others, if asked within one from now."""
        return math.floor(LONGEST_S - 1 - max(self.asker.monotonic() - _own(lease).received, 0.0))

    def _fitting(self, lease: Lease, seconds: int) -> int:
        room = self._room(lease)
        if seconds <= room:
            return seconds
        if seconds - room <= _BROUGHT_FORWARD_S:
            return max(room, 0)
        raise InvalidArgument(f"{_TOO_LONG}; for this lease {max(room, 0):,} seconds are left.")


def _cannot(capability: str) -> NoReturn:
    raise NotSupported(f"SQS cannot do that: capabilities.{capability} is False.")


def _own(lease: Lease) -> SqsLease:
    if not isinstance(lease, SqsLease):
        raise InvalidArgument("This lease has no receipt of SQS; settle the one that claim returned.")
    return lease


def _whole(seconds: float) -> int:
    return math.ceil(seconds)


def _ends_at(answer: Answer, seconds: int) -> float:
    """Say when what was asked for ends, by SQS's clock as far as its answer tells, to the second before."""
    at = seen_at(answer.reply)
    return (time.time() if at is None else at) + seconds


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), MOST_IN_A_BATCH):
        yield items[start : start + MOST_IN_A_BATCH]
