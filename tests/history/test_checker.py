"""The history checker itself: what breaks a promise is caught by its number, and what does not is let be."""

from __future__ import annotations

import sys
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

    def settle(self, kind: Kind, claim: Operation, at: float, until: float | None, **known: Any) -> Operation:
        same = {name: getattr(claim, name) for name in ("event_id", "seq", "token")}
        return self._add(kind, at, until, **same, **known)

    def purge(self, at: float, until: float | None, result: int = 1) -> Operation:
        return self._add("purge", at, until, result=result)

    def drained(self, at: float, **left: int) -> Operation:
        return self._add("drained", at, at, left=left, group_id="")

    def broken(self) -> set[int]:
        return {violation.promise for violation in check(self.operations)}


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
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_promise_is_caught_by_its_number(promises: set[int], tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    assert story.broken() == promises


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
    story.claim("a", 1_700_000_004.0, 1_700_000_004.5, visibility=10, token="worker-2:y", process="p2")
    (violation,) = check(story.operations)
    assert str(violation).splitlines() == [
        "Promise 1 is broken in group 'g': it had two live leases.",
        "    2.000000 to 3.000000  p1  claim  seq 97  event a  for 10 s  token worker-1:x  said 1",
        "    4.000000 to 4.500000  p2  claim  seq 97  event a  for 10 s  token worker-2:y  said 1",
    ]


def test_a_lease_may_run_out_a_little_early_by_another_clock() -> None:
    story = Story()
    story.claim("a", 0.0, 0.1, visibility=10)
    story.claim("a", 9.98, 9.99)
    assert story.broken() == {1}
    assert check(story.operations, clock_slack_s=0.05) == []


def test_an_empty_history_is_correct() -> None:
    assert check([]) == []


def test_the_work_grows_no_faster_than_the_history() -> None:
    """All in one group, leases that overlap, and everything extended: the worst for a checker."""

    def steps(rounds: int) -> int:
        story = Story()
        for turn in range(rounds):
            at = 10.0 * turn
            story.publish(f"e{turn}", at, at + 1)
            claim = story.claim(f"e{turn}", at + 2, at + 3, visibility=100, seq=turn)
            for more in range(3):
                story.settle("extend", claim, at + 3 + more / 10, at + 4 + more / 10, visibility=100)
            story.settle("ack", claim, at + 5, at + 6)
            story.purge(at + 6, at + 7)
        story.drained(1e9)
        return _lines_run(lambda: check(story.operations))

    assert steps(1_600) < 5 * steps(400)


def _lines_run(call: Callable[[], object]) -> int:
    lines = 0

    def trace(frame: object, event: str, argument: object) -> Any:
        nonlocal lines
        lines += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


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
