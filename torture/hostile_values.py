"""Input that is bad, odd, or meant to do harm, by kind; and what the contract says of each.

A *text* can be anything's name; a *value* may not even be text. Whether a call has to take one is said by the
contract's words alone (``may_be_*``), never by asking the code.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import unicodedata
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any, NoReturn

from hypothesis import strategies as st

__all__ = [
    "ALIKE",
    "EVENT_PARTS",
    "JUNK",
    "NO_EVENT_PARTS",
    "REFUSED_TEXTS",
    "SECRET",
    "TEXTS",
    "ChangingDict",
    "Mine",
    "exactly",
    "given_events",
    "given_junk",
    "given_texts",
    "may_be_a_name",
    "nested",
]

SECRET = "sEcReT0pAsSw0rD"
"""What must not be seen anywhere: letters and digits, so that no quoting changes it."""


class Mine(Exception):
    """What the hostile objects here raise. harel has no business letting it through."""


def _planes() -> str:
    """Return a character of every plane of Unicode, its last two included where text may hold them."""
    return "".join(chr(plane << 16 | low) for plane in range(17) for low in (0x1234, 0xFFFE, 0xFFFF))


TEXTS: dict[str, list[str]] = {
    "SQL": [
        "'; DROP TABLE transport_messages; --", "' OR '1'='1", '"; DROP SCHEMA public CASCADE; --', "'; TRUNCATE x; --",
        "$$; DROP TABLE transport_groups; $$", "/**/ -- #", "\\'; DELETE FROM transport_groups",
        "1; SELECT pg_sleep(99)",
        "${jndi:ldap://127.0.0.1/a}", ":group_id :now $1 ?1 @now %(name)s",
    ],
    "LIKE": ["%", "_", "a%", "a_", "%_\\%", "[a-z]%", "^$"],
    "Lua": [
        "'] = nil; redis.call('FLUSHALL') --[[", "]]..redis.call('FLUSHALL')..[[", "KEYS[1]", "%s%d%%", "\\0",
        "return 1",
    ],
    "RESP": ["\r\n*1\r\n$8\r\nFLUSHALL\r\n", "$-1\r\n", "+OK\r\n", "-ERR\r\n", ":1\r\n", "*0\r\n"],
    "HTTP": ["a\r\nX-Injected: 1\r\n\r\n", "a\nHost: b", "?transaction&level=none", "#fragment", "%0d%0aX: 1",
             "a b&c=d;e"],
    "JSON": ['{"$gt": ""}', '["a", null]', '"', '\\"', "null", "true", "{}", '{"kind":"k"}', "\\u0000", "\\ud800",
             "]}"],
    "MongoDB": ["$gt", "$where", "$ne.a", "a.b..c.", "$", ".", "$$ROOT", "_id", "$set", "this.a == 1", "a.$[].b"],
    "key patterns": ["*", "?", "[a]", "[^a]*", "h?llo*", "{a}", "{}", "}{", "{", "}", "q:a", "q:a:b", "{q}", ":", "a:",
                     "{q}:ready:0", ":ready:0:", "transport_messages", "dead", "@a", "#a", "a\x01b", "a!"],
    "format strings": ["%s", "%n%n%n", "%(name)s", "{0}", "{name}", "{0.__class__}", "{{", "{prefix}", "$now", "$(x)"],
    "lines": ["\n", "\r", "\r\n", "a\nb", "\u2028", "\u2029", "\x85", "\x0b\x0c", "\n\n"],
    "controls": ["\x01", "\x1b[2J\x1b[31m", "\x7f", "\x08\x08", "\x9b1A", "\x1a", "\t", "".join(map(chr, range(1,
                 32)))],
    "shell": ["$(reboot)", "`id`", "; rm -rf /", "| cat", "&& true", "> /tmp/x", "-rf", "--help", "-", "--", "~", "!!"],
    "paths": ["../../etc/passwd", "/etc/passwd", "..", "C:\\CON", "file:///etc/passwd", "a/b/c", "\\\\host\\share",
              "."],
    "numbers as text": ["1", "01", "1.0", "1e3", "-0", "0", "0x10", "1_000", "9007199254740993", "18446744073709551616",
                        "NaN", "inf", "\u0661"],
    "words": ["None", "NULL", "undefined", "false", "nil", "self", "__proto__", "constructor", "__class__", "rowid"],
    "blanks": [" ", "  ", "\u00a0", "\u3000", "\u200b", "\ufeff", "\u2060", "\u00ad", "a ", " a", "\ta"],
    "bidi": ["\u202eabc", "\u202d\u202c", "\u2066a\u2069", "\u05d0\u05d1", "\u200f", "\u061c"],
    "planes": [_planes(), "\uffff", "\ufffe", "\U0010ffff", "\U0001f418", "\ufdd0", "\U000e0001", "\uf8ff",
               "\U0001d11e"],
    "combining": ["e" + "\u0301" * 200, "\u0301", "👩‍👩‍👧‍👦", "\U0001f3f4\U000e0067\U000e007f", "க்ஷி"],
    "enormous": ["x" * 512, "é" * 256, "\U0001f418" * 128, "\u20ac" * 170 + "xx", "'" * 512, "\\" * 512, "%" * 512,
                 "\n" * 512],
}  # fmt: skip
"""Texts that are all allowed: as a group's name, and cut to 200 bytes as a worker's."""

_WORD = "\u00c5ngstro\u0308m \ufb01 \u1e9b\u0323"

ALIKE: list[str] = list(dict.fromkeys([
    "a", "A", "a ", " a", "a\n", "a\t", "á", "a\u0301", "\uff41", "\u0430", "\u1d43", "a\u200b", "a\u00ad", "ª",
    "ß", "ss", "SS", "\u1e9e", "I", "i", "İ", "\u0131", "i\u0307", "ﬀ", "ff", "\u212a", "K", "k", "\u00b5", "\u03bc",
    "Å", "A\u030a", "\u212b", "\u03c3", "\u03c2", "\u03a3", "1", "01", "1.0", "+1", "\uff11", "²", "2", "%61", "&#97;",
    "\\x61",
    *(unicodedata.normalize(form, _WORD) for form in ("NFC", "NFD", "NFKC", "NFKD")), _WORD,
    "q", "q:a", "q:a:b", "{q}", "{q}:a", "q%", "q_", "qa", "Q", "q.a", "$q", "q/a", "q*", "q\\", "q'", 'q"', "q\x01",
]))  # fmt: skip
"""Names that a careless comparison takes for one another: each is a group of its own."""

REFUSED_TEXTS: dict[str, list[str]] = {
    "empty": [""],
    "NUL": ["\0", "a\0b", "\0" * 600, "a\0"],
    "lone surrogates": ["\ud800", "a\udfffb", "\udc80", "\udcff" * 3, "\ude00\ud83d"],
    "too long": ["x" * 513, "é" * 256 + "x", "\U0001f418" * 128 + "x", "x" * 1_000_000, "\n" * 70_000],
}
"""Texts that are no group's name."""


class HostileText:
    """Says nothing of itself without raising."""

    def __repr__(self) -> NoReturn:
        raise Mine("repr")

    __str__ = __repr__

    def __format__(self, _spec: str) -> NoReturn:
        raise Mine("format")


class HostileEquality:
    """Cannot be compared, hashed, or asked whether it is true."""

    def __eq__(self, _other: object) -> NoReturn:
        raise Mine("eq")

    def __hash__(self) -> NoReturn:
        raise Mine("hash")

    def __bool__(self) -> NoReturn:
        raise Mine("bool")

    def __len__(self) -> NoReturn:
        raise Mine("len")

    def __lt__(self, _other: object) -> NoReturn:
        raise Mine("lt")

    __le__ = __gt__ = __ge__ = __lt__


class EqualToAll:
    """Says that it is whatever it is compared with."""

    def __eq__(self, _other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class LiarOfClass:
    """Says that it is a string."""

    @property
    def __class__(self) -> Any:
        return str

    @__class__.setter
    def __class__(self, _kind: Any) -> None:
        raise Mine("class")


class Text(str):
    """A string of a class of the caller's."""


class RaisingText(str):
    """A string whose own methods raise."""

    def encode(self, *_: Any, **__: Any) -> NoReturn:
        raise Mine("encode")

    isascii = replace = __len__ = __contains__ = __repr__ = encode

    def __eq__(self, _other: object) -> NoReturn:
        raise Mine("eq")

    __hash__ = str.__hash__


class Number(int):
    """An int of a class of the caller's."""


class RaisingNumber(int):
    """An int that cannot be compared."""

    def __eq__(self, _other: object) -> NoReturn:
        raise Mine("eq")

    __lt__ = __le__ = __gt__ = __ge__ = __eq__
    __hash__ = int.__hash__


class RaisingFloat(float):
    """A float that cannot be compared."""

    def __eq__(self, _other: object) -> NoReturn:
        raise Mine("eq")

    __lt__ = __le__ = __gt__ = __ge__ = __eq__
    __hash__ = float.__hash__


class RaisingDict(dict[str, Any]):
    """A dict that lets nobody look."""

    def items(self, *_: Any) -> NoReturn:
        raise Mine("items")

    __iter__ = keys = values = __eq__ = items


class ChangingDict(dict[str, Any]):
    """A dict that grows while it is gone through."""

    def items(self) -> Any:
        for key, value in list(super().items()):
            self[f"{key}+"] = value
            yield key, value

    def __eq__(self, other: object) -> bool:
        self[f"more {len(self)}"] = 1
        return super().__eq__(other)

    __hash__ = None


class RaisingList(list[Any]):
    """A list that lets nobody look."""

    def __iter__(self) -> NoReturn:
        raise Mine("iter")

    def __eq__(self, _other: object) -> NoReturn:
        raise Mine("eq")

    __hash__ = None


class Colour(enum.StrEnum):
    """A string that is a member of an enumeration."""

    RED = "red"


class Level(enum.IntEnum):
    """An int that is a member of an enumeration."""

    ONE = 1


def nested(depth: int, *, lists: bool = False) -> dict[str, Any]:
    """Make a payload this many levels deep."""
    value: Any = {}
    for _ in range(depth // 2 if lists else depth):
        value = {"down": [value]} if lists else {"down": value}
    return {"down": value}


def _recursive() -> dict[str, Any]:
    payload: dict[str, Any] = {}
    payload["me"] = [payload]
    return payload


def _generator() -> Iterator[int]:
    yield 1


JUNK: dict[str, list[Any]] = {
    "nothing": [None, ..., NotImplemented],
    "bools": [True, False],
    "ints": [0, 1, 4, 5, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**5_000, -(10**5_000)],
    "floats": [0.0, -0.0, 1.0, 0.001, 0.0009, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, 2.0**53, 1.5],
    "numbers of other kinds": [1j, decimal.Decimal(1), decimal.Decimal("NaN"), decimal.Decimal("sNaN"),
                               dt.timedelta(seconds=1)],
    "bytes": [b"", b"a", b"\xff", bytearray(b"a"), memoryview(b"a")],
    "collections": [[], ["a"], (), ("a",), {}, {"a": 1}, {"$gt": ""}, {"$ne": None}, set(), frozenset({"a"}), range(3)],
    "recursive": [_recursive()],
    "classes and functions": [str, object, len, _generator, SECRET.join],
    "subclasses": [Text("a"), Text(""), Number(1), Colour.RED, Level.ONE, OrderedDict(a=1), defaultdict(int)],
    "objects that raise": [
        HostileText(), HostileEquality(), EqualToAll(), LiarOfClass(), RaisingText("a"), RaisingNumber(1),
        RaisingFloat(1.0), RaisingDict(a=1), RaisingList(["a"]), ChangingDict(a=1), Mine("an exception"),
    ],
    **{f"text: {kind}": [*texts] for kind, texts in REFUSED_TEXTS.items()},
    "text: states": ["ready", "READY", "ready ", "held", "busy"],
    "text: SQL": TEXTS["SQL"][:3],
    "text: MongoDB": TEXTS["MongoDB"][:3],
}  # fmt: skip
"""Values of every kind for every argument; which of them an argument takes, the contract says."""

NO_EVENT_PARTS: dict[str, list[Any]] = {
    "floats": [math.nan, math.inf, -math.inf],
    "numbers of other kinds": [1j, decimal.Decimal("1.5"), dt.timedelta(1), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
    "bytes": [b"a", b"\xff", bytearray(b"a"), memoryview(b"a")],
    "collections": [{1}, frozenset(), range(3), {1: "a"}, {None: 1}, {("a",): 1}, {True: 1}, {1.5: 1}, {b"a": 1}],
    "recursive": [_recursive()],
    "deep nesting": [nested(501), nested(900), nested(940, lists=True), nested(5_000), nested(20_000, lists=True)],
    "lone surrogates": ["\ud800", {"\udfff": 1}, ["\udc80"]],
    "classes and functions": [object(), str, len, _generator(), ..., Mine("x")],
    "objects that raise": [
        HostileText(), HostileEquality(), EqualToAll(), RaisingText("a"), RaisingNumber(1), RaisingFloat(1.0),
        RaisingDict(a=1), RaisingList([1]), {RaisingText("a"): 1},
    ],
    "subclasses": [Text("a"), Number(3), ChangingDict(a=1)],
}  # fmt: skip
"""What may stand in no payload: it is refused, or, of the last two kinds, comes back equal."""

EVENT_PARTS: list[Any] = [
    None, True, False, 0, -1, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**300, 0.0, -0.0, 1.0, 5e-324, 1e308, 1e22,
    1.7976931348623157e308, 0.1, "", [], {}, [[]], [{}], {"": ""}, {"$gt": ""}, {"a.b": {"$c": 1}}, {"a": None},
    {"\0": "\0"}, "\0", "a\0b", "\\u0000", {"1": 1, "01": 2, "1.0": 3}, {"é": 1, "e\u0301": 2}, {"a": 1, "A": 2},
    {"__proto__": 1, "constructor": 2}, ["1", 1, 1.0, True], "\u2028", "</script>", [None] * 50, "é" * 10_000,
    nested(498), nested(490, lists=True),
]  # fmt: skip
"""What a payload may hold, each a trap for some codec."""


def may_be_a_name(value: object, most_bytes: int) -> bool | None:
    """Say whether the contract lets this be a group's or worker's name; ``None`` where it may be refused or not."""
    if type(value) is not str:
        return None if isinstance(value, str) else False
    try:
        return 0 < len(value.encode()) <= most_bytes and "\0" not in value
    except UnicodeEncodeError:
        return False


def exactly(one: object, other: object) -> bool:
    """Say whether two JSON values are the same: to the type, the last digit and the sign of zero."""
    pairs = [(one, other)]
    while pairs:
        a, b = pairs.pop()
        if type(a) is not type(b):
            return False
        if isinstance(a, dict) and isinstance(b, dict):
            if list(a) != list(b):
                return False
            pairs += zip(a.values(), b.values(), strict=True)
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pairs += zip(a, b, strict=True)
        elif a != b or (isinstance(a, float) and math.copysign(1.0, a) != math.copysign(1.0, b)):  # type: ignore[arg-type]
            return False
    return True


_ALPHABET = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
_SPICE = st.sampled_from([part for texts in TEXTS.values() for part in texts if len(part) <= 40])


def given_texts() -> st.SearchStrategy[str]:
    """Make names, of 1 to 512 bytes: any characters, and pieces of the list above put together."""
    pieces = st.one_of(st.text(_ALPHABET, max_size=20), _SPICE)
    joined = st.lists(pieces, min_size=1, max_size=5).map("".join)
    return joined.map(lambda text: text.encode()[:512].decode(errors="ignore")).filter(bool)


_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_ANY_TEXT = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), _SPICE)
_SCALARS = st.none() | st.booleans() | st.integers() | st.integers(-(2**80), 2**80) | _FLOATS | _ANY_TEXT


def given_events() -> st.SearchStrategy[dict[str, Any]]:
    """Make the parts of events that can be stored."""
    values = st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_ANY_TEXT, inner, max_size=4),
        max_leaves=12,
    )
    return st.fixed_dictionaries(
        {
            "kind": _ANY_TEXT.filter(bool),
            "payload": st.dictionaries(_ANY_TEXT, values, max_size=4),
            "id": _ANY_TEXT.filter(bool),
            "headers": st.dictionaries(_ANY_TEXT, _ANY_TEXT, max_size=3),
        }
    )


def given_junk() -> st.SearchStrategy[Any]:
    """Make a value of any kind, for an argument."""
    odd = st.sampled_from([(kind, place) for kind, values in JUNK.items() for place in range(len(values))])
    text = st.text(st.characters(), max_size=20)
    return st.one_of(
        odd.map(lambda found: JUNK[found[0]][found[1]]),
        st.integers(), st.floats(), text, st.binary(max_size=8), st.booleans(), st.lists(text, max_size=3),
        st.dictionaries(text, st.integers(), max_size=2), given_texts(),
    )  # fmt: skip
