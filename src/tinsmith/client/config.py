"""Where the client points and how it behaves: resolved once, from arguments and then from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

EMBEDDED = "embedded"  # as a base URL: the service in this process, whatever else is configured
HOSTED_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"

# The generation of the wire protocol spoken here. Services refuse clients that are too old by this
# number, so it is the protocol's and not our own version.
PROTOCOL_VERSION = "0.38.0"

_DEFAULT_PORTS = {"http": 80, "https": 443}
_TRUE = frozenset({"1", "true", "yes", "on"})


class Timeout:
    """How long to wait, in seconds: for a connection, and for each piece of an answer (``read``).

    ``timeout`` of a `ServiceClient` takes one of these, one of httpx's, or a number. ``write`` and ``pool``
    are there for programs written for httpx's: a request waits its turn for a connection as long as it takes.

    >>> ServiceClient(timeout=Timeout(30.0, connect=2.0)).close().result()
    """

    def __init__(
        self,
        timeout: float | None = None,
        *,
        connect: float | None = None,
        read: float | None = None,
        write: float | None = None,
        pool: float | None = None,
    ) -> None:
        self.connect = timeout if connect is None else connect
        self.read = timeout if read is None else read
        self.write = timeout if write is None else write
        self.pool = timeout if pool is None else pool

    def __repr__(self) -> str:
        return f"Timeout(connect={self.connect}, read={self.read}, write={self.write}, pool={self.pool})"


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Everything a client needs to know, and nothing it would look up later.

    >>> ClientConfig.resolve(base_url="http://localhost:8000/", environ={}).base_url
    'http://localhost:8000'
    """

    base_url: str | None = None  # None: the embedded service, in this process
    api_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # win over our own
    timeout: float = 60.0
    connect_timeout: float = 5.0
    max_retries: int | None = None  # None: only the deadline of a call bounds its retries
    deadline: float | None = 12 * 3600.0  # from an operation's acceptance to its result; None: for ever
    telemetry: bool = True
    tags: tuple[str, ...] = ()
    project_id: str | None = None
    chosen_by: str = "default"  # what decided base_url; for the log

    @classmethod
    def resolve(
        cls,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        project_id: str | None = None,
        timeout: Any = None,
        max_retries: int | None = None,
        deadline: float | None = 12 * 3600.0,
        environ: Mapping[str, str] | None = None,
    ) -> ClientConfig:
        """Arguments first, then the environment, which is read here and never again."""
        env = os.environ if environ is None else environ
        key = _text("api_key", api_key) or env.get("TINKER_API_KEY", "").strip() or None
        url, chosen_by = _choose_url(_text("base_url", base_url), env, key is not None)
        tags = (tag.strip() for tag in env.get("TINKER_TAGS", "").split(","))
        return cls(
            base_url=url,
            api_key=key,
            headers=_cloudflare(env) | _headers(headers),
            timeout=_positive("timeout", getattr(timeout, "read", timeout), 60.0),
            connect_timeout=_positive("timeout.connect", getattr(timeout, "connect", None), 5.0),
            max_retries=_count("max_retries", max_retries),
            deadline=None if deadline is None else _positive("deadline", deadline, 0.0),
            telemetry=env.get("TINKER_TELEMETRY", "1").strip().lower() in _TRUE,
            tags=tuple(tag for tag in tags if tag),
            project_id=_text("project_id", project_id) or env.get("TINKER_PROJECT_ID", "").strip() or None,
            chosen_by=chosen_by,
        )

    @property
    def place(self) -> str:
        """The service, in words."""
        return without_password(self.base_url) if self.base_url else "the embedded service in this process"

    def __repr__(self) -> str:
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        shown["base_url"] = self.place
        shown["api_key"] = None if self.api_key is None else "…"
        shown["headers"] = dict.fromkeys(self.headers, "…")
        return f"ClientConfig({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def normalize_url(url: str) -> str:
    """One spelling per service: lower-case host, no default port, no trailing slash; the path stays.

    >>> normalize_url("HTTPS://Host:443/services/x/")
    'https://host/services/x'
    """
    parts = urlsplit(url.strip())
    scheme = parts.scheme.lower()
    if scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"base_url: {url!r} is not an address; it must look like http://host:port/prefix")
    if parts.query or parts.fragment:
        raise ValueError(f"base_url: {url!r} must not have a query or a fragment")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = "" if parts.port in (None, _DEFAULT_PORTS[scheme]) else f":{parts.port}"
    user = parts.netloc.rpartition("@")[0]
    return f"{scheme}://{user + '@' if user else ''}{host}{port}{parts.path.rstrip('/')}"


def without_password(url: str) -> str:
    """The address, fit for a log."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _choose_url(argument: str | None, env: Mapping[str, str], has_key: bool) -> tuple[str | None, str]:
    for where, given in (
        ("the base_url argument", argument),
        ("TINKER_BASE_URL", env.get("TINKER_BASE_URL")),
    ):
        if url := (given or "").strip():
            return None if url == EMBEDDED else normalize_url(url), where
    if has_key:
        return HOSTED_URL, "an API key without a base URL"
    return None, "neither TINKER_BASE_URL nor TINKER_API_KEY"


def _cloudflare(env: Mapping[str, str]) -> dict[str, str]:
    names = {
        "CF-Access-Client-Id": "CLOUDFLARE_ACCESS_CLIENT_ID",
        "CF-Access-Client-Secret": "CLOUDFLARE_ACCESS_CLIENT_SECRET",
    }
    return {header: env[name] for header, name in names.items() if env.get(name)}


def _text(name: str, value: str | None) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name}: text is needed, not {type(value).__name__}")
    return value.strip() if value else None


def _headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"headers: {name!r} must map text to text")
    return dict(headers or {})


def _positive(name: str, value: Any, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name}: {value!r} is not a positive number of seconds")
    return float(value)


def _count(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"{name}: {value!r} is not a whole number of 0 or more")
    return value
