"""Where no key is asked for, pages in this machine's browsers are kept out, for they too reach its ports."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tinsmith.service.settings import is_loopback

from .auth import Authenticator
from .call import reply


class ForeignPages:
    """Refuses what only a page from elsewhere sends: another page's ``Origin``, what a browser says where
    there is none (``Sec-Fetch-Site``), or a ``Host`` that is a name somebody else gave this machine (DNS
    rebinding). With a key all of it is fine, for no page knows the key.
    """

    def __init__(self, app: ASGIApp, auth: Authenticator, host: str) -> None:
        self._app = app
        self._auth = auth
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, or a refusal."""
        wrong = None if scope["type"] != "http" or self._auth.required else self._wrong(Headers(scope=scope))
        if wrong is None:
            await self._app(scope, receive, send)
        else:
            await reply({"detail": wrong}, 403)(scope, receive, send)

    def _wrong(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if _name(host) != self._host and not is_loopback(_name(host)):
            return f"Host: {host[:200]!r} is not this machine; without a key only programs on it are served"
        if origin is not None and urlsplit(origin).netloc != host:
            return f"Origin: {origin[:200]!r} is another page's; without a key only programs here are served"
        if (site := headers.get("sec-fetch-site", "none")) not in ("none", "same-origin"):
            return (
                f"Sec-Fetch-Site: {site[:200]!r} is another page; without a key only programs here are served"
            )
        return None


def _name(host: str) -> str:
    """A Host header without its port."""
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() else host).strip("[]").lower()
