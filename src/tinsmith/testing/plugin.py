"""A pytest plugin: the fixture `tinsmith_service` is a real service with the model tiny-llama."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .process import ServiceProcess


@pytest.fixture(scope="session")
def tinsmith_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One service for the whole test session; its ``url`` is what clients need."""
    from .process import ServiceProcess

    with ServiceProcess(tmp_path_factory.mktemp("tinsmith")) as service:
        yield service
