"""Fixtures that every folder of tests shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harel import Transport
from harel.testing import Subject
from tests.backends import BACKENDS, Backend


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
