"""Classes that come with an extra, imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from harel.errors import ConfigError

__all__ = ["on_demand"]


def on_demand(package: str, extras: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package whose modules may need what is not installed.

    Parameters
    ----------
    package : str
    extras : mapping of str to str
        From the name of a class to its extra, which has the name of its module.
    """

    def get(name: str) -> Any:
        extra = extras.get(name)
        if extra is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{package}.{extra}"), name)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{name} needs {error.name}, which is not installed: pip install 'harel[{extra}]'."
            ) from error

    return get
