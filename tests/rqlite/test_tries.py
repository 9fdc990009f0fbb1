"""Whom a request is sent to, how often and for how long: by a clock of the test's, without a socket."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from harel import ConfigError, HarelError, InvalidArgument, TransportUnavailable
from harel.engine.queue.op import Sleep, run
from harel.engine.queue.rqlite.address import Address, base_of
from harel.engine.queue.rqlite.cluster import Answer, Change, Cluster, Post, Unanswered
from harel.engine.queue.sqlite.ops import Read

URL = "rqlite://me:s3cret@a:4001,b:4002,c"
READ = Read("SELECT 1", {})
CHANGE = Change((("INSERT INTO t_requests (id) VALUES (:request)", {"request": "r"}),), ("SELECT 7", {}), "t_requests")
ROWS = Answer(200, {}, b'{"results": [{"columns": ["1"], "types": ["integer"], "values": [[1]]}]}')
DONE = Answer(200, {}, b'{"results": [{"rows_affected": 1}, {"values": [[7]]}]}')
REPEATED = Answer(200, {}, b'{"results": [{"error": "UNIQUE constraint failed: t_requests.id"}]}')
NO_LEADER = Answer(503, {}, b"leader not found\n")


def moved(location: str) -> Answer:
    return Answer(301, {"location": location}, b"")


def error(text: str) -> Answer:
    return Answer(200, {}, b'{"results": [], "error": "%s"}' % text.encode())


def refused(text: str) -> Answer:
    return Answer(200, {}, b'{"results": [{"error": "%s"}]}' % text.encode())


class Net:
    """Answers what the nodes are asked, and keeps the time."""

    def __init__(self, url: str = URL, *, timeout_s: float = 10.0, redirect: bool = True) -> None:
        self.now = 1_000.0
        self.asked: list[str] = []
        self.posts: list[Post] = []
        self.slept: list[float] = []
        self.answers: Iterator[Answer | str] = iter(())
        self.cluster = Cluster(
            Address.of(url), timeout_s=timeout_s, read_level="weak", redirect=redirect, now=lambda: self.now
        )

    def carry(self, request: Any, *answers: Answer | str) -> Any:
        """Answer in turn; a text is how a try ends without an answer, ``"silence"`` when its time is over."""
        self.answers = iter(answers)
        return run(self.cluster.carry(request), self._do)

    def _do(self, request: Post | Sleep) -> Any:
        if isinstance(request, Sleep):
            self.slept.append(request.seconds)
            self.now += request.seconds
            return request.seconds
        self.posts.append(request)
        self.asked.append(request.url.split("/")[2])
        self.now += 0.001
        answer = next(self.answers)
        if isinstance(answer, Answer):
            return answer
        if answer == "silence":
            self.now += request.timeout_s
        raise Unanswered(answer)


def test_who_answered_last_is_asked_first() -> None:
    net = Net()
    assert net.carry(READ, ROWS) == [[1]]
    assert net.carry(READ, "gone", NO_LEADER, ROWS) == [[1]]
    assert net.carry(READ, ROWS) == [[1]]
    assert net.asked == ["a:4001", "a:4001", "a:4001", "b:4002", "b:4002"]


def test_all_addresses_are_asked_before_there_is_a_pause_and_pauses_grow_to_a_second() -> None:
    net = Net(timeout_s=60.0)
    net.carry(READ, *(["gone"] * 30), ROWS)
    assert net.asked[:7] == ["a:4001", "b:4002", "c:4001"] * 2 + ["a:4001"]
    assert len(net.slept) == 10
    for number, slept in enumerate(net.slept):
        longest = min(0.02 * 2**number, 1.0)
        assert longest / 2 <= slept <= longest


@pytest.mark.parametrize("answer", ["silence", "gone", NO_LEADER, error("not leader"), Answer(200, {}, b"<html>")])
@pytest.mark.parametrize("request_", [READ, CHANGE], ids=["read", "change"])
@pytest.mark.parametrize("timeout_s", [0.01, 0.5, 10.0, 300.0])
def test_the_deadline_is_one_for_all_tries(answer: Answer | str, request_: Any, timeout_s: float) -> None:
    net = Net(timeout_s=timeout_s)
    with pytest.raises(TransportUnavailable) as raised:
        net.carry(request_, *([answer] * 2_000))
    assert timeout_s <= net.now - 1_000.0 <= timeout_s + 0.01
    said = str(raised.value)
    assert said.startswith(f"rqlite://a:4001,b:4002,c:4001 gave no answer within {timeout_s:g} s (")
    assert "a:4001: " in said
    for cause in ("silence", "gone"):
        assert (cause in said) == (answer == cause)
    if answer is NO_LEADER:
        assert "503 leader not found" in said
    for secret in ("s3cret", base64.b64encode(b"me:s3cret").decode()):
        assert secret not in said


def test_a_silent_node_leaves_time_for_the_others() -> None:
    net = Net(timeout_s=10.0)
    assert net.carry(READ, "silence", "silence", ROWS) == [[1]]
    assert [round(post.timeout_s, 1) for post in net.posts] == [5.0, 2.5, 1.2]
    net = Net(timeout_s=1.5)
    net.carry(READ, "silence", ROWS)
    assert [round(post.timeout_s, 1) for post in net.posts] == [1.0, 0.5]


def test_the_leader_that_a_node_names_is_asked_at_once_and_from_then_on() -> None:
    net = Net()
    assert net.carry(CHANGE, moved("http://leader:4001/db/request?transaction&redirect"), DONE) == [[7]]
    assert net.carry(READ, ROWS) == [[1]]
    assert net.asked == ["a:4001", "leader:4001", "leader:4001"]
    assert net.slept == []
    assert net.posts[1].url == "http://leader:4001/db/request?transaction&redirect"
    assert net.posts[1].body == net.posts[0].body
    assert net.posts[1].headers == net.posts[0].headers
    assert net.carry(READ, "gone", "gone", ROWS) == [[1]]
    assert net.asked[3:] == ["leader:4001", "a:4001", "b:4002"]


def test_a_leader_that_cannot_be_reached_is_named_with_the_cause() -> None:
    net = Net("rqlite://a,b", timeout_s=1.0)
    answers: list[Answer | str] = [moved("http://lost:1/db"), "refused"]
    with pytest.raises(TransportUnavailable) as raised:
        net.carry(READ, *(answers * 50))
    assert str(raised.value) == "rqlite://a:4001,b:4001 gave no answer within 1 s (lost:1: refused)."
    assert net.asked[:4] == ["a:4001", "lost:1", "b:4001", "lost:1"]


def test_a_leader_that_is_gone_is_not_asked_first_for_ever() -> None:
    net = Net(timeout_s=1.0)
    net.carry(READ, moved("http://leader:4001/db"), ROWS)
    with pytest.raises(TransportUnavailable):
        net.carry(READ, *(["silence"] * 10))
    net.asked.clear()
    net.carry(READ, ROWS)
    assert net.asked == ["a:4001"]


def test_nodes_that_name_one_another_are_given_up_for_the_next() -> None:
    net = Net()
    circle = [moved("http://b:4002/db"), moved("http://a:4001/db"), moved("http://b:4002/db")]
    assert net.carry(READ, *circle, ROWS) == [[1]]
    assert net.asked == ["a:4001", "b:4002", "a:4001", "b:4002"]


@pytest.mark.parametrize(
    ("scheme", "location"),
    [
        ("rqlites", "http://a:4001/db/request"),
        ("rqlite", "https://a:4001/db/request"),
        ("rqlite", "ftp://a/db/request"),
        ("rqlite", "//evil/db/request"),
        ("rqlite", "/db/request"),
        ("rqlite", ""),
        ("rqlite", "http://"),
        ("rqlite", "http://a:99999/"),
        ("rqlite", "http://[::1/"),
    ],
)
def test_a_redirection_to_another_kind_of_address_is_not_followed(scheme: str, location: str) -> None:
    """What is asked over TLS, the password with it, goes nowhere without."""
    net = Net(f"{scheme}://me:s3cret@a,b")
    assert net.carry(READ, moved(location), ROWS) == [[1]]
    assert net.asked == ["a:4001", "b:4001"]


@pytest.mark.parametrize(
    ("location", "base"),
    [
        ("http://Leader:4001/db/request?transaction", "http://leader:4001"),
        ("http://other:pw@leader:4001/db", "http://leader:4001"),
        ("http://leader/db", "http://leader"),
        ("http://[::1]:4001/db", "http://[::1]:4001"),
    ],
)
def test_only_host_and_port_are_taken_from_a_redirection(location: str, base: str) -> None:
    assert base_of(location, "http://a:4001") == base


def test_a_change_that_happened_before_is_answered_by_a_sure_look() -> None:
    net = Net()
    looked = Answer(200, {}, b'{"results": [{"values": [[8]]}]}')
    assert net.carry(CHANGE, "lost", REPEATED, NO_LEADER, looked) == [[8]]
    assert [post.url.partition("4001/")[2] or post.url.partition("4002/")[2] for post in net.posts] == [
        "db/request?transaction&redirect",
        "db/request?transaction&redirect",
        "db/query?level=linearizable&redirect",
        "db/query?level=linearizable&redirect",
    ]
    assert (
        net.posts[0].body
        == net.posts[1].body
        == (b'[["INSERT INTO t_requests (id) VALUES (:request)",{"request":"r"}],["SELECT 7"]]')
    )
    assert net.posts[2].body == b'[["SELECT 7"]]'


def test_the_look_after_a_repetition_has_the_same_deadline() -> None:
    net = Net(timeout_s=5.0)
    with pytest.raises(TransportUnavailable):
        net.carry(CHANGE, "lost", REPEATED, *(["silence"] * 100))
    assert 5.0 <= net.now - 1_000.0 <= 5.1


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (Answer(401, {}, b""), ConfigError, "does not let the user 'me' query and execute"),
        (Answer(404, {}, b""), ConfigError, "no rqlite, or too old"),
        (Answer(413, {}, b""), InvalidArgument, "too large"),
        (Answer(400, {}, b"invalid JSON body\n"), HarelError, "refused a request: 400 invalid JSON body"),
        (Answer(200, {"x-rqlite-version": "v8.32.7"}, ROWS.body), ConfigError, "a:4001 is v8.32.7; harel needs 8.33"),
        (Answer(200, {"x-rqlite-version": "7.21.4"}, ROWS.body), ConfigError, "is 7.21.4; harel needs 8.33"),
        (refused("no such table: t_groups"), HarelError, "refused a statement: no such table: t_groups"),
        (refused("CHECK constraint failed: t_told_alike"), ConfigError, "leaves 'now' to each node"),
        (refused("string or blob too big"), InvalidArgument, "no value this large"),
        (refused("database or disk is full"), TransportUnavailable, "disk is full"),
        (refused("UNIQUE constraint failed: other.id"), HarelError, "UNIQUE constraint failed: other.id"),
        (Answer(200, {}, b'{"results": []}'), HarelError, "answered 0 of 1 statements"),
    ],
)
def test_what_another_try_would_not_change_is_said_at_once(answer: Answer, kind: type[Exception], says: str) -> None:
    net = Net()
    with pytest.raises(kind, match=says) as raised:
        net.carry(READ, answer)
    assert type(raised.value) is kind
    assert "s3cret" not in str(raised.value)
    assert net.asked == ["a:4001"]


def test_who_gives_no_name_is_called_nobody() -> None:
    with pytest.raises(ConfigError, match="does not let nobody in particular query"):
        Net("rqlite://a").carry(READ, Answer(401, {}, b""))


@pytest.mark.parametrize("version", ["v8.33.0", "v8.36.14", "8.40.0", "v9.0.0", "v10.3.6", "unknown", ""])
def test_a_version_that_is_new_enough_or_unknown_is_taken(version: str) -> None:
    headers: Mapping[str, str] = {"x-rqlite-version": version}
    assert Net().carry(READ, Answer(200, headers, ROWS.body)) == [[1]]


def test_an_old_node_is_noticed_when_it_comes_to_lead() -> None:
    net = Net()
    assert net.carry(READ, Answer(200, {"x-rqlite-version": "v8.36.0"}, ROWS.body)) == [[1]]
    with pytest.raises(ConfigError, match=r"v8\.20\.0"):
        net.carry(READ, "gone", Answer(200, {"x-rqlite-version": "v8.20.0"}, ROWS.body))


def test_without_redirections_nodes_are_not_asked_for_them() -> None:
    net = Net(redirect=False)
    net.carry(READ, ROWS)
    assert net.posts[0].url == "http://a:4001/db/query?level=weak"


@pytest.mark.parametrize(
    ("url", "bases", "shown"),
    [
        ("rqlite://a", ("http://a:4001",), "rqlite://a:4001"),
        ("rqlite://b:1,a:2/", ("http://b:1", "http://a:2"), "rqlite://a:2,b:1"),
        ("rqlites://[::1]:5,a", ("https://[::1]:5", "https://a:4001"), "rqlites://[::1]:5,a:4001"),
        ("rqlite://me:p%40ss%3A@a", ("http://a:4001",), "rqlite://a:4001"),
    ],
)
def test_a_url_names_nodes(url: str, bases: tuple[str, ...], shown: str) -> None:
    address = Address.of(url)
    assert address.bases == bases
    assert str(address) == shown
    assert "p@ss" not in repr(address)
    if "@" in url:
        token = base64.b64encode(b"me:p@ss:").decode()
        assert address.authorization == f"Basic {token}"
        assert token not in repr(address)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("rqlite://", "cannot be read"),
        ("rqlite://a,,b", "cannot be read"),
        ("rqlite://a:0", "cannot be read"),
        ("rqlite://a:99999", "cannot be read"),
        ("rqlite://me:s3cret/x@a/b", "nothing follows but options"),
        ("rqlite://a/db", "nothing follows but options"),
        ("rqlite://me:s3cret/a", "nothing follows but options"),
        ("rqlite://me:s3cret#@a#", "nothing follows but options"),
        ("http://me:s3cret@a", "takes a URL such as rqlite://"),
        ("s3cret", "takes a URL such as rqlite://"),
    ],
)
def test_a_url_that_cannot_be_read_says_so_and_shows_nothing_of_it(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        Address.of(url)
    assert "s3cret" not in str(raised.value)


def test_requests_show_no_password() -> None:
    net = Net()
    net.carry(READ, ROWS)
    assert "Authorization" in net.posts[0].headers
    assert base64.b64encode(b"me:s3cret").decode() not in repr(net.posts[0])
