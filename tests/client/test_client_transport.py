"""The transport over real sockets: pools of its own for each purpose, proxies, large bodies, forks."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import tinsmith
from tinsmith.client.transport import NetworkTransport, Response

Seen = list[tuple[str, bytes]]  # request line and body


class Server:
    """Answers each request 200, once ``go`` lets it."""

    def __init__(self) -> None:
        self.seen: Seen = []
        self.connections = 0
        self.arrived = asyncio.Condition()
        self.go = asyncio.Event()
        self.go.set()
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *fields = head.decode().split("\r\n")
                length = next(
                    (int(f.split(":")[1]) for f in fields if f.lower().startswith("content-length")), 0
                )
                body = await reader.readexactly(length)
                async with self.arrived:
                    self.seen.append((line, body))
                    self.arrived.notify_all()
                await self.go.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def requests(self, count: int) -> Seen:
        """Those that came, once there are so many."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.seen) >= count)
        return self.seen


def run(body: Callable[[Server], Awaitable[None]]) -> None:
    async def main() -> None:
        server = Server()
        listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
        server.port = listening.sockets[0].getsockname()[1]
        async with asyncio.timeout(60):
            await body(server)
        listening.close()

    asyncio.run(main())


async def post(transport: NetworkTransport, path: str, pool: Any = "session", body: bytes = b"x") -> Response:
    return await transport.request("POST", path, body=body, headers={}, timeout=30, pool=pool)


def test_a_full_pool_makes_its_own_wait_and_nobody_else() -> None:
    async def body(server: Server) -> None:
        transport = NetworkTransport(f"http://127.0.0.1:{server.port}")
        server.go.clear()
        flushes = [asyncio.create_task(post(transport, f"/telemetry/{at}", "telemetry")) for at in range(3)]
        await server.requests(1)
        beat = asyncio.create_task(post(transport, "/heartbeat"))
        seen = await server.requests(2)
        assert [line.split()[1] for line, _ in seen] == ["/telemetry/0", "/heartbeat"]
        assert server.connections == 2
        server.go.set()
        await asyncio.gather(beat, *flushes)
        assert server.connections == 2, "one for telemetry, used again"
        await transport.aclose()

    run(body)


def test_proxies_of_the_environment_are_used_and_no_proxy_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(server: Server) -> None:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("no_proxy", "")
        through = NetworkTransport("http://service.example")
        assert (await post(through, "/api/v1/x?a=%2F")).body == b"ok"
        await through.aclose()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        direct = NetworkTransport(f"http://127.0.0.1:{server.port}")
        await post(direct, "/direct")
        await direct.aclose()
        lines = [line for line, _ in server.seen]
        assert lines == ["POST http://service.example/api/v1/x?a=%2F HTTP/1.1", "POST /direct HTTP/1.1"]

    run(body)


@pytest.mark.parametrize("size", [0, 1, 2**18, 2**18 + 1, 3 * 2**20 + 7])
def test_bodies_of_every_size_arrive_whole(size: int) -> None:
    async def body(server: Server) -> None:
        transport = NetworkTransport(f"http://127.0.0.1:{server.port}")
        sent = os.urandom(size)
        await post(transport, "/x", body=sent)
        assert server.seen == [("POST /x HTTP/1.1", sent)]
        await transport.aclose()

    run(body)


def test_a_forked_child_leaves_the_parents_connections_alone() -> None:
    async def body(server: Server) -> None:
        transport = NetworkTransport(f"http://127.0.0.1:{server.port}")
        await post(transport, "/before")
        if (child := os.fork()) == 0:
            transport.__dict__.clear()
            gc.collect()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        await post(transport, "/after")
        assert server.connections == 1, "the same one, still good"
        await transport.aclose()

    run(body)


def test_errors_say_where_without_the_password() -> None:
    async def body(server: Server) -> None:
        closed = NetworkTransport("http://user:secret@127.0.0.1:9")
        with pytest.raises(tinsmith.APIConnectionError, match=r"127\.0\.0\.1:9") as caught:
            await post(closed, "/x")
        assert "secret" not in str(caught.value)
        await closed.aclose()
        with pytest.raises(tinsmith.ClientClosedError):
            await post(closed, "/x")
        hasty = NetworkTransport(f"http://127.0.0.1:{server.port}")
        server.go.clear()
        with pytest.raises(tinsmith.APITimeoutError, match="/x at http"):
            await hasty.request("POST", "/x", body=b"", headers={}, timeout=0.05, pool="session")
        server.go.set()
        await hasty.aclose()

    run(body)
