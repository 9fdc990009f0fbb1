"""What a worker decides, without a queue."""

from __future__ import annotations

import pytest

from harel import InvalidArgument
from harel.engine.worker.policy import Nack, Reject, Retry, Share


def test_the_delay_doubles_up_to_its_limit() -> None:
    retry = Retry(max_attempts=99, backoff=1.0, max_backoff=10.0, jitter=0.5, random_number=lambda: 0.0)
    delays = [retry.after(attempt, ValueError()) for attempt in (1, 2, 3, 4, 5, 98)]
    assert delays == [Nack(1.0), Nack(2.0), Nack(4.0), Nack(8.0), Nack(10.0), Nack(10.0)]


def test_the_jitter_takes_its_part_of_the_delay_away() -> None:
    retry = Retry(max_attempts=9, backoff=4.0, max_backoff=10.0, jitter=0.25, random_number=lambda: 1.0)
    assert retry.after(1, ValueError()) == Nack(3.0)


def test_the_last_attempt_is_rejected_with_its_error() -> None:
    retry = Retry(max_attempts=3, backoff=1.0, max_backoff=10.0, jitter=0.0)
    assert isinstance(retry.after(2, ValueError("no")), Nack)
    assert retry.after(3, ValueError("no stock")) == Reject("Failed 3 times; the last error was ValueError: no stock")


def test_a_message_claimed_beyond_the_limit_is_not_handled_again() -> None:
    retry = Retry(max_attempts=3, backoff=1.0, max_backoff=10.0, jitter=0.0)
    assert retry.before(3) is None
    assert isinstance(retry.before(4), Reject)


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
        {"backoff": 20.0},
        {"jitter": 1.5},
        {"jitter": float("nan")},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        Retry(**{"max_attempts": 5, "backoff": 1.0, "max_backoff": 10.0, "jitter": 0.5, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(InvalidArgument):
        Share(ratio)
