"""A service that is told to stop: nothing new, what is under way finished or kept, clients sent away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from server_support import Api, Serve

from tinsmith.testing import ServiceProcess

LONG = {
    "prompt": {"chunks": [{"tokens": [10, 20]}]},
    "sampling_params": {"max_tokens": 1000, "seed": 1, "stop": []},
    "num_samples": 2,
    "base_model": "tiny-llama",
}


async def _refused(api: Api) -> None:
    for path, body in (("create_session", {"sdk_version": "test"}), ("asample", LONG)):
        refused = await api.http.post(path, json=body)
        assert refused.status_code == 503
        assert refused.json()["detail"] == "the service is shutting down"
        assert float(refused.headers["Retry-After"]) > 0


def test_a_stop_refuses_sends_waiters_away_and_saves(serve: Serve, tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(drain_seconds=120) as api:
            run = await api.run(await api.session())
            await api.loss(run, 1)
            sample = (await api.post("asample", **LONG))["request_id"]
            waiting = asyncio.create_task(api.http.post("retrieve_future", json={"request_id": sample}))
            await asyncio.sleep(0)
            stopping = asyncio.create_task(api.service.drain())
            assert (await waiting).status_code in (408, 503)  # whichever came first; both mean: ask again
            await _refused(api)
            saved = tmp_path / "data" / "blobs" / "snapshots" / run / "1"
            while not saved.exists():
                await asyncio.sleep(0.01)
            stopping.cancel()  # as a second Ctrl-C does
        async with serve() as api:
            assert len((await api.result(sample))["sequences"]) == 2
            assert (await api.loss(run, 2))["metrics"]

    asyncio.run(main())


def test_a_stop_does_not_wait_for_what_takes_long(serve: Serve) -> None:
    async def main() -> None:
        async with serve(drain_seconds=0.01) as api:
            sample = (await api.post("asample", **LONG))["request_id"]
            await api.service.drain()
            assert api.service.futures.pending == 1
        async with serve() as api:
            assert len((await api.result(sample))["sequences"]) == 2

    asyncio.run(main())


def test_a_stop_lets_what_is_soon_done_finish(serve: Serve) -> None:
    async def main() -> None:
        async with serve(drain_seconds=120) as api:
            short = LONG | {"num_samples": 1, "sampling_params": {"max_tokens": 20, "seed": 1}}
            sample = (await api.post("asample", **short))["request_id"]
            await api.service.drain()
            assert api.service.futures.pending == 0
            assert api.service.futures.outcomes["sample", "ok"] == 1
        async with serve() as api:
            assert len((await api.result(sample))["sequences"]) == 1
            assert api.service.futures.outcomes["sample", "ok"] == 0  # it was not done again

    asyncio.run(main())


def test_the_port_still_answers_while_the_service_drains(tmp_path: Path) -> None:
    options = ["--engine", "local"]
    with ServiceProcess(tmp_path, options=options, environment={"TINSMITH_DRAIN_SECONDS": "5"}) as service:
        with httpx.Client(base_url=f"{service.url}/api/v1/", timeout=60) as http:
            sample = http.post("asample", json=LONG).json()["request_id"]
            service.interrupt()
            while (answer := http.get("healthz")).status_code == 200:
                pass  # it has not heard yet
            assert answer.status_code == 503
            assert answer.headers["Retry-After"]
        service.stop()
        service.start()
        with httpx.Client(base_url=f"{service.url}/api/v1/", timeout=60) as http:
            while (answer := http.post("retrieve_future", json={"request_id": sample})).status_code == 408:
                pass
            assert len(answer.json()["sequences"]) == 2
