"""A stand-in for MongoDB: its wire protocol over :class:`tests.servers.mongo_store.Store`, in a process of its own.

Each command is carried out whole, one after the other; one that would write what an open transaction has written waits
for its end, or for its own ``maxTimeMS``. As a member of a replica set it takes retryable writes: the
same write of a session, sent again, is answered again and not done again. It takes transactions, too, which end when
they are committed, aborted, or too old; not with the connection. A test may have it fail, hang, or drop the
connection before or after commands, by the command ``standIn``, which no real server has.

Run as a program it writes its port, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.objectid import ObjectId

from tests.servers.mongo_store import (
    NO_SUCH_TRANSACTION,
    TRANSIENT,
    Blocked,
    Document,
    Refused,
    Store,
    Transaction,
)

_HEADER = struct.Struct("<iiii")
_REPLY = struct.Struct("<iiii")
_OP_REPLY, _OP_QUERY, _OP_MSG = 1, 2004, 2013
_LARGEST_MESSAGE = 48_000_000
_CHECKSUM_PRESENT, _MORE_TO_COME = 1, 2
_OPTIONS: CodecOptions[Document] = CodecOptions(tz_aware=True)
_WRITES = {"insert", "update", "delete", "findAndModify"}
_ENDS = {"commitTransaction", "abortTransaction"}


@dataclass
class Settings:
    """How the server is.

    Attributes
    ----------
    set_name : str
        Its replica set, empty for a server alone.
    wire_version : int
    locked : bool
        Whether nobody's password is right.
    ahead_s : float
        By how much its clock is ahead.
    transaction_s : float
        How long a transaction may be open.
    """

    set_name: str = "rs0"
    wire_version: int = 21
    locked: bool = False
    ahead_s: float = 0.0
    transaction_s: float = 60.0


@dataclass
class Fault:
    """What is to go wrong: with the commands of this name, after so many, so many times."""

    command: str
    """``any`` is every one but those with which a driver watches the server."""
    how: str
    """``drop_before``, ``drop_after``, ``hang`` (until it is lifted), or ``refuse``."""
    skip: int = 0
    times: int = 1
    code: int = 0
    labels: tuple[str, ...] = ()

    def strikes(self, command: str) -> bool:
        meant = self.command == command or (self.command == "any" and command != "hello")
        if not meant or self.times <= 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Server:
    """What all connections have in common."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Store()
        self.port = 0
        self.faults: list[Fault] = []
        self.hanging: asyncio.Event = asyncio.Event()
        self.hung = 0
        self._election = ObjectId()
        self._answered: dict[bytes, tuple[int, Document]] = {}
        self._transactions: dict[bytes, tuple[int, Transaction]] = {}
        self.store.ended = self._wake
        self.ended = asyncio.Event()
        """Is set when a transaction ends, and then replaced."""
        self.blocked = 0
        """How many commands wait for that."""

    def answer(self, command: Document) -> Document:
        """Carry out a command, or say why not; raise ``Blocked`` if it has to wait."""
        try:
            return self._carry_out(command)
        except Refused as refused:
            return refused.reply()

    def _carry_out(self, command: Document) -> Document:
        name = next(iter(command))
        if name in ("hello", "ismaster", "isMaster"):
            return self._hello()
        if name == "standIn":
            return self._stand_in(command)
        if self.settings.locked:
            raise Refused(18 if name == "saslStart" else 13, "Authentication failed.")
        if "autocommit" in command or name in _ENDS:
            return self._in_transaction(name, command)
        if "txnNumber" in command:
            return self._once(name, command)
        if name == "endSessions":
            for ended in command["endSessions"]:
                self._transaction_ends(bytes(ended["id"]))
        return self.store.run(command)

    def _in_transaction(self, name: str, command: Document) -> Document:
        if not self.settings.set_name:
            raise Refused(20, "Transaction numbers are only allowed on a replica set member or mongos")
        if "txnNumber" not in command or command.get("autocommit") is not False:
            raise Refused(72, "a transaction needs txnNumber, and autocommit=false")
        transaction = self._transaction(name, command)
        if name not in _ENDS:
            return self.store.run(command, transaction)
        if command["$db"] != "admin":
            raise Refused(13, f"{name} may only be run against the admin database.")
        if name == "commitTransaction":
            self.store.commit(transaction)
        elif transaction.state == "open":
            self.store.abort(transaction)
        else:
            known = transaction.state == "committed"
            raise Refused(256 if known else NO_SUCH_TRANSACTION, f"Transaction has been {transaction.state}.")
        return {"ok": 1.0}

    def _transaction(self, name: str, command: Document) -> Transaction:
        """Return the transaction that a command is of; the first one opens it."""
        session, number = bytes(command["lsid"]["id"]), command["txnNumber"]
        known, transaction = self._transactions.get(session, (-1, None))
        if number < max(known, self._answered.get(session, (-1,))[0]):
            raise Refused(225, f"Cannot start transaction {number}: a newer one has been started in this session")
        if not command.get("startTransaction"):
            if transaction is None or number != known:
                raise Refused(
                    NO_SUCH_TRANSACTION,
                    f"Given transaction number {number} does not match any in-progress transactions.",
                    TRANSIENT,
                )
            if "readConcern" in command:
                raise Refused(72, "Only the first command in a transaction may specify a readConcern")
            return transaction
        if name in _ENDS or "writeConcern" in command:
            raise Refused(72, f"{name} cannot start a transaction, or writeConcern is not allowed within it")
        if number == known:
            raise Refused(117, "Only the first command in a transaction may start it")
        self._transaction_ends(session)
        transaction = self.store.begin()
        self._transactions[session] = number, transaction
        asyncio.get_running_loop().call_later(self.settings.transaction_s, self.store.abort, transaction)
        return transaction

    def _transaction_ends(self, session: bytes) -> None:
        if session in self._transactions:
            self.store.abort(self._transactions[session][1])

    def _wake(self) -> None:
        self.ended.set()
        self.ended = asyncio.Event()

    def _once(self, name: str, command: Document) -> Document:
        if not self.settings.set_name or name not in _WRITES:
            raise Refused(20, "Transaction numbers are only allowed on a replica set member or mongos")
        if any(one["limit"] != 1 for one in command.get("deletes", ())):
            raise Refused(72, "Cannot use retryable writes with limit=0")
        session, number = bytes(command["lsid"]["id"]), command["txnNumber"]
        known = self._answered.get(session)
        if number < max(known[0] if known else -1, self._transactions.get(session, (-1,))[0]):
            raise Refused(225, "a newer transaction has been started in this session")
        if known is not None and number == known[0]:
            return known[1]
        reply = self.store.run(command)
        self._answered[session] = (number, reply)
        return reply

    def _hello(self) -> Document:
        address = f"127.0.0.1:{self.port}"
        reply: Document = {
            "helloOk": True,
            "isWritablePrimary": True,
            "ismaster": True,
            "maxBsonObjectSize": 16 * 2**20,
            "maxMessageSizeBytes": _LARGEST_MESSAGE,
            "maxWriteBatchSize": 100_000,
            "localTime": datetime.fromtimestamp(time.time() + self.settings.ahead_s, UTC),
            "logicalSessionTimeoutMinutes": 30,
            "minWireVersion": 0,
            "maxWireVersion": self.settings.wire_version,
            "readOnly": False,
            "ok": 1.0,
        }
        if self.settings.set_name:
            reply |= {
                "setName": self.settings.set_name,
                "setVersion": 1,
                "secondary": False,
                "hosts": [address],
                "primary": address,
                "me": address,
                "electionId": self._election,
            }
        return reply

    def _stand_in(self, command: Document) -> Document:
        what = command["standIn"]
        if what == "fault":
            fields = {name: command[name] for name in ("command", "how", "skip", "times", "code") if name in command}
            self.faults.append(Fault(**fields, labels=tuple(command.get("labels", ()))))
        elif what == "lift":
            self.faults.clear()
            self.hanging.set()
            self.hanging = asyncio.Event()
            self.hung = 0
        elif what == "expire":
            for transaction in list(self.store.open):
                self.store.abort(transaction)
        elif what == "waiting":
            return {"open": len(self.store.open), "blocked": self.blocked, "ok": 1.0}
        elif what == "hung":
            return {"hung": self.hung, "ok": 1.0}
        elif what == "to come":
            return {"times": sum(fault.times for fault in self.faults), "ok": 1.0}
        elif what == "set":
            setattr(self.settings, command["name"], command["value"])
        elif what == "log":
            log = [work.told() for work in self.store.log]
            self.store.log.clear()
            return {"log": json.dumps(log), "ok": 1.0}
        else:
            raise Refused(59, f"no such command: 'standIn: {what}'")
        return {"ok": 1.0}

    def struck(self, command: str) -> Fault | None:
        if command in ("standIn", "ismaster", "isMaster", "endSessions"):
            return None
        return next((fault for fault in self.faults if fault.strikes(command)), None)


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = bytearray()
        self._waiting: asyncio.Task[None] | None = None
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._waiting is None:
            self._go_on()

    def _go_on(self) -> None:
        while len(self._received) >= _HEADER.size:
            length, request, _, operation = _HEADER.unpack_from(self._received)
            if not _HEADER.size <= length <= _LARGEST_MESSAGE:
                self._transport.abort()
                return
            if len(self._received) < length:
                return
            message = bytes(self._received[_HEADER.size : length])
            del self._received[:length]
            command, wrap = _COMMANDS[operation](message)
            if not self._obey(command, partial(self._reply, wrap, request)):
                return

    def _reply(self, wrap: Callable[[bytes], tuple[int, bytes]], request: int, reply: Document) -> None:
        operation, body = wrap(bson.encode(reply))
        self._transport.write(_HEADER.pack(_HEADER.size + len(body), 0, request, operation) + body)

    def _obey(self, command: Document, reply: Callable[[Document], None]) -> bool:
        """Carry out a command; return whether the next one may be."""
        fault = self._server.struck(next(iter(command)))
        if fault is None:
            return self._carry_out(command, reply)
        if fault.how == "refuse":
            reply(Refused(fault.code, "as the test wants it", *fault.labels).reply())
        elif fault.how == "hang":
            self._waiting = asyncio.get_running_loop().create_task(self._hang(command, reply))
            return False
        else:
            if fault.how == "drop_after":
                with suppress(Blocked):
                    self._server.answer(command)
            self._transport.abort()
            return False
        return True

    def _carry_out(self, command: Document, reply: Callable[[Document], None]) -> bool:
        try:
            reply(self._server.answer(command))
        except Blocked:
            self._waiting = asyncio.get_running_loop().create_task(self._wait(command, reply))
            return False
        return True

    async def _wait(self, command: Document, reply: Callable[[Document], None]) -> None:
        """Carry a command out when no transaction is in its way, or say that its time is over."""
        self._server.blocked += 1
        try:
            async with asyncio.timeout(command["maxTimeMS"] / 1_000 if "maxTimeMS" in command else None):
                while True:
                    await self._server.ended.wait()
                    with suppress(Blocked):
                        answer = self._server.answer(command)
                        break
        except TimeoutError:
            answer = Refused(50, "operation exceeded time limit").reply()
        finally:
            self._server.blocked -= 1
        self._waiting = None
        reply(answer)
        self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def _hang(self, command: Document, reply: Callable[[Document], None]) -> None:
        self._server.hung += 1
        await self._server.hanging.wait()
        self._waiting = None
        reply(self._server.answer(command))
        self._go_on()


def _message(message: bytes) -> tuple[Document, Callable[[bytes], tuple[int, bytes]]]:
    """Read an OP_MSG: a command, and lists that belong into it."""
    (flags,) = struct.unpack_from("<I", message)
    if flags & ~_CHECKSUM_PRESENT:
        raise ValueError(f"flags {flags}")
    end = len(message) - 4 * (flags & _CHECKSUM_PRESENT)
    command: Document = {}
    lists: dict[str, list[Document]] = {}
    at = 4
    while at < end:
        kind = message[at]
        (size,) = struct.unpack_from("<i", message, at + 1)
        part = message[at + 1 : at + 1 + size]
        if kind == 0:
            command = bson.decode(part, _OPTIONS)
        else:
            name, _, documents = part[4:].partition(b"\0")
            lists[name.decode()] = bson.decode_all(documents, _OPTIONS)
        at += 1 + size
    return {**command, **lists}, lambda body: (_OP_MSG, b"\0\0\0\0\0" + body)


def _query(message: bytes) -> tuple[Document, Callable[[bytes], tuple[int, bytes]]]:
    """Read an OP_QUERY, with which a driver says hello for the first time."""
    begin = message.index(b"\0", 4) + 1 + 8
    (size,) = struct.unpack_from("<i", message, begin)
    command = bson.decode(message[begin : begin + size], _OPTIONS)
    head = struct.pack("<iqii", 8, Int64(0), 0, 1)
    return command, lambda body: (_OP_REPLY, head + body)


_COMMANDS = {_OP_MSG: _message, _OP_QUERY: _query}


async def serve(settings: Settings) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    server = Server(settings)
    listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    print(server.port, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    listening.close()


if __name__ == "__main__":
    asyncio.run(serve(Settings(**json.loads(sys.argv[1]))))
