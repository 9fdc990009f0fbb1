"""What observers see, and that none of them can harm a worker; what the log says of a message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest

from harel import AsyncWorker, Event, Observer, Reject, RetryLater, RetryPolicy, Worker
from harel.engine.transport import InMemoryTransport
from harel.engine.worker.policy import Again, Dead, Done, Held, Verdict
from harel.testing import ManualClock
from harel.testing.conformance.kit import store_raw
from tests.worker.driving import FakeTiming, Running, Watched, messages, settled


class Diary(Observer):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.verdicts: list[Verdict] = []
        self.errors: list[BaseException | None] = []

    def began(self, lease: Any) -> None:
        self.lines.append(f"began {lease.group_id}")

    @contextmanager
    def _handling(self, lease: Any, event: Event) -> Iterator[None]:
        self.lines.append(f"enters {event.kind}")
        try:
            yield
        except BaseException as error:
            self.lines.append(f"sees {type(error).__name__}")
            raise
        else:
            self.lines.append("leaves")

    def handling(self, lease: Any, event: Event) -> AbstractContextManager[object]:
        return self._handling(lease, event)

    def settled(self, lease: Any, verdict: Verdict, handled_s: float, error: BaseException | None) -> None:
        self.lines.append(f"settled {lease.group_id}")
        self.verdicts.append(verdict)
        self.errors.append(error)

    def lost(self, lease: Any, handled_s: float) -> None:
        self.lines.append(f"lost {lease.group_id} after {handled_s:g}")


class Broken(Observer):
    def began(self, lease: Any) -> None:
        raise ValueError("began")

    def handling(self, lease: Any, event: Event) -> AbstractContextManager[object]:
        raise ValueError("handling")

    def settled(self, lease: Any, verdict: Verdict, handled_s: float, error: BaseException | None) -> None:
        raise ValueError("settled")


class Swallowing(Observer):
    @contextmanager
    def handling(self, lease: Any, event: Event) -> Iterator[None]:
        with suppress(Exception):
            yield


ERRORS: dict[str, Exception | None] = {
    "done": None,
    "again": ValueError("again"),
    "later": RetryLater(5.0),
    "reject": Reject("never"),
    "dead": KeyError("dead"),
}


def handle(event: Event, context: Any) -> None:
    error = ERRORS[event.kind]
    if error is not None:
        raise error


async def awaiting(event: Event, context: Any) -> None:
    handle(event, context)


POLICY = RetryPolicy(backoff=2.0, jitter=0.0, give_up_on=(KeyError,))


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("done", Done()),
        ("again", Again(2.0)),
        ("later", Again(5.0)),
        ("reject", Dead("never")),
        ("dead", Dead),
    ],
)
async def test_each_step_of_a_message_is_seen(is_async: bool, kind: str, verdict: Any) -> None:
    diary = Diary()
    observers = [Broken(), diary, Swallowing()]
    if is_async:
        async with Watched() as queue:
            await queue.publish("a", Event(kind))
            assert await AsyncWorker(queue, awaiting, retry=POLICY, observers=observers).step()
    else:
        sync = InMemoryTransport()
        sync.publish("a", Event(kind))
        assert Worker(sync, handle, retry=POLICY, observers=observers).step()
    error = ERRORS[kind]
    sees = "leaves" if error is None else f"sees {type(error).__name__}"
    assert diary.lines == ["began a", sees, "settled a"] or diary.lines == [
        "began a",
        f"enters {kind}",
        sees,
        "settled a",
    ]
    assert diary.errors == [error]
    if verdict is Dead:
        assert isinstance(diary.verdicts[0], Dead)
    else:
        assert diary.verdicts == [verdict]


async def test_what_an_observer_raises_is_logged_and_the_others_see_all(caplog: pytest.LogCaptureFixture) -> None:
    diary = Diary()
    async with Watched() as queue:
        await queue.publish("a", Event("done"))
        with caplog.at_level(logging.ERROR, "harel.worker"):
            assert await AsyncWorker(queue, awaiting, observers=[diary, Broken()]).step()
        assert [record.getMessage() for record in caplog.records] == ["An observer failed; the worker goes on."] * 3
        assert diary.lines == ["began a", "enters done", "leaves", "settled a"]
        assert (await queue.stats()).messages == 0


async def test_a_lost_message_is_seen_as_lost_and_not_as_settled() -> None:
    clock = ManualClock()
    timing, diary = FakeTiming(clock), Diary()

    async def hang(event: Event) -> None:
        await asyncio.Event().wait()

    async with Watched(clock) as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = Running(AsyncWorker(queue, hang, observers=[diary], visibility=30.0), timing)
        await settled()
        clock.advance(31.0)
        assert await queue.claim("other", 1_000.0) is not None
        await timing.advance(10.0)
        await running.stopped()
        assert diary.lines == ["began g0", "enters counted", "lost g0 after 10", "sees CancelledError"]


async def test_a_held_group_is_seen_as_held() -> None:
    diary = Diary()
    async with Watched() as queue:
        await queue.publish("a", Event("again"))
        policy = RetryPolicy(max_attempts=1, on_exhausted="hold")
        assert await AsyncWorker(queue, awaiting, retry=policy, observers=[diary]).step()
        assert isinstance(diary.verdicts[0], Held)
        assert diary.verdicts[0].reason.startswith("Failed once; the last error was ValueError: again")


def test_one_that_is_not_handled_at_all_is_seen_only_as_settled() -> None:
    diary = Diary()
    queue = InMemoryTransport()
    store_raw(queue, "a", '{"kind": 7}')
    assert Worker(queue, handle, observers=[diary]).step()
    assert diary.lines == ["settled a"]


@pytest.mark.parametrize(
    ("kind", "level", "said"),
    [
        ("again", "WARNING", "Handling group 'a', seq 1, attempt 1 failed, and is tried again in 2 s."),
        ("later", "INFO", "Handling group 'a', seq 1, attempt 1 is put off by its handler, for 5 s."),
        ("reject", "WARNING", "Handling group 'a', seq 1, attempt 1 is rejected by its handler: never"),
        ("dead", "ERROR", "Handling group 'a', seq 1, attempt 1 failed, and goes to the dead letters."),
    ],
)
async def test_every_record_carries_the_message_in_fields_of_its_own(
    caplog: pytest.LogCaptureFixture, kind: str, level: str, said: str
) -> None:
    async with Watched() as queue:
        await queue.publish("a", Event(kind))
        with caplog.at_level(logging.DEBUG, "harel.worker"):
            assert await AsyncWorker(queue, awaiting, worker_id="w", retry=POLICY).step()
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (level, said)
    assert bool(record.exc_info) == (kind in ("again", "dead"))
    fields: Any = record
    assert (fields.worker, fields.group, fields.seq, fields.attempt) == ("w", "a", 1, 1)


async def test_a_record_that_is_about_no_message_has_the_fields_too(caplog: pytest.LogCaptureFixture) -> None:
    timing = FakeTiming()
    async with Watched() as queue:
        queue.down = {"claim"}
        with caplog.at_level(logging.DEBUG, "harel.worker"):
            running = Running(AsyncWorker(queue, awaiting, worker_id="w"), timing)
            await settled()
            await running.stopped()
    (record,) = caplog.records
    fields: Any = record
    assert (fields.worker, fields.group, fields.seq, fields.attempt) == ("w", None, None, None)
