"""What botocore raises, as what the operations understand or as errors of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import (  # type: ignore[import-untyped]
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    IncompleteReadError,
    InvalidConfigError,
    InvalidRegionError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    SSOError,
    TokenRetrievalError,
    UnknownCredentialError,
)

from harel.engine.queue.sqs.refusals import Refused, Unanswered
from harel.errors import ConfigError, HarelError, TransportUnavailable

__all__ = ["FAILED", "failure_of", "must_be_whole", "setting_error"]

FAILED = (BotoCoreError, ClientError, OSError)
"""What botocore and aiobotocore raise when a call fails."""

_NOT_SENT = (ConnectTimeoutError, ProxyConnectionError)
_NEVER_CONNECTED = {"NewConnectionError", "ClientConnectorError", "gaierror"}
"""What urllib3, aiohttp and the system call it; aiobotocore names a connection that broke later just the same."""
_NOT_FETCHED = (CredentialRetrievalError, MetadataRetrievalError, TokenRetrievalError)


def _no_credentials(_error: BaseException) -> str:
    return (
        "There are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where "
        "AWS gives a role to the machine."
    )


_SETTINGS: dict[type[BaseException], Callable[[BaseException], str]] = {
    NoCredentialsError: _no_credentials,
    PartialCredentialsError: lambda error: (
        f"A part of the AWS credentials is missing: set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ({error})."
    ),
    NoRegionError: lambda _error: (
        "There is no AWS region: give region= (or STM_AWS_REGION), or set AWS_DEFAULT_REGION or a profile that has one."
    ),
    InvalidRegionError: lambda error: f"The AWS region is not usable: {error}.",
    ProfileNotFound: lambda error: f"{error}. See AWS_PROFILE and ~/.aws/config.",
    ConfigNotFound: lambda error: f"{error}. See AWS_CONFIG_FILE.",
    ConfigParseError: lambda error: f"{error}. See ~/.aws/config and ~/.aws/credentials.",
    InvalidConfigError: lambda error: f"The AWS configuration is not usable: {error}.",
    UnknownCredentialError: lambda error: f"The AWS configuration is not usable: {error}.",
    NoAuthTokenError: lambda _error: "There is no AWS sign-in token; run 'aws sso login'.",
    SSOError: lambda _error: "The AWS sign-in is missing or has run out; run 'aws sso login'.",
}
"""What is wrong on this side, before anything is sent, and what to do about it."""


def setting_error(error: BaseException) -> HarelError | None:
    """Return the error for settings that cannot be used, if it is about them."""
    if isinstance(error, _NOT_FETCHED):  # without its text: a process that gives credentials may have written some
        return TransportUnavailable(
            f"The AWS credentials could not be fetched ({type(error).__name__}); see the profile or role that they "
            "come from. The same call may be tried again."
        )
    for kind, says in _SETTINGS.items():
        if isinstance(error, kind):
            return ConfigError(says(error))
    return None


def failure_of(error: BaseException) -> Refused | Unanswered:
    """Return what a call's exception says, with the exception as its cause.

    Raises
    ------
    HarelError
        When the call was not even made, for want of credentials, say.
    """
    failure: Refused | Unanswered
    if isinstance(error, ClientError):
        said = error.response.get("Error", {})
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        failure = Refused(str(said.get("Code", "")), str(said.get("Message", "")), status)
    else:
        about_settings = setting_error(error)
        if about_settings is not None:
            raise about_settings from error
        failure = Unanswered(_text(error), sent=_may_be_sent(error))
    failure.__cause__ = error
    return failure


def must_be_whole(response_dict: Mapping[str, Any], **_: Any) -> None:
    """Raise for an answer that ended early, which botocore takes for one that says nothing: no message, no refusal.

    It is told of each answer before that is parsed.
    """
    headers, read = response_dict["headers"], len(response_dict["body"])
    expected = headers.get("content-length")
    if expected is None and "transfer-encoding" not in headers:
        raise IncompleteReadError(actual_bytes=read, expected_bytes="more")
    if expected is not None and int(expected) != read:
        raise IncompleteReadError(actual_bytes=read, expected_bytes=expected)


def _may_be_sent(error: BaseException) -> bool:
    if isinstance(error, EndpointConnectionError):
        inner = type(getattr(error, "kwargs", {}).get("error"))
        return not _NEVER_CONNECTED.intersection(kind.__name__ for kind in inner.__mro__)
    return not isinstance(error, _NOT_SENT)


def _text(error: BaseException) -> str:
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        inner = getattr(error, "kwargs", {}).get("error")
        return "no connection in time" if isinstance(error, ConnectTimeoutError) else _short(inner)
    return type(error).__name__ if not str(error) else _short(error)


def _short(error: object) -> str:
    """Return an error's text without the addresses of objects that HTTP libraries put into it."""
    text = str(error or "no connection")
    return text.rpartition(">: ")[2] or text
