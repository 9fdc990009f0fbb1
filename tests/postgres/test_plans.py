"""What an operation reads at 100,000 groups and a million messages, in blocks and never in seconds (promise 10).

Statistics are never gathered, or say that the tables are all but empty; plans were cached when they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from harel.engine.queue.postgres.schema import schema_ddl
from harel.engine.queue.schedule import FRESH
from tests.servers.postgres import drop, postgres_url

GROUPS = 100_000
MESSAGES_A_GROUP = 10
HIGH = 20
"""Groups of priority 3, which came after all others."""

MOST_BLOCKS = 120
"""For one lease or one message: some descents of some indexes, four levels deep at most. The tables have thousands."""

TRIES = 3

EVENT = '{"kind":"k","payload":{},"id":"i","headers":{}}'
ANYWHERE = "'-Infinity', '-Infinity'"
HINTED = "1, 2"
HEAD = 2_000_000
"""The first message of the n-th leased group has this and n as its number."""

OPERATIONS = {
    "publish to a group": f"harel_publish('g000077', '{EVENT}', 0::smallint, {FRESH}, NULL)",
    "publish to a new group": f"harel_publish('new ' || clock_timestamp(), '{EVENT}', 0::smallint, {FRESH}, NULL)",
    "publish many": f"harel_publish_many(ARRAY['g000078', 'g090000', 'n'], ARRAY['{EVENT}', '{EVENT}', '{EVENT}'], "
    f"'{{0,0,0}}', {FRESH}, NULL)",
    "claim": f"harel_claim('t', 60, {ANYWHERE}, true, NULL)",
    "claim with a hint": f"harel_claim('t', 60, {HINTED}, true, NULL)",
    "claim with a floor": f"harel_claim_floor_3('t', 60, {ANYWHERE}, true, NULL)",
    "claim with the highest floor": f"harel_claim_floor_4('t', 60, {ANYWHERE}, true, NULL)",
    "claim many": f"harel_claim_many('t', 50, 60, {ANYWHERE}, true, NULL)",
    "claim many with a floor": f"harel_claim_many_floor_3('t', 10, 60, {ANYWHERE}, true, NULL)",
    "ack": f"harel_ack('leased 1', {HEAD} + 1, 1, 't', NULL)",
    "ack of the last message": f"harel_ack('last 1', {HEAD} + 101, 1, 't', NULL)",
    "ack of a lost lease": "harel_ack('g000001', 5, 1, 't', NULL)",
    "ack many": f"harel_ack_many(ARRAY['leased 2', 'last 2', 'leased 3'], ARRAY[{HEAD} + 2, {HEAD} + 102, {HEAD} + 3], "
    "'{1,1,1}', ARRAY['t', 't', 't'], NULL)",
    "nack": f"harel_nack('leased 4', {HEAD} + 4, 1, 't', 5, true, NULL)",
    "extend": f"harel_extend('leased 5', {HEAD} + 5, 1, 't', 60, true, NULL)",
    "extend many": f"harel_extend_many(ARRAY['leased 5', 'last 5'], ARRAY[{HEAD} + 5, {HEAD} + 105], '{{1,1}}', "
    "ARRAY['t', 't'], 60, true, NULL)",
    "reject": f"harel_reject('leased 6', {HEAD} + 6, 1, 't', 'no', NULL)",
    "hold": "harel_hold('leased 7', NULL)",
    "release": "harel_release('held', NULL)",
    "purge": "harel_purge('leased 8', NULL)",
    "redrive": f"harel_redrive(-1, {FRESH}, NULL)",
    "look whether something is ready": "harel_ready(NULL)",
    "peek": "harel_peek('g000500', 10)",
    "dead letters of a group": "harel_dead_letters('d', 10, -40)",
}
LEASES_OF = {"publish many": 3, "claim many": 50, "claim many with a floor": 10, "ack many": 3, "extend many": 2}

A_LITTLE = f"""
ALTER TABLE {{schema}}.transport_groups SET (autovacuum_enabled = off);
ALTER TABLE {{schema}}.transport_names SET (autovacuum_enabled = off);
ALTER TABLE {{schema}}.transport_messages SET (autovacuum_enabled = off);
SELECT {{schema}}.harel_publish('g', '{EVENT}', 4::smallint, {FRESH}, NULL);
"""

FILL = f"""
INSERT INTO {{schema}}.transport_groups
    (group_id, locked_by, lock_expiry, priority, attempts, since, arrival, head, settled, dead)
SELECT 'g' || lpad(n::text, 6, '0'), NULL::text, 1e9 + n - CASE n % 2 WHEN 0 THEN {FRESH} ELSE 0 END, n % 3, 0, 0, n,
    NULL::bigint, 0, n % 50
FROM generate_series(1, {GROUPS}) AS n
UNION ALL
SELECT 'high ' || n, NULL, 1.1e9 + n, 3, 0, 0, 1000000 + n, NULL, 0, 50 FROM generate_series(1, {HIGH}) AS n
UNION ALL
SELECT kind || n, 't', 7e9, 0, 1, 0, 2000000 + n, {HEAD} + n + CASE kind WHEN 'last ' THEN 100 ELSE 0 END, 0, 0
FROM generate_series(1, 9) AS n, unnest(ARRAY['leased ', 'last ']) AS kind
UNION ALL
SELECT 'held', NULL, 1e9 + 17179869184, 0, 0, 0, 3000000, NULL, 0, 0;
INSERT INTO {{schema}}.transport_names SELECT group_id FROM {{schema}}.transport_groups WHERE group_id <> 'g';
INSERT INTO {{schema}}.transport_messages (group_id, event)
SELECT 'g' || lpad(n::text, 6, '0'), '{EVENT}'
FROM generate_series(1, {MESSAGES_A_GROUP}), generate_series(1, {GROUPS}) AS n;
INSERT INTO {{schema}}.transport_messages (group_id, event)
SELECT 'high ' || n, '{EVENT}' FROM generate_series(1, {HIGH}) AS n;
INSERT INTO {{schema}}.transport_messages (seq, group_id, event)
SELECT g.head + later, g.group_id, '{EVENT}' FROM {{schema}}.transport_groups AS g, unnest(ARRAY[0, 50000]) AS later
WHERE g.head IS NOT NULL AND (later = 0 OR g.group_id LIKE 'leased%');
INSERT INTO {{schema}}.transport_messages (group_id, event) VALUES ('held', '{EVENT}');
INSERT INTO {{schema}}.transport_dead_letters SELECT -n, 'd', '{EVENT}', 1, 0, 'no', 0 FROM generate_series(1, 50) AS n;
"""


@dataclass
class Table:
    """A filled schema, a session whose plans are older than what is in it, and one that is new."""

    schema: str
    sessions: dict[str, psycopg.Connection[Any]]

    def cost(self, session: str, operation: str) -> tuple[int, int]:
        """Carry out an operation and take it back; say how many blocks it read and how many tables it scanned.

        What others do on the server meanwhile can only add to that, for instance by having caches filled anew: so the
        least of some tries counts.
        """
        connection = self.sessions[session]
        call = f'SELECT * FROM "{self.schema}".{OPERATIONS[operation]}'
        with connection.transaction(force_rollback=True):
            done = connection.execute(call.encode()).fetchall()  # which fills the session's caches
            assert any(row[0] not in (False, None, 0) for row in done) is (operation != "ack of a lost lease"), done
        return min(self._cost(connection, call) for _ in range(TRIES))

    def _cost(self, connection: psycopg.Connection[Any], call: str) -> tuple[int, int]:
        with connection.transaction(force_rollback=True):
            ((before,),) = connection.execute(self._scans()).fetchall()
            (([explained],),) = connection.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}".encode()
            ).fetchall()
            ((after,),) = connection.execute(self._scans()).fetchall()
        plan = explained["Plan"]
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], after - before

    def _scans(self) -> bytes:
        tables = ("transport_groups", "transport_names", "transport_messages", "transport_dead_letters")
        scans = (f"pg_stat_get_xact_numscans('\"{self.schema}\".{table}'::regclass)" for table in tables)
        return f"SELECT {' + '.join(scans)}".encode()


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    url, schema = postgres_url(), f"t{uuid4().hex[:12]}"
    old = psycopg.connect(url, autocommit=True)
    old.execute(schema_ddl(schema).encode(), prepare=False)
    old.execute(A_LITTLE.replace("{schema}", f'"{schema}"').encode(), prepare=False)
    tables = ", ".join(f'"{schema}".transport_{table}' for table in ("groups", "names", "messages"))
    old.execute(f"VACUUM ANALYZE {tables}".encode())
    for operation in list(OPERATIONS.values()) * 7:
        with old.transaction(force_rollback=True):
            old.execute(f'SELECT * FROM "{schema}".{operation}'.encode())
    old.execute(FILL.replace("{schema}", f'"{schema}"').encode(), prepare=False)
    new = psycopg.connect(url, autocommit=True)
    yield Table(schema, {"with plans from when there was little": old, "new": new})
    old.close()
    new.close()
    drop(url, schema)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("session", ["with plans from when there was little", "new"])
def test_an_operation_reads_a_bounded_number_of_blocks_promise_10(table: Table, session: str, operation: str) -> None:
    blocks, scans = table.cost(session, operation)
    assert scans == 0
    assert blocks <= MOST_BLOCKS * LEASES_OF.get(operation, 1)
