"""``harel stats``, ``groups``, ``peek`` and ``dead``: look, and change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from harel.cli.options import Json, Limit, TransportUrl, must_be_able, open_queue
from harel.cli.output import event_fields, moment, print_json, say, shown, summary, table
from harel.engine.queue.contract import BACKLOG_COUNTED, DeadLetter, GroupInfo
from harel.engine.queue.schedule import GroupState

__all__ = ["dead", "groups", "peek", "stats"]


def stats(transport: TransportUrl = None, as_json: Json = False) -> None:
    """Show the queue in figures."""
    with open_queue(transport) as queue:
        must_be_able(queue, "stats", "count its messages and groups")
        figures = queue.stats()
    if as_json:
        print_json(figures)
        return
    rows = [
        ("messages", f"{figures.messages:,}"),
        ("groups", f"{figures.groups:,}"),
        ("  ready", f"{figures.ready:,}"),
        ("  leased", f"{figures.leased:,}"),
        ("  parked", f"{figures.parked:,}"),
        ("  held", f"{figures.held:,}"),
        ("dead letters", f"{figures.dead_letters:,}"),
        ("longest wait", f"{figures.oldest_ready_s:,.1f} s"),
    ]
    table(("queue", ""), rows, right=("",))


def groups(
    transport: TransportUrl = None,
    state: Annotated[GroupState | None, typer.Option(help="Only groups in this state.", show_default=False)] = None,
    limit: Limit = 100,
    after: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Only groups whose names come after this one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List groups by name: why each runs or does not run."""
    with open_queue(transport) as queue:
        must_be_able(queue, "groups", "list its groups")
        found = queue.groups(state=state, limit=limit, after=after)
    if as_json:
        for info in found:
            print_json(info)
        return
    if not found:
        say("No such groups." if state or after else "No groups.")
        return
    columns = ("group", "state", "since", "until", "attempts", "holder", "messages", "priority")
    table(columns, map(_group_cells, found), right=("attempts", "messages", "priority"))
    _say_if_more(found, limit, shown(found[-1].group_id))


def peek(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Whose messages to show.", show_default=False)],
    transport: TransportUrl = None,
    limit: Limit = 10,
    as_json: Json = False,
) -> None:
    """Show a group's first messages, the one in flight included."""
    with open_queue(transport) as queue:
        must_be_able(queue, "peek", "show the messages of a group")
        found = queue.peek(group, limit)
    if as_json:
        for message in found:
            print_json({"seq": message.seq, "group_id": group, **event_fields(message)})
    elif found:
        table(("seq", "kind", "payload"), [(message.seq, *summary(message)) for message in found], right=("seq",))
    else:
        say(f"Group {group!r} has no messages.")


def dead(
    transport: TransportUrl = None,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only this group's.", show_default=False)] = None,
    limit: Limit = 100,
    after: Annotated[int | None, typer.Option(metavar="SEQ", help="Only those whose seq is above this one.")] = None,
    as_json: Json = False,
) -> None:
    """List the dead letters by seq; `harel redrive` puts them back."""
    with open_queue(transport) as queue:
        must_be_able(queue, "dead_letters", "list its dead letters")
        found = queue.dead_letters(group_id=group, limit=limit, after=after)
    if as_json:
        for letter in found:
            print_json(_letter_fields(letter))
        return
    if not found:
        say("No such dead letters." if group or after is not None else "No dead letters.")
        return
    columns = ("seq", "group", "kind", "payload", "attempts", "rejected", "reason")
    table(columns, map(_letter_cells, found), right=("seq", "attempts"))
    _say_if_more(found, limit, str(found[-1].seq))


def _group_cells(info: GroupInfo) -> tuple[object, ...]:
    messages = f"{info.messages:,}{'+' if info.messages == BACKLOG_COUNTED else ''}"
    return (
        info.group_id,
        info.state,
        moment(info.since),
        moment(info.until),
        info.attempts,
        info.holder,
        messages,
        info.priority,
    )


def _letter_cells(letter: DeadLetter) -> tuple[object, ...]:
    return (
        letter.seq,
        letter.group_id,
        *summary(letter),
        letter.attempts,
        moment(letter.rejected_at),
        letter.reason.partition("\n")[0],  # a traceback may follow; --json has it all
    )


def _letter_fields(letter: DeadLetter) -> dict[str, object]:
    return {
        "seq": letter.seq,
        "group_id": letter.group_id,
        "attempts": letter.attempts,
        "reason": letter.reason,
        "rejected_at": letter.rejected_at,
        "priority": letter.priority,
        **event_fields(letter),
    }


def _say_if_more(found: Sequence[object], limit: int, last: str) -> None:
    if len(found) == limit:
        say(f"There may be more: --after {last}")
