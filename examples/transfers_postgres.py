"""Money moves between accounts, each transfer exactly once, whoever is killed in the middle.

    python examples/transfers_postgres.py publish postgresql://localhost/bank    # accounts, and transfers to be made
    python examples/transfers_postgres.py work postgresql://localhost/bank       # makes them; any number of these
    python examples/transfers_postgres.py show postgresql://localhost/bank

The URL may also be in HAREL_EXAMPLE_URL. A worker handles a message in a transaction (``transactional=True``): what the
handler writes and the message's settlement commit together, or neither does. Its group is the account that pays, so an
account's transfers are made one by one and in order.
"""

from __future__ import annotations

import os
import sys

import msgspec

import harel

ACCOUNTS = ("anna", "bela", "cleo", "dora")
TABLES = (
    "CREATE TABLE IF NOT EXISTS accounts (name text PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS transfers (id text NOT NULL, payer text, payee text, amount bigint)",
)

router = harel.Router()


class Transfer(msgspec.Struct):
    """The payload of an event."""

    id: str
    payer: str
    payee: str
    amount: int


@router.on("transfer")
def transfer(order: Transfer, context: harel.Context) -> None:
    """Make one transfer, on the connection whose transaction settles the message too."""
    bank = context.connection
    values = msgspec.structs.asdict(order)
    bank.execute("INSERT INTO transfers VALUES (%(id)s, %(payer)s, %(payee)s, %(amount)s)", values)
    # Both in the same order everywhere, so that two transfers never wait for each other.
    bank.execute("SELECT 1 FROM accounts WHERE name IN (%(payer)s, %(payee)s) ORDER BY name FOR UPDATE", values)
    bank.execute("UPDATE accounts SET balance = balance - %(amount)s WHERE name = %(payer)s", values)
    bank.execute("UPDATE accounts SET balance = balance + %(amount)s WHERE name = %(payee)s", values)


def publish(queue: harel.Transport, count: int = 100) -> None:
    """Open the accounts and order the transfers, all of it in one transaction too."""
    with queue.transaction() as bank:
        for table in TABLES:
            bank.execute(table)
        for name in ACCOUNTS:
            bank.execute("INSERT INTO accounts VALUES (%s, 1000) ON CONFLICT DO NOTHING", (name,))
        orders = queue.bind(bank)
        for n in range(count):
            payer, payee = ACCOUNTS[n % 4], ACCOUNTS[(n + 1 + n % 3) % 4]
            payload = {"id": f"transfer-{n}", "payer": payer, "payee": payee, "amount": n % 17 + 1}
            orders.publish(payer, harel.Event("transfer", payload))


def show(queue: harel.Transport) -> None:
    """Print the accounts; the sum is always the same."""
    with queue.transaction() as bank:
        balances = bank.execute("SELECT name, balance FROM accounts ORDER BY name").fetchall()
        (made,) = bank.execute("SELECT count(*) FROM transfers").fetchone()
    for name, balance in balances:
        print(f"{name} {balance:6}")
    print(f"sum  {sum(balance for _, balance in balances):6} after {made} transfers")


def main(command: str, url: str) -> None:
    """Carry out one of the commands."""
    with harel.connect(url) as queue:
        if command == "publish":
            publish(queue)
        elif command == "work":
            # When this one is killed, others have what it held two seconds later.
            harel.Worker(queue, router, transactional=True, concurrency=4, visibility=2.0).run()
        else:
            show(queue)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*[*sys.argv[1:], os.environ.get("HAREL_EXAMPLE_URL", "")][:2])
