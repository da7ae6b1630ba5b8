"""The refusal: what every room raises when a request cannot be honoured."""

from __future__ import annotations

from enum import StrEnum


class RequestErrorCategory(StrEnum):
    """Whose fault a failed operation was.

    >>> RequestErrorCategory.User == "user"
    True
    """

    Unknown = "unknown"
    Server = "server"
    User = "user"


class UserError(ValueError):
    """The caller asked for what cannot be done; the message names the field and what would be right.

    It crosses every room unchanged: the engine or the service raises it, the future carries it to the
    client with category ``user``.

    >>> try:
    ...     sampler.sample(PROMPT, 0, SamplingParams())
    ... except UserError as error:
    ...     print(error.field)
    num_samples
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class NotFound(UserError):
    """No such session, run, sampler, checkpoint or future — or it is somebody else's."""


class Forbidden(UserError):
    """What was presented to gain access does not give it."""


class Gone(UserError):
    """It existed and has expired, so asking again will not help."""


class Unavailable(RuntimeError):
    """The service cannot take work now (shutting down, full disk); trying later is right."""


class OutOfSpace(Unavailable):
    """There is no room on the disk, or in the data directory's budget, for what this would take."""
