"""Orders in one SQLite file: their events in a queue, what became of them in a table, each event applied exactly once.

    python examples/orders_sqlite.py              # in a temporary folder
    python examples/orders_sqlite.py orders.db    # in a file that stays; run it again, and there are more orders

An order's events come one by one and in order, because the order is their group. A handler writes in the transaction
that settles its event (``transactional=True``): both are committed, or neither is and the event comes again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from urllib.parse import quote

import harel

TABLES = (
    "CREATE TABLE IF NOT EXISTS orders (name TEXT PRIMARY KEY, state TEXT NOT NULL, paid INTEGER NOT NULL DEFAULT 0)",
    "CREATE TABLE IF NOT EXISTS history (name TEXT NOT NULL, event TEXT NOT NULL)",
)
NEXT = {"paid": ("placed", "paid"), "shipped": ("paid", "shipped")}


def place(queue: harel.Transport, count: int) -> None:
    """Place orders. An order's row and its events are committed together."""
    with queue.transaction() as database:
        for table in TABLES:
            database.execute(table)
        (placed,) = database.execute("SELECT count(*) FROM orders").fetchone()
        events = queue.bind(database)
        for number in range(placed + 1, placed + count + 1):
            order = f"order-{number}"
            database.execute("INSERT INTO orders (name, state) VALUES (?, 'placed')", (order,))
            events.publish(order, harel.Event("paid", {"amount": 10 * number}))
            events.publish(order, harel.Event("shipped", {"weight": number}))
    print(f"{count} orders placed, {2 * count} events published.")


def handle(event: harel.Event, context: harel.Context) -> None:
    """Apply one event to its order."""
    order, database = context.lease.group_id, context.connection
    before, after = NEXT[event.kind]
    database.execute("INSERT INTO history VALUES (?, ?)", (order, event.kind))
    changed = database.execute(
        "UPDATE orders SET state = ?, paid = paid + ? WHERE name = ? AND state = ?",
        (after, event.payload.get("amount", 0), order, before),
    )
    assert changed.rowcount == 1, "An event came out of its order."
    if event.kind == "shipped" and event.payload["weight"] % 2 == 0 and context.attempt == 1:
        raise harel.RetryLater(0.05)  # the carrier does not answer: all that was written above is undone


def show(queue: harel.Transport) -> None:
    """Print the orders, and how often each had an event applied."""
    with queue.transaction() as database:
        rows = database.execute(
            "SELECT name, state, paid, group_concat(event, ', ') FROM orders JOIN history USING (name) "
            "GROUP BY name ORDER BY paid"
        ).fetchall()
    for name, state, paid, events in rows:
        print(f"{name:10} {state:8} {paid:4}  applied: {events}")


@contextmanager
def file(arguments: list[str]) -> Iterator[str]:
    """Give the path that was named, or one in a temporary folder."""
    if arguments:
        yield arguments[0]
        return
    with TemporaryDirectory() as folder:
        yield f"{folder}/orders.db"


def main(arguments: list[str]) -> None:
    """Place orders, and work until all is done. A worker in another terminal or ten would share the work."""
    with file(arguments) as path, harel.connect(f"sqlite:///{quote(path)}") as queue:
        place(queue, count=4)
        worker = harel.Worker(queue, handle, transactional=True)
        attempts = 0
        while queue.stats().messages:
            if worker.step():
                attempts += 1
            else:
                queue.wait(timeout=1.0)
        print(f"All is done, with {attempts} attempts; what the failed ones wrote was undone.")
        show(queue)


if __name__ == "__main__":
    main(sys.argv[1:])
