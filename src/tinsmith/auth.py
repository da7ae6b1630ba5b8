"""Whether there are credentials, and whether they work, for programs that want to know before they start."""

from __future__ import annotations

from .client.config import ClientConfig
from .client.service_client import ServiceClient

__all__ = ["get_tinker_token", "raise_if_tinker_not_accessible", "tinker_has_credentials"]


def get_tinker_token() -> str | None:
    """The API key that clients of this process will use, or None.

    >>> get_tinker_token() is None  # TINKER_API_KEY is not set
    True
    """
    return ClientConfig.resolve().api_key


def tinker_has_credentials() -> bool:
    """Whether a client can be made: there is a key, or a service that asks for none.

    >>> tinker_has_credentials()  # the embedded service asks for none
    True
    """
    config = ClientConfig.resolve()
    return config.api_key is not None or config.base_url is None


def raise_if_tinker_not_accessible() -> None:
    """Ask the service for its models (blocks); a TinkerError says what is wrong.

    >>> raise_if_tinker_not_accessible()
    """
    with ServiceClient() as service:
        service.get_server_capabilities()
