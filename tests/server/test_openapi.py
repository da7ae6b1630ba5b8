"""The OpenAPI document describes what the service does: schemathesis tries it out. And /metrics."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_support import TOKENS, Serve

from tinsmith.server.openapi import document
from tinsmith.server.routes import ROUTES
from tinsmith.testing import ServiceProcess

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "unsupported_method"
)


def test_every_route_is_described() -> None:
    described = {
        (method.upper(), path) for path, methods in document()["paths"].items() for method in methods
    }
    assert described == {(route.method, route.address) for route in ROUTES}
    ids = [
        operation["operationId"] for methods in document()["paths"].values() for operation in methods.values()
    ]
    assert len(ids) == len(set(ids))


def test_the_service_does_what_its_document_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every endpoint, with values that fit and values that do not: no 5xx, nothing that is not described."""
    monkeypatch.setenv("TINSMITH_POLL_HOLD", "0.2")
    with ServiceProcess(tmp_path / "data") as service:
        command = [Path(sys.executable).with_name("schemathesis"), "run", f"{service.url}/openapi.json"]
        command += ["--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--max-examples", "5"]
        command += ["--generation-database", "none", "--header", "X-API-Key: tml-test"]
        command += ["--seed", "1", "--no-color"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"


def test_the_document_is_served_without_a_key(serve: Serve) -> None:
    async def main() -> None:
        async with serve(api_key="tml-secret") as api:
            here = await api.http.get("openapi.json")
            root = await api.http.get("http://test/openapi.json")
            assert here.json() == root.json() == document()

    asyncio.run(main())


def _samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_requests_operations_and_tokens(serve: Serve) -> None:
    async def main() -> None:
        async with serve(api_key="tml-secret") as api:
            assert (await api.http.get("http://test/metrics")).status_code == 401
            api.http.headers["X-API-Key"] = "tml-secret"
            run = await api.run(await api.session())
            await api.loss(run, 1)
            await api.do("save_weights", model_id=run, path="not/a/name", seq_id=2)
            bearer = {"Authorization": "Bearer tml-secret"}
            transport = api.http._transport
            async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=bearer) as http:
                response = await http.get("/metrics")
            assert response.headers["content-type"].startswith("text/plain")
            found = _samples(response.text)
            assert found["tinsmith_http_requests_total", "POST", "forward_backward", "200"] == 1
            assert found["tinsmith_http_requests_total", "GET", "metrics", "401"] == 1
            assert found["tinsmith_operations_total", "create_model", "ok"] == 1
            assert found["tinsmith_operations_total", "save_weights", "user"] == 1
            assert found["tinsmith_tokens_total", "training"] == len(TOKENS) - 1
            assert found["tinsmith_runs_live",] == 1
            assert found["tinsmith_operations_queued",] == 0

    asyncio.run(main())
