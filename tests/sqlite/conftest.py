"""Fixtures of the tests on files."""

from __future__ import annotations

import pytest

from tests.sqlite.drivers import DRIVERS, Driver


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.scheme)
def driver(request: pytest.FixtureRequest) -> Driver:
    """Each driver, one after the other."""
    chosen: Driver = request.param
    return chosen
