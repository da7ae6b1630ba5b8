"""A custom loss by handle gives the same on the service as on the official SDK's own side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from official import run

from tinsmith.testing import ServiceProcess


def _report(folder: Path, on_the_service: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("TINSMITH_CLIENT_CUSTOM_LOSS_SERVER_SIDE", str(on_the_service).lower())
    with ServiceProcess(folder) as service:
        printed = run("0.38.0", Path(__file__).with_name("custom_loss.py"), "tiny-llama", url=service.url)
    report: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return report


def test_both_sides_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = _report(tmp_path / "there", True, monkeypatch)
    here = _report(tmp_path / "here", False, monkeypatch)
    assert there.keys() == here.keys() and len(there) == 3
    for name, mine in there.items():
        theirs = here[name]
        assert mine["on_the_service"] and not theirs["on_the_service"]
        assert mine["metrics"] == pytest.approx(theirs["metrics"], rel=1e-5), name
        assert mine["norm"] == pytest.approx(theirs["norm"], rel=1e-5) and mine["norm"] > 0
