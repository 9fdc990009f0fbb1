"""The peers of the benchmark: who they are, how they are installed, and how they are told what to do."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
import venv
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks import processes
from benchmarks.contenders import CONTENDERS, Contender, Environment, Queue
from benchmarks.handler import SLOT_BYTES, Handler
from benchmarks.peers import PEERS
from benchmarks.processes import NotInstalled, Process, command_of, installed_in, python_of
from benchmarks.runtimes import RUNTIMES, Runtime, group_name, in_rounds
from tests.benchmarks.dummy import KEY

PROGRAMS = processes.PROGRAMS
WANTED = {
    "harel 0.9.0": {"memory", "sqlite", "postgres", "redis"},
    "procrastinate": {"postgres"},
    "DBOS": {"postgres", "sqlite"},
    "pg-boss": {"postgres"},
    "graphile-worker": {"postgres"},
    "GroupMQ": {"redis"},
    "honker": {"sqlite"},
}
MEASURED = [each for each in PEERS if not each.unable]
ENVIRONMENTS: set[Environment] = {each.environment for each in (*CONTENDERS, *PEERS) if each.environment is not None}
NODES: set[Environment] = {each.node for each in ENVIRONMENTS if each.node is not None}
NODE = Environment("node-1", ("node-by-pip==1.0",))
ON_NODE = Environment("queue-1", packages=("queue@1.2.3", "@of/driver@4.5.6"), node=NODE)
IN_PYTHON = Environment("queue-2", ("queue==2.0",))


def _key(contender: Contender) -> str:
    return contender.key


def _name(environment: Environment) -> str:
    return environment.name


INSTALLED: list[Environment] = sorted({*ENVIRONMENTS, *NODES}, key=_name)


def _never(_: str) -> Queue:
    raise AssertionError("no queue is opened here")


# Who they are


def test_every_peer_is_there_on_its_backends() -> None:
    found: dict[str, set[str]] = {}
    for each in (*CONTENDERS, *PEERS):
        if each.role == "peer":
            name = next((name for name in WANTED if each.name.startswith(name)), each.name)
            found.setdefault(name, set()).add(each.backend)
    assert found == WANTED


def test_no_two_have_a_key_or_a_row_of_the_tables_in_common() -> None:
    everyone = (*CONTENDERS, *PEERS)
    assert len({each.key for each in everyone}) == len({(each.name, each.backend) for each in everyone})
    assert len({each.key for each in everyone}) == len(everyone)


@pytest.mark.parametrize("peer", MEASURED, ids=_key)
def test_a_peer_has_a_worker_and_says_how_it_orders_a_group(peer: Contender) -> None:
    assert peer.environment is not None
    assert bool(peer.program) == bool(peer.environment.packages)
    assert (PROGRAMS / peer.program).is_file() if peer.program else peer.key in RUNTIMES
    assert peer.concurrency > 0
    assert peer.about.endswith(".")
    assert peer.durable


def test_a_peer_that_cannot_do_the_work_says_why_and_installs_nothing() -> None:
    unable = [each for each in PEERS if each.unable]
    assert unable
    assert all(each.environment is None and each.unable.endswith(".") for each in unable)


def test_every_runtime_and_every_program_is_somebodys() -> None:
    keys = {each.key for each in (*CONTENDERS, *PEERS)}
    assert set(RUNTIMES) <= keys
    programs = {path.name for path in PROGRAMS.glob("*.mjs")} - {"protocol.mjs"}
    assert programs == {each.program for each in PEERS if each.program}


def test_what_a_program_looks_for_in_its_key_is_there() -> None:
    for program in {each.program for each in PEERS if each.program}:
        text = (PROGRAMS / program).read_text(encoding="utf-8")
        keys = [each.key for each in PEERS if each.program == program]
        looked_for = re.findall(r'key\.includes\("([^"]+)"\)', text)
        assert all(1 == sum(part in key for key in keys) < len(keys) for part in looked_for), program
        assert len(keys) == 1 + len(looked_for)


@pytest.mark.parametrize("environment", INSTALLED, ids=_name)
def test_what_is_installed_is_pinned(environment: Environment) -> None:
    assert environment.wanted
    for requirement in environment.requirements:
        assert re.fullmatch(r"[a-z0-9-]+(\[[a-z,]+\])?==\d+(\.\d+)+", requirement)
    for package in environment.packages:
        assert re.fullmatch(r"(@[a-z-]+/)?[a-z0-9-]+@\d+\.\d+\.\d+", package)
    assert bool(environment.packages) == (environment.node in NODES)


# How they are told


def test_rounds_give_every_group_its_next_message() -> None:
    assert list(in_rounds([3, 0, 1, 2])) == [(0, 0), (2, 0), (3, 0), (0, 1), (3, 1), (0, 2)]
    assert list(in_rounds([])) == []


def test_what_publishes_one_by_one_publishes_a_groups_next_after_its_last() -> None:
    class OneByOne(Runtime):
        def __init__(self) -> None:
            self.done: list[tuple[int, int]] = []
            self.most = self.now = 0

        async def publish(self, group: int, number: int) -> None:
            self.now += 1
            self.most = max(self.most, self.now)
            for _ in range(10 - 3 * number):  # the later a message comes, the sooner it is done
                await asyncio.sleep(0)
            self.now -= 1
            self.done.append((group, number))

    runtime = OneByOne()
    asyncio.run(runtime.backlog(sizes=[3, 4, 2]))
    assert sorted(runtime.done) == sorted(in_rounds([3, 4, 2]))
    for group in range(3):
        numbers = [number for each, number in runtime.done if each == group]
        assert numbers == sorted(numbers)
    assert runtime.most > 1  # side by side, all the same


@pytest.fixture
def process() -> Iterator[Process]:
    dummy = Contender(KEY, "dummy", "memory", _never, "peer", "nothing")
    with Process(dummy, [sys.executable, "-m", "tests.benchmarks.dummy", KEY]) as process:
        process.ask("open", place="nowhere")
        process.ask("prepare", groups=3)
        yield process
        process.ask("close")


@pytest.mark.timeout(600)
def test_the_protocol(process: Process, tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    work = {"tally": str(tally), "concurrency": 1}

    process.ask("backlog", groups=2, each=2)
    assert process.ask("waiting") == {"messages": 4}
    tally.write_bytes(bytes(SLOT_BYTES))
    found = process.ask("handle", count=4, slot=0, **work)
    assert [message[1:] for message in found["seen"]] == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert found["began"] <= found["seen"][0][0]
    assert found["client_s"] > 0

    process.ask("backlog", sizes=[1, 0, 3])
    tally.write_bytes(bytes(SLOT_BYTES))
    paused = process.ask("handle", count=4, slot=0, pause_ms=2, **work)["seen"]
    assert [message[1:3] for message in paused] == [[0, 0], [2, 0], [2, 1], [2, 2]]
    assert all(ended - began >= 0.002 for began, _, _, ended in paused)

    tally.write_bytes(bytes(SLOT_BYTES))
    both = process.ask("handle_trickle", groups=2, count=3, pause_s=0.001, **work)
    assert [message[1:] for message in both["published"]["published"]] == [[0, 0], [1, 0], [0, 1]]
    assert len(both["handled"]["seen"]) == 3

    published = process.ask("flow", groups=2, rate=100, seconds=0.05)["published"]
    assert [message[1:] for message in published] == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2]]
    assert process.ask("waiting") == {"messages": 5}
    tally.write_bytes(bytes(SLOT_BYTES))
    process.ask("handle", count=5, slot=0, **work)


def test_a_command_that_fails_is_told_with_its_reason(process: Process) -> None:
    with pytest.raises(RuntimeError, match="dummy \\(memory\\) could not open"):
        process.ask("open", place="elsewhere")


def test_the_programs_know_the_same_commands() -> None:
    """No Node is at hand here, so that they are only read."""
    ours = {name for name in vars(Handler) if not name.startswith("_")}
    protocol = (PROGRAMS / "protocol.mjs").read_text(encoding="utf-8")
    assert set(re.findall(r"^  async (\w+)\(", protocol, re.MULTILINE)) == ours
    asked = set(re.findall(r"this\.peer\.(\w+)\(", protocol))
    for program in {each.program for each in PEERS if each.program}:
        text = (PROGRAMS / program).read_text(encoding="utf-8")
        assert set(re.findall(r"^  async (\w+)\(", text, re.MULTILINE)) == asked, program


# How they are installed


def test_an_environment_that_is_there_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def create(folder: Path, **_: object) -> None:
        made.append(folder.name)
        folder.mkdir(exist_ok=True)

    monkeypatch.setattr(venv, "create", create)
    monkeypatch.setattr(subprocess, "run", _tool())
    python = python_of(IN_PYTHON, tmp_path)
    assert python_of(IN_PYTHON, tmp_path) == python
    assert Path(python).parent.name == "bin"
    assert len(made) == 1
    python_of(Environment(IN_PYTHON.name, ("queue==2.1",)), tmp_path)
    assert len(made) == 2
    assert python_of(None, tmp_path) == sys.executable


def test_node_packages_are_installed_as_they_are_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[list[str], str]] = []
    monkeypatch.setattr(venv, "create", lambda folder, **_: Path(folder).mkdir())
    monkeypatch.setattr(subprocess, "run", _tool(commands))
    contender = Contender(
        "queue-redis", "queue", "redis", _never, "peer", "", environment=ON_NODE, program="groupmq.mjs"
    )
    node, program, key = command_of(contender, tmp_path, "benchmarks.handler")

    folder = tmp_path / "queue-1-node"
    assert Path(node).parent == next(tmp_path.glob("node-1-py*")) / "bin"
    assert key == contender.key
    assert Path(program) == folder / "programs" / "groupmq.mjs"
    assert {path.name for path in PROGRAMS.glob("*.mjs")} == {path.name for path in Path(program).parent.iterdir()}
    manifest = json.loads((folder / "package.json").read_text())
    assert manifest["dependencies"] == {"queue": "1.2.3", "@of/driver": "4.5.6"}
    (_, _), (npm, path) = commands
    assert npm[0] == str(Path(node).with_name("npm"))
    assert {"--no-package-lock", "--ignore-scripts"} <= set(npm)
    assert path.split(":")[0] == str(Path(node).parent)

    for name, version in (("queue", "1.2.3"), ("@of/driver", "4.5.6"), ("queue/node_modules/inner", "7.0.0")):
        package = folder / "node_modules" / name
        package.mkdir(parents=True)
        (package / "package.json").write_text(
            json.dumps({"name": name.rpartition("node_modules/")[2], "version": version})
        )
    assert installed_in(ON_NODE, tmp_path) == "node-by-pip==1.0, @of/driver@4.5.6, inner@7.0.0, queue@1.2.3"
    assert len(commands) == 2


def test_a_program_that_changed_is_copied_again(tmp_path: Path) -> None:
    source, copy = tmp_path / "program.mjs", tmp_path / "copy.mjs"
    for text in ("one", "two"):
        source.write_text(text)
        processes._copy(source, copy)
        assert copy.read_text() == text
    assert {path.name for path in tmp_path.iterdir()} == {"program.mjs", "copy.mjs"}


def test_what_cannot_be_installed_says_so_without_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "WARNING: slow\nERROR: No matching distribution found for queue at https://user:secret@registry.test/simple\nbye"
    monkeypatch.setattr(venv, "create", lambda folder, **_: Path(folder).mkdir(exist_ok=True))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1, stderr=said, stdout=""))
    for _ in range(2):  # what failed is not taken for finished
        with pytest.raises(NotInstalled) as caught:
            python_of(IN_PYTHON, tmp_path)
        assert str(caught.value) == (
            "python could not install queue==2.0: ERROR: No matching distribution found for queue at (an address)"
        )


def _tool(commands: list[tuple[list[str], str]] | None = None) -> Callable[..., SimpleNamespace]:
    def run(command: list[str], *, env: dict[str, str], **_: object) -> SimpleNamespace:
        if commands is not None:
            commands.append((list(command), env["PATH"]))
        return SimpleNamespace(returncode=0, stderr="", stdout="")

    return run


# What two of them in Python are asked


class _Job(SimpleNamespace):
    """A job of the stand-in for procrastinate."""


class _App:
    """As much of procrastinate as the adapter calls: jobs whose lock is taken wait, and many are deferred as given."""

    def __init__(self, connector: Any) -> None:
        self.connector = connector
        self.job_manager = self
        self.schema_manager = self
        self.jobs: list[_Job] = []
        self.batches: list[int] = []
        self.options: dict[str, Any] = {}
        self.calls: list[str] = []
        self._task: Callable[..., Awaitable[None]] | None = None

    def task(self, name: str) -> Callable[[Any], Any]:
        def keep(function: Any) -> Any:
            self._task = function
            return SimpleNamespace(name=name, configure=self.configure)

        return keep

    def configure(self, lock: str) -> SimpleNamespace:
        def job(**given: int) -> _Job:
            return _Job(lock=lock, given=given, status="todo")

        async def defer_async(**given: int) -> None:
            self.jobs.append(job(**given))

        return SimpleNamespace(make_new_job=job, defer_async=defer_async)

    async def open_async(self) -> None:
        self.calls.append("open")

    async def close_async(self) -> None:
        self.calls.append("close")

    async def check_connection_async(self) -> bool:
        return "schema" in self.calls

    async def apply_schema_async(self) -> None:
        self.calls.append("schema")

    async def batch_defer_jobs_async(self, jobs: list[_Job]) -> None:
        self.batches.append(len(jobs))
        self.jobs += jobs

    async def list_jobs_async(self) -> list[_Job]:
        return self.jobs

    async def run_worker_async(self, **options: Any) -> None:
        self.options = options
        assert self._task is not None
        for job in self.jobs:
            if job.status == "todo":
                job.status = "doing"
                await self._task(**job.given)
                job.status = "succeeded"
        await asyncio.Event().wait()  # it runs until it is cancelled


def test_procrastinate_defers_with_a_lock_and_works_until_there_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("procrastinate")
    module.App = _App
    module.PsycopgConnector = SimpleNamespace
    monkeypatch.setitem(sys.modules, "procrastinate", module)
    runtime: Any = RUNTIMES["procrastinate-postgres"]()
    begun: list[tuple[int, int]] = []
    ended: list[tuple[int, int]] = []

    async def all_of_it() -> None:
        enough = asyncio.Event()

        def handle(group: int, number: int) -> Awaitable[None] | None:
            begun.append((group, number))
            return end(group, number) if group else None

        async def end(group: int, number: int) -> None:
            await asyncio.sleep(0)
            ended.append((group, number))
            if len(begun) == 4:
                enough.set()

        await runtime.open("postgresql://somewhere")
        await runtime.prepare(3)
        await runtime.prepare(3)
        await runtime.backlog(sizes=[1, 2])
        await runtime.publish(1, 2)
        assert await runtime.waiting() == 4
        await runtime.work(handle, enough, 7)
        assert await runtime.waiting() == 0
        await runtime.close()

    asyncio.run(all_of_it())
    app = runtime._app
    assert app.connector.conninfo == "postgresql://somewhere"
    assert app.calls == ["open", "schema", "close"]
    assert app.batches == [3]
    assert [(job.lock, job.given["number"]) for job in app.jobs] == [
        (group_name(0), 0),
        (group_name(1), 0),
        (group_name(1), 1),
        (group_name(1), 2),
    ]
    assert begun == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert ended == begun[1:]
    assert app.options["concurrency"] == 7
    assert app.options["delete_jobs"] == "successful"
    assert app.connector.max_size > 10


def test_procrastinates_worker_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(_App):
        async def run_worker_async(self, **_: Any) -> None:
            raise ConnectionError("the server is gone")

    module: Any = ModuleType("procrastinate")
    module.App = Failing
    module.PsycopgConnector = SimpleNamespace
    monkeypatch.setitem(sys.modules, "procrastinate", module)
    runtime = RUNTIMES["procrastinate-postgres"]()

    async def work() -> None:
        await runtime.open("postgresql://somewhere")
        await runtime.work(lambda *_: None, asyncio.Event(), 1)

    with pytest.raises(ConnectionError, match="the server is gone"):
        asyncio.run(work())


def test_dbos_gives_a_workflow_its_groups_partition_and_an_id_that_ascends(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("dbos")
    module.DBOS = SimpleNamespace(workflow=lambda name: lambda function: function)
    monkeypatch.setitem(sys.modules, "dbos", module)
    runtime: Any = RUNTIMES["dbos-sqlite"]()
    asyncio.run(runtime.open("/a/folder"))
    assert runtime._url == "sqlite:////a/folder/queue.db"
    monkeypatch.setattr(time, "time_ns", lambda: 7)
    options = [runtime._options(group) for group in (1, 1, 2, 1)]
    ids = [each["workflow_id"] for each in options]
    assert ids == sorted(set(ids))
    assert [each["queue_partition_key"] for each in options] == [group_name(group) for group in (1, 1, 2, 1)]
