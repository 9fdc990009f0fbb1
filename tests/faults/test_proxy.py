"""The proxy does what it is told, at the message that it was told."""

from __future__ import annotations

from pathlib import Path

import pytest

from harel import Event, connect
from harel.errors import TransportUnavailable
from tests.backends import URLS
from torture.framing import HttpFraming, MongoFraming, PostgresFraming, RedisFraming
from torture.proxy import Chaos, Harm, Proxy, Seen

pytestmark = pytest.mark.timeout(600)

EVENT = Event("k")


@pytest.mark.parametrize(
    ("framing", "data", "lengths"),
    [
        (RedisFraming, b"*2\r\n$1\r\na\r\n$-1\r\n+OK\r\n", [16, 5]),
        (HttpFraming, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 204 No\r\n\r\n", [40, 19]),
        (HttpFraming, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", [59]),
        (PostgresFraming, b"Z\0\0\0\5IZ\0\0\0\5I", [6, 6]),
        (MongoFraming, b"\x15\0\0\0" + bytes(17) + b"\x10\0\0\0" + bytes(12), [21, 16]),
    ],
)
def test_messages_are_told_apart_in_whatever_pieces_they_come(
    framing: type[RedisFraming], data: bytes, lengths: list[int]
) -> None:
    one = framing()
    assert [len(message.data) for message in one.replies(data)] == lengths
    by_byte = framing()
    pieces = [message for byte in data for message in by_byte.replies(bytes([byte]))]
    assert [len(message.data) for message in pieces] == lengths


@pytest.mark.parametrize(
    ("side", "how", "arrives", "is_told"),
    [
        ("request", "before", False, False),
        ("request", "half", False, False),
        ("reply", "before", True, False),
        ("reply", "half", True, False),
        ("reply", "after", True, True),
    ],
)
def test_a_cut_is_where_it_was_told(side: str, how: str, arrives: bool, is_told: bool, tmp_path: Path) -> None:
    url = URLS["redis"](tmp_path)
    with Proxy(url) as proxy, connect(proxy.url_for(url)) as queue:
        queue.publish("g", EVENT)
        proxy.watch()
        queue.publish("g", EVENT)
        assert proxy.seen == Seen(1, 1)
        proxy.do(Harm(side, 1, how))  # type: ignore[arg-type]
        if is_told:
            queue.publish("g", EVENT)
        else:
            with pytest.raises(TransportUnavailable):
                queue.publish("g", EVENT)
        assert proxy.wait_until_done()
        with connect(url) as other:
            assert other.stats().messages == 2 + arrives


def test_nothing_gets_through_what_is_frozen(tmp_path: Path) -> None:
    url = URLS["redis"](tmp_path)
    with Proxy(url) as proxy, connect(proxy.url_for(url), timeout=1.0) as queue:
        proxy.freeze()
        with pytest.raises(TransportUnavailable):
            queue.publish("g", EVENT)
        proxy.thaw()
        proxy.refuse()
        proxy.cut_all()
        with pytest.raises(TransportUnavailable):
            queue.publish("g", EVENT)
        proxy.admit()
        queue.publish("g", EVENT)


def test_a_storm_comes_and_goes(tmp_path: Path) -> None:
    url = URLS["redis"](tmp_path)
    with Proxy(url, chaos=Chaos(seed=1, drop_reply=1.0, swallow=0.0, half=0.0, cut=0.0, delay=0.0)) as proxy:
        proxy.calm()
        with connect(proxy.url_for(url)) as queue:
            queue.publish("g", EVENT)
            proxy.storm()
            with pytest.raises(TransportUnavailable):
                queue.publish("g", EVENT)
            proxy.calm()
            assert queue.stats().messages == 2
        assert proxy.suffered["reply before"] == 1
