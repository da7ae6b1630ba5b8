"""Bytes over HTTP, and nothing else: the one place that knows aiohttp."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.request import getproxies, proxy_bypass

from .config import without_password
from .errors import APIConnectionError, APITimeoutError, ClientClosedError

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

Pool = Literal["session", "sample", "train", "retrieve", "poll", "stream", "download", "telemetry"]

# Connections of its own for each purpose, so that a thousand waiting polls never delay a heartbeat.
POOL_SIZES: dict[Pool, int] = {
    "session": 20,
    "sample": 400,
    "train": 60,
    "retrieve": 600,
    "poll": 200,
    "stream": 400,
    "download": 20,
    "telemetry": 1,
}

_PART = 2**18  # bytes of a body that are handed to the socket at a time
# Headers that say nothing of who asks: all that another host than the service gets to see.
_FOR_ANYBODY = {
    *("host", "accept", "accept-encoding", "connection", "user-agent", "range", "if-range"),
    *("content-type", "content-length", "transfer-encoding"),
}


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; header names are lower case."""

    status_code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def content_type(self) -> str:
        """Without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class StreamedResponse(Protocol):
    """An answer whose body is still to come; header names are lower case."""

    @property
    def status_code(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """By lower-case name."""
        ...

    def aiter_bytes(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        ...

    async def aread(self) -> bytes:
        """The whole body."""
        ...


class Transport(Protocol):
    """What carries requests. Raises APIConnectionError or APITimeoutError; an error status is an answer."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
        pool: Pool,
        follow_redirects: bool = True,
    ) -> Response:
        """One exchange; ``path`` starts with a slash and has its query, or is a whole address."""
        ...

    def stream(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
        pool: Pool,
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """One exchange whose answer is read piece by piece; ``timeout`` is for each piece."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...


class _Streamed:
    """aiohttp's answer as a `StreamedResponse`."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.status_code = answer.status
        self.headers = _lower(answer.headers)

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        async for piece in self._answer.content.iter_any():
            yield piece

    async def aread(self) -> bytes:
        """The whole body."""
        return await self._answer.read()


class NetworkTransport:
    """HTTP over the network, with the proxies and certificates the environment names."""

    def __init__(self, base_url: str, *, connect_timeout: float = 5.0) -> None:
        self._base_url = base_url
        self._shown_url = without_password(base_url)
        self._connect_timeout = connect_timeout
        self._sessions: dict[Pool, aiohttp.ClientSession] = {}
        self._proxies = getproxies()
        self._closed = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
        pool: Pool,
        follow_redirects: bool = True,
    ) -> Response:
        """One exchange."""
        async with self._exchange(method, path, body, headers, timeout, pool, follow_redirects) as answer:
            return Response(answer.status, _lower(answer.headers), await answer.read())

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
        pool: Pool,
    ) -> AsyncIterator[StreamedResponse]:
        """One exchange whose answer is read piece by piece."""
        async with self._exchange(method, path, body, headers, timeout, pool, True) as answer:
            yield _Streamed(answer)

    @asynccontextmanager
    async def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
        pool: Pool,
        follow_redirects: bool,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer for the time of one exchange; what goes wrong with it becomes one of our errors."""
        import aiohttp
        from yarl import URL

        what = f"{method} {path.partition('?')[0]}"
        self._check_open()
        large = body if body is not None and len(body) > _PART else None
        address = URL(self._base_url + path if path.startswith("/") else path, encoded=True)
        try:
            async with self._session(pool).request(
                method,
                address,
                data=body if large is None else _parts(large),
                headers=headers if large is None else {**headers, "content-length": str(len(large))},
                timeout=aiohttp.ClientTimeout(None, sock_connect=self._connect_timeout, sock_read=timeout),
                allow_redirects=follow_redirects,
                proxy=self._proxy(address),
            ) as answer:
                yield answer
        except TimeoutError as error:
            said = f"{what} at {self._shown_url} got no answer in {timeout:.0f} s"
            raise APITimeoutError(what, said) from error
        except aiohttp.ClientError as error:
            self._check_open()
            reason = str(error) or type(error).__name__
            said = f"{what}: no connection to {self._shown_url}: {reason}"
            raise APIConnectionError(what, said) from error
        except RuntimeError:
            self._check_open()  # aiohttp's word for a session closed under a request
            raise

    async def _keep_key_home(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Wherever a redirection leads, what is meant for the service goes to nobody else."""
        from yarl import URL

        if request.url.origin() != URL(self._base_url).origin():
            for name in [name for name in request.headers if name.lower() not in _FOR_ANYBODY]:
                del request.headers[name]
        return await send(request)

    async def aclose(self) -> None:
        """Close every connection."""
        self._closed = True
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("this client was closed; make a new ServiceClient")

    def _proxy(self, address: URL) -> str | None:
        """What the environment named when this was made."""
        proxy = self._proxies.get(address.scheme) or self._proxies.get("all")
        return None if proxy is None or proxy_bypass(address.host or "") else proxy

    def _session(self, pool: Pool) -> aiohttp.ClientSession:
        if pool not in self._sessions:
            import aiohttp

            connector = _connector_class()(
                limit=POOL_SIZES[pool],
                keepalive_timeout=30.0,
                ssl=_tls() if self._base_url.startswith("https:") else True,
            )
            self._sessions[pool] = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Content-Type",),
                middlewares=(self._keep_key_home,),
            )
        return self._sessions[pool]


async def _parts(body: bytes) -> AsyncIterator[memoryview]:
    whole = memoryview(body)
    for start in range(0, len(body), _PART):
        yield whole[start : start + _PART]


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@cache
def _tls() -> ssl.SSLContext:
    """What this machine trusts, and what certifi does: some machines have no list of their own."""
    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


@cache
def _connector_class() -> Any:
    import aiohttp

    class Connector(aiohttp.TCPConnector):
        """In a forked child it is as good as closed: its sockets are the parent's, and must be left alone."""

        def __init__(self, **how: Any) -> None:
            self._pid = os.getpid()
            super().__init__(**how)

        @property
        def closed(self) -> bool:
            return self._pid != os.getpid() or super().closed

        def __del__(self, *_: Any) -> None:
            if self._pid == os.getpid():
                super().__del__()

    return Connector
