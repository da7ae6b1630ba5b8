"""A pytest plugin: `tinsmith_service` is a real service with tiny-llama, `tinsmith_faults` breaks another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .fault_table import Faults
    from .faulty_service import FaultyService
    from .process import ServiceProcess


@pytest.fixture(scope="session")
def tinsmith_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One service for the whole test session; its ``url`` is what clients need."""
    from .process import ServiceProcess

    # Tests leave more runs behind than people do, and the service lives as long as all of them.
    unlimited = {"TINSMITH_QUOTA_LIVE_RUNS": "1000000"}
    with ServiceProcess(tmp_path_factory.mktemp("tinsmith"), environment=unlimited) as service:
        yield service


@pytest.fixture(scope="session")
def tinsmith_faulty_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyService]:
    """Another service, on a thread of this process, that does what its ``faults`` say."""
    from .faulty_service import FaultyService

    with FaultyService(tmp_path_factory.mktemp("tinsmith-faulty")) as service:
        yield service


@pytest.fixture
def tinsmith_faults(tinsmith_faulty_service: FaultyService) -> Iterator[Faults]:
    """The faults of that service, none at the start of each test; ``url`` is what clients need."""
    faults = tinsmith_faulty_service.faults
    faults.clear()
    yield faults
    faults.clear()
