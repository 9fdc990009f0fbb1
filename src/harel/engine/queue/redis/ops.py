"""The operations on Redis 6.2 and later, and Valkey, without I/O: what to say, and what the answer means.

Each operation is one Lua script in ``lua/``, which Redis runs whole, and so one round trip.

**Keys.** All begin with ``{prefix}:``, braces included: a hash tag, so that Redis Cluster keeps them on one node.
There are nine, and three for dead letters, and every script declares those that it touches. Groups and messages are
fields of one hash and members of sorted sets, and no group has a key of its own: a claim learns only in its script
which group it leases and could not declare that group's key, and a script that reaches for keys it did not declare
rests on what Redis calls unsupported. So a group's id is never part of a key's name either, and can neither collide
with another key nor move the hash tag. What a list a group would give, its head and tail in O(1), a counter for each
gives; the price is that a purge deletes message by message. ``lua/prelude.lua`` says what each key holds.

**Waking.** What makes something claimable, or moves when it will be, publishes on the channel ``{prefix}:meta``: a
first publish to a group, a settled lease with messages left, a nack, a release. On Redis Cluster that goes to
every node.

**What is durable** depends on the server's settings, and harel cannot see what they lose:

- ``appendonly no``, without snapshots (``save ""``): a restart loses the queue. With snapshots it goes back to the
  last one: what was published since is lost, what was settled since is delivered again.
- ``appendonly yes``, ``appendfsync everysec`` (the usual choice): a crash of the server process loses nothing that was
  answered; a power cut or a kernel crash loses about the last second, publishes and settlements both.
- ``appendonly yes``, ``appendfsync always``: what returned survives a power cut; each operation waits for the disk.
- ``appendfsync no``: as ``everysec``, but the last second is up to the last half minute.
- Replicas copy with a delay. A failover loses what the new primary had not received, whatever the settings
  (``min-replicas-to-write`` bounds for how long a primary that is cut off goes on).

An answered claim that is lost leaves its group claimable, so that the message may be in work twice until the first
holder finds its lease lost. Set ``maxmemory-policy noeviction``: any ``allkeys-`` policy deletes the queue when
memory runs short (no key has a TTL, so the ``volatile-`` policies leave it alone).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from harel.engine.queue.assets import LuaScript, check_identifier, load_lua
from harel.engine.queue.contract import (
    BACKLOG_COUNTED,
    HIGHEST_PRIORITY,
    Capabilities,
    DeadLetter,
    GroupInfo,
    GroupState,
    Lease,
    Packed,
    QueueStats,
    StoredMessage,
)
from harel.engine.queue.op import Op
from harel.engine.queue.schedule import FRESH, HELD, HELD_FROM, LONGEST_S, state_of
from harel.engine.queue.tokens import token_stem, worker_of
from harel.errors import InvalidArgument, SchemaMismatch

__all__ = ["SCHEMA_VERSION", "Hear", "Hush", "Listen", "RedisOps", "Script"]

SCHEMA_VERSION = 1

_PACKAGE = "harel.engine.queue.redis.lua"
_WORDS = {"fresh": repr(FRESH), "held": repr(HELD), "held_from": repr(HELD_FROM)}
_QUEUE = ("meta", "groups", "names", "leased", *(f"ready:{tier}" for tier in range(HIGHEST_PRIORITY + 1)))
_DEAD = ("dead", "dead:seq", "dead:name")
_SCRIPTS = {
    "ack": _QUEUE,
    "claim": _QUEUE,
    "dead_letters": _QUEUE + _DEAD,
    "extend": _QUEUE,
    "groups": _QUEUE,
    "hold": _QUEUE,
    "nack": _QUEUE,
    "peek": _QUEUE,
    "prepare": _QUEUE,
    "publish": _QUEUE,
    "purge": _QUEUE,
    "ready": _QUEUE,
    "redrive": _QUEUE + _DEAD,
    "reject": _QUEUE + _DEAD,
    "release": _QUEUE,
    "stats": _QUEUE + _DEAD,
}
"""The keys that each script declares."""

_MOST_ARGUMENTS = 2**20
"""Redis takes no longer command."""
_MOST_AT_ONCE = (_MOST_ARGUMENTS - 32) // 3
_LEASES_AT_ONCE = 1_000
"""More leases are settled or renewed by several scripts, so that none keeps the server long."""
_GROUPS_AT_ONCE = 1_000
"""How many groups one script looks at to find those in one state."""
_LARGEST_SEQ = 2**53
"""Lua counts no further."""


class Script(msgspec.Struct, frozen=True):
    """A request: run this script. The reply is what it returns, its texts as bytes."""

    script: LuaScript
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]

    def by_hash(self) -> tuple[bytes, ...]:
        """Return the command for a server that has the script."""
        return (b"EVALSHA", self.script.sha, b"%d" % len(self.keys), *self.keys, *self.args)

    def by_text(self) -> tuple[bytes, ...]:
        """Return the command for a server that has it not, or not any more."""
        return (b"EVAL", self.script.text, b"%d" % len(self.keys), *self.keys, *self.args)


class Listen(msgspec.Struct, frozen=True):
    """A request: subscribe to this channel. The reply, an ear, comes when the subscription stands.

    It is ``None`` where there can be no subscription; a wait then rests on its polling.
    """

    channel: bytes


class Hear(msgspec.Struct, frozen=True):
    """A request: pause, or less if the ear hears something or loses its subscription.

    The reply is the number of seconds that went by.
    """

    ear: Any
    seconds: float


class Hush(msgspec.Struct, frozen=True):
    """A request: the ear is not needed any more."""

    ear: Any


class RedisOps:
    """The operations over Redis.

    Parameters
    ----------
    queue : str
        What the queue is called in messages, and what leases are checked against.
    prefix : str
        What the names of the keys begin with.
    clock : callable or None
        Returns epoch seconds; ``None`` is the server's clock.
    fresh_first : bool
        Whether groups that were never served go before those that were.
    poll_interval_s : float
        How often a wait looks, in seconds, whatever it hears.
    """

    def __init__(
        self,
        queue: str,
        prefix: str,
        *,
        clock: Callable[[], float] | None,
        fresh_first: bool,
        poll_interval_s: float,
    ) -> None:
        self.queue = queue
        self.capabilities = Capabilities(max_event_bytes=64 * 2**20, max_visibility_s=LONGEST_S)
        self._clock = clock
        self._ahead = _number(FRESH if fresh_first else 0.0)
        self._poll_interval_s = poll_interval_s
        tag = f"{{{check_identifier('prefix', prefix)}}}"
        self.channel = f"{tag}:meta".encode()
        self._scripts = {
            name: (load_lua(_PACKAGE, name, _WORDS), tuple(f"{tag}:{key}".encode() for key in keys))
            for name, keys in _SCRIPTS.items()
        }

    def prepare(self) -> Op[None]:
        found = int((yield self._script("prepare", b"%d" % SCHEMA_VERSION)))
        if found != SCHEMA_VERSION:
            raise SchemaMismatch(
                f"{self.queue} has version {found} of the layout, and this harel works with version {SCHEMA_VERSION}. "
                "Use a harel as new as the one that made it."
            )

    def publish(self, messages: Sequence[Packed]) -> Op[None]:
        if len(messages) > _MOST_AT_ONCE:
            raise InvalidArgument(
                f"Redis takes at most {_MOST_AT_ONCE:,} messages at once, and these are {len(messages):,}; "
                "publish them in parts."
            )
        args = [self._now(), self._ahead]
        for message in messages:
            args += (message.group_id.encode(), message.raw.encode(), b"%d" % message.priority)
        yield self._script("publish", *args)

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int) -> Op[list[Lease]]:
        stem = token_stem(worker_id)
        reply = yield self._script(
            "claim", self._now(), stem.encode(), _number(visibility), _count(limit), b"%d" % min_priority
        )
        if reply is None:
            return []
        expires_at = float(reply[0])
        leases = []
        for place, (group_id, attempt, stored) in enumerate(_rows(islice(reply, 1, None), 3), 1):
            seq, _, raw = stored.partition(b":")
            leases.append(
                Lease(
                    group_id=group_id.decode(),
                    raw=_text(raw),
                    seq=int(seq),
                    token=f"{stem}{place:012x}",
                    attempt=attempt,
                    expires_at=expires_at,
                    queue=self.queue,
                )
            )
        return leases

    def ack(self, leases: Sequence[Lease]) -> Op[list[bool]]:
        answers: list[bool] = []
        for some in _parts(leases):
            answers += map(bool, (yield self._script("ack", self._now(), *_names_and_tokens(some))))
        return answers

    def nack(self, lease: Lease, delay: float) -> Op[bool]:
        return bool((yield self._script("nack", *self._key(lease), _number(delay))))

    def extend(self, leases: Sequence[Lease], visibility: float) -> Op[list[float | None]]:
        ends: list[float | None] = []
        for some in _parts(leases):
            reply = yield self._script("extend", self._now(), _number(visibility), *_names_and_tokens(some))
            ends += (float(end) if end else None for end in reply)
        return ends

    def reject(self, lease: Lease, reason: str) -> Op[bool]:
        return bool((yield self._script("reject", *self._key(lease), reason.encode())))

    def wait(self, timeout: float) -> Op[bool]:
        """Look, and only if that finds nothing listen, look again (for what came before we listened), and pause."""
        pause = yield from self._seconds_to_claimable()
        if pause <= 0.0 or timeout <= 0.0:
            return pause <= 0.0
        left = timeout
        ear = yield Listen(self.channel)
        try:
            while True:
                pause = yield from self._seconds_to_claimable()
                if pause <= 0.0 or left <= 0.0:
                    return pause <= 0.0
                left -= yield Hear(ear, min(pause, left, self._poll_interval_s))
        finally:
            yield Hush(ear)

    def stats(self) -> Op[QueueStats]:
        *counts, oldest_ready_s = yield self._script("stats", self._now())
        names = QueueStats.__struct_fields__
        return QueueStats(**dict(zip(names, (*counts, float(oldest_ready_s)), strict=True)))

    def groups(self, state: GroupState | None, limit: int, after: str | None) -> Op[list[GroupInfo]]:
        found: list[GroupInfo] = []
        while True:
            most = _GROUPS_AT_ONCE if state is not None else min(limit - len(found), _GROUPS_AT_ONCE)
            now, *values = yield self._script("groups", self._now(), (after or "").encode(), b"%d" % most)
            page = [_group_info(float(now), *row) for row in _rows(values, 7)]
            found += (info for info in page if state in (None, info.state))
            if len(page) < most or len(found) >= limit:
                return found[:limit]
            after = page[-1].group_id

    def peek(self, group_id: str, limit: int) -> Op[list[StoredMessage]]:
        reply = yield self._script("peek", group_id.encode(), _count(limit))
        parts = (stored.partition(b":") for stored in reply)
        return [StoredMessage(seq=int(seq), raw=_text(raw)) for seq, _, raw in parts]

    def hold(self, group_id: str) -> Op[bool]:
        return bool((yield self._script("hold", self._now(), group_id.encode())))

    def release(self, group_id: str) -> Op[bool]:
        return bool((yield self._script("release", self._now(), group_id.encode())))

    def purge(self, group_id: str) -> Op[int]:
        return int((yield self._script("purge", self._now(), group_id.encode())))

    def dead_letters(self, group_id: str | None, limit: int, after: int | None) -> Op[list[DeadLetter]]:
        least = -1 if after is None else min(after, _LARGEST_SEQ)
        reply = yield self._script("dead_letters", (group_id or "").encode(), b"%d" % least, _count(limit))
        return [
            DeadLetter(
                seq=int(seq),
                group_id=group.decode(),
                raw=_text(raw),
                attempts=attempts,
                priority=priority,
                reason=_text(reason),
                rejected_at=float(rejected_at),
            )
            for seq, group, raw, attempts, priority, reason, rejected_at in _rows(reply, 7)
        ]

    def redrive(self, seq: int) -> Op[bool]:
        return bool((yield self._script("redrive", self._now(), self._ahead, b"%d" % seq)))

    def _script(self, name: str, *args: bytes) -> Script:
        script, keys = self._scripts[name]
        return Script(script, keys, args)

    def _now(self) -> bytes:
        """Return what says to a script which time it is: nothing, so that it asks the server, or the injected time."""
        return b"" if self._clock is None else _number(self._clock())

    def _key(self, lease: Lease) -> tuple[bytes, bytes, bytes]:
        return self._now(), lease.group_id.encode(), lease.token.encode()

    def _seconds_to_claimable(self) -> Op[float]:
        reply = yield self._script("ready", self._now())
        return float("inf") if reply is None else float(reply)


def _parts(leases: Sequence[Lease]) -> Iterator[Sequence[Lease]]:
    for start in range(0, len(leases), _LEASES_AT_ONCE):
        yield leases[start : start + _LEASES_AT_ONCE]


def _names_and_tokens(leases: Sequence[Lease]) -> Iterator[bytes]:
    for lease in leases:
        yield lease.group_id.encode()
        yield lease.token.encode()


def _group_info(
    now: float,
    name: bytes,
    number: bytes,
    since: bytes,
    token: bytes,
    attempts: int,
    messages: int,
    priority: int,
) -> GroupInfo:
    at = float(number)
    state = state_of(at, bool(token), now)
    return GroupInfo(
        group_id=name.decode(),
        state=state,
        since=max(float(since), at) if state == "ready" else float(since),
        until=at if state in ("leased", "parked") else None,
        holder=worker_of(token.decode()) if token and state in ("leased", "held") else None,
        attempts=attempts,
        messages=min(messages, BACKLOG_COUNTED),
        priority=priority,
    )


def _rows(values: Any, width: int) -> Iterator[tuple[Any, ...]]:
    """Cut a flat reply into rows."""
    cells = iter(values)
    return zip(*[cells] * width, strict=True)


def _number(value: float) -> bytes:
    return repr(float(value)).encode()


def _count(limit: int) -> bytes:
    return b"%d" % min(limit, 2**31)


def _text(raw: bytes) -> str:
    """Decode what is stored. What is not UTF-8 stays as it is, and fails where the event is read."""
    return raw.decode("utf-8", "surrogateescape")
