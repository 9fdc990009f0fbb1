"""The page's parts about the worker runtimes, and about round trips."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

from benchmarks.contenders import OURS, Contender
from benchmarks.crews import CONCURRENCY, Load
from benchmarks.handled import FIGURE, ONE_WORKER, Handled, runtimes_of, scenes_of
from benchmarks.meters import STAND_INS
from benchmarks.report_beside import order_of, scene_name
from benchmarks.results import Cell, Results, Spread
from benchmarks.roundtrips import OPERATIONS, Counted
from benchmarks.runtimes import VISIBILITY_S
from benchmarks.tables import label, shares, table, with_ends

__all__ = ["how_workers", "round_trips", "worker_bound", "workers"]


def workers(backend: str, handled: Handled, results: Results) -> list[str]:
    """Write what the runtimes did on a backend."""
    messages = handled.handling.messages
    scenes = scenes_of(backend)
    columns = [scene_name(scene, messages) for scene in scenes]
    rates, gaps, delays, counts = [], [], [], []
    for each in runtimes_of(backend):
        name = _named(each)
        if each.unable or each.key in results.missing:
            rates.append((name, *["cannot" if each.unable else "not installed"] * len(scenes), ""))
            continue
        cells = [messages.cell(each.name, backend, scene) for scene in scenes]
        rates.append((name, *(_rate(cell, handled, results) for cell in cells), order_of(each, handled)))
        gaps.append((name, *(with_ends(_spread(handled.gaps_s.get(cell)), 1e3) for cell in cells)))
        counts.append((name, *(_count(handled.loads.get(cell)) for cell in cells)))
        delays.append((name, *_delays(handled.delays_s.get((each.name, backend), ()))))
    return [
        f"## {backend}: from publish to handled",
        f"The middle of {handled.handling.rounds} rounds, and the least and the most. A backlog was published before.",
        table(("handled a second", *columns, "order, exclusivity"), rates),
        table(("longest without a message, ms", *columns), gaps),
        table(("One by one to a worker that waits: publish returned to handler begun, ms", *_DELAYS), delays),
        table(("Messages in a round", *columns), counts),
    ]


_DELAYS = ("median", "99 of 100 within", "most", "messages")


def _rate(cell: Cell, handled: Handled, results: Results) -> str:
    failed = handled.failed.get(cell)
    return f"cannot: {failed}" if failed else with_ends(results.spread(cell))


def _named(contender: Contender) -> str:
    at_once = contender.concurrency or CONCURRENCY.get(contender.name, {}).get(contender.backend)
    return f"{label(contender)}, {at_once} at once" if at_once else label(contender)


def _spread(values: Sequence[float] | None) -> Spread | None:
    return Spread.of(values) if values else None


def _count(load: Load | None) -> str:
    return "-" if load is None else f"{load.messages:,}, {load.each:,} a group"


def _delays(seconds: Sequence[float]) -> tuple[str, ...]:
    if len(seconds) < 2:
        return ("-",) * len(_DELAYS)
    tail = quantiles(seconds, n=100, method="inclusive")[-1]
    return (*(f"{each * 1e3:.2f}" for each in (median(seconds), tail, max(seconds))), f"{len(seconds):,}")


def worker_bound(backend: str, handled: Handled, results: Results) -> str:
    """Say what the client's process works for a message, and in what."""
    cell = handled.handling.messages.cell(OURS, backend, ONE_WORKER)
    rate, client = results.spread(cell), results.client_s.get(cell)
    profile = results.profiles.get((backend, ONE_WORKER), {}).get(FIGURE)
    if rate is None or not client or not profile:
        return ""
    server = results.server_s.get(cell)
    tops = ", ".join(f"{row['share']:.0%} in `{_place(row)}`" for row in profile[:_TOPS])
    seen = " Only the event loop's thread is seen, and SQLite runs in another." if backend == "sqlite" else ""
    return (
        f"**The worker, {backend}**: with many groups a message takes {1e6 / rate.middle:,.0f} µs, in which the "
        f"client's process works for {median(client) * 1e6:,.0f}"
        + (f" and the server for {server * 1e6:,.0f}" if server else "")
        + f". Of its time under cProfile: {shares(profile)}; by function, {tops}.{seen}"
    )


_TOPS = 5
"""Functions that are named."""


def _place(row: dict[str, object]) -> str:
    function = str(row["function"]).partition(" (line")[0].strip("<>")
    return f"{row['file']} {function}".strip()


def how_workers(handled: Handled) -> str:
    """Say how it was measured."""
    messages = handled.handling.messages
    return (
        f"From publish to handled: a backlog is published, to every group one message and then the next; then the "
        f"clock starts and the workers run, with an async handler that notes the time and the message, and a lease of "
        f"{VISIBILITY_S:g} s; it ends when the last handler begins. Afterwards it is seen that each message was "
        "handled once, that each group's came in order, that where handlers take time no two of a group overlapped, "
        "and that nothing is left in the queue: harel must, or the run ends; of a peer it is told. The garbage "
        "collector is on. How many groups are handled at once is for harel and harel 0.9.0 what a trial found best "
        "(`python -m benchmarks workers --trial`), for the others what whoever set them up found best or their "
        "documentation advises. A peer that would take longer than "
        f"{messages.peer_s:g} s has fewer messages: fewer a group, or fewer groups where each has one. That favours "
        "one that slows down as the backlog grows. harel 0.9.0's worker drives state machines: its groups are "
        "executions of a machine of two states that goes from one to the other with every message, and its handler is "
        "the action on entering; they are started before, and there are at most 2,000. It has a "
        "store beside its transport, in the same database or in a file beside. Published in batches is what publishing "
        "the backlog of W1 took, by the publisher's clock, with making the messages."
        f" One by one, {messages.delays} messages a round are published to {messages.few.groups} groups with pauses "
        f"of {messages.pause_s * 1e3:g} ms in the mean, by a second process, in memory by the same; a handler that "
        "began before its publish had returned counts as 0."
    )


def round_trips(counted: Sequence[Counted]) -> list[str]:
    """Write what was counted at the drivers."""
    if not counted:
        return []
    rows = []
    for each in counted:
        if each.unavailable:
            rows.append((each.name, *["-"] * len(OPERATIONS)))
        else:
            rows.append((each.name, *(_trips(each, operation) for operation in OPERATIONS)))
    unavailable = [f"- {each.name} could not be opened: {each.unavailable}" for each in counted if each.unavailable]
    about = (
        "Counted at the driver, with connections made and statements prepared: round trips, or in a file "
        "transactions; then, where there are more of them, the statements that these carried, `BEGIN` and `COMMIT` "
        f"among them. In memory there are none. The servers of {', '.join(STAND_INS)} may be stand-ins, whose speed "
        "says nothing and was not measured."
    )
    return [
        "## Round trips",
        about,
        table(("round trips / statements", *OPERATIONS), rows),
        "\n".join(unavailable),
    ]


def _trips(counted: Counted, operation: str) -> str:
    found = counted.trips.get(operation)
    if found is None:
        return "not supported"
    if not found.trips and not found.statements:
        return "none"
    return f"{found.trips}" if found.trips == found.statements else f"{found.trips} / {found.statements}"
