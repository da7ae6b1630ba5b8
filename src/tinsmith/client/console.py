"""Addresses to look at things in a browser."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from .config import HOSTED_URL, ClientConfig

_HOSTED_CONSOLE = "https://tinker.thinkingmachines.ai"


def console_url(config: ClientConfig, kind: str, name: str) -> str:
    """Of a session or a training run: on the hosted service its page, elsewhere what the service tells of it.

    >>> console_url(ClientConfig(base_url="http://localhost:8600"), "sessions", "S")
    'http://localhost:8600/api/v1/sessions/S'
    """
    base = config.base_url or "http://embedded"
    if urlsplit(base).hostname == urlsplit(HOSTED_URL).hostname:
        return f"{_HOSTED_CONSOLE}/{kind}/{name}"
    return f"{base}/api/v1/{kind}/{quote(name, safe=':')}"
