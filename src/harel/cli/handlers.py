"""From ``MODULE:HANDLER`` to the handler."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from harel.cli.failure import Failure

__all__ = ["load"]


def load(target: str) -> Callable[..., Any]:
    """Import a handler.

    Parameters
    ----------
    target : str
        ``module:name``; the name may have dots.
    """
    name, colon, path = target.partition(":")
    if not name or not colon or not path:
        raise Failure(f"A handler is named MODULE:HANDLER, such as shop.events:handle, not {target!r}.")
    handler: Any = _module(name)
    for part in path.split("."):
        try:
            handler = getattr(handler, part)
        except AttributeError:
            raise Failure(f"The module {name} has no {path!r}.") from None
    if not callable(handler):
        raise Failure(f"{target} is not callable; a handler is a function that takes (event) or (event, context).")
    return handler  # type: ignore[no-any-return]


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise Failure(f"There is no module {name!r}, neither installed nor in {here}.") from error
        raise Failure(f"The module {name} needs {error.name!r}, which is not installed.") from error
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise Failure(
            f"The module {name} cannot be imported: {type(error).__name__}: {error} "
            f"({last.filename}, line {last.lineno})."
        ) from error
