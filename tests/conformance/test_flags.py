"""The newest official SDK with the service's client flags all on, and all off."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from official import run
from prometheus_client.parser import text_string_to_metric_families

from tinsmith.testing import ServiceProcess

FLAGS = ("pjwt_auth_enabled", "sample_use_retrieve_futures", "sample_join_sampling_session")
# Routes the SDK asks for only with its flag on.
ROUTES = ("auth/token", "retrieve_futures", "join_sampling_session")


def _asked(url: str) -> set[str]:
    with urllib.request.urlopen(f"{url}/metrics") as response:
        families = text_string_to_metric_families(response.read().decode())
    return {
        sample.labels["route"] for family in families for sample in family.samples if "route" in sample.labels
    }


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_sampling_with_each_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    for flag in FLAGS:
        monkeypatch.setenv(f"TINSMITH_CLIENT_{flag.upper()}", str(on))
    with ServiceProcess(tmp_path) as service:
        script = Path(__file__).with_name("sampling_flags.py")
        report = json.loads(run("0.38.0", script, "tiny-llama", url=service.url).splitlines()[-1])
        asked = _asked(service.url)
    assert [len(tokens) for tokens in report["sampled"]] == [4] * 20
    assert report["cloned"] == [report["sampled"][0]] * 2
    assert report["refused"] == "user"
    assert report["who"] == ("local" if on else None)
    assert {route for route in ROUTES if route in asked} == (set(ROUTES) if on else set())
