"""How a queue is opened: names, credentials, regions, endpoints, what is created, and what no message shows."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import harel
from harel import ConfigError, Event, TransportUnavailable
from harel.config import Environment
from harel.engine.transport import SqsTransport
from harel.testing import Blocking
from harel.testing.conformance.kit import drain, put, take
from tests.servers.sqs import REGION, SECRET, client, is_standin, sqs_url
from tests.servers.sqs_server import KEY_ID, KEY_WITH_ANOTHER_SECRET, KEY_WITHOUT_RIGHTS
from tests.sqs.conftest import Onlooker, Twin

TOKEN = "a-session-token-of-the-tests"


@pytest.fixture
def plain(twin: Twin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Twin:
    """A twin whose transports find credentials and region as AWS's tools do: nothing but the environment is there."""
    if not is_standin():
        pytest.skip("these credentials are the stand-in's")
    monkeypatch.setenv("HOME", str(tmp_path))
    return twin


def opened(twin: Twin, name: str | None = None, **options: Any) -> Any:
    """Open without a session, the async one too."""
    made = twin.kind.create(name or twin.queue, **{"endpoint_url": sqs_url(), **options})
    return twin.kept(made)


def whole(error: BaseException) -> str:
    """Return all that a log would show of an error."""
    return "".join(traceback.format_exception(error))


def test_credentials_and_region_come_from_the_environment(plain: Twin) -> None:
    queue = opened(plain)
    put(queue, "g", "m")
    assert drain(queue) == ["g m"]


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "no AWS credentials: set AWS_ACCESS_KEY_ID"),
        ({"AWS_SECRET_ACCESS_KEY": None}, "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ({"AWS_DEFAULT_REGION": None}, "no AWS region: give region="),
        ({"AWS_PROFILE": "missing"}, "AWS_PROFILE"),
        ({"AWS_ACCESS_KEY_ID": "another"}, r"does not accept the AWS credentials \(InvalidClientTokenId\)"),
        ({"AWS_ACCESS_KEY_ID": KEY_WITHOUT_RIGHTS}, "does not let these credentials do that.*sqs:SendMessage"),
        (
            {"AWS_ACCESS_KEY_ID": KEY_WITH_ANOTHER_SECRET},
            r"does not accept the AWS credentials \(SignatureDoesNotMatch",
        ),
    ],
)
def test_settings_that_are_missing_or_wrong_are_named_with_what_to_do_and_no_secret(
    plain: Twin, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str | None], says: str
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    for name, value in environment.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=says) as raised:
        opened(plain)
    assert SECRET not in whole(raised.value)
    assert TOKEN not in whole(raised.value)


def test_a_region_can_be_given(plain: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    there, elsewhere = opened(plain, region=REGION), opened(plain, region="us-east-1")
    put(there, "g", "m")
    assert drain(elsewhere) == []
    assert drain(there) == ["g m"]


def _refused() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{probe.getsockname()[1]}"  # bound, and nobody listens


def _silent() -> Iterator[str]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("there", [_refused, _silent], ids=["refused", "silent"])
def test_an_endpoint_that_does_not_answer_is_named_with_host_and_port(plain: Twin, there: Any) -> None:
    for url in there():
        begun = time.monotonic()
        with pytest.raises(TransportUnavailable, match=url.removeprefix("http://")) as raised:
            opened(plain, endpoint_url=url, timeout=1.0)
        assert time.monotonic() - begun < 30.0
        assert raised.value.__cause__ is not None


def test_an_endpoint_that_comes_from_the_environment_is_named_too(plain: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in _refused():
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", url)
        with pytest.raises(TransportUnavailable, match=url.removeprefix("http://")):
            opened(plain, endpoint_url=None, timeout=1.0)


def test_a_server_that_goes_away_is_unavailable_and_the_transport_goes_on_when_it_is_back(twin: Twin) -> None:
    queue = twin.open()
    twin.goes_wrong("SendMessageBatch", "drop before", times=4)
    with pytest.raises(TransportUnavailable, match="may have happened or not"):
        put(queue, "g", "m1")
    put(queue, "g", "m2")
    assert drain(queue) == ["g m2"]


@pytest.mark.parametrize("url", ["localhost", "ftp://host", "http://", "http://me:s3cret@host:1", "http://host:port"])
def test_an_endpoint_that_is_none_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="endpoint_url") as raised:
        SqsTransport.create("q", endpoint_url=url, region=REGION)
    assert "s3cret" not in whole(raised.value)


@pytest.mark.parametrize("name", ["", ".fifo", "a.b", "a b", "a/b", "é", "x" * 71, None, 7])
def test_a_queues_name_is_what_sqs_takes(name: Any) -> None:
    with pytest.raises(ConfigError, match="is not the name of a queue"):
        SqsTransport.create(name, region=REGION)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", 1_001),
        ("max_attempts", True),
        ("timeout", 0.0),
        ("poll_interval", -1.0),
        ("poll_interval", float("nan")),
        ("max_message_bytes", 100),
        ("max_message_bytes", 2_000_000),
        ("max_message_bytes", 300_000.5),
        ("clock", lambda: 0.0),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        SqsTransport.create("q", region=REGION, **{option: value})


def test_the_queue_is_made_for_high_throughput_and_keeps_messages_as_long_as_sqs_can(
    twin: Twin, onlooker: Onlooker
) -> None:
    twin.open(twin.queue.removesuffix(".fifo"))
    for name in (twin.queue, twin.dead):
        made = onlooker.attributes_of(name)
        assert made["FifoQueue"] == "true"
        assert made["DeduplicationScope"] == "messageGroup"
        assert made["FifoThroughputLimit"] == "perMessageGroupId"
        assert made["MessageRetentionPeriod"] == "1209600"
        assert "RedrivePolicy" not in made


def test_opening_asks_no_more_than_it_must(twin: Twin) -> None:
    twin.open()
    assert twin.calls() == ["GetQueueUrl", "CreateQueue"]
    twin.open()
    assert twin.calls() == twin.calls(twin.dead)[2:] == ["GetQueueUrl"]


def test_a_queue_that_exists_is_used_as_it_is(twin: Twin, onlooker: Onlooker) -> None:
    onlooker.client.create_queue(QueueName=twin.queue, Attributes={"FifoQueue": "true"})
    queue = twin.open()
    assert onlooker.attributes_of(twin.queue)["MessageRetentionPeriod"] == "345600"
    put(queue, "g", "m")
    assert drain(queue) == ["g m"]


def test_somebody_else_makes_the_queue_at_the_same_time(twin: Twin, onlooker: Onlooker) -> None:
    onlooker.client.create_queue(QueueName=twin.queue, Attributes={"FifoQueue": "true", "VisibilityTimeout": "7"})
    twin.goes_wrong("GetQueueUrl", "error", code="AWS.SimpleQueueService.NonExistentQueue", status=400)
    put(twin.open(), "g", "m")
    assert onlooker.attributes_of(twin.queue)["VisibilityTimeout"] == "7"


def test_nothing_is_made_where_that_is_not_wanted(twin: Twin, onlooker: Onlooker) -> None:
    with pytest.raises(ConfigError, match=rf"has no queue {twin.queue}"):
        twin.open(create_queue=False)
    onlooker.client.create_queue(QueueName=twin.queue, Attributes={"FifoQueue": "true"})
    queue = twin.open(create_queue=False)
    put(queue, "g", "m1", "m2")
    lease = take(queue)
    with pytest.raises(ConfigError, match=rf"no queue {twin.dead} for the dead letters"):
        queue.reject(lease, "why")
    onlooker.client.create_queue(QueueName=twin.dead, Attributes={"FifoQueue": "true"})
    assert queue.reject(lease, "why") is True
    with pytest.raises(ConfigError, match="max_attempts needs it"):
        twin.open(twin.dead, create_queue=False, max_attempts=3)


def test_the_attempts_that_sqs_allows_are_set_where_none_are_and_never_changed(twin: Twin, onlooker: Onlooker) -> None:
    twin.open()
    twin.open(max_attempts=3)
    policy = onlooker.attributes_of(twin.queue)["RedrivePolicy"]
    assert policy["maxReceiveCount"] == 3
    assert policy["deadLetterTargetArn"].endswith(twin.dead)
    twin.open(max_attempts=3)
    with pytest.raises(ConfigError, match="after 3 attempts, and max_attempts is 4"):
        twin.open(max_attempts=4)


def test_a_queue_just_made_may_be_unknown_for_a_moment(twin: Twin) -> None:
    queue = twin.open()
    twin.goes_wrong("SendMessageBatch", "error", code="AWS.SimpleQueueService.NonExistentQueue", status=400)
    put(queue, "g", "m")
    assert drain(queue) == ["g m"]


def test_a_client_of_the_callers_is_used_and_not_closed(tmp_path: Path) -> None:
    sqs_url()
    twin = Twin(tmp_path, is_async=False)
    twin.open()
    mine = client()
    close, closed = mine.close, []
    mine.close = lambda: closed.append(True)
    url = mine.get_queue_url(QueueName=twin.queue)["QueueUrl"]
    with SqsTransport(mine, url) as queue:
        put(queue, "g", "m1", "m2")
        assert queue.reject(take(queue), "why"), "the queue of the dead letters is found by its name"
    assert closed == []
    twin.close()
    close()


def test_an_async_client_of_the_callers_is_used_and_not_closed(tmp_path: Path) -> None:
    from harel.engine.aio_transport import AsyncSqsTransport
    from tests.servers.sqs import async_session

    sqs_url()
    twin = Twin(tmp_path, is_async=True)
    twin.open()

    async def use() -> None:
        async with async_session().create_client("sqs", region_name=REGION, endpoint_url=sqs_url()) as mine:
            url = (await mine.get_queue_url(QueueName=twin.queue))["QueueUrl"]
            dead = (await mine.get_queue_url(QueueName=twin.dead))["QueueUrl"]
            async with AsyncSqsTransport(mine, url, dead_letter_url=dead) as queue:
                await queue.publish("g", Event("m"))
                lease = await queue.claim("w", 30.0)
                assert lease is not None
                assert await queue.reject(lease, "why")
            assert (await mine.get_queue_url(QueueName=twin.queue))["QueueUrl"] == url

    asyncio.run(use())
    twin.close()


@pytest.mark.parametrize("url", ["https://sqs.eu-west-1.amazonaws.com/1/standard", "q.fifo", None, ""])
def test_a_queue_that_is_no_fifo_queue_is_refused(url: Any) -> None:
    with pytest.raises(ConfigError, match=r"queue_url is the URL of a FIFO queue|dead_letter_url"):
        SqsTransport(object(), url)
    with pytest.raises(ConfigError, match=r"queue_url is the URL of a FIFO queue|dead_letter_url"):
        SqsTransport(object(), "https://sqs.eu-west-1.amazonaws.com/1/q.fifo", dead_letter_url=url or "x")


def test_a_url_and_the_environment_name_the_queue(plain: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("STM_TRANSPORT_BACKEND", "sqs")
    monkeypatch.setenv("STM_SQS_QUEUE", plain.queue)
    monkeypatch.setenv("STM_SQS_ENDPOINT", sqs_url())
    monkeypatch.setenv("STM_AWS_REGION", REGION)
    with harel.connect_from_env() as queue:
        put(queue, "g", "m")
        assert plain.queue in repr(queue)

    async def again() -> None:
        url = f"sqs://{plain.queue}?endpoint_url={sqs_url()}&region={REGION}&poll_interval=0.5&max_attempts=5"
        async with await harel.connect_async(url) as queue:
            assert await queue.wait(0.0) is False
            lease = await queue.claim("w", 30.0)
            assert lease is not None
            assert lease.event.kind == "m"

    asyncio.run(again())


def test_the_environment_unset_is_a_queue_called_stm() -> None:
    assert Environment.read({"STM_TRANSPORT_BACKEND": "sqs"}).url.partition("?")[0] == "sqs://stm.fifo"


def test_an_option_that_sqs_has_not_is_named() -> None:
    with pytest.raises(ConfigError, match="has no option 'prefix'; it has endpoint_url, region"):
        harel.connect("sqs://q.fifo?prefix=a")


def test_no_secret_is_in_what_a_transport_shows(plain: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    queue = opened(plain)
    put(queue, "g", "m")
    shown = repr(queue.inner if isinstance(queue, Blocking) else queue) + repr(take(queue))
    assert not any(secret in shown for secret in (KEY_ID, SECRET, TOKEN))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_of_a_fork_has_a_client_of_its_own(tmp_path: Path) -> None:
    sqs_url()
    twin = Twin(tmp_path, is_async=False)
    queue: Any = twin.open()
    parents = queue._line.client
    child = os.fork()
    if child == 0:
        put(queue, "g", "m")
        own = queue._line.client is not parents and len(queue.claim_many("w", 30.0, 5)) == 1
        os._exit(0 if own else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert queue._line.client is parents
    put(queue, "h", "m")
    assert drain(queue) == ["h m"]
    twin.close()
