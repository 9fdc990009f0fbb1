"""The reference names everything that is public."""

from __future__ import annotations

import re
from pathlib import Path

import harel
import harel.metrics
import harel.tracing
from harel import errors
from harel.engine import aio_transport, transport

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"^\.\. auto(?:class|exception|function):: harel\.(?:\w+\.)*(\w+)$", PAGE, re.MULTILINE))
OF_TRACED = {"TracedTransport", "AsyncTracedTransport"}
"""What ``traced`` returns is the transport that it was given, to whoever uses it."""


def test_every_public_name_is_in_the_reference() -> None:
    assert ".. automodule:: harel.errors\n   :members:\n" in PAGE
    public = {*harel.__all__, *transport.__all__, *aio_transport.__all__, *harel.metrics.__all__}
    public |= set(harel.tracing.__all__) - OF_TRACED
    assert public - NAMED - set(errors.__all__) == set()
