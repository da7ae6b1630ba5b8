"""Quotas of owners: too much is refused for a moment, further runs wait and say why, storage has an end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from server_support import TOKENS, Api, Serve, batch, make_key

from tinsmith.service.limits import Quota, highest, parse_limits
from tinsmith.types import UserError


def sample(session: str, number: int, max_tokens: int = 4, seq: int = 0) -> dict[str, Any]:
    return {
        "sampling_session_id": f"{session}:sample:{number}",
        "seq_id": seq,
        "num_samples": 1,
        "prompt": {"chunks": [{"tokens": TOKENS}]},
        "sampling_params": {"max_tokens": max_tokens},
    }


async def sampler(api: Api, session: str) -> None:
    await api.post(
        "create_sampling_session", session_id=session, sampling_session_seq_id=0, base_model="tiny-llama"
    )


def test_samples_beyond_the_quota_are_429_until_others_are_answered(serve: Serve) -> None:
    async def main() -> None:
        async with serve(quota=Quota(concurrent_samples=2)) as api:
            session = await api.session()
            await sampler(api, session)
            bodies = [sample(session, 0, 400, seq) for seq in range(3)]
            first = [await api.post("asample", **body) for body in bodies[:2]]
            refused = await api.http.post("asample", json=bodies[2])
            assert refused.status_code == 429
            assert refused.headers["Retry-After"] == "1"
            assert "concurrent_samples: 2 samples of yours" in refused.json()["detail"]
            again = await api.post("asample", **bodies[0])
            assert again["request_id"] == first[0]["request_id"], "what is accepted already is no more"
            for one in first:
                await api.result(one["request_id"])
            third = await api.do("asample", **bodies[2])
            assert third["sequences"]

    asyncio.run(main())


def test_queued_tokens_count_batches_and_samples(serve: Serve) -> None:
    async def main() -> None:
        async with serve(quota=Quota(queued_tokens=600)) as api:
            session = await api.session()
            await sampler(api, session)
            run = await api.run(session)
            long = await api.post("asample", **sample(session, 0, 590))
            refused = await api.http.post("forward_backward", json=batch(run, 1))
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
            assert refused.json()["detail"].startswith("queued_tokens: 596 tokens of yours are waiting")
            await api.result(long["request_id"])
            assert (await api.loss(run, 1))["metrics"]["loss:sum"] > 0

    asyncio.run(main())


def test_what_is_larger_than_the_quota_goes_alone(serve: Serve) -> None:
    async def main() -> None:
        async with serve(quota=Quota(queued_tokens=2)) as api:
            assert (await api.loss(await api.run(await api.session()), 1))["metrics"]["loss:sum"] > 0

    asyncio.run(main())


def test_a_run_beyond_the_quota_waits_says_why_and_begins(serve: Serve) -> None:
    async def main() -> None:
        async with serve(quota=Quota(live_runs=1), poll_hold=0.05) as api:
            session = await api.session()
            first = await api.run(session)
            made = await api.post("create_model", session_id=session, model_seq_id=1, base_model="tiny-llama")
            waits = await api.http.post("retrieve_future", json={"request_id": made["request_id"]})
            assert waits.status_code == 408
            assert waits.json()["queue_state"] == "paused_rate_limit"
            assert "1 training runs of yours are live" in waits.json()["queue_state_reason"]
            await api.do("unload_model", model_id=first)
            assert (await api.result(made["request_id"]))["model_id"] == f"{session}:train:1"

    asyncio.run(main())


def test_runs_wait_for_their_place_after_a_restart_too(serve: Serve) -> None:
    async def main() -> None:
        settings: dict[str, Any] = {"quota": Quota(live_runs=1), "poll_hold": 0.05}
        async with serve(**settings) as api:
            session = await api.session()
            first = await api.run(session)
            made = await api.post("create_model", session_id=session, model_seq_id=1, base_model="tiny-llama")
        async with serve(**settings) as api:
            waits = await api.http.post("retrieve_future", json={"request_id": made["request_id"]})
            assert waits.json()["queue_state"] == "paused_rate_limit"
            await api.loss(first, 1)
            await api.do("unload_model", model_id=first)
            assert (await api.result(made["request_id"]))["model_id"] == f"{session}:train:1"

    asyncio.run(main())


def test_who_keeps_too_much_must_delete_first(serve: Serve) -> None:
    async def main() -> None:
        async with serve(quota=Quota(stored_bytes=1)) as api:
            session = await api.session()
            run = await api.run(session)
            one = await api.do("save_weights", model_id=run, path="one", seq_id=1)
            two = await api.do("save_weights", model_id=run, path="two", seq_id=2)
            assert two["category"] == "user"
            assert two["error"].startswith("stored_bytes: ")
            body = {"source_path": one["path"], "session_id": session, "model_seq_id": 9}
            copied = await api.http.post("copy_weights", json=body)
            assert copied.status_code == 400
            assert copied.json()["detail"].startswith("stored_bytes: ")
            await api.http.delete(f"training_runs/{run}/checkpoints/weights/one")
            snapshot = {"model_id": run, "sampling_session_seq_id": 0}
            assert "sampling_session_id" in await api.do("save_weights_for_sampler", **snapshot, seq_id=3)
            three = await api.do("save_weights", model_id=run, path="three", seq_id=4)
            assert three["error"].startswith("stored_bytes: "), "snapshots of samplers count as well"

    asyncio.run(main())


def test_a_key_overrides_the_limits_of_its_owner(serve: Serve, tmp_path: Path) -> None:
    data = tmp_path / "data"
    alice = make_key(data, "alice", limits={"concurrent_samples": 5, "weight": 2.0})
    make_key(data, "alice-phone", owner="alice", limits={"concurrent_samples": 7})
    make_key(data, "bob")

    async def main() -> None:
        async with serve(quota=Quota(concurrent_samples=3)) as api:
            quotas = api.service.quotas
            assert quotas.of("alice").concurrent_samples == 7, "the highest of his keys"
            assert quotas.tenant("alice").weight == 2.0
            assert quotas.of("bob").concurrent_samples == 3
            for key in (key for key in api.service.keys.all() if key.owner == "alice"):
                await api.service.keys.limit(key.key_id, {}, actor="operator")
            assert quotas.of("alice") == quotas.of("bob")
            entries = await api.http.get("audit", headers={"X-API-Key": alice})
            assert [entry["event"] for entry in entries.json()["entries"]].count("api_key_limited") == 2

    asyncio.run(main())


@pytest.mark.parametrize("pair", ["weight", "weight=", "weight=0", "live_runs=1.5", "stored_bytes=-1", "x=1"])
def test_a_limit_that_makes_no_sense_is_refused(pair: str) -> None:
    with pytest.raises(UserError, match="limit: "):
        parse_limits([pair])


def test_limits_as_a_person_writes_them() -> None:
    assert parse_limits(["weight=2", "live_runs=3"]) == {"weight": 2.0, "live_runs": 3}
    assert highest([{"weight": 1.0}, {"weight": 3.0, "live_runs": 2}]) == {"weight": 3.0, "live_runs": 2}
