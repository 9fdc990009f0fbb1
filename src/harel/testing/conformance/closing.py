"""The life of a transport: opened, closed, closed again; what it says of itself."""

from __future__ import annotations

import re
from typing import Any

import pytest

from harel.config import connect
from harel.errors import InvalidArgument
from harel.testing.conformance.kit import drain, open_queue, put, take
from harel.testing.subject import Blocking, Subject

PASSWORD = re.compile(r"://[^/@\s]*:(?!\*\*\*@)[^/@\s]+@")


def _itself(queue: Any) -> Any:
    """Return the transport and not what makes an async one block."""
    return queue.inner if isinstance(queue, Blocking) else queue


def test_closing_twice_is_fine(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m")
    queue.close()
    queue.close()


def test_a_transport_that_did_nothing_can_be_closed(subject: Subject) -> None:
    queue = open_queue(subject)
    queue.close()
    queue.close()
    with pytest.raises(InvalidArgument):
        queue.wait(0.0)


def test_leaving_the_context_closes(subject: Subject) -> None:
    queue = open_queue(subject)
    with queue as entered:
        put(entered, "g", "m")
        assert take(entered).group_id == "g"
    with pytest.raises(InvalidArgument, match="closed"):
        queue.wait(0.0)
    queue.close()


def test_leaving_the_context_by_an_error_closes_and_lets_it_pass(subject: Subject) -> None:
    queue = open_queue(subject)
    with pytest.raises(KeyError, match="mine"), queue:
        raise KeyError("mine")
    with pytest.raises(InvalidArgument, match="closed"):
        queue.wait(0.0)


def test_closing_one_transport_leaves_another_open(subject: Subject) -> None:
    queue, other = open_queue(subject), subject.open()
    put(queue, "g", "m1", "m2")
    assert take(queue, visibility=60.0).attempt == 1
    queue.close()
    assert other.claim("w", 60.0) is None  # the lease is not the transport's but its holder's
    subject.clock.advance(61.0)
    assert drain(other) == ["g m1", "g m2"]


def test_a_transport_says_what_it_is_open_or_closed(subject: Subject) -> None:
    queue = open_queue(subject)
    name = type(_itself(queue)).__name__
    assert name in repr(_itself(queue))
    queue.close()
    assert name in repr(_itself(queue))


def test_no_password_is_shown(subject: Subject) -> None:
    queue = open_queue(subject)
    with connect("memory://") as other:
        put(other, "g", "m")
        with pytest.raises(InvalidArgument) as raised:
            queue.ack(take(other))
    put(queue, "g", "m")
    for shown in (repr(_itself(queue)), str(raised.value), repr(take(queue))):
        assert PASSWORD.search(shown) is None


def test_a_leases_repr_does_not_show_what_its_event_holds(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "a-private-kind")
    lease = take(queue)
    assert lease.event.kind == "a-private-kind"
    assert "a-private-kind" not in repr(lease)
