"""A stage for each test, with an empty schema."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.postgres.stage import Stage
from tests.servers.postgres import drop, postgres_url


@pytest.fixture
def url() -> str:
    return postgres_url()


@pytest.fixture
def schema(url: str) -> Iterator[str]:
    name = f"t{uuid4().hex[:12]}"
    yield name
    drop(url, name)


@pytest.fixture
def stage(url: str, schema: str) -> Iterator[Stage]:
    stage = Stage(url, schema)
    yield stage
    stage.close()
