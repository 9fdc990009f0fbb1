"""How a request reaches the leader of a cluster, once, within a deadline: without I/O.

A try is one HTTP request. What may help is tried again, at the next address or after a pause: no connection, no answer,
no leader, another leader. That an answer was lost does not matter: a :class:`Change` that is sent again takes effect
once, and is answered as the first time.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import msgspec

from harel.engine.queue.op import Op, Sleep
from harel.engine.queue.rqlite.address import Address, base_of
from harel.engine.queue.sqlite.ops import Read, Values
from harel.errors import ConfigError, HarelError, InvalidArgument, TransportUnavailable

__all__ = ["Answer", "Change", "Cluster", "Post", "ReadLevel", "Unanswered"]

ReadLevel: TypeAlias = Literal["weak", "linearizable"]

OLDEST_RQLITE = (8, 33)
"""The first that puts a literal in place of ``'now'``."""

_SHORTEST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_SHORTEST_TRY_S = 1.0
_MOST_HOPS = 3

_NAMES = re.compile(r"(?<![\w:]):([a-z_]+)")
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_MOVED = (301, 302, 307, 308)
_TOO_LARGE = ("string or blob too big", "too large")


@dataclass(frozen=True, slots=True)
class Change:
    """A request: run these statements as one transaction. The reply is the rows of the answer.

    Attributes
    ----------
    steps : tuple
        Statements with their values. One of them inserts a new id into ``table`` and so breaks, and with it the
        transaction, when the request has happened before.
    answer : tuple or None
        The statement that reads what the steps left, in the same transaction, or later when the first reply was lost.
    table : str
        Where the ids are.
    """

    steps: tuple[tuple[str, Values], ...]
    answer: tuple[str, Values] | None = None
    table: str | None = None


@dataclass(frozen=True, slots=True)
class Post:
    """A request to the driver: one HTTP POST of JSON, not sent again. The reply is an :class:`Answer`."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(repr=False)
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whatever its status. The headers' names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Unanswered(Exception):
    """No whole answer came: the driver says why."""


class _Result(msgspec.Struct):
    error: str | None = None
    values: list[list[Any]] | None = None


class _Reply(msgspec.Struct):
    results: list[_Result] | None = None
    error: str | None = None


class _Again(Exception):
    """A try that failed in a way that another one may not."""

    def __init__(self, base: str, cause: str) -> None:
        super().__init__(cause)
        self.base = base


class _Repeated(Exception):
    """The request has happened before."""


class Cluster:
    """The nodes of one cluster.

    Parameters
    ----------
    address : Address
    timeout_s : float
        Seconds for all the tries of one request.
    read_level : str
        ``"weak"`` or ``"linearizable"``.
    redirect : bool
        Whether a node that does not lead shall say which one does, instead of passing the request on.
    clock : callable or None
        Returns epoch seconds; what ``:now`` stands for.
    now : callable
        A monotonic clock, in seconds.
    """

    def __init__(
        self,
        address: Address,
        *,
        timeout_s: float,
        read_level: ReadLevel,
        redirect: bool,
        clock: Callable[[], float] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._now = now
        self._clock = clock
        self._read_level = read_level
        self._suffix: str = "&redirect" if redirect else ""
        self._headers = {"Content-Type": "application/json"}
        if address.authorization is not None:
            self._headers["Authorization"] = address.authorization
        self._first: str | None = None
        self._versions: set[str] = set()

    def carry(self, request: Change | Read) -> Op[list[list[Any]]]:
        """Carry out a request and return its rows."""
        deadline = self._now() + self._timeout_s
        told = {} if self._clock is None else {"now": self._clock()}
        if isinstance(request, Read):
            values = {**request.values, **told}
            return (yield from self._query((request.statement, values), self._read_level, deadline))
        steps = tuple((statement, {**values, **told}) for statement, values in request.steps)
        statements = steps if request.answer is None else (*steps, request.answer)
        try:
            results = yield from self._ask("/db/request?transaction", statements, deadline, request.table)
        except _Repeated:
            # Only what went through Raft is sure to be there, and a leader that has lost its office may not know.
            assert request.answer is not None
            return (yield from self._query(request.answer, "linearizable", deadline))
        return results[-1].values or []

    def _query(self, statement: tuple[str, Values], level: ReadLevel, deadline: float) -> Op[list[list[Any]]]:
        results = yield from self._ask(f"/db/query?level={level}", (statement,), deadline, None)
        return results[-1].values or []

    def _ask(
        self, path: str, statements: tuple[tuple[str, Values], ...], deadline: float, table: str | None
    ) -> Op[list[_Result]]:
        """Try until there is an answer that another try would not change."""
        body = msgspec.json.encode([_with_values(*statement) for statement in statements])
        causes: dict[str, _Again] = {}
        for base, pause_s in self._turns():
            left = deadline - self._now()
            if pause_s and left > 0.0:
                yield Sleep(min(pause_s, left))
            try:
                results = yield from self._try(base, f"{path}{self._suffix}", body, deadline, table)
            except _Again as failed:
                self._first = None
                causes.pop(failed.base, None)
                causes[failed.base] = failed
                if deadline - self._now() <= 0.0:
                    raise self._unavailable(causes) from failed.__cause__
                continue
            if len(results) != len(statements):
                raise HarelError(f"rqlite answered {len(results)} of {len(statements)} statements.")
            return results
        raise AssertionError("the turns never end")

    def _turns(self) -> Iterator[tuple[str, float]]:
        """Say whom to ask, for ever, and after what pause: who answered last comes first, then all in their order."""
        if self._first is not None:
            yield self._first, 0.0
        pause_s = 0.0
        while True:
            first, *others = self._address.bases
            yield first, pause_s * random.uniform(0.5, 1.0)  # so that those who wait for a leader do not keep step
            for base in others:
                yield base, 0.0
            pause_s = min(max(2 * pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)

    def _try(self, base: str, path: str, body: bytes, deadline: float, table: str | None) -> Op[list[_Result]]:
        """Ask one node, and the one that it names as the leader."""
        for _ in range(_MOST_HOPS):
            left = max(deadline - self._now(), 0.0)
            # A node that takes a request and says nothing may be cut off from the others: half the time is theirs.
            timeout_s = min(left, max(left / 2, _SHORTEST_TRY_S))
            try:
                answer = yield Post(f"{base}{path}", body, self._headers, timeout_s)
            except Unanswered as error:
                raise _Again(base, str(error)) from error.__cause__
            self._check_version(answer, base)
            if answer.status not in _MOVED:
                results = self._results_of(answer, base, table)
                self._first = base
                return results
            location = answer.headers.get("location", "")
            leader = base_of(location, base)
            if leader is None:
                raise _Again(base, "it names a leader at no address of that kind")
            base = leader
        raise _Again(base, "the nodes name one another as the leader")

    def _check_version(self, answer: Answer, base: str) -> None:
        """See that a node is new enough, once for each version that the nodes have."""
        version = answer.headers.get("x-rqlite-version", "")
        if version in self._versions:
            return
        number = _VERSION.match(version)  # a build of one's own has none
        if number is not None and (int(number[1]), int(number[2])) < OLDEST_RQLITE:
            raise ConfigError(
                f"rqlite at {_place(base)} is {version}; harel needs 8.33 or later, where all nodes store one time."
            )
        self._versions.add(version)

    def _results_of(self, answer: Answer, base: str, table: str | None) -> list[_Result]:
        if answer.status != 200:
            raise self._refusal(answer, base)
        try:
            reply = msgspec.json.decode(answer.body, type=_Reply)
        except msgspec.MsgspecError as error:
            raise _Again(base, "it answers, but not as rqlite does") from error
        if reply.error:
            raise _Again(base, reply.error)
        results = reply.results or []
        for result in results:
            if result.error:
                raise _statement_error(result.error, table)
        return results

    def _refusal(self, answer: Answer, base: str) -> Exception:
        status, text = answer.status, answer.body[:200].decode(errors="replace").strip()
        if status in (401, 403):
            who = "nobody in particular" if self._address.user is None else f"the user {self._address.user!r}"
            return ConfigError(f"rqlite at {_place(base)} does not let {who} query and execute; look at the URL.")
        if status in (404, 405):
            return ConfigError(f"What is at {_place(base)} has no /db/request: it is no rqlite, or too old a one.")
        if status == 413:
            return InvalidArgument("The request is too large for rqlite; publish fewer or smaller events at once.")
        if status in (408, 425, 429) or status >= 500:
            return _Again(base, f"{status} {text}".strip())
        return HarelError(f"rqlite at {_place(base)} refused a request: {status} {text}.")

    def _unavailable(self, causes: Mapping[str, _Again]) -> TransportUnavailable:
        why = "; ".join(f"{_place(base)}: {cause}" for base, cause in causes.items())
        return TransportUnavailable(f"{self._address} gave no answer within {self._timeout_s:g} s ({why}).")


def _statement_error(error: str, table: str | None) -> Exception:
    if table is not None and error.endswith(f"UNIQUE constraint failed: {table}.id"):
        return _Repeated()
    if "_told_alike" in error:
        return ConfigError(
            "This rqlite leaves 'now' to each node, so that they would differ; harel needs 8.33 or later, with its "
            "rewriting of time functions."
        )
    if any(text in error for text in _TOO_LARGE):
        return InvalidArgument(f"rqlite takes no value this large ({error}); publish fewer or smaller events at once.")
    if "disk is full" in error:
        return TransportUnavailable(f"rqlite cannot write just now: {error}.")
    return HarelError(f"rqlite refused a statement: {error}.")


def _with_values(statement: str, values: Values) -> list[Any]:
    """Give a statement those of the values that it names, for rqlite refuses others."""
    names = _names_in(statement)
    return [statement, {name: values[name] for name in names}] if names else [statement]


@lru_cache(maxsize=1_000)
def _names_in(statement: str) -> frozenset[str]:
    return frozenset(_NAMES.findall(statement))


def _place(base: str) -> str:
    return base.partition("://")[2]
