"""Waiting for what will come, without sleeping for luck."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

_PATIENCE = 60


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait until something is so."""

    async def wait(so: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE):
            while not so():
                await asyncio.sleep(0.01)

    return wait
