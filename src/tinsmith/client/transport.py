"""Bytes over HTTP, and nothing else: the one place that knows httpx."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .config import without_password
from .errors import APIConnectionError, APITimeoutError, ClientClosedError

if TYPE_CHECKING:
    import httpx

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

SHARD_SIZE = 20
# Headers that say nothing of who asks: all that another host than the service gets to see.
_FOR_ANYBODY = {
    *("host", "accept", "accept-encoding", "connection", "user-agent", "range", "if-range"),
    *("content-type", "content-length", "transfer-encoding"),
}

_EMBEDDED_URL = "http://embedded"


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
    """An answer whose body is still to come."""

    @property
    def status_code(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Whatever their case."""
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


@dataclass(slots=True)
class _Shard:
    """One httpx client. Its pool takes time quadratic in its connections, so a large pool is made of many."""

    client: httpx.AsyncClient
    busy: int = 0


class HttpxTransport:
    """httpx, over the network or straight into an ASGI app of this process."""

    def __init__(self, base_url: str | None, *, app: Any = None, connect_timeout: float = 5.0) -> None:
        self._base_url = base_url or _EMBEDDED_URL
        self._shown_url = without_password(self._base_url)
        self._app = app
        self._connect_timeout = connect_timeout
        self._pools: dict[Pool, list[_Shard]] = {}
        self._tls: Any = None
        self._closed = False
        _quieten_httpx()

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
        async with self._exchange(method, path, timeout, pool) as (client, phases):
            # In-process there is no socket to time out, so the whole exchange is bounded instead.
            async with asyncio.timeout(timeout if self._app is not None else None):
                answer = await client.request(
                    method,
                    self._address(path),
                    content=body,
                    headers=dict(headers),
                    timeout=phases,
                    follow_redirects=follow_redirects,
                )
        return Response(answer.status_code, {k.lower(): v for k, v in answer.headers.items()}, answer.content)

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
        async with (
            self._exchange(method, path, timeout, pool) as (client, phases),
            client.stream(
                method, self._address(path), content=body, headers=dict(headers), timeout=phases
            ) as answer,
        ):
            yield answer

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, timeout: float, pool: Pool
    ) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.Timeout]]:
        """A client for the time of one exchange; what goes wrong with it becomes one of our errors."""
        import httpx

        what = f"{method} {path.partition('?')[0]}"
        self._check_open()
        shard = self._shard(pool)
        shard.busy += 1
        try:
            yield shard.client, httpx.Timeout(timeout, connect=self._connect_timeout, pool=None)
        except (httpx.TimeoutException, TimeoutError) as error:
            said = f"{what} at {self._shown_url} got no answer in {timeout:.0f} s"
            raise APITimeoutError(what, said) from error
        except httpx.RequestError as error:
            self._check_open()
            reason = str(error) or type(error).__name__
            said = f"{what}: no connection to {self._shown_url}: {reason}"
            raise APIConnectionError(what, said) from error
        except RuntimeError:
            self._check_open()  # httpx's word for a client closed under a request
            raise
        finally:
            shard.busy -= 1

    async def _keep_key_home(self, request: httpx.Request) -> None:
        """Wherever a redirection leads, what is meant for the service goes to nobody else."""
        import httpx

        if _origin(request.url) != _origin(httpx.URL(self._base_url)):
            for name in request.headers.keys() - _FOR_ANYBODY:
                del request.headers[name]

    def _address(self, path: str) -> str:
        return self._base_url + path if path.startswith("/") else path

    async def aclose(self) -> None:
        """Close every connection."""
        self._closed = True
        shards = [shard for pool in self._pools.values() for shard in pool]
        self._pools.clear()
        for shard in shards:
            await shard.client.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("this client was closed; make a new ServiceClient")

    def _shard(self, pool: Pool) -> _Shard:
        """The first client with a connection to spare, a new one, or (all being full) the least busy."""
        shards = self._pools.setdefault(pool, [])
        for shard in shards:
            if shard.busy < SHARD_SIZE:
                return shard
        if len(shards) * SHARD_SIZE >= POOL_SIZES[pool]:
            return min(shards, key=lambda shard: shard.busy)
        shards.append(_Shard(self._connect(SHARD_SIZE)))
        return shards[-1]

    def _connect(self, connections: int) -> httpx.AsyncClient:
        import httpx

        if self._app is not None:
            from .in_process import InProcess

            wire = InProcess(self._app)
            return httpx.AsyncClient(transport=wire, headers={"accept-encoding": "identity"})
        if self._tls is None:
            self._tls = httpx.create_ssl_context()  # costly to make, so the pools share one
        return httpx.AsyncClient(
            verify=self._tls,
            http2=importlib.util.find_spec("h2") is not None,
            follow_redirects=True,
            event_hooks={"request": [self._keep_key_home]},
            limits=httpx.Limits(
                max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=30.0
            ),
        )


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _quieten_httpx() -> None:
    """httpx logs every request at INFO, which drowns everything else; whoever set a level keeps it."""
    logger = logging.getLogger("httpx")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
