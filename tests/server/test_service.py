"""Sessions, futures, keys, and a restart."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from server_support import TOKENS, Serve, batch


def test_a_key_is_needed_where_one_is_set(serve: Serve) -> None:
    async def main() -> None:
        async with serve(api_key="tml-secret") as api:
            for headers in ({}, {"X-API-Key": "tml-wrong"}):
                response = await api.http.get("get_server_capabilities", headers=headers)
                assert response.status_code == 401
                assert "X-API-Key" in response.json()["detail"]
            ok = await api.http.get("get_server_capabilities", headers={"X-API-Key": "tml-secret"})
            assert ok.json()["supported_models"][0]["model_name"] == "tiny-llama"
            assert (await api.http.get("healthz")).json() == {"status": "ok"}

    asyncio.run(main())


def test_a_pending_future_is_held_then_answered_408_with_the_state_of_the_queue(serve: Serve) -> None:
    async def main() -> None:
        async with serve(poll_hold=0.01, gap_timeout=3600) as api:
            run = await api.run(await api.session())
            waiting = await api.post("forward_backward", **batch(run, 2))  # 1 has not come
            response = await api.http.post("retrieve_future", json=waiting | {"model_id": None})
            assert response.status_code == 408
            assert response.json()["queue_state"] == "active"
            await api.loss(run, 1)
            assert "loss:sum" in (await api.result(waiting["request_id"]))["metrics"]

    asyncio.run(main())


def test_unknown_things_are_404_and_name_themselves(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            calls = [
                ("retrieve_future", {"request_id": "nothing"}),
                ("get_info", {"model_id": "nothing"}),
                ("session_heartbeat", {"session_id": "nothing"}),
                ("optim_step", {"model_id": "nothing", "seq_id": 1, "adam_params": {}}),
                ("weights_info", {"tinker_path": "tinker://nothing/weights/x"}),
                ("create_model", {"session_id": "nothing", "model_seq_id": 0, "base_model": "tiny-llama"}),
                (
                    "asample",
                    {
                        "prompt": {"chunks": [{"tokens": [1]}]},
                        "sampling_params": {},
                        "sampling_session_id": "nothing",
                        "seq_id": 0,
                    },
                ),
            ]
            for path, body in calls:
                response = await api.http.post(path, json=body)
                assert response.status_code == 404, (path, response.text)
                assert "nothing" in response.json()["detail"]
            assert (await api.http.get("no/such/endpoint")).status_code == 404

    asyncio.run(main())


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model_id": 3}', b'{"a":' * 5000]
)
def test_a_malformed_body_is_422_with_a_detail(serve: Serve, body: bytes) -> None:
    async def main() -> None:
        async with serve() as api:
            for path in ("optim_step", "forward_backward", "asample", "create_model"):
                response = await api.http.post(path, content=body)
                assert response.status_code == 422, (path, response.text)
                assert response.json()["detail"]
            proto = {"Content-Type": "application/x-protobuf"}
            response = await api.http.post("forward_backward", content=b"\xff" + body, headers=proto)
            assert response.status_code == 422

    asyncio.run(main())


def test_a_body_too_large_is_refused_while_it_streams_in(serve: Serve) -> None:
    async def main() -> None:
        async with serve(max_body_bytes=1000) as api:
            response = await api.http.post("telemetry", content=b"x" * 1001)
            assert response.status_code == 413

    asyncio.run(main())


def test_a_finished_session_frees_its_runs_and_keeps_its_checkpoints(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            run = await api.run(session)
            path = (await api.do("save_weights", model_id=run, path="kept", seq_id=1))["path"]
            await api.post("session_heartbeat", session_id=session)
            for _ in range(2):
                await api.post(f"sessions/{session}/finish", reason={"type": "success"}, detail="done")
            gone = await api.http.post("session_heartbeat", json={"session_id": session})
            assert gone.status_code == 410
            assert (
                await api.http.post("optim_step", json={"model_id": run, "adam_params": {}})
            ).status_code == 404
            assert (await api.post("weights_info", tinker_path=path))["lora_rank"] == 4
            listed = (await api.http.get("training_runs")).json()
            assert listed["cursor"]["total_count"] == 1
            assert listed["training_runs"][0]["last_checkpoint"]["tinker_path"] == path

    asyncio.run(main())


def test_a_silent_session_expires(serve: Serve) -> None:
    async def main() -> None:
        async with serve(session_ttl=0.05, housekeeping_interval=0.02) as api:
            session = await api.session()
            while (await api.http.post("session_heartbeat", json={"session_id": session})).status_code == 200:
                await asyncio.sleep(0.2)

    asyncio.run(main())


def test_what_an_expired_session_held_is_freed_but_for_named_checkpoints(serve: Serve) -> None:
    async def main() -> None:
        async with serve(housekeeping_interval=0.02) as api:
            session = await api.session()
            run = await api.run(session)
            path = (await api.do("save_weights", model_id=run, path="kept", seq_id=1))["path"]
            waits = await api.post("optim_step", model_id=run, seq_id=9, adam_params={})  # for 2 to 8
            (await api.service.sessions.find("local", session)).last_seen_at = 0  # silent ever since
            ended = await api.result(waits["request_id"])
            assert ended == {"error": f"training run {run!r} has ended", "category": "user"}
            while api.service.runs.resident_count:
                await asyncio.sleep(0.02)
            assert (await api.http.post("get_info", json={"model_id": run})).status_code == 404
            assert (await api.post("weights_info", tinker_path=path))["lora_rank"] == 4

    asyncio.run(main())


def test_what_is_under_way_when_its_session_ends_is_answered(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            run = await api.run(session)
            body = batch(run, 1, tokens=TOKENS * 100)
            body["forward_backward_input"]["data"] *= 50  # so much that it is under way for a while
            submitted = await api.post("forward_backward", **body)
            live = api.service.runs.live("local", run)
            while live.current is None:
                await asyncio.sleep(0)
            await api.post(f"sessions/{session}/finish", reason={"type": "success"})
            answer = await api.result(submitted["request_id"])
            assert answer == {"error": f"training run {run!r} has ended", "category": "user"}

    asyncio.run(main())


def test_an_expired_result_is_410(serve: Serve) -> None:
    async def main() -> None:
        async with serve(result_ttl=0.01, housekeeping_interval=0.02) as api:
            made = {"session_id": await api.session(), "model_seq_id": 0, "base_model": "tiny-llama"}
            request = {"request_id": (await api.post("create_model", **made))["request_id"]}
            while (answer := await api.http.post("retrieve_future", json=request)).status_code in (200, 408):
                await asyncio.sleep(0.02)
            assert answer.status_code == 410

    asyncio.run(main())


async def _steps(api, run: str, first: int, last: int) -> None:
    for seq in range(first, last, 2):
        await api.loss(run, seq)
        await api.do("optim_step", adam_params={"learning_rate": 0.02}, model_id=run, seq_id=seq + 1)


def test_a_restart_brings_a_run_back_to_the_bit_and_old_answers_stand(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            undisturbed, disturbed = await api.run(session, 0), await api.run(session, 1)
            await _steps(api, undisturbed, 1, 9)
            expected = await api.loss(undisturbed, 9, "forward")
            await _steps(api, disturbed, 1, 5)
            answered = await api.loss(disturbed, 5)  # a gradient that is not applied yet
        async with serve() as api:
            assert await api.result(f"{disturbed}:5") == answered
            assert await api.post("forward_backward", **batch(disturbed, 5)) == {
                "request_id": f"{disturbed}:5",
                "model_id": disturbed,
            }
            await api.do("optim_step", adam_params={"learning_rate": 0.02}, model_id=disturbed, seq_id=6)
            await _steps(api, disturbed, 7, 9)
            assert await api.loss(disturbed, 9, "forward") == expected

    asyncio.run(main())


def test_a_sample_accepted_before_a_restart_is_answered_after_it(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            sampler = (
                await api.post(
                    "create_sampling_session",
                    session_id=session,
                    sampling_session_seq_id=0,
                    base_model="tiny-llama",
                )
            )["sampling_session_id"]
            body = {
                "prompt": {"chunks": [{"tokens": TOKENS}]},
                "sampling_params": {"max_tokens": 2000, "stop": []},
                "sampling_session_id": sampler,
                "seq_id": 0,
            }
            accepted = await api.post("asample", **body)
            assert accepted["sample_sequence_ids"] == [f"{sampler}:0:0"]
        async with serve() as api:
            result = await api.result(accepted["request_id"])
            assert len(result["sequences"][0]["tokens"]) == 2000
            assert await api.post("asample", **body) == accepted

    asyncio.run(main())


def test_a_run_whose_session_ended_in_the_crash_is_not_replayed(serve: Serve, tmp_path: Path) -> None:
    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
        with sqlite3.connect(tmp_path / "data" / "tinsmith.sqlite") as database:  # all it had time for
            database.execute("update sessions set status = 'client_finished'")
        database.close()
        async with serve() as api:
            gone = await api.http.post("optim_step", json={"model_id": run, "seq_id": 1, "adam_params": {}})
            assert gone.status_code == 404
            assert (await api.http.get(f"training_runs/{run}")).status_code == 200

    asyncio.run(main())
