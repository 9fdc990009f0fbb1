"""What claims show about the groups that they left waiting, and about those that they took: promises 4, 6, 7 and 8."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from harel.engine.queue.contract import HIGHEST_PRIORITY
from harel.testing.check_group import Finding, Group, Terms
from harel.testing.check_lives import Lives
from harel.testing.check_turns import Turn, Turns
from harel.testing.history_record import Operation

__all__ = ["turn_rules"]


def turn_rules(history: Iterable[Operation], groups: Mapping[str, Group], terms: Terms) -> Iterator[Finding]:
    """Yield what breaks promises 4, 6, 7 and 8."""
    known: dict[str, Turns] = {}
    if terms.fair or terms.finds_all or terms.late_settle:
        known = {group_id: Turns(group, terms) for group_id, group in groups.items()}
    if terms.late_settle:
        for turns in known.values():
            for denied, claim in turns.wrongly_denied():
                yield 6, claim.group_id, _denied(denied, claim, terms), (claim, denied)
    for group_id, group in groups.items():
        if any(claim.min_priority for claim in group.claims):
            yield from _below_the_floor(group, known[group_id].lives if known else Lives(group), terms)
    if terms.fair or terms.finds_all:
        waiting = sorted((turn for turns in known.values() for turn in turns.turns()), key=attrgetter("start"))
        least_number = (
            {claim.token: known[claim.group_id].least_number for claim in _got(history)} if terms.fair else {}
        )
        yield from _Line(waiting, least_number, terms).passed_over(_calls(history))


def _got(history: Iterable[Operation]) -> Iterator[Operation]:
    return (operation for operation in history if operation.kind == "claim" and operation.happened)


def _denied(denied: Operation, claim: Operation, terms: Terms) -> str:
    return (
        f"at {terms.at(denied.called)} {denied.process}'s {denied.kind} of seq {claim.seq} was denied, though "
        f"certainly nobody had claimed the group since {claim.process} did at {terms.at(claim.called)}, nor settled "
        "the lease."
    )


def _below_the_floor(group: Group, lives: Lives, terms: Terms) -> Iterator[Finding]:
    for claim in group.claims:
        if claim.min_priority and claim.happened:
            possible = lives.priorities(claim.event_id)
            if possible >> claim.min_priority == 0:
                text = (
                    f"at {terms.at(claim.called)} {claim.process} asked for priority {claim.min_priority} or above and "
                    f"got it, though its priority can only have been {_listed(possible)}."
                )
                yield 8, group.group_id, text, (*group.copies.get(claim.event_id, ()), claim)


def _listed(priorities: int) -> str:
    return " or ".join(str(priority) for priority in range(HIGHEST_PRIORITY + 1) if priorities >> priority & 1)


@dataclass(slots=True)
class _Call:
    """A call of ``claim`` or ``claim_many``."""

    called: float
    returned: float
    limit: int
    floor: int
    claims: list[Operation]
    """What it got; or, if that is nothing, the one that says so."""

    @property
    def got(self) -> int:
        return len(self.claims) if self.claims[0].happened else 0


def _calls(history: Iterable[Operation]) -> list[_Call]:
    """Return the calls that are known to have been carried out, in the order of the history."""
    calls: dict[tuple[str, int], _Call] = {}
    for claim in history:
        if claim.kind == "claim" and claim.returned is not None and not claim.refused:
            key = claim.process, claim.number if claim.batch is None else claim.batch
            call = calls.get(key)
            if call is None:
                calls[key] = _Call(claim.called, claim.returned, claim.limit, claim.min_priority, [claim])
            else:
                call.claims.append(claim)
    return list(calls.values())


class _Line:
    """The groups that wait, as time goes on.

    Parameters
    ----------
    turns : sequence of Turn
        By when they begin.
    least_number : mapping of str to callable
        By a claim's token: what says the smallest number that its group can have had.
    terms : Terms
    """

    def __init__(
        self, turns: Sequence[Turn], least_number: Mapping[str, Callable[[Operation], float]], terms: Terms
    ) -> None:
        self._turns = turns
        self._least_number = least_number
        self._terms = terms
        self._accused: set[tuple[int, int]] = set()

    def passed_over(self, calls: Iterable[_Call]) -> Iterator[Finding]:
        """Yield what breaks a promise in these calls, which come in the order of time."""
        seen = _Waiting(self._turns, self._terms.slack_s)
        expected = _Waiting(self._turns, self._terms.slack_s + self._terms.overlook_s)
        order = _Order(self._turns, self._terms.slack_s + self._terms.overlook_s)
        for call in calls:
            if self._terms.finds_all and call.got < call.limit:
                turn = (expected if call.got else seen).at(call)
                if turn is not None:
                    yield from self._accuse(*self._found_too_few(call, turn))
            if self._terms.fair and call.got:
                for claim in call.claims:
                    least = self._least_number[claim.token](claim)
                    turn = order.first(call) if least > -math.inf else None
                    if turn is not None and turn.number + self._terms.slack_s < least:
                        yield from self._accuse(7, turn, self._before(claim, turn), claim)

    def _accuse(self, promise: int, turn: Turn, text: str, claim: Operation) -> Iterator[Finding]:
        """Yield a finding, once for each time that a group waited."""
        key = promise, id(turn)
        if key not in self._accused:
            self._accused.add(key)
            shown = (turn.freed_by, turn.message, claim)
            operations = tuple({id(o): o for o in shown if o is not None and o.called <= claim.called}.values())
            yield promise, turn.group_id, text, (*(o for o in operations if o is not claim), claim)

    def _found_too_few(self, call: _Call, turn: Turn) -> tuple[int, Turn, str, Operation]:
        claim = call.claims[-1]
        came_back = f"with {call.got} of {call.limit}" if call.got else "empty"
        floor = f" for priority {call.floor} or above" if call.floor else ""
        text = f"at {self._terms.at(call.called)} {claim.process}'s claim{floor} came back {came_back}, though "
        promise = 6 if turn.lapsed else 8 if call.floor else 4
        return promise, turn, text + self._could_be_claimed(turn), claim

    def _before(self, claim: Operation, turn: Turn) -> str:
        return (
            f"at {self._terms.at(claim.called)} {claim.process} got group {claim.group_id!r}, though this one had "
            f"waited longer and {self._could_be_claimed(turn)}"
        )

    def _could_be_claimed(self, turn: Turn) -> str:
        until = f"until {self._terms.at(turn.end)}" if turn.end < math.inf else "to the end"
        seq = f"event {turn.message.event_id}" if turn.message is not None else "a message"
        why = "it had never been served"
        if turn.freed_by is not None:
            why = f"{turn.freed_by.process}'s {turn.freed_by.kind} was over"
            why = f"{turn.freed_by.process}'s lease had run out" if turn.lapsed else why
        return f"it could be claimed from {self._terms.at(turn.start)} {until}: {why}, and {seq} was there."


class _Waiting:
    """Of the groups that can be claimed by a moment, for each floor, the one that certainly can be for longest."""

    def __init__(self, turns: Sequence[Turn], margin_s: float) -> None:
        self._turns = turns
        self._margin_s = margin_s
        self._place = 0
        self._longest: list[Turn | None] = [None] * (HIGHEST_PRIORITY + 1)

    def at(self, call: _Call) -> Turn | None:
        """Return one that can be claimed during the whole of a call, which comes no sooner than the one before."""
        while self._place < len(self._turns) and self._turns[self._place].start + self._margin_s < call.called:
            turn = self._turns[self._place]
            self._place += 1
            for floor in range(turn.lowest + 1):
                longest = self._longest[floor]
                if longest is None or turn.end > longest.end:
                    self._longest[floor] = turn
        longest = self._longest[call.floor]
        return longest if longest is not None and longest.end > call.returned else None


class _Order:
    """The groups that can be claimed by a moment, in the order of their numbers.

    For each floor a tree over all the turns by their numbers; a node holds when the last one below it ends, of those
    that have begun.
    """

    def __init__(self, turns: Sequence[Turn], margin_s: float) -> None:
        self._turns = turns
        self._margin_s = margin_s
        self._place = 0
        self._by_number = sorted(range(len(turns)), key=lambda place: turns[place].number)
        self._ranks = [0] * len(turns)
        for rank, place in enumerate(self._by_number):
            self._ranks[place] = rank
        self._size = 1 << max(0, len(turns) - 1).bit_length()
        self._trees: list[list[float] | None] = [None] * (HIGHEST_PRIORITY + 1)

    def first(self, call: _Call) -> Turn | None:
        """Return the one with the smallest number that can be claimed during the whole of a call."""
        while self._place < len(self._turns) and self._turns[self._place].start + self._margin_s < call.called:
            for floor in range(self._turns[self._place].lowest + 1):
                tree = self._trees[floor]
                if tree is not None:
                    self._enter(tree, self._place)
            self._place += 1
        tree = self._tree(call.floor)
        if tree[1] <= call.returned:
            return None
        node = 1
        while node < self._size:
            node *= 2
            if tree[node] <= call.returned:
                node += 1
        return self._turns[self._by_number[node - self._size]]

    def _tree(self, floor: int) -> list[float]:
        tree = self._trees[floor]
        if tree is None:
            tree = self._trees[floor] = [-math.inf] * (2 * self._size)
            for place in range(self._place):
                if self._turns[place].lowest >= floor:
                    self._enter(tree, place)
        return tree

    def _enter(self, tree: list[float], place: int) -> None:
        end = self._turns[place].end
        node = self._size + self._ranks[place]
        while node and tree[node] < end:
            tree[node] = end
            node //= 2
