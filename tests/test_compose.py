"""``compose.yaml`` and the workflow parse, and say the same as the tests: neither has run where there is no Docker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

ROOT = Path(__file__).parents[1]
VARIABLE = re.compile(r"HAREL_TEST_[A-Z]+_URL")


def _yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def _servers_job() -> Any:
    return _yaml(".github/workflows/tests.yml")["jobs"]["servers"]


def _asked_for_by_the_tests() -> set[str]:
    files = (ROOT / "tests" / "servers").glob("*.py")
    return {name for file in files for name in VARIABLE.findall(file.read_text(encoding="utf-8"))}


def test_each_service_listens_on_this_machine_alone() -> None:
    for service in _yaml("compose.yaml")["services"].values():
        for port in service["ports"]:
            assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port)


def test_the_workflow_gives_each_backend_the_address_that_its_service_has() -> None:
    services = _yaml("compose.yaml")["services"]
    urls = {name: value for name, value in _servers_job()["env"].items() if VARIABLE.fullmatch(name)}
    assert set(urls) == _asked_for_by_the_tests()
    for name, value in urls.items():
        backend, url = re.findall(r"'([^']+)'", value)
        assert name == f"HAREL_TEST_{backend.upper()}_URL"
        assert services[backend]["ports"] == [f"127.0.0.1:{urlsplit(url).port}:{urlsplit(url).port}"]


def test_the_matrix_sets_only_what_the_compose_file_takes() -> None:
    compose = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    for case in _servers_job()["strategy"]["matrix"]["include"]:
        image = _yaml("compose.yaml")["services"][case["service"]]["image"]
        assert f"${{{case['setting']}:-" in image
        assert f"${{{case['setting']}" in compose


def test_the_workflow_runs_what_the_readme_says() -> None:
    jobs = _yaml(".github/workflows/tests.yml")["jobs"]
    ran = [step["run"] for step in jobs["alone"]["steps"] if "run" in step]
    assert ran == ["make check", "make test"]
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-2:] == ran
