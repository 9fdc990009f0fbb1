"""A reply that is lost, at every point of every write: it takes effect once, and the answer is the true one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harel import Event, Message, Transport, TransportUnavailable
from harel.engine.queue.contract import Lease
from harel.testing import ManualClock
from tests.rqlite.conftest import Twin
from tests.servers.rqlite_server import Fault, StandIn

WORST: tuple[Fault, ...] = ("drop before", "drop after", "leadership lost", "drop after, new leader")
OTHERS: tuple[Fault, ...] = ("cut", "no leader", "not leader", "leadership lost, undone", "not rqlite", "new leader")
ALONE: list[tuple[Fault, ...]] = [
    *((fault,) for fault in WORST + OTHERS),
    ("drop after", "drop before", "no leader", "drop after", "cut", "drop after, new leader", "not leader"),
]
TOGETHER = [*ALONE, *itertools.product(WORST, repeat=2)]

Leases = dict[str, Lease]
Act = Callable[[Transport, Leases], object]


def _event(name: str) -> Event:
    return Event(name, {"of": name}, id=f"id-{name}")


def _messages(*names: str) -> list[Message]:
    return [Message(name, _event(name)) for name in names]


def _stage(queue: Transport, clock: ManualClock) -> Leases:
    """Lease two groups with messages behind, one without, and lose one lease; hold, kill, and leave some."""
    queue.publish_many(_messages("lost", "more", "more", "more", "two", "two", "one", "dead", "purged", "purged"))
    queue.publish("high", _event("high"), 3)
    lost = queue.claim("w", 1.0)
    assert lost is not None
    clock.advance(5.0)
    leases = {lease.group_id: lease for lease in queue.claim_many("w", 300.0, 4)}
    assert set(leases) == {"more", "two", "one", "dead"}
    assert queue.reject(leases.pop("dead"), "bad") is True
    assert queue.claim_many("v", 300.0, 3)[2].group_id == "lost"
    queue.publish_many(_messages("held", "held", "new", "newer"))
    queue.hold("held")
    return {**leases, "lost": lost}


def _some(leases: Leases, *names: str) -> list[Lease]:
    return [leases[name] for name in names]


ACTS: dict[str, Act] = {
    "publish": lambda queue, _: queue.publish("more", _event("last")),
    "publish to a new group": lambda queue, _: queue.publish("fresh", _event("first"), 2),
    "publish_many": lambda queue, _: queue.publish_many(_messages("more", "fresh", "fresh")),
    "claim": lambda queue, _: queue.claim("x", 20.0),
    "claim_many": lambda queue, _: queue.claim_many("x", 20.0, 2),
    "claim of nothing": lambda queue, _: queue.claim("x", 20.0, 4),
    "ack": lambda queue, leases: queue.ack(leases["more"]),
    "ack that drains": lambda queue, leases: queue.ack(leases["one"]),
    "ack of a lost lease": lambda queue, leases: queue.ack(leases["lost"]),
    "ack_many": lambda queue, leases: queue.ack_many(_some(leases, "one", "lost", "more", "one")),
    "nack": lambda queue, leases: queue.nack(leases["two"]),
    "nack with a delay": lambda queue, leases: queue.nack(leases["two"], 60.0),
    "extend": lambda queue, leases: (queue.extend(leases["two"], 500.0), leases["two"].expires_at),
    "extend_many": lambda queue, leases: (
        queue.extend_many(_some(leases, "lost", "two", "more"), 500.0),
        [lease.expires_at for lease in leases.values()],
    ),
    "reject": lambda queue, leases: queue.reject(leases["more"], "why"),
    "reject of a lost lease": lambda queue, leases: queue.reject(leases["lost"], "why"),
    "hold": lambda queue, _: queue.hold("new"),
    "hold of no group": lambda queue, _: queue.hold("none"),
    "release": lambda queue, _: queue.release("held"),
    "release of no held group": lambda queue, _: queue.release("new"),
    "purge": lambda queue, _: queue.purge("held"),
    "redrive": lambda queue, _: queue.redrive(queue.dead_letters()[0].seq),
    "redrive of no dead letter": lambda queue, _: queue.redrive(10_000),
}


def _plain(answer: object) -> object:
    """Return an answer without the tokens, which differ each time."""
    if isinstance(answer, Lease):
        return answer.group_id, answer.seq, answer.attempt, answer.expires_at, answer.raw, answer.worker_id
    if isinstance(answer, list | tuple):
        return [_plain(each) for each in answer]
    return answer


def _contents(cluster: StandIn, prefix: str) -> dict[str, list[Any]]:
    return {
        "messages": cluster.rows(f"SELECT * FROM {prefix}_messages ORDER BY seq"),
        "groups": cluster.rows(
            f"SELECT group_id, substr(locked_by, 1, 2), lock_expiry, priority, attempts, since FROM {prefix}_groups "
            "ORDER BY group_id"
        ),
        "dead letters": cluster.rows(f"SELECT * FROM {prefix}_dead_letters ORDER BY seq"),
    }


def _tokens(cluster: StandIn, prefix: str) -> set[str]:
    return {token for (token,) in cluster.rows(f"SELECT locked_by FROM {prefix}_groups WHERE locked_by IS NOT NULL")}


class Scene:
    """A queue in its stage, by a clock that stands."""

    def __init__(self, twin: Twin, cluster: StandIn, prefix: str) -> None:
        clock = ManualClock(tick=0.0)
        self.prefix = prefix
        self.cluster = cluster
        self.queue = twin.open(cluster.url, prefix=prefix, clock=clock)
        self.clock = clock
        self.leases = _stage(self.queue, clock)

    def play(self, act: Act, faults: tuple[Fault, ...]) -> tuple[object, dict[str, list[Any]]]:
        self.cluster.asked.clear()
        self.cluster.fail(*faults)
        answer = act(self.queue, self.leases)
        assert not self.cluster.faults, "the operation ended before all that was to go wrong went wrong"
        if isinstance(answer, Lease):
            assert answer.token in _tokens(self.cluster, self.prefix)
        return _plain(answer), _contents(self.cluster, self.prefix)


@pytest.mark.parametrize("name", ACTS)
def test_whatever_is_lost_an_operation_happens_once_and_its_answer_is_true(twin: Twin, name: str) -> None:
    with StandIn(2) as cluster:
        scenes = (Scene(twin, cluster, f"t{number}") for number in itertools.count())
        expected = next(scenes).play(ACTS[name], ())
        for faults in ALONE if twin.is_async else TOGETHER:
            assert next(scenes).play(ACTS[name], faults) == expected, faults


@pytest.mark.parametrize("name", ACTS)
def test_a_copy_that_arrives_late_changes_nothing(twin: Twin, cluster: StandIn, name: str) -> None:
    """A node took the request, said nothing, and did it when the second try had long been answered."""
    expected = Scene(twin, cluster, "t0").play(ACTS[name], ())
    late = Scene(twin, cluster, "t1")
    assert late.play(ACTS[name], ("late",)) == expected
    ours = len(cluster.late)
    assert ours == 1
    cluster.run_late()
    assert _contents(cluster, "t1") == expected[1]


def test_without_the_id_a_copy_would_be_a_second_message(twin: Twin, cluster: StandIn) -> None:
    """What the tests above rest on: the stand-in does do things twice."""
    scene = Scene(twin, cluster, "t0")
    cluster.fail("late")
    scene.queue.publish("more", _event("last"))
    cluster.rows("DELETE FROM t0_requests")
    before = len(cluster.rows("SELECT * FROM t0_messages"))
    cluster.run_late()
    assert len(cluster.rows("SELECT * FROM t0_messages")) == before + 1


def test_a_claim_whose_lease_was_taken_over_before_its_answer_came_gives_no_lease(twin: Twin, cluster: StandIn) -> None:
    scene = Scene(twin, cluster, "t0")
    other = twin.open(cluster.url, prefix="t0", clock=scene.clock)

    cluster.fail("drop after")
    database = cluster.database
    request, calls = database.request, []

    def interfering(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:  # the second try: meanwhile the lease ran out, and somebody else has it
            database.connection.execute("UPDATE t0_groups SET locked_by = 'v:1' WHERE locked_by LIKE 'x:%'")
        return request(*args, **options)

    database.request = interfering  # type: ignore[method-assign]
    assert scene.queue.claim("x", 20.0) is None
    assert len(calls) == 2
    assert other.stats().leased == scene.queue.stats().leased


def test_an_operation_that_never_got_through_says_so_and_changed_nothing(twin: Twin, cluster: StandIn) -> None:
    scene = Scene(twin, cluster, "t0")
    queue: Any = twin.open(cluster.url, prefix="t0", clock=scene.clock)
    before = _contents(cluster, "t0")
    cluster.leader = None
    queue._cluster._timeout_s = 0.05
    with pytest.raises(TransportUnavailable, match=r"within 0\.05 s"):
        queue.publish("more", _event("last"))
    cluster.leader = 0
    assert _contents(cluster, "t0") == before


def test_with_errors_all_the_time_many_workers_get_every_message_once_and_in_order(cluster: StandIn) -> None:
    """Two of three requests meet something: no message comes twice, none is lost, every answer is true."""
    twin = Twin(is_async=False)
    groups, each, workers = 6, 12, 4
    queue = twin.open(cluster.url, prefix="t0")
    stop = threading.Event()
    plan = itertools.cycle([None, "drop after", "leadership lost", None, "not leader", "new leader", "cut", "late"])

    class Endless:
        def __bool__(self) -> bool:
            return not stop.is_set()

        def popleft(self) -> Any:
            return next(plan)

    cluster.faults = Endless()  # type: ignore[assignment]
    lock = threading.Lock()
    came: dict[str, list[int]] = {}

    def publish(group: int) -> None:
        for number in range(each):
            queue.publish(f"g{group}", Event("k", {"n": number}))

    def work(_worker: int) -> None:
        while sum(map(len, came.values())) < groups * each:
            lease = queue.claim("w", 600.0)
            if lease is None:
                continue
            with lock:
                came.setdefault(lease.group_id, []).append(lease.event.payload["n"])
            assert queue.ack(lease) is True

    with ThreadPoolExecutor(groups + workers) as threads:
        done = [threads.submit(publish, group) for group in range(groups)]
        done += [threads.submit(work, worker) for worker in range(workers)]
        for future in done:
            future.result()
    stop.set()
    cluster.run_late()
    assert came == {f"g{group}": list(range(each)) for group in range(groups)}
    assert queue.stats().groups == queue.stats().messages == 0
    twin.close()


def test_ids_of_requests_do_not_pile_up(twin: Twin, cluster: StandIn) -> None:
    """They are kept for as long as a copy may come, ``timeout`` and a minute, and then go with later requests."""
    clock = ManualClock(tick=0.0)
    queue = twin.open(cluster.url, prefix="t0", clock=clock, timeout=10.0)
    most = 0
    for _ in range(150):
        clock.advance(1.0)
        queue.publish("g", _event("k"))
        most = max(most, cluster.rows("SELECT count(*) FROM t0_requests")[0][0])
    assert most == 71
    clock.advance(1_000.0)
    old = "SELECT count(*) FROM t0_requests WHERE at < (SELECT now_s FROM t0_clock) - 500"
    for left in (69, 67, 65):
        queue.claim("w", 1.0)
        assert cluster.rows(old) == [(left,)]


def test_the_stand_in_ends_a_transaction_as_rqlite_does() -> None:
    """An error of a step undoes it all; a statement that cannot be prepared is passed over, as in rqlite."""
    with StandIn() as cluster:
        database = cluster.database
        database.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        insert = ["INSERT INTO t (id) VALUES (:id)", {"id": 1}]
        results = database.request([insert, insert, ["SELECT 1"]], transaction=True, offset_s=0.0)
        assert results == [{"last_insert_id": 1, "rows_affected": 1}, {"error": "UNIQUE constraint failed: t.id"}]
        assert cluster.rows("SELECT * FROM t") == []
        results = database.request([["INSERT INTO nowhere VALUES (1)"], insert], transaction=True, offset_s=0.0)
        assert "error" in results[0]
        assert cluster.rows("SELECT * FROM t") == [(1,)]
        returning = ["DELETE FROM t WHERE id = :id RETURNING id", {"id": 1}]
        assert database.request([returning], transaction=True, offset_s=0.0) == [
            {"last_insert_id": 1, "rows_affected": 1}
        ]
