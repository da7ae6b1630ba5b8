"""The unmodified official SDKs, oldest and newest, do their whole round trip against `tinsmith serve`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from official import run

from tinsmith.testing import ServiceProcess

# The oldest, the newest, and between them: JSON with every default, then protobuf where a flag asks for it.
VERSIONS = ("0.4.1", "0.18.2", "0.24.1", "0.38.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_round_trip(tinsmith_service: ServiceProcess, version: str) -> None:
    printed = run(version, Path(__file__).with_name("round_trip.py"), "tiny-llama", url=tinsmith_service.url)
    report = json.loads(printed.splitlines()[-1])

    assert report["version"] == version
    assert report["capabilities"] == ["tiny-llama"]
    assert report["info"] == ["tiny-llama", 8, True]
    assert report["losses"] == sorted(report["losses"], reverse=True)
    assert report["losses"][-1] < report["losses"][0] / 10
    assert all(metrics["unclipped_grad_l2:mean"] > 0 for metrics in report["step_metrics"])
    assert report["output_keys"] == ["elementwise_loss", "logprobs"]
    assert report["output_shape"] == [7]
    assert report["paths"] == [
        f"tinker://{report['model_id']}/weights/five-steps",
        f"tinker://{report['model_id']}/sampler_weights/named",
    ]
    for tokens, logprobs, reason in report["sequences"]:
        assert len(tokens) == len(logprobs)
        assert len(tokens) == 6 if reason == "length" else len(tokens) <= 6
    # The named snapshot and the ephemeral one hold the same weights, so the same seed gives the same tokens.
    assert report["again"] == [tokens for tokens, _, _ in report["sequences"]]
    assert report["prompt_logprobs"][0] is None
    assert report["topk"][0] is None
    assert [len(row) for row in report["topk"][1:]] == [2, 2]
    assert report["of_base"][0] is None
    assert report["of_base"] != report["prompt_logprobs"]
    assert report["logprobs"][1:3] == pytest.approx(report["prompt_logprobs"][1:], abs=1e-4)
    loss = report["loss"]
    assert loss["after_load"] == loss["before_load"] != loss["spoiled"]


def test_all_generations_compute_the_same_numbers(tinsmith_service: ServiceProcess) -> None:
    script = Path(__file__).with_name("round_trip.py")
    reports = [
        json.loads(run(version, script, "tiny-llama", url=tinsmith_service.url).splitlines()[-1])
        for version in VERSIONS
    ]
    for key in ("losses", "step_metrics", "sequences", "prompt_logprobs", "of_base", "logprobs", "loss"):
        assert all(report[key] == reports[0][key] for report in reports), key
