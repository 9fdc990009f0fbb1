"""The history checker itself: what breaks a promise is caught by its number, and what does not is let be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harel.testing.history import Kind, Operation, Recorder, check, read

FOREVER = 1_000.0


class Story:
    """A history told by hand. Times are seconds; an operation without ``until`` got no answer."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._numbers = count(1)

    def _add(self, kind: Kind, at: float, until: float | None, **known: Any) -> Operation:
        known = {"process": f"{kind}er", "result": None if until is None else 1, "group_id": "g", **known}
        operation = Operation(number=next(self._numbers), kind=kind, called=at, returned=until, **known)
        self.operations.append(operation)
        return operation

    def publish(self, event_id: str, at: float, until: float | None, **known: Any) -> Operation:
        return self._add("publish", at, until, event_id=event_id, **known)

    def claim(self, event_id: str, at: float, until: float, visibility: float = FOREVER, **known: Any) -> Operation:
        seq = known.pop("seq", ord(event_id[0]))
        token = known.pop("token", f"worker:{len(self.operations)}")
        return self._add("claim", at, until, event_id=event_id, seq=seq, token=token, visibility=visibility, **known)

    def cut_claim(self, at: float) -> Operation:
        return self._add("claim", at, None, group_id="", visibility=FOREVER)

    def found_nothing(self, at: float, until: float, **known: Any) -> Operation:
        return self._add("claim", at, until, **{"group_id": "", "result": 0, "visibility": FOREVER, **known})

    def hold(self, at: float, until: float | None, **known: Any) -> Operation:
        return self._add("hold", at, until, **known)

    def release(self, at: float, until: float | None, **known: Any) -> Operation:
        return self._add("release", at, until, **known)

    def settle(self, kind: Kind, claim: Operation, at: float, until: float | None, **known: Any) -> Operation:
        same = {name: getattr(claim, name) for name in ("event_id", "seq", "token")}
        return self._add(kind, at, until, **same, **known)

    def redrive(self, event_id: str, at: float, until: float | None, result: int = 1) -> Operation:
        return self._add("redrive", at, until, seq=ord(event_id[0]), group_id="", result=result)

    def purge(self, at: float, until: float | None, result: int = 1) -> Operation:
        return self._add("purge", at, until, result=result)

    def drained(self, at: float, **left: int) -> Operation:
        return self._add("drained", at, at, left=left, group_id="")

    def broken(self, **terms: Any) -> set[int]:
        return {violation.promise for violation in check(self.operations, **terms)}

    def broken_to_the_last(self, **terms: Any) -> set[int]:
        """Check by all the promises, of a queue that overlooks nothing."""
        return self.broken(**{"fair": True, "late_settle": True, "overlook_s": 0.0, **terms})


def plain(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("b", 2, 3)
    a = story.claim("a", 4, 5)
    story.settle("ack", a, 6, 7)
    b = story.claim("b", 8, 9)
    story.settle("nack", b, 10, 11)
    b = story.claim("b", 12, 13)
    story.settle("reject", b, 14, 15)
    story.drained(16)


def late_ack_before_anyone_else_claims(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3, visibility=1)
    story.settle("ack", a, 100, 101)
    story.drained(102)


def late_ack_that_lost(story: Story) -> None:
    story.publish("a", 0, 1)
    old = story.claim("a", 2, 3, visibility=5)
    new = story.claim("a", 8, 9)
    story.settle("ack", old, 10, 11, result=0)
    story.settle("ack", new, 12, 13)
    story.drained(14)


def ack_that_crosses_the_claim_that_replaces_it(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("b", 0, 1)
    a = story.claim("a", 2, 3, visibility=5)
    story.settle("ack", a, 8, 12)
    b = story.claim("b", 9, 11)
    story.settle("ack", b, 13, 14)
    story.drained(15)


def killed_in_an_ack_that_took_effect(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("b", 2, 3)
    a = story.claim("a", 4, 5)
    story.settle("ack", a, 6, None)
    b = story.claim("b", 8, 9)
    story.settle("ack", b, 10, 11)
    story.drained(12)


def killed_in_an_ack_that_took_no_effect(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 4, 5, visibility=10)
    story.settle("ack", a, 6, None)
    again = story.claim("a", 15, 16)
    story.settle("ack", again, 17, 18)
    story.drained(19)


def killed_in_claims_and_publishes(story: Story) -> None:
    story.publish("a", 0, None)
    story.publish("b", 2, 3)
    story.publish("c", 4, None)
    story.cut_claim(5)
    b = story.claim("b", 6, 7)
    story.settle("ack", b, 8, 9)
    c = story.claim("c", 10, 11)
    story.settle("ack", c, 12, 13)
    story.drained(14)


def publishes_that_overlap_in_either_order(story: Story) -> None:
    story.publish("a", 0, 5)
    story.publish("b", 1, 4)
    for event, at in (("b", 6), ("a", 8)):
        story.settle("ack", story.claim(event, at, at + 0.5), at + 1, at + 1.5)
    story.drained(10)


def extended_and_shortened(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3, visibility=10)
    story.settle("extend", a, 10, 11, visibility=50)
    story.settle("extend", a, 20, 21, visibility=1)
    again = story.claim("a", 21.5, 22)
    story.settle("extend", a, 23, 24, visibility=50, result=0)
    story.settle("ack", again, 25, 26)
    story.drained(27)


def shortened_by_an_extend_without_an_answer(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3, visibility=100)
    story.settle("extend", a, 10, None, visibility=1)
    story.settle("ack", story.claim("a", 12, 13), 14, 15)
    story.drained(16)


def extended_after_it_ran_out(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3, visibility=5)
    story.settle("extend", a, 20, 21, visibility=5)
    story.settle("ack", story.claim("a", 26, 27), 28, 29)
    story.drained(30)


def answers_that_took_longer_than_the_lease(story: Story) -> None:
    story.publish("a", 0, 1)
    old = story.claim("a", 2, 20, visibility=3)
    new = story.claim("a", 6, 7)
    story.settle("ack", new, 8, 9)
    story.settle("ack", old, 21, 22, result=0)
    story.drained(23)


def purged(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("b", 2, 3)
    story.claim("a", 4, 5, visibility=1)
    story.purge(7, 8, result=2)
    story.publish("c", 9, 10)
    story.settle("ack", story.claim("c", 11, 12), 13, 14)
    story.drained(15)


def purged_by_one_that_was_killed(story: Story) -> None:
    story.publish("a", 0, 1)
    story.purge(2, None, result=0)
    story.publish("b", 3, 4)
    story.settle("ack", story.claim("b", 5, 6), 7, 8)
    story.drained(9)


def redriven(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("b", 2, 3)
    story.settle("reject", story.claim("a", 4, 5), 6, 7)
    story.settle("ack", story.claim("b", 8, 9), 10, 11)
    story.redrive("a", 11, 11.5)
    story.settle("ack", story.claim("a", 12, 13, seq=500), 14, 15)
    story.drained(16)


def published_twice_by_a_publisher_that_was_unsure(story: Story) -> None:
    story.publish("a", 0, None)
    story.publish("b", 1, 2)
    story.publish("a", 3, 4)
    for event, seq, at in (("a", 1, 5), ("b", 2, 7), ("a", 3, 9)):
        story.settle("ack", story.claim(event, at, at + 0.5, seq=seq), at + 1, at + 1.5)
    story.drained(20)


def not_drained_yet(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("b", 2, 3)


def published_after_it_was_drained(story: Story) -> None:
    story.drained(0)
    story.publish("a", 1, 2)


@pytest.mark.parametrize(
    "tell",
    [
        plain,
        late_ack_before_anyone_else_claims,
        late_ack_that_lost,
        ack_that_crosses_the_claim_that_replaces_it,
        killed_in_an_ack_that_took_effect,
        killed_in_an_ack_that_took_no_effect,
        killed_in_claims_and_publishes,
        publishes_that_overlap_in_either_order,
        extended_and_shortened,
        shortened_by_an_extend_without_an_answer,
        extended_after_it_ran_out,
        answers_that_took_longer_than_the_lease,
        purged,
        purged_by_one_that_was_killed,
        redriven,
        published_twice_by_a_publisher_that_was_unsure,
        not_drained_yet,
        published_after_it_was_drained,
    ],
    ids=lambda tell: tell.__name__,
)
def test_a_correct_history_is_not_accused(tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    assert check(story.operations) == []
    assert story.broken_to_the_last() == set()


def two_claims_in_one_visibility(story: Story) -> None:
    story.publish("a", 0, 1)
    story.claim("a", 2, 3, visibility=10)
    story.claim("a", 11, 11.5, visibility=10)


def claims_that_overlap_and_both_win(story: Story) -> None:
    story.publish("a", 0, 1)
    story.claim("a", 2, 6, visibility=10)
    story.claim("a", 3, 5, visibility=10)


def a_claim_in_an_extended_lease(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3, visibility=5)
    story.settle("extend", a, 6, 6.5, visibility=20)
    story.claim("a", 20, 21)


def a_claim_of_a_short_life_in_another_lease(story: Story) -> None:
    story.publish("a", 0, 1)
    story.claim("a", 2, 3, visibility=50)
    story.claim("a", 4, 10, visibility=1)


def a_claim_while_an_ack_that_said_no_was_under_way(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3, visibility=50)
    story.settle("ack", a, 4, 9, result=0)
    story.claim("a", 5, 6, visibility=1)


def overtaken(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("b", 2, 3)
    story.settle("ack", story.claim("b", 4, 5), 6, 7)
    story.settle("ack", story.claim("a", 8, 9), 10, 11)
    story.drained(12)


def overtaken_after_a_nack(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("b", 2, 3)
    story.settle("nack", story.claim("a", 4, 5), 6, 7)
    story.settle("ack", story.claim("b", 8, 9), 10, 11)
    story.settle("ack", story.claim("a", 12, 13), 14, 15)


def overtaken_in_its_batch(story: Story) -> None:
    story.publish("a", 0, 1, batch=7)
    story.publish("b", 0, 1, batch=7)
    story.settle("ack", story.claim("b", 4, 5), 6, 7)
    story.settle("ack", story.claim("a", 8, 9), 10, 11)


def overtaken_far_behind(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("b", 2, 3)
    story.publish("c", 4, 5)
    story.settle("ack", story.claim("b", 6, 7), 8, 9)
    story.settle("ack", story.claim("c", 10, 11), 12, 13)
    story.settle("ack", story.claim("a", 14, 15), 16, 17)


def overtaken_by_one_that_got_no_answer(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("b", 2, None)
    story.settle("ack", story.claim("b", 4, 5), 6, 7)
    story.settle("ack", story.claim("a", 8, 9), 10, 11)


def purged_too_late_to_explain_the_order(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("b", 2, 3)
    story.claim("b", 4, 5)
    story.purge(6, 7)


def never_delivered(story: Story) -> None:
    story.publish("a", 0, 1)
    story.drained(2)


def delivered_and_then_forgotten(story: Story) -> None:
    story.publish("a", 0, 1)
    story.settle("nack", story.claim("a", 2, 3), 4, 5)
    story.drained(6)


def purged_before_it_was_published(story: Story) -> None:
    story.purge(0, 1)
    story.publish("a", 2, 3)
    story.drained(6)


def one_of_two_copies(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("a", 2, 3)
    story.settle("ack", story.claim("a", 4, 5), 6, 7)
    story.drained(8)


def delivered_after_an_ack(story: Story) -> None:
    story.publish("a", 0, 1)
    story.settle("ack", story.claim("a", 2, 3), 4, 5)
    story.claim("a", 6, 7)


def left_behind(story: Story) -> None:
    story.publish("a", 0, 1)
    story.drained(2, g=1)


def left_behind_who_knows_where(story: Story) -> None:
    story.publish("a", 0, 1)
    story.drained(2, **{"": 1})


def one_left_behind_and_one_lost(story: Story) -> None:
    story.publish("a", 0, 1)
    story.publish("b", 2, 3)
    story.drained(4, g=1)


def settled_by_a_token_that_was_replaced(kind: Kind) -> Callable[[Story], None]:
    def tell(story: Story) -> None:
        story.publish("a", 0, 1)
        old = story.claim("a", 2, 3, visibility=2)
        story.claim("a", 6, 7)
        story.settle(kind, old, 8, 9, visibility=0.001)

    tell.__name__ = f"{kind}_by_a_token_that_was_replaced"
    return tell


def acked_by_both_holders(story: Story) -> None:
    story.publish("a", 0, 1)
    old = story.claim("a", 2, 3, visibility=2)
    new = story.claim("a", 6, 10)
    story.settle("ack", old, 7, 11)
    story.settle("ack", new, 11, 12)


def acked_twice(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3)
    story.settle("ack", a, 4, 5)
    story.settle("ack", a, 4, 5)


def nacked_and_then_acked(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3)
    story.settle("nack", a, 4, 5)
    story.settle("ack", a, 6, 7)


def extended_after_an_ack(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3)
    story.settle("ack", a, 4, 5)
    story.settle("extend", a, 6, 7, visibility=5)


def redriven_twice(story: Story) -> None:
    story.publish("a", 0, 1)
    story.settle("reject", story.claim("a", 4, 5), 6, 7)
    story.redrive("a", 8, 9)
    story.redrive("a", 8, 10)


def delivered_as_two_messages(story: Story) -> None:
    story.publish("a", 0, 1)
    story.settle("reject", story.claim("a", 4, 5), 6, 7)
    story.redrive("a", 8, 9, result=0)
    story.claim("a", 10, 11, seq=500)


@pytest.mark.parametrize(
    ("promises", "tell"),
    [
        ({1}, two_claims_in_one_visibility),
        ({1}, claims_that_overlap_and_both_win),
        ({1}, a_claim_in_an_extended_lease),
        ({1}, a_claim_of_a_short_life_in_another_lease),
        ({1}, a_claim_while_an_ack_that_said_no_was_under_way),
        ({2}, overtaken),
        ({2}, overtaken_after_a_nack),
        ({2}, overtaken_in_its_batch),
        ({2}, overtaken_far_behind),
        ({2}, overtaken_by_one_that_got_no_answer),
        ({2}, purged_too_late_to_explain_the_order),
        ({3}, never_delivered),
        ({3}, delivered_and_then_forgotten),
        ({3}, purged_before_it_was_published),
        ({3}, one_of_two_copies),
        ({3}, delivered_after_an_ack),
        ({4}, left_behind),
        ({4}, left_behind_who_knows_where),
        ({3, 4}, one_left_behind_and_one_lost),
        ({5}, settled_by_a_token_that_was_replaced("ack")),
        ({5}, settled_by_a_token_that_was_replaced("nack")),
        ({5}, settled_by_a_token_that_was_replaced("reject")),
        ({5}, settled_by_a_token_that_was_replaced("extend")),
        ({5}, acked_by_both_holders),
        ({5}, acked_twice),
        ({5}, nacked_and_then_acked),
        ({5}, extended_after_an_ack),
        ({3}, redriven_twice),
        ({3}, delivered_as_two_messages),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_promise_is_caught_by_its_number(promises: set[int], tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    assert story.broken() == promises


def lease_ran_out(story: Story) -> None:
    story.claim("a", 2, 3, visibility=5, attempt=1)


def acked(story: Story) -> None:
    story.settle("ack", story.claim("a", 2, 3), 4, 5)


def park_ended(story: Story) -> None:
    story.settle("nack", story.claim("a", 2, 3), 4, 5, delay=5)


def released(story: Story) -> None:
    story.hold(2, 3)
    story.release(4, 5)


def hold_of_nothing(story: Story) -> None:
    story.hold(2, 3, result=0)


def nothing(story: Story) -> None:
    pass


def waits(story: Story, freed: Callable[[Story], None], at: float = 20, **known: Any) -> None:
    """Tell of a claim that found nothing, though a message was there from the beginning to the end."""
    story.publish("a", 0, 1, priority=2)
    story.publish("b", 0, 1, priority=2)
    freed(story)
    story.found_nothing(at, at + 1, **known)


FREED = [(6, lease_ran_out), (4, acked), (4, park_ended), (4, released), (4, hold_of_nothing), (4, nothing)]


@pytest.mark.parametrize(("promise", "freed"), FREED)
def test_a_claim_that_found_nothing_though_a_group_could_be_claimed(
    promise: int, freed: Callable[[Story], None]
) -> None:
    story = Story()
    waits(story, freed)
    assert story.broken_to_the_last() == {promise}
    assert story.broken() == set(), "not every backend's claims say so"
    assert story.broken(finds_all=True) == {promise}


@pytest.mark.parametrize(("promise", "freed"), FREED)
def test_and_so_it_is_if_that_shows_in_the_next_claim(promise: int, freed: Callable[[Story], None]) -> None:
    story = Story()
    waits(story, freed)
    story.claim("a" if promise == 6 else "b", 30, 31)
    assert promise in story.broken_to_the_last()


@pytest.mark.parametrize(("floor", "promise"), [(1, 8), (2, 8), (3, None)])
def test_a_claim_with_a_floor_that_found_nothing_at_or_above_it(floor: int, promise: int | None) -> None:
    story = Story()
    waits(story, acked, min_priority=floor)
    assert story.broken_to_the_last() == {promise} - {None}


def test_a_claim_of_fewer_than_it_asked_for_is_one_that_found_nothing_more() -> None:
    story = Story()
    waits(story, acked, result=1, group_id="h", seq=5, event_id="z", token="w:9", limit=2)
    assert story.broken_to_the_last() == {4}
    story.operations[-1] = msgspec.structs.replace(story.operations[-1], limit=1)
    assert story.broken_to_the_last() == set()


def test_a_claim_of_several_counts_them_all() -> None:
    story = Story()
    story.publish("a", 0, 1)
    story.publish("b", 0, 1, group_id="h")
    story.claim("a", 2, 3, limit=2, batch=3)
    story.claim("b", 2, 3, limit=2, batch=3, group_id="h")
    assert story.broken_to_the_last() == set()


def leased(story: Story) -> None:
    story.claim("a", 2, 3)


def lease_that_runs_out_meanwhile(story: Story) -> None:
    story.claim("a", 2, 3, visibility=18.5)


def lease_whose_claim_took_long(story: Story) -> None:
    story.claim("a", 2, 15, visibility=6)


def extended(story: Story) -> None:
    story.settle("extend", story.claim("a", 2, 3, visibility=5), 4, 5, visibility=30)


def extended_perhaps(story: Story) -> None:
    story.settle("extend", story.claim("a", 2, 3, visibility=5), 4, None, visibility=30)


def acked_meanwhile(story: Story) -> None:
    story.settle("ack", story.claim("a", 2, 3), 19, 20.5)


def late_ack_meanwhile(story: Story) -> None:
    story.settle("ack", story.claim("a", 2, 3, visibility=1), 20.5, 22)


def parked(story: Story) -> None:
    story.settle("nack", story.claim("a", 2, 3), 4, 5, delay=15.5)


def parked_perhaps(story: Story) -> None:
    story.settle("nack", story.claim("a", 2, 3, visibility=1), 4, None, delay=50)


def held(story: Story) -> None:
    story.hold(2, 3)


def held_perhaps(story: Story) -> None:
    story.hold(2, None)


def held_and_released_at_once(story: Story) -> None:
    story.hold(2, 10)
    story.release(5, 6)


def released_meanwhile(story: Story) -> None:
    story.hold(2, 3)
    story.release(4, 20.5)


def purged_before(story: Story) -> None:
    story.purge(2, 3)


def purged_perhaps(story: Story) -> None:
    story.purge(2, None)


def claimed_meanwhile(story: Story) -> None:
    story.claim("a", 20.9, 22)


def claimed_by_one_that_was_killed(story: Story) -> None:
    story.cut_claim(2)


def claimed_perhaps_before_the_next_claim(story: Story) -> None:
    story.cut_claim(2)
    story.claim("a", 50, 51, attempt=2)


def claimed_perhaps_after_another_one(story: Story) -> None:
    story.claim("a", 2, 3, visibility=1, attempt=1)
    story.cut_claim(5)
    story.claim("a", 50, 51, attempt=3)


def touched_by_a_token_that_was_replaced(story: Story) -> None:
    old = story.claim("a", 2, 3, visibility=1)
    story.claim("a", 5, 6, visibility=5)
    story.settle("ack", old, 19, 20.1, result=0)


@pytest.mark.parametrize(
    "told",
    [
        leased,
        lease_that_runs_out_meanwhile,
        lease_whose_claim_took_long,
        extended,
        extended_perhaps,
        acked_meanwhile,
        late_ack_meanwhile,
        parked,
        parked_perhaps,
        held,
        held_perhaps,
        held_and_released_at_once,
        released_meanwhile,
        purged_before,
        purged_perhaps,
        claimed_meanwhile,
        claimed_by_one_that_was_killed,
        claimed_perhaps_before_the_next_claim,
        claimed_perhaps_after_another_one,
        touched_by_a_token_that_was_replaced,
    ],
)
def test_a_claim_that_found_nothing_and_may_have_been_right(told: Callable[[Story], None]) -> None:
    story = Story()
    waits(story, told)
    assert story.broken_to_the_last() == set()


def test_a_claim_that_was_published_to_meanwhile_may_have_been_right() -> None:
    story = Story()
    story.publish("a", 0, 3)
    story.found_nothing(2, 4)
    story.settle("ack", story.claim("a", 5, 6), 7, 8)
    story.publish("b", 9, None)
    story.found_nothing(10, 11)
    story.claim("b", 20, 21)
    assert story.broken_to_the_last() == set()


def test_that_no_lost_claim_came_between_shows_in_the_attempts() -> None:
    story = Story()
    story.cut_claim(0)
    waits(story, lease_ran_out)
    story.claim("a", 30, 31, attempt=2)
    assert story.broken_to_the_last() == {6}


def test_a_late_ack_shows_that_nobody_had_claimed_the_group() -> None:
    story = Story()
    story.cut_claim(0)
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3, visibility=1)
    story.found_nothing(10, 11)
    story.settle("ack", a, 12, 13)
    assert story.broken_to_the_last() == {6}


@pytest.mark.parametrize(("slack_s", "broken"), [(0.1, {6}), (0.3, set())])
def test_a_lease_may_run_out_a_little_late_by_another_clock(slack_s: float, broken: set[int]) -> None:
    story = Story()
    waits(story, lease_ran_out, at=8.2)
    assert story.broken_to_the_last(slack_s=slack_s) == broken


@pytest.mark.parametrize("kind", ["ack", "nack", "extend", "reject"])
@pytest.mark.parametrize("visibility", [1, FOREVER])
def test_a_holder_that_was_denied_though_nobody_took_over(kind: Kind, visibility: float) -> None:
    story = Story()
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3, visibility=visibility)
    story.settle(kind, a, 10, 11, result=0)
    assert story.broken(late_settle=True) == {6}
    assert story.broken() == set(), "not every backend lets it"


def a_later_claim(story: Story, a: Operation) -> None:
    story.claim("a", 10.5, 12)


def an_earlier_claim_that_took_as_long(story: Story, a: Operation) -> None:
    story.claim("a", 2.5, 9, visibility=1)


def a_claim_that_was_killed(story: Story, a: Operation) -> None:
    story.cut_claim(5)


def a_settle_without_an_answer(story: Story, a: Operation) -> None:
    story.settle("ack", a, 5, None)


def a_settle_that_succeeded(story: Story, a: Operation) -> None:
    story.settle("nack", a, 9, 10.5)


def a_purge(story: Story, a: Operation) -> None:
    story.purge(5, 6)


def an_argument(story: Story, a: Operation) -> None:
    story.operations[-1] = msgspec.structs.replace(story.operations[-1], refused=True)


@pytest.mark.parametrize(
    "explain",
    [
        a_later_claim,
        an_earlier_claim_that_took_as_long,
        a_claim_that_was_killed,
        a_settle_without_an_answer,
        a_settle_that_succeeded,
        a_purge,
        an_argument,
    ],
)
def test_a_holder_that_was_denied_with_good_reason(explain: Callable[[Story, Operation], None]) -> None:
    story = Story()
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3, visibility=1)
    story.settle("ack", a, 10, 11, result=0)
    explain(story, a)
    assert story.broken_to_the_last() == set()


def two_groups(story: Story) -> None:
    """The group h has been there for longer than g."""
    story.publish("z", 0, 1, group_id="h")
    story.publish("a", 2, 3)
    story.publish("b", 2, 3)


def a_newer_group_first(story: Story) -> None:
    two_groups(story)
    story.claim("a", 4, 5)


def a_served_group_before_one_that_never_was(story: Story) -> None:
    two_groups(story)
    story.settle("nack", story.claim("a", 1.5, 3.5), 5, 6)
    story.claim("a", 7, 8)


def a_group_that_was_freed_later(story: Story) -> None:
    two_groups(story)
    z = story.claim("z", 4, 5, group_id="h")
    a = story.claim("a", 4, 5)
    story.settle("nack", z, 6, 7, group_id="h")
    story.settle("ack", a, 8, 9)
    story.claim("b", 10, 11)


def a_group_whose_lease_ran_out_later(story: Story) -> None:
    two_groups(story)
    story.claim("z", 4, 5, group_id="h", visibility=5)
    story.claim("a", 4, 5, visibility=10)
    story.claim("a", 20, 21)


@pytest.mark.parametrize(
    "tell",
    [
        a_newer_group_first,
        a_served_group_before_one_that_never_was,
        a_group_that_was_freed_later,
        a_group_whose_lease_ran_out_later,
    ],
)
def test_a_group_that_was_claimed_before_one_that_had_waited_longer(tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    story.claim("z", 90, 91, group_id="h")
    assert story.broken_to_the_last() == {7}
    assert story.broken_to_the_last(overlook_s=100) == set()
    assert story.broken_to_the_last(slack_s=30) == set()
    assert story.broken() == set(), "not every backend is fair"


def published_at_the_same_moment(story: Story) -> None:
    story.publish("z", 0, 3, group_id="h")
    story.publish("a", 2, 3)
    story.claim("a", 4, 5)


def claimed_at_the_same_moment(story: Story) -> None:
    two_groups(story)
    story.claim("a", 4, 6)
    story.claim("z", 5, 5.5, group_id="h")


def claimed_together(story: Story) -> None:
    two_groups(story)
    story.claim("a", 4, 6, batch=4, limit=2)
    story.claim("z", 4, 6, batch=4, limit=2, group_id="h")


def never_served_before_served(story: Story) -> None:
    two_groups(story)
    z = story.claim("z", 3.5, 4, group_id="h")
    story.settle("nack", z, 5, 6, group_id="h")
    story.publish("n", 7, 8, group_id="new")
    story.claim("a", 9, 10)
    story.claim("n", 11, 12, group_id="new")


def freed_at_the_same_moment(story: Story) -> None:
    two_groups(story)
    z = story.claim("z", 4, 5, group_id="h")
    a = story.claim("a", 4, 5)
    story.settle("nack", z, 6, 8, group_id="h")
    story.settle("ack", a, 7, 9)
    story.claim("b", 10, 11)


def drained_and_made_anew(story: Story) -> None:
    story.publish("z", 0, 1, group_id="h")
    z = story.claim("z", 2, 3, group_id="h")
    story.publish("a", 2, 3)
    story.settle("nack", z, 4, 5, group_id="h")
    story.settle("ack", story.claim("a", 6, 7), 8, 9)
    story.publish("b", 10, 11)
    story.claim("b", 12, 13)


def served_last_by_the_claim_that_was_called_first(story: Story) -> None:
    story.publish("x", 0, 1)
    second = story.claim("x", 1.5, 6)
    first = story.claim("x", 2, 2.5)
    story.settle("nack", first, 3, 3.5)
    story.settle("ack", second, 7, 8)
    story.publish("b", 10, 11)
    story.publish("z", 10, 11, group_id="h")
    story.claim("b", 12, 13)


@pytest.mark.parametrize(
    "tell",
    [
        served_last_by_the_claim_that_was_called_first,
        published_at_the_same_moment,
        claimed_at_the_same_moment,
        claimed_together,
        never_served_before_served,
        freed_at_the_same_moment,
        drained_and_made_anew,
    ],
)
def test_a_group_that_may_have_been_claimed_in_its_turn(tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    story.claim("z", 90, 91, group_id="h")
    assert story.broken_to_the_last() - {1} == set()


def test_new_groups_take_their_turn_if_they_are_not_put_first() -> None:
    story = Story()
    drained_and_made_anew(story)
    story.claim("z", 90, 91, group_id="h")
    assert story.broken_to_the_last() == set()
    assert story.broken_to_the_last(fresh_first=False) == {7}


def too_low_from_the_beginning(story: Story) -> None:
    story.publish("a", 0, 1, priority=1)


def too_low_though_a_later_publish_is_higher(story: Story) -> None:
    story.publish("a", 0, 1, priority=1)
    story.publish("b", 2, 3, priority=4)


def too_low_since_it_was_drained(story: Story) -> None:
    story.publish("x", 0, 1, priority=4)
    story.settle("ack", story.claim("x", 2, 3), 4, 5)
    story.publish("a", 6, 7, priority=1)


def too_low_after_the_first_message(story: Story) -> None:
    story.publish("x", 0, 1, priority=1)
    story.publish("a", 2, 3, priority=4)
    story.settle("ack", story.claim("x", 4, 5), 6, 7)


@pytest.mark.parametrize(
    "tell",
    [
        too_low_after_the_first_message,
        too_low_from_the_beginning,
        too_low_though_a_later_publish_is_higher,
        too_low_since_it_was_drained,
    ],
)
def test_a_claim_that_got_what_is_below_its_floor(tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    story.claim("a", 8, 9, min_priority=2)
    assert story.broken() == {8}


def high_enough(story: Story) -> None:
    story.publish("a", 0, 1, priority=2)
    story.publish("b", 2, 3)


def high_enough_if_the_other_publish_was_first(story: Story) -> None:
    story.publish("a", 0, 1, priority=1)
    story.publish("b", 0.5, 2, priority=4)


def high_enough_if_a_killed_publisher_was_first(story: Story) -> None:
    story.publish("x", 0, None, priority=4)
    story.publish("a", 1, 2, priority=1)


def high_enough_if_it_was_drained_meanwhile(story: Story) -> None:
    story.publish("x", 0, 1, priority=1)
    story.settle("ack", story.claim("x", 2, 3), 4, None)
    story.publish("a", 5, 6, priority=4)


def high_enough_if_it_was_not_drained_yet(story: Story) -> None:
    story.publish("x", 0, 1, priority=4)
    story.settle("ack", story.claim("x", 2, 3), 4, 5.5)
    story.publish("a", 5, 6, priority=1)


def high_enough_as_a_hold_kept_it(story: Story) -> None:
    story.publish("x", 0, 1, priority=4)
    x = story.claim("x", 2, 3)
    story.hold(3, 3.5)
    story.settle("ack", x, 4, 5)
    story.publish("a", 6, 7, priority=1)
    story.release(7.1, 7.5)


def high_enough_if_a_publish_kept_it_that_was_going_on(story: Story) -> None:
    story.publish("x", 0, 10, priority=4)
    story.settle("ack", story.claim("x", 2, 3), 4, 5)
    story.publish("a", 6, 7, priority=1)


@pytest.mark.parametrize(
    "tell",
    [
        high_enough_if_a_publish_kept_it_that_was_going_on,
        high_enough,
        high_enough_if_the_other_publish_was_first,
        high_enough_if_a_killed_publisher_was_first,
        high_enough_if_it_was_drained_meanwhile,
        high_enough_if_it_was_not_drained_yet,
        high_enough_as_a_hold_kept_it,
    ],
)
def test_a_claim_that_got_what_may_reach_its_floor(tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    story.claim("a", 8, 9, min_priority=2)
    assert story.broken_to_the_last() == set()


def a_lease_is_taken_over(story: Story) -> None:
    story.publish("a", 0, 1)
    story.claim("a", 2, 3)
    story.claim("a", 9, 9.5)


def the_holder_is_denied(story: Story) -> None:
    story.publish("a", 0, 1)
    story.settle("ack", story.claim("a", 2, 3), 9, 10, result=0)


def a_forgotten_nack_is_followed_by_an_ack(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3)
    story.settle("nack", a, 4, 5)
    story.settle("ack", a, 9, 10)


def a_forgotten_claim_had_replaced_a_token(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3, visibility=0.5)
    story.claim("a", 4, 5)
    story.settle("ack", a, 9, 10)


FORGOTTEN = [
    (1, a_lease_is_taken_over),
    (6, the_holder_is_denied),
    (5, a_forgotten_nack_is_followed_by_an_ack),
    (5, a_forgotten_claim_had_replaced_a_token),
]


@pytest.mark.parametrize(("promise", "tell"), FORGOTTEN)
def test_a_restart_explains_what_was_forgotten(promise: int, tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    assert story.broken_to_the_last(restarts=[(6, 8)]) == set()
    assert story.broken_to_the_last(restarts=[(0, 1.5)]) == {promise}, "it was over before"
    assert story.broken_to_the_last(restarts=[(20, 21)]) == {promise}, "it had not come yet"
    assert story.broken_to_the_last(restarts=[(7, 8), (6, 7.5), (30, 40)]) == set()


def test_what_was_called_while_the_server_was_down_may_be_forgotten() -> None:
    story = Story()
    story.publish("a", 0, 1)
    story.claim("a", 6.5, 6.8)
    story.claim("a", 9, 9.5)
    assert story.broken() == {1}
    assert story.broken(restarts=[(6, 8)]) == set()


def test_a_restart_may_also_have_forgotten_the_attempts() -> None:
    story = Story()
    story.cut_claim(0)
    waits(story, nothing)
    story.claim("a", 30, 31, attempt=1)
    assert story.broken_to_the_last() == {4}
    assert story.broken_to_the_last(restarts=[(25, 26)]) == set()


def a_lease_that_was_extended_after_it(story: Story) -> None:
    story.publish("a", 0, 1)
    a = story.claim("a", 2, 3)
    story.settle("extend", a, 9, 9.2, visibility=FOREVER)
    story.claim("a", 10, 11)


def an_ack(story: Story) -> None:
    story.publish("a", 0, 1)
    story.settle("ack", story.claim("a", 2, 3), 4, 5)
    story.claim("a", 10, 11)


def a_message_that_is_gone(story: Story) -> None:
    story.publish("a", 0, 1)
    story.drained(20)


@pytest.mark.parametrize(
    ("promise", "tell"), [(1, a_lease_that_was_extended_after_it), (3, an_ack), (3, a_message_that_is_gone)]
)
def test_a_restart_explains_nothing_else(promise: int, tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    assert story.broken(restarts=[(6, 8)]) == {promise}


def test_a_nack_that_a_restart_may_have_undone_leaves_the_lease_that_it_ended() -> None:
    def given_back(story: Story) -> None:
        story.settle("nack", story.claim("a", 2, 3, visibility=30), 4, 5)

    story = Story()
    waits(story, given_back)
    assert story.broken_to_the_last() == {4}
    assert story.broken_to_the_last(restarts=[(10, 11)]) == set()


def test_a_group_that_waits_through_a_restart_is_claimable_before_and_after() -> None:
    for at, broken in ((5, {4}), (9, set()), (20, {4})):
        story = Story()
        waits(story, nothing, at=at)
        assert story.broken_to_the_last(restarts=[(9.5, 11)]) == broken


def test_only_the_first_violations_of_a_promise_are_shown_and_the_others_counted() -> None:
    story = Story()
    for at in range(10, 200, 10):
        story.publish(f"e{at}", at, at + 1, group_id=f"g{at}")
    story.drained(1_000)
    shown = check(story.operations, most=3)
    assert [violation.operations[0].event_id for violation in shown] == ["e10", "e20", "e30"]
    assert [violation.more for violation in shown] == [0, 0, 16]
    assert str(shown[-1]).endswith("\n    ... and promise 3 is broken 16 more times.")


def test_groups_are_checked_apart() -> None:
    story = Story()
    for group_id in ("g", "h"):
        story.publish("a", 0, 1, group_id=group_id)
        story.claim("a", 2, 3, group_id=group_id, seq=ord(group_id))
    story.drained(5, h=1)
    assert [(violation.promise, violation.group_id) for violation in check(story.operations)] == [(3, "g"), (4, "h")]


def test_a_violation_can_be_followed_by_a_person() -> None:
    story = Story()
    story.publish("a", 1_700_000_000.0, 1_700_000_001.0)
    story.claim("a", 1_700_000_002.0, 1_700_000_003.0, visibility=10, token="worker-1:x", process="p1")
    story.claim("a", 1_700_000_004.0, 1_700_000_004.5, visibility=10, token="worker-2:1234567-567890", process="p2")
    (violation,) = check(story.operations)
    first, *shown = str(violation).splitlines()
    assert first == (
        "Promise 1 is broken in group 'g': at 4.000 s p2 got it with seq 97, "
        "while p1's lease of 2.000 s for 10 s was live and unsettled, with seq 97."
    )
    assert shown == [
        "    2.000000 to 3.000000  p1  claim  seq 97  event a  for 10 s  token worker-1:x  said 1",
        "    4.000000 to 4.500000  p2  claim  seq 97  event a  for 10 s  token worker-2:123456..7890  said 1",
    ]


def test_what_was_passed_over_can_be_followed_by_a_person() -> None:
    story = Story()
    waits(story, lease_ran_out, min_priority=1)
    (violation,) = check(story.operations, fair=True)
    first, *shown = str(violation).splitlines()
    assert first == (
        "Promise 6 is broken in group 'g': at 20.000 s claimer's claim for priority 1 or above came back empty, "
        "though it could be claimed from 8.000 s to the end: claimer's lease had run out, and event a was there."
    )
    assert shown == [
        "    2.000000 to 3.000000  claimer  claim  seq 97  event a  attempt 1  for 5 s  token worker:2  said 1",
        "    0.000000 to 1.000000  publisher  publish  event a  priority 2  said 1",
        "    20.000000 to 21.000000  claimer  claim  for 1000 s  floor 1  said 0",
    ]


def test_a_lease_may_run_out_a_little_early_by_another_clock() -> None:
    story = Story()
    story.claim("a", 0.0, 0.1, visibility=10)
    story.claim("a", 9.98, 9.99)
    assert story.broken() == {1}
    assert check(story.operations, slack_s=0.05) == []


def test_an_empty_history_is_correct() -> None:
    assert check([]) == []


def test_an_operation_that_a_kill_cut_short_is_read_as_one_without_an_answer(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "record", "p1", clock=lambda: 5.0)
    first = recorder.called("publish", group_id="g", event_id="a")
    recorder.returned(first, 1)
    recorder.called("ack", group_id="g", event_id="a", seq=1, token="w:1")
    other = Recorder(tmp_path / "record", "p2", clock=lambda: 6.0)
    recorder.close()
    whole = (tmp_path / "record").read_bytes()
    (tmp_path / "record").write_bytes(whole + b'\n{"process":"p1","number":3,"ki')
    other.drained({"g": 1})
    other.close()
    assert read(tmp_path / "record") == [
        Operation(
            process="p1", number=1, kind="publish", called=5.0, returned=5.0, group_id="g", event_id="a", result=1
        ),
        Operation(process="p1", number=2, kind="ack", called=5.0, group_id="g", event_id="a", seq=1, token="w:1"),
        Operation(process="p2", number=1, kind="drained", called=6.0, returned=6.0, result=1, left={"g": 1}),
    ]


def test_a_record_is_json_that_any_program_reads(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "record")
    recorder.called("claim", visibility=1.0)
    recorder.close()
    (line,) = (tmp_path / "record").read_bytes().split()
    assert msgspec.json.decode(line)["kind"] == "claim"
