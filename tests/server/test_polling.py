"""One poll for all samples of a sampler, clients that share one, and why an operation waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server_support import TOKENS, Api, Serve, batch, sampler_of

CLONE = 10**9


async def sample(api: Api, sampler: str, seq: int, tokens: int = 3, prompt: list[int] = TOKENS) -> str:
    accepted = await api.post(
        "asample",
        prompt={"chunks": [{"tokens": prompt}]},
        sampling_params={"max_tokens": tokens, "stop": []},
        sampling_session_id=sampler,
        seq_id=seq,
    )
    return accepted["request_id"]


async def poll(api: Api, sampler: str, cursor: int = 0, clone: int = 0, **rest: Any) -> Any:
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": clone}
    return await api.post("retrieve_futures", target=target, prev_cursor=cursor, **rest)


async def poll_all(api: Api, sampler: str, expected: set[str], clone: int = 0) -> tuple[dict, int]:
    """Poll until all of these have been told of; each must be told of once."""
    told: dict[str, Any] = {}
    cursor = 0
    while set(told) != expected:
        answer = await poll(api, sampler, cursor, clone)
        cursor = answer["cursor"]
        for completion in answer["completions"]:
            assert completion["request_id"] not in told
            told[completion["request_id"]] = completion
    return told, cursor


def test_a_poll_tells_of_every_sample_once_and_says_which_failed(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            sampler = await sampler_of(api)
            good = {await sample(api, sampler, seq) for seq in range(5)}
            bad = await sample(api, sampler, 5, prompt=[10**6])
            told, cursor = await poll_all(api, sampler, good | {bad})
            assert told[bad] == {"state": "failed", "request_id": bad}
            assert all(told[one]["response_payload_uncompressed_size"] > 0 for one in good)
            assert "1000000" in (await api.result(bad))["error"]
            assert await poll(api, sampler, cursor, timeout=0) == {"completions": [], "cursor": cursor}

    asyncio.run(main())


def test_a_poll_is_held_until_a_sample_finishes(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            sampler = await sampler_of(api)
            waiting = asyncio.create_task(poll(api, sampler))
            request_id = await sample(api, sampler, 0)
            assert [one["request_id"] for one in (await waiting)["completions"]] == [request_id]

    asyncio.run(main())


def test_clients_of_one_sampler_hear_only_of_their_own_samples(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            sampler = await sampler_of(api)
            own, other = await sample(api, sampler, 0), await sample(api, sampler, 7 * CLONE)
            assert set((await poll_all(api, sampler, {own}))[0]) == {own}
            assert set((await poll_all(api, sampler, {other}, clone=7))[0]) == {other}

    asyncio.run(main())


def test_an_acknowledged_result_is_freed_and_a_foreign_id_is_refused(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            sampler = await sampler_of(api)
            kept, fetched = await sample(api, sampler, 0), await sample(api, sampler, 1)
            _, cursor = await poll_all(api, sampler, {kept, fetched})
            await poll(api, sampler, cursor, timeout=0, retrieved_request_ids=[fetched])
            assert (await api.result(kept))["sequences"]
            gone = await api.http.post("retrieve_future", json={"request_id": fetched})
            assert gone.status_code == 410
            target = {"sampling_session_id": sampler}
            for wrong in (f"{sampler}:{CLONE}", "nonsense", f"{sampler}:-1"):
                body = {"target": target, "timeout": 0, "retrieved_request_ids": [wrong]}
                refused = await api.http.post("retrieve_futures", json=body)
                assert refused.status_code == 400
                assert "retrieved_request_ids" in refused.json()["detail"]

    asyncio.run(main())


def test_after_a_restart_a_client_goes_on_from_its_cursor_and_misses_nothing(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            sampler = await sampler_of(api)
            done, fetched = await sample(api, sampler, 0), await sample(api, sampler, 1)
            _, cursor = await poll_all(api, sampler, {done, fetched})
            await poll(api, sampler, cursor, timeout=0, retrieved_request_ids=[fetched])
            running = await sample(api, sampler, 2, tokens=1500)
        async with serve() as api:
            told: set[str] = set()
            while running not in told:
                answer = await poll(api, sampler, cursor)
                assert answer["cursor"] >= cursor
                cursor = answer["cursor"]
                told |= {one["request_id"] for one in answer["completions"]}
            assert told == {done, running}
            assert len((await api.result(running))["sequences"][0]["tokens"]) == 1500

    asyncio.run(main())


def test_every_client_that_joins_gets_a_number_of_its_own_even_after_a_restart(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            sampler = await sampler_of(api)
            joined = await asyncio.gather(
                *(api.post("join_sampling_session", sampling_session_id=sampler) for _ in range(5))
            )
        async with serve() as api:
            joined.append(await api.post("join_sampling_session", sampling_session_id=sampler))
            assert sorted(one["client_counter"] for one in joined) == [1, 2, 3, 4, 5, 6]
            for path, body in (
                ("join_sampling_session", {"sampling_session_id": "nothing"}),
                ("retrieve_futures", {"target": {"sampling_session_id": "nothing"}}),
            ):
                assert (await api.http.post(path, json=body)).status_code == 404

    asyncio.run(main())


async def _why(api: Api, request_id: str) -> tuple[str, str]:
    response = await api.http.post("retrieve_future", json={"request_id": request_id})
    assert response.status_code == 408, response.text
    return response.json()["queue_state"], response.json()["queue_state_reason"]


def test_a_pending_answer_names_the_seq_id_that_is_missing(serve: Serve) -> None:
    async def main() -> None:
        async with serve(poll_hold=0.01, gap_timeout=3600) as api:
            run = await api.run(await api.session())
            await api.loss(run, 1)
            third = await api.post("forward_backward", **batch(run, 3))
            fourth = await api.post("forward_backward", **batch(run, 4))
            missing = ("active", "waiting for seq_id 2, which has not arrived")
            assert await _why(api, third["request_id"]) == missing
            assert await _why(api, fourth["request_id"]) == missing

    asyncio.run(main())


def test_a_pending_answer_says_how_many_operations_are_before_it(serve: Serve) -> None:
    async def main() -> None:
        async with serve(poll_hold=0.001) as api:
            run = await api.run(await api.session())
            long = batch(run, 1, tokens=[1 + at % 500 for at in range(1500)])
            long["forward_backward_input"]["data"] *= 40
            first = await api.post("forward_backward", **long)
            later = [await api.post("forward_backward", **batch(run, seq)) for seq in (2, 3)]
            assert await _why(api, later[1]["request_id"]) == ("active", "2 operations of this run before it")
            assert await _why(api, later[0]["request_id"]) == ("active", "1 operation of this run before it")
            assert await _why(api, first["request_id"]) == ("active", "forward_backward is being carried out")

    asyncio.run(main())


def test_a_pending_answer_says_that_the_model_is_being_loaded(serve: Serve) -> None:
    async def main() -> None:
        async with serve(poll_hold=0.0001) as api:
            accepted = await api.post(
                "create_model", session_id=await api.session(), model_seq_id=0, base_model="tiny-llama"
            )
            expected = ("paused_capacity", "the base model tiny-llama is being loaded")
            assert await _why(api, accepted["request_id"]) == expected

    asyncio.run(main())


@pytest.mark.parametrize("flag", ["sample_use_retrieve_futures", "pjwt_auth_enabled"])
def test_flags_of_the_client_are_settings(serve: Serve, monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    async def main() -> None:
        async with serve() as api:
            assert (await api.post("client/config", sdk_version="1"))[flag] is False
            dynamic = await api.post("client/dynamic_config", sdk_version="1")
            assert dynamic["refresh_interval_sec"] == 42

    monkeypatch.setenv(f"TINSMITH_CLIENT_{flag.upper()}", "false")
    monkeypatch.setenv("TINSMITH_CLIENT_REFRESH_INTERVAL_SEC", "42")
    asyncio.run(main())
