"""SQS's operations for the explorer: over the stand-in's queues, without sockets, and one entry of a call at a time.

Calls that are made at the same time, and the entries of a batch, reach SQS in any order, and others may come in
between; so here each is a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from types import SimpleNamespace
from typing import Any

from harel.engine.queue.contract import GroupInfo, Lease, Operations
from harel.engine.queue.op import Op, Sleep
from harel.engine.queue.sqs.asking import Call, Together
from harel.engine.queue.sqs.opening import Names
from harel.engine.queue.sqs.ops import SqsOps
from harel.engine.queue.sqs.refusals import Refused, Unanswered
from harel.events import decode_event
from harel.testing import ManualClock
from harel.testing.explorer import Scene
from tests.interleavings.test_pairs import VISIBILITY_S, Setting
from tests.servers.sqs_server import MOST_BYTES, Fault, Fifo, Service

QUEUE, DEAD = "http://sqs/123456789012/q.fifo", "http://sqs/123456789012/q-dead.fifo"

_ATTRIBUTES = SimpleNamespace(
    attributes={"DeduplicationScope": "messageGroup"},
    redrive_policy=None,
    message_retention_period=14 * 86_400,
    maximum_message_size=MOST_BYTES,
)
"""What the queues are created with."""


class Queues(Service):
    """The stand-in's actions on a queue and the one for its dead letters, by a clock of the test's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.fifos = {url: Fifo(_ATTRIBUTES) for url in (QUEUE, DEAD)}

    def fifo(self, url: str) -> Fifo:
        return self.fifos[url]

    def send(self, request: Any) -> list[Any]:
        """Carry out a request, as boto3 would."""
        return [self._called(call) for call in request.calls]

    def _called(self, call: Call) -> Any:
        try:
            return dict(getattr(self, call.action)(call.params, self.clock()))
        except Fault as fault:
            return Refused(fault.code, fault.text, fault.status)

    def lose_the_reply(self, request: Any) -> list[Any]:
        """Carry it out, and do not say so."""
        self.send(request)
        return self.lose(request)

    def lose(self, request: Any) -> list[Any]:
        """Do not carry it out; nobody can tell."""
        return [Unanswered("the connection ended", sent=True) for _ in request.calls]

    @property
    def mishaps(self) -> Mapping[str, Callable[[Any], Any]]:
        return {"loses the reply": self.lose_the_reply, "is not heard": self.lose}


def apart(op: Op[Any]) -> Op[Any]:
    """Run an operation with each call and each entry of a batch as a step, and without its pauses."""
    try:
        request = next(op)
        while True:
            try:
                reply = yield from _steps(request)
            except GeneratorExit:
                op.close()
                raise
            request = op.send(reply)
    except StopIteration as done:
        return done.value


def _steps(request: Any) -> Op[Any]:
    if isinstance(request, Sleep):
        return request.seconds
    results: list[Any] = []
    for call in request.calls:
        results += [(yield from _entries(call))]
    return results


def _entries(call: Call) -> Op[Any]:
    entries = call.params.get("Entries", ())
    if len(entries) < 2:
        (result,) = yield Together((call,))
        return result
    together: dict[str, list[Any]] = {}
    for entry in entries:
        (result,) = yield Together((Call(call.action, {**call.params, "Entries": [entry]}),))
        if not isinstance(result, dict):
            return result
        for name, found in result.items():
            together.setdefault(name, []).extend(found)
    return together


class Apart:
    """Operations whose every call and entry is a step."""

    def __init__(self, ops: Operations) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ops, name)
        if not callable(value):
            return value

        @wraps(value)
        def method(*args: Any) -> Op[Any]:
            return apart(value(*args))

        return method


class SqsScene(Scene):
    """A scene that looks at the queues themselves, which SQS's clients cannot.

    Parameters
    ----------
    ops_class : type
    clock : ManualClock
    """

    def __init__(self, ops_class: type[SqsOps], clock: ManualClock) -> None:
        self.queues = Queues(clock)
        ops: Any = Apart(
            ops_class(
                Names(queue_name="q.fifo", queue_url=QUEUE, dead_letter_url=DEAD),
                where="sqs:443",
                poll_interval_s=1.0,
                max_message_bytes=MOST_BYTES,
                patience_s=10.0,
                monotonic=clock,
            )
        )
        super().__init__(ops, self.queues.send, clock)

    def _infos(self) -> dict[str, GroupInfo]:
        now = self.clock()
        return {
            name: GroupInfo(
                group_id=name,
                state="leased" if group.messages[0].visible_from > now else "ready",
                since=0.0,
                until=group.messages[0].visible_from,
                holder=None,
                attempts=group.messages[0].receive_count,
                messages=len(group.messages),
                priority=0,
            )
            for name, group in self.queues.fifos[QUEUE].groups.items()
        }

    def _waiting(self, group_id: str) -> list[tuple[int, str]]:
        group = self.queues.fifos[QUEUE].groups.get(group_id)
        return [(message.sequence, message.body) for message in group.messages] if group else []

    def _dead_letters(self) -> dict[int, str]:
        letters = [each for group in self.queues.fifos[DEAD].groups.values() for each in group.messages]
        return {int(each.attributes["harel-seq"]["StringValue"]): decode_event(each.body).id for each in letters}


class SqsSetting(Setting):
    """The same setting on SQS."""

    def __init__(self, clock: ManualClock, ops_class: type[SqsOps] = SqsOps) -> None:
        self.scene: SqsScene = SqsScene(ops_class, clock)
        self.clock = clock
        self.send = None
        self._events = 0
        self.dead = self._dead_letter()
        self.lease: Lease = self.scene.do("claim", "w", VISIBILITY_S, 0)
        self.scene.mishaps = self.scene.queues.mishaps
