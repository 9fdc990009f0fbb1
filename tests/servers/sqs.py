"""The SQS that the tests run on: ``HAREL_TEST_SQS_URL``, an endpoint of one's own, or the stand-in.

With an endpoint of one's own, credentials and region come from the environment, and what needs a clock that the test
sets is skipped by its name.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3  # type: ignore[import-untyped]
import botocore.session  # type: ignore[import-untyped]
import pytest
from aiobotocore.session import AioSession  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]

from harel.engine.transport.sqs import shared_loader
from tests.servers.sqs_server import KEY_ID

REGION = os.environ.get("AWS_DEFAULT_REGION", "eu-west-1")
SECRET = "a-secret-key-of-the-tests"

_OWN = "HAREL_TEST_SQS_URL"
_STANDIN = "HAREL_TEST_SQS_STANDIN_URL"
_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": KEY_ID,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


def is_standin() -> bool:
    """Say whether the tests run on the stand-in."""
    return not os.environ.get(_OWN)


@functools.cache
def sqs_url() -> str:
    """Say where the endpoint is; the first call starts the stand-in, and processes of the session find it too."""
    if not is_standin():
        return os.environ[_OWN]
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(_ENVIRONMENT)
    if _STANDIN not in os.environ:
        os.environ[_STANDIN] = started()
    return os.environ[_STANDIN]


def started() -> str:
    """Start a stand-in; it stops when this process ends."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.sqs_server"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    atexit.register(server.communicate)
    assert url, "the stand-in for SQS did not start"
    return url


def queue_in(folder: Path) -> str:
    """Give a folder's queue, the same to every process; it is deleted when this one ends."""
    file = folder / "sqs-queue"
    if not file.exists():
        file.write_text(f"t{uuid4().hex[:12]}.fifo")
        if not is_standin():
            atexit.register(_delete, file.read_text())
    return file.read_text()


def _delete(name: str) -> None:
    sqs = client()
    for each in (name, name.replace(".fifo", "-dead.fifo")):
        sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName=each)["QueueUrl"])
    sqs.close()


def client() -> Any:
    """Make a client of boto3's, to look from outside."""
    config = Config(retries={"total_max_attempts": 1})
    return sync_session().client("sqs", region_name=REGION, endpoint_url=sqs_url(), config=config)


@functools.cache
def sync_session() -> Any:
    """Return boto3's session of the tests."""
    inner = botocore.session.Session()
    _prepare(inner)
    return boto3.session.Session(botocore_session=inner)


@functools.cache
def async_session() -> Any:
    """Return aiobotocore's session of the tests."""
    session = AioSession()
    _prepare(session)
    return session


def _prepare(session: Any) -> None:
    session.register_component("data_loader", shared_loader())
    session.register("before-call.sqs", _tell_the_time)


_CLOCKS: dict[str, Callable[[], float]] = {}
"""By the stem of the queue's name."""

_STEM = re.compile(rb"t[0-9a-f]{12}")


def _tell_the_time(params: dict[str, Any], **_: Any) -> None:
    found = _STEM.search(params["body"])
    clock = _CLOCKS.get(found[0].decode()) if found else None
    if clock is not None:
        params["headers"]["X-Harel-Time"] = repr(clock())


def opener_in(transport: Any, folder: Path) -> Callable[..., Any]:
    """Return what opens the folder's queue, by a clock of the test's.

    The async twin makes its client and finds or makes its queues; the sync one gets a client, the same every time.
    """
    is_async = transport.__name__.startswith("Async")

    def open_sqs(*, clock: Callable[[], float] | None = None, fresh_first: bool = True, **options: Any) -> Any:
        del fresh_first  # SQS has no such choice, and the tests of it need a capability that it lacks
        endpoint, name = sqs_url(), queue_in(folder)
        if clock is not None:
            if not is_standin():
                pytest.skip(f"an SQS of one's own ({_OWN}) cannot be told what time it is")
            _CLOCKS[name.removesuffix(".fifo")] = clock
        if is_async:
            made = transport.create(name, async_session(), endpoint_url=endpoint, region=REGION, **options)
        else:
            made = transport(_shared_client(), _url_of(name), **options)
        if clock is not None:
            # SQS alone judges leases here: the machine's clock says nothing about the test's time.
            made._ops.asker.monotonic = lambda: 0.0
        return made

    return open_sqs


@functools.cache
def _shared_client() -> Any:
    shared = client()
    atexit.register(shared.close)
    return shared


@functools.cache
def _url_of(name: str) -> str:
    """Make a queue, and the one for its dead letters, which is found by its name."""
    urls = [
        _shared_client().create_queue(QueueName=each, Attributes={"FifoQueue": "true"})["QueueUrl"]
        for each in (name.replace(".fifo", "-dead.fifo"), name)
    ]
    return str(urls[1])


def administer(queue: str, **wish: Any) -> list[str]:
    """Tell the stand-in what is to go wrong with a queue's calls; return those that were made.

    ``rule`` is a :class:`tests.servers.sqs_server.Rule`, ``forget`` forgets rules and calls.
    """
    if not is_standin():
        pytest.skip(f"an SQS of one's own ({_OWN}) cannot be told what to do")
    if "rule" in wish:
        wish["rule"]["queue"] = queue
    data = json.dumps({"queue": queue, **wish}).encode()
    with urllib.request.urlopen(f"{sqs_url()}/_harel", data, timeout=30) as reply:
        calls: list[str] = json.load(reply)["calls"]
    return calls
