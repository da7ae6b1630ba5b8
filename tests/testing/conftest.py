"""A client of the misbehaving service, on a clock on which waiting takes no time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults_support import Hurry

import tinsmith
from tinsmith.client.clock import CLOCK
from tinsmith.testing import Faults


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Hurry:
    """The client's clock for this test."""
    clock = Hurry()
    monkeypatch.setattr(CLOCK, "now", clock.now)
    monkeypatch.setattr(CLOCK, "sleep", clock.sleep)
    monkeypatch.setattr(CLOCK, "chance", lambda: 0.0)
    return clock


@pytest.fixture
def client(
    hurry: Hurry, tinsmith_faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tinsmith.ServiceClient]:
    """A client that is not yet connected."""
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    with tinsmith.ServiceClient(base_url=tinsmith_faults.url, api_key="tml-test") as service:
        yield service


@pytest.fixture
def sampler(client: tinsmith.ServiceClient) -> tinsmith.SamplingClient:
    """A sampler of the base model."""
    return client.create_sampling_client(base_model="tiny-llama")


@pytest.fixture
def training(client: tinsmith.ServiceClient) -> tinsmith.TrainingClient:
    """A run, made before anything goes wrong."""
    return client.create_lora_training_client("tiny-llama", rank=4, seed=1).result()
