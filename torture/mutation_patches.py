"""Deliberately broken variants of harel as files: a head that says what is broken, then a unified diff.

The diff is applied here and not by ``patch``, which a machine may lack and which guesses: here a hunk goes where its
lines are, all of them and just once in the file, or nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import msgspec

__all__ = ["BadMutation", "FileChange", "Hunk", "Mutation", "load", "read_changes", "read_mutation"]

_KEYS = ("Broken", "Promise", "Test")
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class BadMutation(Exception):
    """Raised for a patch that cannot be read, or that does not fit the code."""


class Hunk(msgspec.Struct, frozen=True):
    """Lines that follow one another, and what takes their place; each ends with a newline."""

    old: tuple[str, ...]
    new: tuple[str, ...]


class FileChange(msgspec.Struct, frozen=True):
    """What becomes of one file.

    Attributes
    ----------
    path : str
        From the project's root.
    hunks : tuple of Hunk
        In the order of the file.
    """

    path: str
    hunks: tuple[Hunk, ...]

    def applied_to(self, text: str) -> str:
        """Return the file's text with every hunk applied.

        Raises
        ------
        BadMutation
            Unless each hunk's lines are in the text exactly once, after those of the hunk before.
        """
        lines = text.splitlines(keepends=True)
        changed: list[str] = []
        done = 0
        for number, hunk in enumerate(self.hunks, 1):
            places = list(_places(lines, hunk.old))
            if len(places) != 1:
                what = "are not there" if not places else f"are there {len(places)} times"
                raise BadMutation(f"{self.path}: the lines of hunk {number} {what}.")
            if places[0] < done:
                raise BadMutation(f"{self.path}: hunk {number} comes before the end of the one before it.")
            changed += [*lines[done : places[0]], *hunk.new]
            done = places[0] + len(hunk.old)
        return "".join([*changed, *lines[done:]])


class Mutation(msgspec.Struct, frozen=True):
    """One way in which harel is broken.

    Attributes
    ----------
    name : str
        ``part/what``, as its file.
    broken : str
        What is wrong, in one sentence.
    promise : str
        What it breaks.
    tests : tuple of str
        The ids of those tests that are to notice.
    changes : tuple of FileChange
    """

    name: str
    broken: str
    promise: str
    tests: tuple[str, ...]
    changes: tuple[FileChange, ...]

    @property
    def part(self) -> str:
        """The backend, or the part of harel, that is broken."""
        return self.name.partition("/")[0]

    def applied_to(self, root: Path) -> dict[str, str]:
        """Return the broken files' texts, by their paths from the root; write nothing."""
        texts = {}
        for change in self.changes:
            try:
                with (root / change.path).open(encoding="utf-8", newline="") as file:
                    texts[change.path] = change.applied_to(file.read())
            except FileNotFoundError:
                raise BadMutation(f"{change.path}: there is no such file.") from None
        return texts


def load(folder: Path) -> list[Mutation]:
    """Read all the mutations of a folder, ``part/what.patch`` each, in the order of their names."""
    found = []
    for file in sorted(folder.glob("*/*.patch")):
        name = file.relative_to(folder).with_suffix("").as_posix()
        found.append(read_mutation(name, file.read_text(encoding="utf-8")))
    return found


def read_mutation(name: str, text: str) -> Mutation:
    """Read a mutation: ``Broken:``, ``Promise:``, one or more ``Test:``, an empty line, and the diff."""
    head, _, diff = text.partition("\n\n")
    values: dict[str, list[str]] = {key: [] for key in _KEYS}
    for line in head.splitlines():
        key, colon, value = line.partition(": ")
        if not colon or key not in values or not value.strip():
            raise BadMutation(f"{name}: the head has lines {', '.join(f'{key}: …' for key in _KEYS)}, not {line!r}.")
        values[key].append(value.strip())
    if len(values["Broken"]) != 1 or len(values["Promise"]) != 1 or not values["Test"]:
        raise BadMutation(f"{name}: the head says once what is broken and which promise, and names tests.")
    try:
        changes = read_changes(diff)
    except BadMutation as error:
        raise BadMutation(f"{name}: {error}") from None
    return Mutation(name, values["Broken"][0], values["Promise"][0], tuple(values["Test"]), changes)


def read_changes(diff: str) -> tuple[FileChange, ...]:
    """Read a unified diff of files that stay where they are.

    Raises
    ------
    BadMutation
        For anything else, and for hunks that do not have the lines that their heads say, or that change nothing.
    """
    hunks: dict[str, list[Hunk]] = {}
    path = ""
    lines = diff.splitlines(keepends=True)
    at = 0
    while at < len(lines):
        if lines[at].startswith("--- "):
            path = _path_of(lines[at : at + 2])
            if path in hunks:
                raise BadMutation(f"{path} is there twice.")
            hunks[path] = []
            at += 2
        elif path and (counts := _HUNK.match(lines[at])):
            at += 1
            hunk, length = _hunk_of(path, lines[at:], int(counts[1] or 1), int(counts[2] or 1))
            hunks[path].append(hunk)
            at += length
        else:
            raise BadMutation(f"this is no line of a diff: {lines[at].rstrip()!r}.")
    if not hunks or not all(hunks.values()):
        raise BadMutation("the diff changes nothing.")
    return tuple(FileChange(path, tuple(each)) for path, each in hunks.items())


def _path_of(heads: list[str]) -> str:
    """Return the file of ``--- a/file`` and ``+++ b/file``, which must be one and inside the project."""
    old, new = (*(head.rstrip("\n")[4:] for head in heads), "")[:2]
    path = PurePosixPath(old[2:])
    if not heads[-1].startswith("+++ ") or old[:2] != "a/" or new != f"b/{path}" or ".." in path.parts:
        raise BadMutation(f"one file is changed at a time, a/… to b/…, not {old!r} to {new!r}.")
    return str(path)


def _hunk_of(path: str, lines: list[str], old_count: int, new_count: int) -> tuple[Hunk, int]:
    """Read a hunk's lines; return it, and how many there are."""
    old: list[str] = []
    new: list[str] = []
    length = 0
    for line in lines:
        if len(old) == old_count and len(new) == new_count:
            break
        sign, text = line[0], line[1:]
        if sign not in " -+" or not text.endswith("\n"):
            raise BadMutation(f"{path}: this is no line of a hunk: {line.rstrip()!r}.")
        if sign != "+":
            old.append(text)
        if sign != "-":
            new.append(text)
        length += 1
    if (len(old), len(new)) != (old_count, new_count):
        raise BadMutation(f"{path}: a hunk has {len(old)} and {len(new)} lines, not {old_count} and {new_count}.")
    if not old or old == new:
        raise BadMutation(f"{path}: a hunk finds its place by no line, or changes none.")
    return Hunk(tuple(old), tuple(new)), length


def _places(lines: list[str], wanted: Iterable[str]) -> Iterator[int]:
    block = list(wanted)
    for at in range(len(lines) - len(block) + 1):
        if lines[at : at + len(block)] == block:
            yield at
