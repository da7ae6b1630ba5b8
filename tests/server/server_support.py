"""The whole service in this process: real engine, real database, real routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tinsmith.engine.host import offer, open_engine
from tinsmith.engine.models import Catalogue
from tinsmith.server import create_app
from tinsmith.server.auth import Authenticator
from tinsmith.service import Service, Settings
from tinsmith.service.keys import Keys
from tinsmith.store import Database

TOKENS = [10, 20, 30, 40, 50, 60]


class Api:
    """HTTP calls in the JSON dialect."""

    def __init__(self, http: httpx.AsyncClient, service: Service) -> None:
        self.http = http
        self.service = service

    async def post(self, path: str, /, **body: Any) -> Any:
        """A call that must succeed."""
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    async def result(self, request_id: str) -> Any:
        """The result of a future, however many polls it takes."""
        while True:
            response = await self.http.post("retrieve_future", json={"request_id": request_id})
            if response.status_code != 408:
                assert response.status_code == 200, response.text
                return response.json()

    async def do(self, path: str, /, **body: Any) -> Any:
        """Submit and wait."""
        return await self.result((await self.post(path, **body))["request_id"])

    async def session(self) -> str:
        """A new session's id."""
        return (await self.post("create_session", tags=[], user_metadata={}, sdk_version="test"))[
            "session_id"
        ]

    async def run(self, session: str, number: int = 0, **lora: Any) -> str:
        """A new run's id."""
        config = {"rank": 4, "seed": 1} | lora
        created = await self.do(
            "create_model",
            session_id=session,
            model_seq_id=number,
            base_model="tiny-llama",
            lora_config=config,
        )
        return created["model_id"]

    async def loss(
        self, run: str, seq: int, path: str = "forward_backward", tokens: list[int] = TOKENS
    ) -> Any:
        """One forward_backward (or forward)."""
        return await self.do(path, **batch(run, seq, path, tokens))


def batch(run: str, seq: int, path: str = "forward_backward", tokens: list[int] = TOKENS) -> dict[str, Any]:
    """The body of a forward_backward (or forward)."""
    datum = {
        "model_input": {"chunks": [{"tokens": tokens[:-1]}]},
        "loss_fn_inputs": {
            "target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [len(tokens) - 1]},
            "weights": {"data": [1.0] * (len(tokens) - 1), "dtype": "float32"},
        },
    }
    key = "forward_input" if path == "forward" else "forward_backward_input"
    return {
        key: {"data": [datum], "loss_fn": "cross_entropy", "loss_fn_config": None},
        "model_id": run,
        "seq_id": seq,
    }


def make_key(data_dir: Path, name: str, **details: Any) -> str:
    """As `tinsmith key create` does it, whether or not a service runs."""
    data_dir.mkdir(exist_ok=True)
    database = Database.in_folder(data_dir)
    try:
        return asyncio.run(Keys(database, data_dir).create(name, **details))
    finally:
        database.close()


Serve = Callable[..., AbstractAsyncContextManager[Api]]


async def sampler_of(api: Api, session: str | None = None) -> str:
    """A sampler of the base model; gives its id."""
    created = await api.post(
        "create_sampling_session",
        session_id=session or await api.session(),
        sampling_session_seq_id=0,
        base_model="tiny-llama",
    )
    sampler_id: str = created["sampling_session_id"]
    return sampler_id


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Start a service over this test's data directory; starting again is a restart."""

    @asynccontextmanager
    async def running(
        api_key: str | None = None, offered: Sequence[str] = ("tiny-llama",), **settings: Any
    ) -> AsyncIterator[Api]:
        service = Service(
            open_engine(offer(Catalogue(), offered)), Settings(data_dir=tmp_path / "data", **settings)
        )
        await service.start()
        app = create_app(service, Authenticator(api_key, service.keys, service.tokens))
        transport = httpx.ASGITransport(app)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://test/api/v1/") as http:
                yield Api(http, service)
        finally:
            await service.stop()

    return running
