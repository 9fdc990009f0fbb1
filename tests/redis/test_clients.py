"""The caller's own client, of whatever kind, and the URL."""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio
from redis.backoff import ConstantBackoff
from redis.retry import Retry

import harel
import harel.engine.aio_transport
import harel.engine.transport
from harel import ConfigError, Event, InvalidMessage, TransportUnavailable
from harel.config import Environment
from tests.redis.cable import Cable
from tests.redis.conftest import Twin
from tests.servers.redis import server

EVENT = Event("noted", {"text": "grüße"})


@pytest.mark.parametrize(
    "options",
    [
        {"decode_responses": False},
        {"decode_responses": True},
        {"decode_responses": True, "protocol": 2},
        {"protocol": 3},
        {"encoding": "latin-1", "decode_responses": True},
        {"max_connections": 1},
    ],
    ids=str,
)
def test_any_client_serves_and_is_not_closed(twin: Twin, options: dict[str, Any]) -> None:
    client = twin.client(**options)
    queue = twin.open_on(client)
    queue.publish("grüße", EVENT)
    queue.publish("grüße", EVENT)
    lease = queue.claim("wörker", 30.0)
    assert lease is not None
    assert (lease.group_id, lease.event, lease.worker_id) == ("grüße", EVENT, "wörker")
    assert queue.reject(lease, "größe")
    assert [letter.reason for letter in queue.dead_letters()] == ["größe"]
    assert [info.group_id for info in queue.groups()] == ["grüße"]
    assert queue.wait(0.0) is True
    queue.close()
    answer = twin.runner.run(client.ping()) if twin.is_async else client.ping()
    assert answer is True
    twin.close_client(client)


def test_text_that_is_not_utf8_fails_where_it_is_read_and_kills_no_claim(twin: Twin, onlooker: redis.Redis) -> None:
    client = twin.client(decode_responses=True)
    queue = twin.open_on(client)
    queue.publish("g", EVENT)
    onlooker.hset(f"{{{twin.prefix}}}:groups", "1:g", b"1:\xff\xfe")
    lease = queue.claim("w", 30.0)
    assert lease is not None
    with pytest.raises(InvalidMessage):
        _ = lease.event
    assert queue.reject(lease, "not text")
    twin.close_client(client)


def test_a_client_that_retries_does_nothing_twice(twin: Twin) -> None:
    twin.load_scripts()
    with Cable(twin.url) as cable:
        client = twin.client(cable.url, retry=Retry(ConstantBackoff(0.0), 5))
        queue = twin.open_on(client)
        queue.stats()
        cable.cut_at_next_reply()
        with pytest.raises(TransportUnavailable, match="may have happened"):
            queue.publish("g", EVENT)
        assert queue.stats().messages == 1
        twin.close_client(client)


@pytest.fixture(scope="module")
def cluster_url() -> str:
    """A cluster of one node."""
    url: str = server({"cluster-enabled": "yes"}).connection_url
    with redis.Redis.from_url(url) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
            pass
    return url


def test_a_cluster_client_serves(twin: Twin, cluster_url: str) -> None:
    cluster = twin.package.RedisCluster.from_url(cluster_url, decode_responses=True)
    queue = twin.open_on(cluster)
    queue.publish("g", EVENT, 2)
    queue.publish("g", EVENT)
    lease = queue.claim("w", 30.0, 1)
    assert lease is not None
    assert lease.event == EVENT
    assert queue.ack(lease)
    assert queue.wait(0.0) is True
    lease = queue.claim("w", 0.05)
    assert lease is not None
    assert queue.wait(30.0) is True
    twin.close_client(cluster)


def test_a_cluster_client_that_retries_does_nothing_twice(twin: Twin, cluster_url: str) -> None:
    twin.load_scripts(cluster_url)
    with Cable(cluster_url) as cable:
        cluster = twin.package.RedisCluster.from_url(cable.url, address_remap=lambda _: cable.address)
        queue = twin.open_on(cluster)
        queue.stats()
        cable.cut_at_next_reply()
        with pytest.raises(TransportUnavailable, match="may have happened"):
            queue.publish("g", EVENT)
        assert queue.stats().messages == 1
        twin.close_client(cluster)


def test_a_plain_client_on_a_node_of_a_cluster_without_its_slots_is_an_error(twin: Twin) -> None:
    with pytest.raises(TransportUnavailable, match="slot"):
        twin.open(server({"cluster-enabled": "yes"}).connection_url).stats()


def test_a_password_opens_and_is_never_shown(twin: Twin) -> None:
    locked = server()
    address = urlsplit(locked.connection_url).netloc
    with redis.Redis.from_url(locked.connection_url) as client:
        client.config_set("requirepass", "the-right-one")
    with pytest.raises(ConfigError) as refused:
        twin.open(f"redis://:the-wrong-one@{address}").stats()
    with pytest.raises(ConfigError) as asked:
        twin.open(f"redis://{address}").stats()
    assert address in str(refused.value)
    assert address in str(asked.value)
    queue = twin.open(f"redis://default:the-right-one@{address}/0")
    queue.publish("g", EVENT)
    lease = queue.claim("w", 30.0)
    assert lease is not None
    locked.terminate()
    with pytest.raises(TransportUnavailable) as gone:
        queue.publish("g", EVENT)
    for text in (repr(queue), lease.queue, str(refused.value), str(asked.value), str(gone.value)):
        assert "the-" not in text


def test_a_user_needs_no_more_than_the_keys_the_channel_and_the_scripts(twin: Twin) -> None:
    guarded = server()
    address = urlsplit(guarded.connection_url).netloc
    with redis.Redis.from_url(guarded.connection_url) as client:
        rights = ["resetchannels", f"~{{{twin.prefix}}}:*", "+@read", "+@write", "+time", "+evalsha", "+eval"]
        client.execute_command("ACL", "SETUSER", "mute", "on", ">secret", *rights)
        channel = f"&{{{twin.prefix}}}:meta"
        client.execute_command("ACL", "SETUSER", "full", "on", ">secret", *rights, channel, "+@pubsub")
    mute = twin.open(f"redis://mute:secret@{address}", poll_interval=0.01)
    mute.publish("g", EVENT)
    lease = mute.claim("w", 0.05)
    assert lease is not None
    assert mute.wait(30.0) is True  # without a subscription it polls
    full = twin.open(f"redis://full:secret@{address}", poll_interval=60.0)
    lease = full.claim("w", 0.05)
    assert lease is not None
    assert full.wait(30.0) is True
    with pytest.raises(ConfigError, match="prefix"):
        twin.open(f"redis://full:secret@{address}", prefix="another").stats()
    guarded.terminate()


def test_connect_takes_out_its_own_options_and_passes_on_the_drivers(twin: Twin) -> None:
    url = f"{twin.url}/3?prefix={twin.prefix}&fresh_first=false&timeout=7.5&poll_interval=0.5&client_name=a%20b"
    with harel.connect(url.replace("a%20b", "ab").replace("redis://", "valkey://")) as queue:
        options = queue._pool.connection_kwargs  # type: ignore[attr-defined]
        assert (options["db"], options["client_name"], options["socket_timeout"]) == (3, "ab", 7.5)
        queue.publish("g", EVENT)
        assert repr(queue) == f"<RedisTransport {twin.url}/3#{twin.prefix}>"
        assert queue.purge("g") == 1


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("no_such_option=1", "no_such_option"),
        ("prefix=a-b", "prefix"),
        ("poll_interval=soon", "poll_interval"),
        ("db=one", "db"),
        ("poll_interval=0", "poll_interval"),
        ("timeout=-1", "timeout"),
    ],
)
def test_a_url_that_is_not_usable_says_which_part(twin: Twin, query: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        harel.connect(f"{twin.url}?{query}")


def test_a_password_that_breaks_the_url_is_not_shown(twin: Twin) -> None:
    with pytest.raises(ConfigError) as raised:
        twin.open("redis://:sec/ret@localhost:6379/0")
    assert "sec" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_url_for_tls_is_passed_on(twin: Twin) -> None:
    with pytest.raises(TransportUnavailable):
        harel.connect(twin.url.replace("redis://", "valkeys://") + "?ssl_cert_reqs=none&timeout=5")


def test_the_environment_names_the_redis_and_what_is_missing() -> None:
    variables = {"STM_TRANSPORT_BACKEND": "redis", "STM_REDIS_URL": "redis://h:1/2?prefix=p"}
    assert Environment.read(variables).url == "redis://h:1/2?prefix=p"
    with pytest.raises(ConfigError, match="STM_REDIS_URL"):
        Environment.read({"STM_TRANSPORT_BACKEND": "redis"})


@pytest.mark.parametrize(
    ("package", "name"),
    [(harel.engine.transport, "RedisTransport"), (harel.engine.aio_transport, "AsyncRedisTransport")],
)
def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, package: Any, name: str) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "redis" or name.endswith("transport.redis")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install 'harel\[redis\]'"):
        getattr(package, name)
