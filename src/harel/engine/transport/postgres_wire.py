"""One prepared statement, one round trip, with libpq's own functions.

An operation is a call of a function with plain values, whose rows are plain values. A cursor's general machinery takes
several times as long for that as the call itself.
"""

from __future__ import annotations

import re
import select
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.string import StrDumperUnknown

__all__ = ["ArrayDumper", "Wire", "readable"]


class Wire:
    """Calls statements on connections, and knows which are prepared on which."""

    def __init__(self) -> None:
        self._prepared: WeakKeyDictionary[psycopg.Connection[Any], _Prepared] = WeakKeyDictionary()

    def call(self, connection: psycopg.Connection[Any], statement: str, values: Iterable[Any]) -> list[tuple[Any, ...]]:
        """Run a statement with ``$1`` in it, and return its rows.

        Parameters
        ----------
        connection : psycopg.Connection
            Idle, in autocommit mode, with UTF-8 as its encoding.
        statement : str
        values : iterable
            Of str, int, float, bool, ``None``, and lists of str or int.
        """
        pgconn = connection.pgconn
        prepared = self._prepared.get(connection)
        if prepared is None:
            prepared = self._prepared[connection] = _Prepared(pgconn)
        name = prepared.names.get(statement)
        if name is None:
            name = b"harel_%d" % len(prepared.names)
            pgconn.send_prepare(name, statement.encode())
            _result(pgconn, prepared.wait)
            prepared.names[statement] = name
        pgconn.send_query_prepared(name, [_encoded(value) for value in values])
        return _rows(_result(pgconn, prepared.wait))


def readable(pgconn: PGconn) -> Callable[[int | None], object]:
    """Return what waits, so many milliseconds or without end, until there is something to read; true if there is."""
    if not hasattr(select, "poll"):
        return partial(_select, pgconn.socket)
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    return poll.poll


def _select(socket: int, milliseconds: int | None) -> object:
    # Where a signal does not end a wait, a short one lets it through.
    return select.select([socket], [], [], 0.1 if milliseconds is None else milliseconds / 1000)[0]


class ArrayDumper(StrDumperUnknown):
    """Gives a cursor lists of str or int as text, whose type the called function says, in the connection's encoding.

    The driver's own dumper looks at each element by itself, which takes longer than all the rest of a batch's call.
    """

    def dump(self, obj: Any) -> Any:
        return super().dump(_array(obj))


class _Prepared:
    def __init__(self, pgconn: PGconn) -> None:
        self.names: dict[str, bytes] = {}
        self.wait = readable(pgconn)


def _result(pgconn: PGconn, wait: Callable[[int | None], object]) -> PGresult:
    """Wait for the result of what was sent."""
    while pgconn.flush():
        # The server may itself be stuck until what it says is read.
        wait(1)
        pgconn.consume_input()
    last = None
    while True:
        while pgconn.is_busy():
            wait(None)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            assert last is not None
            return last
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            _drain(pgconn)
            raise _error(result)
        last = result


def _drain(pgconn: PGconn) -> None:
    try:
        while pgconn.get_result() is not None:
            pass
    except psycopg.Error:
        return  # the connection went with the error that is being raised


def _error(result: PGresult) -> psycopg.Error:
    state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
    text = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    try:
        kind: type[psycopg.Error] = psycopg.errors.lookup(state)
    except KeyError:
        kind = psycopg.OperationalError
    return kind(text.decode(errors="replace"))


def _encoded(value: Any) -> bytes | None:
    kind = type(value)
    if kind is str:
        return value.encode()  # type: ignore[no-any-return]
    if kind is float or kind is int:
        return repr(value).encode()
    if value is None:
        return None
    if kind is bool:
        return b"t" if value else b"f"
    return _array(value).encode()


def _array(values: Sequence[Any]) -> str:
    return f"{{{','.join(_elements(values))}}}"


def _elements(values: Sequence[Any]) -> Iterable[str]:
    if not values or isinstance(values[0], int):
        return map(str, values)
    if not _SPECIAL(" ".join(values)):
        return [f'"{value}"' for value in values]
    return ['"{}"'.format(value.replace("\\", "\\\\").replace('"', '\\"')) for value in values]


_SPECIAL = re.compile(r'["\\]').search


def _rows(result: PGresult) -> list[tuple[Any, ...]]:
    readers = [_READERS[result.ftype(column)] for column in range(result.nfields)]
    return [
        tuple(
            [
                None if (raw := result.get_value(row, column)) is None else read(raw)
                for column, read in enumerate(readers)
            ]
        )
        for row in range(result.ntuples)
    ]


_READERS: dict[int, Callable[[bytes], Any]] = {
    16: b"t".__eq__,  # boolean
    20: int,  # bigint
    21: int,  # smallint
    23: int,  # integer
    25: bytes.decode,  # text
    701: float,  # double precision
    2278: bytes.decode,  # void, which is empty
}
