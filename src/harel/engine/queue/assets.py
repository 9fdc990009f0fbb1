"""The .sql files of a backend, as package data: an operation a file, named as the method."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

from harel.errors import ConfigError

__all__ = ["check_identifier", "load_sql"]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_PLACE = re.compile(r"\{([a-z_]+)\}")


def check_identifier(option: str, name: str) -> str:
    """Return a name that may become part of a statement.

    Raises
    ------
    ConfigError
        Unless it is 1 to 40 letters, digits and underscores, and no digit comes first.
    """
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise ConfigError(f"{option} is 1 to 40 ASCII letters, digits and underscores, no digit first; it is {name!r}.")
    return name


def load_sql(package: str, name: str, words: Mapping[str, str]) -> tuple[str, ...]:
    """Load the statements of one file.

    Parameters
    ----------
    package : str
        The package with the file.
    name : str
        The file's name without ``.sql``.
    words : mapping of str to str
        What takes the place of each ``{word}``: checked identifiers and our own expressions, never
        anything that a caller passes.

    Returns
    -------
    tuple of str
        The statements, without comments. In the file each ends with a semicolon at the end of a line.
    """
    text = files(package).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("--"))
    code = _PLACE.sub(lambda place: words[place[1]], "\n".join(lines))
    statements = re.split(r";[ \t]*(?:\n|$)", code)
    return tuple(statement.strip() for statement in statements if statement.strip())
