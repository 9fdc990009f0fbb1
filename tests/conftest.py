"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harel import Transport
from harel.testing import Subject
from tests.backends import BACKENDS, Backend


def pytest_configure() -> None:
    """Let an interrupt be one: a shell has its background jobs ignore it, and all that they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend, sync and async, one after the other."""
    chosen: Backend = request.param
    return chosen


@pytest.fixture
def subject(backend: Backend, tmp_path: Path) -> Iterator[Subject]:
    """One empty queue of each backend."""
    with backend.subject(tmp_path) as subject:
        yield subject


@pytest.fixture
def queue(subject: Subject) -> Transport:
    """A transport on it."""
    return subject.open()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
