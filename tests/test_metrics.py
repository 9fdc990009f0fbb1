"""What workers and queues show to Prometheus."""

from __future__ import annotations

import asyncio
import functools
import logging
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from harel import ConfigError, Event, InvalidArgument, Lease, QueueStats, Reject, RetryLater, Transport, Worker
from harel.engine.aio_transport import AsyncInMemoryTransport
from harel.engine.transport import InMemoryTransport
from harel.engine.worker.policy import Dead, Done, Held
from harel.errors import TransportUnavailable
from harel.metrics import QueueMetrics, WorkerMetrics, serve
from harel.testing import ManualClock


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry(auto_describe=True)


@pytest.fixture
def queue() -> Iterator[InMemoryTransport]:
    with InMemoryTransport() as transport:
        yield transport


watch = functools.partial(QueueMetrics, timeout_s=60.0)


def figure(registry: CollectorRegistry, name: str, queue: str = "orders", **labels: str) -> float | None:
    return registry.get_sample_value(f"harel_{name}", {"queue": queue, **labels})


def figures(registry: CollectorRegistry) -> dict[str, float | None]:
    names = ("handled", "failed", "retried", "dead", "held")
    return {name: figure(registry, f"messages_{name}_total") for name in names}


def lease_of(queue: Transport, group: str = "g") -> Lease:
    queue.publish(group, Event("k"))
    lease = queue.claim("w", 60.0)
    assert lease is not None
    return lease


class TestWorkers:
    """Counted by what a worker tells its observers."""

    def test_what_becomes_of_each_message_is_counted(
        self, registry: CollectorRegistry, queue: InMemoryTransport
    ) -> None:
        def handle(event: Event) -> None:
            if event.kind == "bad":
                raise ValueError("bad")
            if event.kind == "later":
                raise RetryLater(5.0)
            if event.kind == "never":
                raise Reject("never")

        for kind in ("good", "good", "bad", "later", "never"):
            queue.publish(f"{kind}-{queue.stats().messages}", Event(kind))
        worker = Worker(queue, handle, observers=[WorkerMetrics("orders", registry=registry)])
        while worker.step():
            pass
        assert figures(registry) == {"handled": 2, "failed": 2, "retried": 2, "dead": 1, "held": 0}
        assert figure(registry, "handler_seconds_count") == 5
        assert figure(registry, "messages_in_flight") == 0
        assert figure(registry, "leases_lost_total") == 0

    def test_a_group_held_for_a_person_is_counted(self, registry: CollectorRegistry, queue: InMemoryTransport) -> None:
        metrics = WorkerMetrics("orders", registry=registry)
        metrics.settled(lease_of(queue), Held("again and again"), 0.1, ValueError("bad"))
        assert figures(registry) == {"handled": 0, "failed": 1, "retried": 0, "dead": 0, "held": 1}

    def test_in_flight_is_from_the_claim_to_the_settlement(
        self, registry: CollectorRegistry, queue: InMemoryTransport
    ) -> None:
        metrics = WorkerMetrics("orders", registry=registry)
        one, two = lease_of(queue, "a"), lease_of(queue, "b")
        metrics.began(one)
        metrics.began(two)
        assert figure(registry, "messages_in_flight") == 2
        metrics.settled(one, Done(), 0.25, None)
        assert figure(registry, "messages_in_flight") == 1
        metrics.lost(two, 2.0)
        assert figure(registry, "messages_in_flight") == 0
        assert figure(registry, "leases_lost_total") == 1
        assert figure(registry, "handler_seconds_sum") == 2.25
        assert figure(registry, "handler_seconds_bucket", le="0.25") == 1

    def test_a_message_given_up_before_its_handler_does_not_count_as_handled(
        self, registry: CollectorRegistry, queue: InMemoryTransport
    ) -> None:
        WorkerMetrics("orders", registry=registry).settled(lease_of(queue), Dead("worn out"), 0.0, None)
        assert figures(registry) == {"handled": 0, "failed": 0, "retried": 0, "dead": 1, "held": 0}
        assert figure(registry, "messages_in_flight") == 0
        assert figure(registry, "handler_seconds_count") == 0

    def test_a_worker_that_cannot_reach_its_queue_is_not_up(self, registry: CollectorRegistry) -> None:
        metrics = WorkerMetrics("orders", registry=registry)
        assert figure(registry, "worker_up") == 1
        metrics.unreachable(TransportUnavailable("gone"))
        assert figure(registry, "worker_up") == 0
        metrics.reachable()
        assert figure(registry, "worker_up") == 1

    def test_workers_of_several_queues_and_of_one_share_a_registry(
        self, registry: CollectorRegistry, queue: InMemoryTransport
    ) -> None:
        lease = lease_of(queue)
        for name in ("orders", "orders", "payments"):
            WorkerMetrics(name, registry=registry).settled(lease, Done(), 0.0, None)
        assert figure(registry, "messages_handled_total") == 2
        assert figure(registry, "messages_handled_total", "payments") == 1

    def test_no_label_grows_with_what_is_published(self, registry: CollectorRegistry, queue: InMemoryTransport) -> None:
        worker = Worker(queue, lambda event: None, observers=[WorkerMetrics("orders", registry=registry)])
        watch({"orders": queue}, registry=registry)

        def series(rounds: int) -> int:
            for n in range(rounds):
                queue.publish(f"g{n}", Event(f"kind{n}"))
                worker.step()
            return sum(len(family.samples) for family in registry.collect())

        assert series(1) == series(50)


class TestQueues:
    """Asked when they are scraped."""

    def test_the_figures_are_those_of_stats(self, registry: CollectorRegistry) -> None:
        clock = ManualClock()
        queue = InMemoryTransport(clock=clock)
        for name in ("dead", "leased", "parked", "held", "ready", "ready"):
            queue.publish(name, Event("k"))
        dead, _, parked = queue.claim_many("w", 60.0, 3)
        queue.reject(dead, "no")
        queue.nack(parked, 60.0)
        queue.hold("held")
        clock.advance(7.0)
        watch({"orders": queue}, registry=registry)
        assert figure(registry, "queue_messages") == 5
        assert {
            state: figure(registry, "queue_groups", state=state) for state in ("ready", "leased", "parked", "held")
        } == {
            "ready": 1,
            "leased": 1,
            "parked": 1,
            "held": 1,
        }
        assert figure(registry, "queue_dead_letters") == 1
        assert figure(registry, "queue_oldest_ready_seconds") == pytest.approx(7.0, abs=0.1)
        assert figure(registry, "queue_up") == 1

    async def test_an_async_transport_is_asked_on_its_own_loop(self, registry: CollectorRegistry) -> None:
        async with AsyncInMemoryTransport() as queue:
            await queue.publish("g", Event("k"))
            metrics = watch({"orders": queue}, registry=registry)
            assert await asyncio.to_thread(figure, registry, "queue_messages") == 1
            metrics.close()

    def test_a_loop_that_is_closed_is_a_queue_that_is_down(self, registry: CollectorRegistry) -> None:
        async def make() -> None:
            watch({"orders": AsyncInMemoryTransport()}, registry=registry)

        asyncio.run(make())
        assert figure(registry, "queue_up") == 0

    def test_the_queue_is_not_asked_again_while_figures_are_new(self, registry: CollectorRegistry) -> None:
        clock = ManualClock()
        asked: list[float] = []

        class Counted(InMemoryTransport):
            def stats(self) -> QueueStats:
                asked.append(clock())
                return super().stats()

        watch({"orders": Counted()}, registry=registry, cached_s=5.0, clock=clock)
        assert asked == [], "registering asks for names alone"
        for _ in range(3):
            assert figure(registry, "queue_up") == 1
        assert len(asked) == 1
        clock.advance(5.0)
        figure(registry, "queue_up")
        assert len(asked) == 2

    def test_a_queue_that_fails_is_down_and_the_other_figures_are_there(
        self, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = ManualClock()

        class Failing(InMemoryTransport):
            error: Exception | None = None

            def stats(self) -> QueueStats:
                if self.error is not None:
                    raise self.error
                return super().stats()

        failing = Failing()
        watch({"failing": failing, "orders": InMemoryTransport()}, registry=registry, cached_s=1.0, clock=clock)
        with caplog.at_level(logging.WARNING, "harel.metrics"):
            for failing.error in (TransportUnavailable("db:5432 does not answer."), ZeroDivisionError("a bug")):
                clock.advance(1.0)
                assert figure(registry, "queue_up", "failing") == 0
                assert figure(registry, "queue_messages", "failing") is None
                assert figure(registry, "queue_up") == 1
                assert figure(registry, "queue_messages") == 0
        assert [record.getMessage() for record in caplog.records] == [
            "The queue 'failing' gives no figures: db:5432 does not answer."
        ]
        failing.error = None
        clock.advance(1.0)
        assert figure(registry, "queue_up", "failing") == 1

    def test_a_queue_that_hangs_is_down_and_is_not_asked_twice_at_once(self, registry: CollectorRegistry) -> None:
        go = threading.Event()
        asked: list[str] = []

        class Hanging(InMemoryTransport):
            def stats(self) -> QueueStats:
                asked.append("asked")
                go.wait(60)
                return super().stats()

        clock = ManualClock()
        QueueMetrics({"orders": Hanging()}, registry=registry, timeout_s=0.01, cached_s=1000.0, clock=clock)
        assert figure(registry, "queue_up") == 0
        clock.advance(2000.0)
        assert figure(registry, "queue_up") == 0
        assert asked == ["asked"]
        go.set()

    def test_a_queue_without_stats_has_no_figures(self, registry: CollectorRegistry) -> None:
        import msgspec

        class Without(InMemoryTransport):
            @property
            def capabilities(self) -> Any:
                return msgspec.structs.replace(super().capabilities, stats=False)

        watch({"orders": Without()}, registry=registry)
        assert figure(registry, "queue_up") is None
        assert figure(registry, "queue_messages") is None

    def test_closing_takes_them_out(self, registry: CollectorRegistry, queue: InMemoryTransport) -> None:
        metrics = watch({"orders": queue}, registry=registry)
        metrics.close()
        assert figure(registry, "queue_up") is None
        watch({"orders": queue}, registry=registry)


class TestServing:
    """Over HTTP."""

    def test_the_figures_are_served_until_it_is_closed(
        self, registry: CollectorRegistry, queue: InMemoryTransport
    ) -> None:
        WorkerMetrics("orders", registry=registry)
        watch({"orders": queue}, registry=registry)
        with serve(0, registry=registry) as server:
            with urllib.request.urlopen(f"http://{server.host}:{server.port}/metrics", timeout=60) as answer:
                families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
            assert families["harel_messages_handled"].type == "counter"
            assert families["harel_queue_messages"].samples[0].labels == {"queue": "orders"}
        assert server._server.socket.fileno() == -1

    def test_a_port_that_is_taken_is_a_sentence(self, registry: CollectorRegistry) -> None:
        with serve(0, registry=registry) as server, pytest.raises(ConfigError, match=rf"port {server.port}: Address"):
            serve(server.port, registry=registry)

    @pytest.mark.parametrize("port", [-1, 65_536, True, "80"])
    def test_what_is_no_port_is_refused(self, port: Any) -> None:
        with pytest.raises(InvalidArgument, match="port must be from 0 to 65535"):
            serve(port)


def test_without_the_extra_nothing_is_imported_and_using_it_is_a_sentence() -> None:
    program = (
        "import sys\n"
        "sys.modules['prometheus_client'] = None\n"
        "import harel, harel.metrics\n"
        "for use in (harel.metrics.WorkerMetrics, lambda: harel.metrics.serve(0)):\n"
        "    try:\n"
        "        use()\n"
        "    except harel.ConfigError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    sentence = "harel.metrics needs prometheus_client, which is not installed: pip install 'harel[metrics]'."
    assert done.stdout.splitlines() == [sentence, sentence]


def test_importing_it_does_not_load_the_client() -> None:
    program = "import sys, harel, harel.metrics; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
