"""The soak's short form: `make soak-sdk` runs the long one."""

from __future__ import annotations

import pytest
from client_soak import soak


def test_nothing_is_lost_done_twice_or_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    told = soak(samples=200, steps=6)
    assert sum(told["faults"].values()) > 10
