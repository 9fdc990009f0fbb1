"""How a call to SQS can fail, and what that means for the caller.

A driver says with :class:`Refused` or :class:`Unanswered` what happened; :func:`explained` makes an error of harel's
of it, whose ``__cause__`` is the driver's.
"""

from __future__ import annotations

from harel.errors import ConfigError, HarelError, InvalidArgument, TransportUnavailable

__all__ = ["Refused", "Unanswered", "explained"]

_LOST = {"InvalidIdFormat", "InvalidParameterValue", "MessageNotInflight", "ReceiptHandleIsInvalid"}
"""What SQS says of a receipt that is no longer the current one of a message in flight."""

_BEYOND_THE_LIMIT = "beyond the limit"
"""A part of what it says, with the code ``InvalidParameterValue``, of a visibility that is too long."""

_PASSING = {
    "InternalError",
    "InternalFailure",
    "KMS.ThrottlingException",
    "KmsThrottled",
    "LimitExceededException",
    "OverLimit",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestTimeout",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
"""What the same call, a moment later, may not meet."""

_MISSING = {"NonExistentQueue", "QueueDoesNotExist"}

_UNWANTED_KEY = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_FORBIDDEN = {"AccessDenied", "AccessDeniedException", "InvalidSecurity", "NotAuthorized", "UnauthorizedOperation"}
_WRONG_TIME = {"RequestExpired", "RequestTimeTooSkewed", "RequestInTheFuture"}
_UNFIT = {"BatchRequestTooLong", "InvalidMessageContents"}


class Refused(Exception):
    """SQS answered, and the answer was no.

    Parameters
    ----------
    code : str
        As SQS says it, with or without the name of the service before it.
    text : str
    status : int
        HTTP's; 0 where it is about one entry of a batch.
    """

    def __init__(self, code: str, text: str, status: int = 0) -> None:
        self.code: str = code.removeprefix("AWS.SimpleQueueService.").rpartition("#")[2]
        self.text: str = text.strip().rstrip(".")
        self.status: int = status
        super().__init__(f"{self.code}: {self.text}")

    @property
    def is_lost(self) -> bool:
        """Whether it says that a lease was lost."""
        return self.code in _LOST and not self.is_too_long

    @property
    def is_too_long(self) -> bool:
        """Whether it says that a message cannot be kept from others for that long."""
        return self.code in _LOST and _BEYOND_THE_LIMIT in self.text

    @property
    def is_missing(self) -> bool:
        """Whether it says that there is no such queue."""
        return self.code in _MISSING

    @property
    def is_passing(self) -> bool:
        """Whether the same call may succeed a moment later."""
        return self.code in _PASSING or self.status >= 500

    @property
    def may_show_secrets(self) -> bool:
        """Whether its text, and so the driver's exception, may quote what was signed: session tokens among it."""
        return self.code in _UNWANTED_KEY


class Unanswered(Exception):
    """SQS did not answer.

    Parameters
    ----------
    text : str
        What the driver says.
    sent : bool
        Whether the call may have reached SQS, and happened.
    """

    def __init__(self, text: str, *, sent: bool) -> None:
        self.text: str = text.strip().rstrip(".")
        self.sent: bool = sent
        super().__init__(self.text)


def explained(failure: Refused | Unanswered, where: str) -> HarelError:
    """Return what to raise.

    Parameters
    ----------
    failure : Refused or Unanswered
    where : str
        The endpoint's host and port.
    """
    error = _of_silence(failure, where) if isinstance(failure, Unanswered) else _of_refusal(failure, where)
    if isinstance(failure, Refused) and failure.may_show_secrets:
        error.__suppress_context__ = True
    else:
        error.__cause__ = failure.__cause__
    return error


def _of_silence(failure: Unanswered, where: str) -> HarelError:
    if failure.sent:
        return TransportUnavailable(
            f"The answer of {where} was lost: {failure.text}. The operation may have happened or not."
        )
    return TransportUnavailable(f"{where} cannot be reached: {failure.text}.")


def _of_refusal(failure: Refused, where: str) -> HarelError:
    code, text = failure.code, failure.text
    if code.lower().startswith("kms"):
        return TransportUnavailable(
            f"{where} cannot use the KMS key that encrypts the queue ({code}: {text}). See that the key is enabled, "
            "and that these credentials may use it: kms:GenerateDataKey to publish, kms:Decrypt to publish and claim."
        )
    if code == "OverLimit":
        return TransportUnavailable(
            f"{where} says that the queue has as many messages in flight as SQS allows ({text}). Settle what is held, "
            "or spread the groups over several queues."
        )
    if failure.is_passing:
        return TransportUnavailable(
            f"{where} does not do this just now ({code}: {text}). Ask again later; if it is a limit on calls that is "
            "met often, publish and claim in larger batches, or ask AWS for a higher one."
        )
    return _of_what_stays(failure, where)


def _of_what_stays(failure: Refused, where: str) -> HarelError:
    code, text = failure.code, failure.text
    if failure.is_missing:
        return ConfigError(f"{where} has no such queue ({text}). Create it, or see that region and account are right.")
    if code in _UNWANTED_KEY:  # without its text, which may quote what was signed
        return ConfigError(
            f"{where} does not accept the AWS credentials ({code}). See AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
            "AWS_SESSION_TOKEN, or the profile or role that they come from; and that this machine's clock is right."
        )
    if code in _WRONG_TIME:
        return ConfigError(f"{where} does not accept the time of the request ({code}); set this machine's clock.")
    if code in _FORBIDDEN:
        return ConfigError(
            f"{where} does not let these credentials do that: {text}. They need sqs:SendMessage, sqs:ReceiveMessage, "
            "sqs:DeleteMessage, sqs:ChangeMessageVisibility and sqs:GetQueueUrl, and to create queues sqs:CreateQueue."
        )
    if code in _UNFIT:
        return InvalidArgument(f"{where} does not take this message ({code}: {text}).")
    if code == "QueueDeletedRecently":
        return TransportUnavailable(f"{where}: {text}. Wait a minute, and open it again.")
    return HarelError(f"{where} refused an operation ({code}: {text}).")
