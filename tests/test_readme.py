"""What the README and the documentation show works when it is pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _programs() -> list[tuple[str, str]]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [
        (f"{page.name}-{number}", program)
        for page in pages
        for number, program in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1)
    ]


@pytest.mark.parametrize("program", [pytest.param(text, id=name) for name, text in _programs()])
def test_a_shown_program_runs(program: str, tmp_path: Path) -> None:
    if "async def main" in program:
        program = (
            "import harel\nwith harel.connect('sqlite:///orders.db') as q:\n"
            "    q.publish('order-17', harel.Event('placed', {'total': 42}))\n"
            f"{program}\n"
            "async def briefly():\n"
            "    running = asyncio.create_task(main())\n"
            "    while True:\n"
            "        async with await harel.connect_async('sqlite:///orders.db') as q:\n"
            "            if not (await q.stats()).messages:\n"
            "                break\n"
            "    running.cancel()\n"
            "asyncio.run(briefly())\n"
        )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_readmes_program_prints_its_events_in_order(tmp_path: Path) -> None:
    program = dict(_programs())["README.md-1"]
    assert len([line for line in program.splitlines() if line.strip()]) <= 12
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "placed {'total': 42}\npaid {'by': 'card'}\n"


def test_the_readme_fits_one_screen_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), target


def test_every_backend_is_in_the_readmes_table() -> None:
    from harel.config import BACKENDS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for backend in BACKENDS:
        assert f"`{backend.schemes[0]}://" in text, backend.name
