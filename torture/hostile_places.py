"""URLs, options, names and settings that are wrong or hostile: refused in a sentence, and no password is ever shown."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harel import ConfigError, HarelError
from harel.config import Environment, connect, connect_async, redacted
from tests.backends import URLS, with_options
from torture.hostile_bench import Book, Unkept, said
from torture.hostile_calls import is_a_sentence, named
from torture.hostile_values import JUNK, SECRET, TEXTS

__all__ = ["FORMS", "must_keep_a_secret", "try_environments", "try_names", "try_options", "try_passwords"]

FORMS = (
    "{s}", "{s}?x", "{s}#x", "{s}/x", "{s}@x", "{s}:x", "{s}%", "{s}[", "x?{s}", "x#{s}", "x/{s}", "x@{s}", "x:{s}",
    "x%{s}",
    "%zz{s}", "x[{s}", "x]{s}", "[{s}]", " {s} ", "x&{s}", "x={s}", "x?{s}=1", "x?a={s}", "x?timeout={s}",
    "x&timeout={s}",
    "x\n{s}", "x\r\n{s}", "x'{s}", 'x"{s}', "x\\{s}", "é{s}", "x;{s}", "x,{s}", "12/{s}", "12?{s}", "12#{s}",
    "12@{s}", "{s}\x00",
    "\ud800{s}", "{{{s}}}", "%s{s}", "{s}://x", "x://{s}", "@{s}", ":{s}", "/{s}", "//{s}", "?{s}", "#{s}", "%40{s}",
    "%3A{s}",
)  # fmt: skip
"""How a password may be written into a URL by someone who does not know the rules; ``{s}`` is the secret part."""

_SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "redis": ("/0", {"timeout": 0.2}),
    "rediss": ("/0", {"timeout": 0.2}),
    "valkey": ("/0", {"timeout": 0.2}),
    "postgresql": ("/db", {"connect_timeout": 0.05}),
    "mongodb": ("/", {"timeout": 0.05}),
    "rqlite": ("", {"timeout": 0.05}),
    "rqlites": ("", {"timeout": 0.05}),
    "sqs": ("", {}),
    "memory": ("", {}),
    "sqlite": ("/queue.db", {}),
    "libsql": ("/queue.db", {}),
    "http": ("/", {}),
    "sqlit": ("/", {}),
}
"""Of each scheme what follows the host, and what keeps an attempt short. Nothing listens on the port."""

# The user is called as this host is: who takes what stands before a wrong character for the host asks no other one.
_HOST = "127.0.0.1:1"

_QUERIES = (
    "redis://127.0.0.1:1/0?password={s}&socket_timeout=x", "redis://127.0.0.1:1/0?password={s}&bogus=1",
    "redis://127.0.0.1:1/x?password={s}", "redis://127.0.0.1:x/0?password={s}", "unix:///nowhere?password={s}",
    "postgresql://127.0.0.1:1/db?password={s}&bogus=1", "postgresql://127.0.0.1:1/db?password={s}",
    "postgresql://127.0.0.1:1/db?password={s}&max_size=x", "postgresql://127.0.0.1:1/db?passfile=/{s}&sslmode=bogus",
    "postgresql:///?host=127.0.0.1&port=1&password={s}%zz", "host=127.0.0.1 port=1 password={s}", "password = '{s}'",
    "mongodb://127.0.0.1:1/?authMechanismProperties=AWS_SESSION_TOKEN:{s}&authMechanism=x",
    "mongodb://127.0.0.1:1/?tlsCertificateKeyFilePassword={s}", "mongodb://u@127.0.0.1:1/?bogus={s}",
    "libsql:///queue.db?auth_token={s}", "libsql:///queue.db?sync_url=http://u:{s}@127.0.0.1:1&auth_token={s}",
    "libsql:///queue.db?sync_url={s}&auth_token={s}", "libsql:///queue.db?sync_url=http://127.0.0.1:1&auth_token={s}%0a",
    "libsql:///queue.db?sync_url=http://127.0.0.1:1&auth_token={s}%C3%A9", "libsql:///q.db?auth_token={s}&bogus=1",
    "sqs://queue.fifo?endpoint_url=http://u:{s}@127.0.0.1:1", "sqs://queue.fifo?endpoint_url={s}&region=x",
    "user:{s}@127.0.0.1", "//user:{s}@127.0.0.1", ":{s}@", "user:{s}", "{s}@127.0.0.1:1",
)  # fmt: skip
"""Secrets that stand somewhere else than in a password's place."""


def try_passwords(book: Book, folder: Path, schemes: tuple[str, ...] = tuple(_SCHEMES), every: int = 1) -> None:
    """Connect with passwords in all forms, each of which leads nowhere, and look for them in all that is said."""
    with _in_folder(folder):
        for scheme in schemes:
            tail, options = _SCHEMES[scheme]
            for form in FORMS[::every]:
                for user in ("localhost:", ":"):
                    url = f"{scheme}://{user}{form.format(s=SECRET)}@{_HOST}{tail}"
                    _try_password(book, scheme, form, url, options)
        for form in _QUERIES:
            scheme = form.partition(":")[0]
            options = _SCHEMES.get(scheme, ("", {}))[1]
            _try_password(book, "elsewhere", form, form.format(s=SECRET), options)


def _try_password(book: Book, scheme: str, form: str, url: str, options: dict[str, Any]) -> None:
    where = f"{scheme}://"
    for flavour, attempt in (("sync", _opened), ("async", _opened_async)):
        with _overheard() as heard:
            try:
                said_of_it = must_keep_a_secret(lambda attempt=attempt: attempt(url, options), SECRET)  # type: ignore[misc]
            except Unkept as unkept:
                book.fail(where, f"connecting ({flavour}) to {url!a}: {unkept}")
                continue
        if any(SECRET in line for line in heard):
            book.fail(where, f"connecting ({flavour}) to {url!a}: a log record shows the password")
        book.note(where, "passwords", form, "refused", said_of_it)
    if SECRET in redacted(url) and scheme != "elsewhere":
        book.fail(where, f"redacted({url!a}) is {redacted(url)!a}")


def must_keep_a_secret(call: Callable[[], object], secret: str) -> str:
    """Call what fails, and look for the secret in whatever a person may see of it; return what it said.

    Raises
    ------
    Unkept
        Something shows it, or the error is none of harel's.
    """
    try:
        answer = call()
    except HarelError as error:
        shown = [str(error), repr(error), *traceback.format_exception(error)]
        if any(secret in text for text in shown):
            line = next(text for text in shown if secret in text).strip().splitlines()
            raise Unkept(f"the password is shown: {next(each for each in line if secret in each)[:300]!r}") from None
        if not " ".join(str(error).split()).isprintable():  # a driver's own words may take several lines
            raise Unkept(f"what it says is no line of text: {str(error)[:300]!r}") from None
        return said(error)
    except Exception as error:
        raise Unkept(f"an error that is none of harel's: {said(error)}") from None
    if secret in str(answer):
        raise Unkept(f"the password is shown: {str(answer)[:300]!r}")
    return f"opened as {answer}"


def _opened(url: str, options: dict[str, Any]) -> str:
    with connect(url, **options) as transport:
        return repr(transport)


def _opened_async(url: str, options: dict[str, Any]) -> str:
    async def attempt() -> str:
        async with await connect_async(url, **options) as transport:
            return repr(transport)

    return asyncio.run(attempt())


def try_options(book: Book, backend: str, folder: Path, every: int = 1) -> None:
    """Give every option that a URL can hold texts of every kind: it is taken or refused, and nothing else is made."""
    name = backend.partition("-")[0]
    base = URLS[name](folder) if name in URLS else "memory://"
    texts = ["", " ", "0", "-1", "1", "nan", "inf", "-inf", "1e400", "1e308", "1e-320", "0x10", "1_0", "true",
             "None", "x",
             "\0", "x" * 70_000, "\r\nX: 1", "é", "\u202e",
             *(text for kind in TEXTS.values() for text in kind[:2])]  # fmt: skip
    with _in_folder(folder):
        for option in _OPTIONS.get(name, ()):
            for text in texts[::every]:
                url = with_options(re.sub(rf"([?&]){option}=[^&]*&?", r"\1", base), **{option: text})
                try:
                    answer = must_keep_a_secret(lambda url=url: _opened(url, {}), SECRET)  # type: ignore[misc]
                except Unkept as unkept:
                    book.fail(name, f"option {option}={named(text)}: {unkept}")
                    continue
                what = "answered" if answer.startswith("opened") else "refused"
                if what == "answered" and option in _SECONDS and text in _NO_SECONDS:
                    book.fail(name, f"option {option}={text}: it was taken")
                book.note(name, "options", option, what, answer if what == "refused" else "taken")  # type: ignore[arg-type]


_NO_SECONDS = ("-1", "nan", "inf", "-inf", "1e400", "1e308")
_SECONDS = ("busy_timeout", "poll_interval", "timeout", "connect_timeout", "statement_timeout", "socket_timeout")
_OPTIONS = {
    "memory": ("fresh_first",),
    "sqlite": ("prefix", "fresh_first", "busy_timeout", "poll_interval", "synchronous", "create_schema"),
    "libsql": ("prefix", "busy_timeout", "poll_interval", "synchronous", "sync_interval"),
    "redis": ("prefix", "fresh_first", "poll_interval", "timeout", "db", "socket_timeout", "protocol", "bogus"),
    "postgres": ("schema", "min_size", "max_size", "max_transactions", "connect_timeout", "statement_timeout",
                 "application_name", "pgbouncer", "poll_interval", "create_schema", "sslmode", "bogus"),
    "mongo": ("prefix", "db_name", "fresh_first", "poll_interval", "create_schema", "timeout", "w", "bogus"),
    "rqlite": ("prefix", "poll_interval", "timeout", "read_level", "redirect", "ca_file", "create_schema"),
    "sqs": ("max_attempts", "create_queue", "timeout", "poll_interval", "max_message_bytes", "endpoint_url"),
}  # fmt: skip


def try_names(book: Book, backend: str, folder: Path) -> None:
    """Give names that become part of a statement or a key: identifiers are taken, all else is refused untouched."""
    name = backend.partition("-")[0]
    option = {"postgres": "schema"}.get(name, "prefix")
    if name in ("memory", "sqs"):
        return
    base = re.sub(rf"([?&]){option}=[^&]*&?", r"\1", URLS[name](folder)).partition("?")
    url = base[0] + (f"?{base[2]}" if base[2] else "")
    values = [*(text for kind in TEXTS.values() for text in kind), *(value for kind in JUNK.values() for value in kind)]
    for value in [*values, "a" * 41, "1a", "a-b", "a.b", "a b", "a\n", "ä", "\uff41", ""]:
        if issubclass(type(value), str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,39}", value, re.ASCII):
            continue
        try:
            connect(url, **{option: value}).close()
        except ConfigError as error:
            if not is_a_sentence(str(error)):
                book.fail(name, f"{option} = {named(value)}: it is refused, but not in a sentence: {said(error)[:200]}")
            book.note(name, "names of tables and keys", option, "refused", said(error))
        except Exception as error:
            book.fail(name, f"{option} = {named(value)}: an error that is no ConfigError: {said(error)[:300]}")
        else:
            book.fail(name, f"{option} = {named(value)}: it was taken")


_VARIABLES = (
    "STM_TRANSPORT_BACKEND", "STM_TRANSPORT_DB", "STM_REDIS_URL", "STM_POSTGRES_DSN", "STM_RQLITE_URL", "STM_MONGO_URL",
    "STM_MONGO_DB", "STM_LIBSQL_DB", "STM_LIBSQL_SYNC_URL", "STM_LIBSQL_AUTH_TOKEN", "STM_SQS_ENDPOINT",
    "STM_SQS_QUEUE",
    "STM_AWS_REGION", "STM_WORKER_ID", "STM_VISIBILITY", "STM_CONCURRENCY",
)  # fmt: skip
_PLAIN = {"STM_REDIS_URL": "redis://127.0.0.1:1", "STM_POSTGRES_DSN": "postgresql://127.0.0.1:1/db",
          "STM_RQLITE_URL": "rqlite://127.0.0.1:1", "STM_MONGO_URL": "mongodb://127.0.0.1:1"}  # fmt: skip


def try_environments(book: Book) -> None:
    """Set each variable to texts of every kind, and to URLs and connection strings with a password in them."""
    secrets = [f"postgresql://u:{SECRET}@h/d", f"host=h password={SECRET}", f"host=h password='{SECRET}",
               f"u:{SECRET}@h",
               f"host = h password = '{SECRET} \\' x'", f"password={SECRET} \\", f"=x {SECRET}"]  # fmt: skip
    texts = [
        *secrets,
        " ",
        "0",
        "-1",
        "nan",
        "inf",
        "1e400",
        "9" * 5_000,
        *(text for kind in TEXTS.values() for text in kind),
    ]
    for variable in _VARIABLES:
        for backend in ("memory", "sqlite", "libsql", "redis", "postgres", "rqlite", "mongo", "sqs"):
            for text in texts:
                variables = {"STM_TRANSPORT_BACKEND": backend, **_PLAIN, variable: text}
                try:
                    answer = must_keep_a_secret(lambda v=variables: repr(_read(v)), SECRET)  # type: ignore[misc]
                except Unkept as unkept:
                    if variable in _SHOWN_AS_THEY_ARE and "the password is shown" in str(unkept):
                        continue
                    book.fail("STM_*", f"{variable}={named(text)} for {backend}: {unkept}")
                    continue
                what = "refused" if answer.startswith("ConfigError") else "answered"
                book.note("STM_*", "settings", variable, what, answer if what == "refused" else "read")  # type: ignore[arg-type]


_SHOWN_AS_THEY_ARE = (
    "STM_WORKER_ID",
    "STM_TRANSPORT_DB",
    "STM_LIBSQL_DB",
    "STM_VISIBILITY",
    "STM_CONCURRENCY",
    "STM_SQS_QUEUE",
)
"""What takes no URL, so that whoever writes a password into it is shown it again."""


def _read(variables: dict[str, str]) -> Environment:
    return Environment.read(variables)


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """Be in a folder, where files of relative names may be made; credentials are the tests' own."""
    before = Path.cwd()
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _overheard() -> Iterator[list[str]]:
    """Collect what harel logs meanwhile, as a formatter writes it."""
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with suppress(Exception):
                heard.append(self.format(record))

    ear, logger = Ear(logging.DEBUG), logging.getLogger("harel")
    level = logger.level
    logger.addHandler(ear)
    logger.setLevel(logging.DEBUG)
    try:
        yield heard
    finally:
        logger.removeHandler(ear)
        logger.setLevel(level)
