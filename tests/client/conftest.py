"""What the client's tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client_stub import Stub, serve

import tinsmith
from tinsmith.client.clock import Clock


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_TELEMETRY", "TINKER_TAGS", "TINKER_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A running stub service."""
    app = Stub()
    with serve(app) as url:
        app.url = url
        yield app


@pytest.fixture
def service(stub: Stub) -> Iterator[tinsmith.ServiceClient]:
    """A client of it."""
    with tinsmith.ServiceClient(base_url=stub.url, api_key="tml-secret") as client:
        yield client


class FakeClock(Clock):
    """Time that passes only by sleeping, and no chance."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[float], Any] | None = None

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        if self.on_sleep is not None:
            self.on_sleep(seconds)
        await asyncio.sleep(0)

    def chance(self) -> float:
        return 0.0


@pytest.fixture
def clock() -> FakeClock:
    """A clock in the test's hands."""
    return FakeClock()
