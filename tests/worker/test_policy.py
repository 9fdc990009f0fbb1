"""What a worker decides, without a queue."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from harel import ConfigError, InvalidArgument, Reject, RetryLater, RetryPolicy
from harel.engine.worker.policy import Again, Dead, Held, Share


def least() -> float:
    return 0.0


def most() -> float:
    return 1.0


def test_the_delay_doubles_up_to_its_limit() -> None:
    policy = RetryPolicy(max_attempts=99, max_backoff=10.0)
    delays = [policy.after(attempt, ValueError(), least) for attempt in (1, 2, 3, 4, 5, 98)]
    assert delays == [Again(1.0), Again(2.0), Again(4.0), Again(8.0), Again(10.0), Again(10.0)]


def test_the_jitter_takes_its_part_of_the_delay_away() -> None:
    policy = RetryPolicy(max_attempts=9, backoff=4.0, jitter=0.25)
    assert policy.after(1, ValueError(), most) == Again(3.0)


def test_the_last_attempt_is_dead_with_its_error_and_traceback() -> None:
    policy = RetryPolicy(max_attempts=3)
    try:
        raise ValueError("no stock")
    except ValueError as raised:
        error = raised
    assert isinstance(policy.after(2, error), Again)
    verdict = policy.after(3, error)
    assert isinstance(verdict, Dead)
    first, rest = verdict.reason.split("\n\n", 1)
    assert first == "Failed 3 times; the last error was ValueError: no stock"
    assert rest.startswith("Traceback (most recent call last):")
    assert 'raise ValueError("no stock")' in rest


def test_a_long_traceback_is_cut_where_it_begins() -> None:
    verdict = RetryPolicy(max_attempts=1).after(1, ValueError("x" * 50_000 + " the end"))
    assert isinstance(verdict, Dead)
    assert verdict.reason.rstrip().endswith("the end")
    assert verdict.reason.startswith("Failed once; the last error was ValueError: xxx")


def test_an_error_that_cannot_be_shown_is_no_trouble() -> None:
    class Evil(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    verdict = RetryPolicy(max_attempts=1).after(1, Evil())
    assert isinstance(verdict, Dead)
    assert "Evil, whose text cannot be shown" in verdict.reason


def test_a_message_claimed_beyond_the_limit_is_not_handled_again() -> None:
    policy = RetryPolicy(max_attempts=3)
    assert policy.before(3) is None
    verdict = policy.before(4)
    assert isinstance(verdict, Dead)
    assert verdict.reason.startswith("Claimed 3 times and never settled (the limit is 3)")


def test_more_claims_than_attempts_may_be_allowed() -> None:
    policy = RetryPolicy(max_attempts=3, max_claims=10)
    assert policy.before(10) is None
    assert isinstance(policy.before(11), Dead)
    assert isinstance(policy.after(2, ValueError()), Again)
    assert isinstance(policy.after(3, ValueError()), Dead)
    assert isinstance(policy.after(8, ValueError()), Dead)


@pytest.mark.parametrize("attempt", [1, 3, 9])
def test_retry_later_is_no_failure_at_any_attempt(attempt: int) -> None:
    assert RetryPolicy(max_attempts=3).after(attempt, RetryLater(7.5)) == Again(7.5)


@pytest.mark.parametrize("on_exhausted", ["dead_letter", "hold"])
def test_reject_is_dead_at_once(on_exhausted: Any) -> None:
    assert RetryPolicy(on_exhausted=on_exhausted).after(1, Reject("not ours")) == Dead("not ours")


@pytest.mark.parametrize(
    ("policy", "error", "expected"),
    [
        (RetryPolicy(give_up_on=(KeyError,)), KeyError("k"), Dead),
        (RetryPolicy(give_up_on=(LookupError,)), KeyError("k"), Dead),
        (RetryPolicy(give_up_on=(KeyError,)), ValueError("v"), Again),
        (RetryPolicy(retry_on=(ValueError,)), ValueError("v"), Again),
        (RetryPolicy(retry_on=(ValueError,)), KeyError("k"), Dead),
        (RetryPolicy(retry_on=(LookupError,), give_up_on=(KeyError,)), KeyError("k"), Dead),
        (RetryPolicy(give_up_on=(KeyError,), on_exhausted="hold"), KeyError("k"), Held),
        (RetryPolicy(), asyncio.CancelledError(), Again),
    ],
)
def test_which_errors_are_final(policy: RetryPolicy, error: BaseException, expected: type) -> None:
    verdict = policy.after(1, error)
    assert type(verdict) is expected
    if isinstance(verdict, Dead | Held):
        assert verdict.reason.startswith("Given up at attempt 1, for this error is not retried KeyError: 'k'\n\n")


def test_with_hold_attempts_go_in_rounds() -> None:
    policy = RetryPolicy(max_attempts=3, on_exhausted="hold", jitter=0.0)
    assert [attempt for attempt in range(1, 10) if policy.is_last(attempt)] == [3, 6, 9]
    verdicts = [policy.after(attempt, ValueError()) for attempt in range(1, 7)]
    assert [type(verdict) for verdict in verdicts] == [Again, Again, Held, Again, Again, Held]
    assert verdicts[3:5] == [Again(1.0), Again(2.0)], "the delays begin anew as well"
    assert policy.before(100) is None


def test_a_policy_can_be_read_and_compared() -> None:
    assert RetryPolicy() == RetryPolicy(
        max_attempts=5,
        backoff=1.0,
        max_backoff=300.0,
        jitter=0.5,
        on_exhausted="dead_letter",
        retry_on=(Exception,),
        give_up_on=(),
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        RetryPolicy().max_attempts = 7  # type: ignore[misc]


@pytest.mark.parametrize(
    ("ratio", "expected"), [(0.0, 0), (0.1, 100), (0.25, 250), (1 / 3, 333), (0.9, 900), (1.0, 1000)]
)
def test_the_share_of_claims_that_ask_for_the_floor_is_the_ratio(ratio: float, expected: int) -> None:
    share = Share(ratio)
    assert sum(share.asks_for_floor() for _ in range(1000)) == pytest.approx(expected, abs=1)


def test_the_share_is_spread_evenly() -> None:
    share = Share(0.25)
    asked = [share.asks_for_floor() for _ in range(12)]
    assert asked == [False, False, False, True] * 3


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": True},
        {"max_attempts": 1.5},
        {"backoff": -1.0},
        {"backoff": float("nan")},
        {"backoff": 400.0},
        {"backoff": "1"},
        {"max_backoff": float("inf")},
        {"jitter": 1.5},
        {"jitter": float("nan")},
        {"on_exhausted": "drop"},
        {"retry_on": ValueError},
        {"give_up_on": (1,)},
        {"max_claims": 4},
        {"max_claims": True},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        RetryPolicy(**options)


def test_a_limit_of_claims_is_refused_where_it_is_of_no_use() -> None:
    with pytest.raises(ConfigError, match="max_claims"):
        RetryPolicy(on_exhausted="hold", max_claims=9)


@pytest.mark.parametrize("after", [-1.0, float("nan"), float("inf"), True, "1"])
def test_a_retry_later_that_makes_no_sense_is_refused(after: Any) -> None:
    with pytest.raises(InvalidArgument, match="after"):
        RetryLater(after)


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(InvalidArgument, match="high_ratio"):
        Share(ratio)
