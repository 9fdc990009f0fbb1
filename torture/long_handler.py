"""A handler for ``harel worker`` that does nothing."""

from __future__ import annotations

from harel import Event

__all__ = ["handle"]


def handle(event: Event) -> None:
    """Do nothing."""
