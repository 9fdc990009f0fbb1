"""What was measured, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

__all__ = ["Cell", "Results", "Spread"]


@dataclass(frozen=True)
class Cell:
    """What one series of rates is about."""

    contender: str
    backend: str
    workload: str
    figure: str
    groups: int


@dataclass(frozen=True)
class Spread:
    """The middle and both ends of what the rounds gave."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass
class Results:
    """Messages a second, round by round; the same place in two series is the same round."""

    rates: dict[Cell, list[float]] = field(default_factory=dict)
    counts: dict[Cell, int] = field(default_factory=dict)
    """How many messages a round has."""
    client_s: dict[Cell, list[float]] = field(default_factory=dict)
    """Seconds of a processor that the client's process had for a message."""
    server_s: dict[Cell, float] = field(default_factory=dict)
    """Seconds that the server worked for a message, where it tells; of our own."""
    profiles: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    """By backend and workload, of our own."""
    sync_s: list[float] = field(default_factory=list)
    """Seconds to write 4 KiB and sync, probed in every round."""
    missing: dict[str, str] = field(default_factory=dict)
    """Contenders that could not be had, and why."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Backends that could not be had, and what to install."""
    servers: dict[str, str] = field(default_factory=dict)
    """What ran, by backend."""

    def spread(self, cell: Cell) -> Spread | None:
        rates = self.rates.get(cell)
        return Spread.of(rates) if rates else None

    def ratio(self, over: Cell, under: Cell) -> Spread | None:
        """Return how many times faster one is than another, round by round."""
        pairs = zip(self.rates.get(over, ()), self.rates.get(under, ()), strict=False)
        ratios = [one / other for one, other in pairs]
        return Spread.of(ratios) if ratios else None
