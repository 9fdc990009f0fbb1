"""The contract as tests: a module an area, and every test of them here, to be star-imported.

A test takes the fixture ``subject``, a :class:`harel.testing.Subject`, which the importer defines; it is
opened with the options ``clock`` and ``fresh_first``. What a backend cannot do it says in its
:class:`~harel.Capabilities`; a test that needs it is then skipped with the capability's name, and another one
sees that asking for it is refused.
"""

import importlib
from types import ModuleType

import pytest

AREAS = (
    "bad_input",
    "basics",
    "batches",
    "capability",
    "closing",
    "clock",
    "dead_letters",
    "draining",
    "fairness",
    "holding",
    "leases",
    "looking",
    "names",
    "order",
    "priority",
    "purging",
    "sharing",
    "undecodable",
    "undisturbed",
    "waiting",
)
"""The modules of this package that hold tests."""

# Before the areas are imported, or their assertions would fail without saying why.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in (*AREAS, "kit")))


def _tests_of(area: str) -> list[str]:
    module: ModuleType = importlib.import_module(f"{__name__}.{area}")
    names = [name for name in vars(module) if name.startswith("test_")]
    for name in names:
        assert name not in globals(), f"Two areas have a test {name}; one would hide the other."
        globals()[name] = getattr(module, name)
    return names


__all__ = [name for area in AREAS for name in _tests_of(area)]
