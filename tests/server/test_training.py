"""Training over HTTP in the JSON dialect."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_support import TOKENS, Api, Serve, batch


def test_training_lowers_the_loss_and_a_checkpoint_brings_it_back(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
            losses = []
            for seq in range(1, 9, 2):
                result = await api.loss(run, seq)
                losses.append(result["metrics"]["loss:sum"])
                step = await api.do(
                    "optim_step", adam_params={"learning_rate": 0.01}, model_id=run, seq_id=seq + 1
                )
                assert all(key.count(":") == 1 for key in step["metrics"])
            assert losses == sorted(losses, reverse=True)
            saved = await api.do("save_weights", model_id=run, path="first", seq_id=9)
            assert saved["path"] == f"tinker://{run}/weights/first"
            before = (await api.loss(run, 10, "forward"))["metrics"]["loss:sum"]
            await api.loss(run, 11)
            await api.do("optim_step", adam_params={"learning_rate": 0.5}, model_id=run, seq_id=12)
            assert (await api.loss(run, 13, "forward"))["metrics"]["loss:sum"] != before
            await api.do("load_weights", model_id=run, path=saved["path"], seq_id=14)
            assert (await api.loss(run, 15, "forward"))["metrics"]["loss:sum"] == before

    asyncio.run(main())


def test_forward_leaves_no_gradient(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            one, other = await api.run(session, 0), await api.run(session, 1)
            await api.loss(one, 1, "forward")
            await api.loss(one, 2)
            await api.loss(other, 1)
            step = {"adam_params": {}}
            first = await api.do("optim_step", **step, model_id=one, seq_id=3)
            second = await api.do("optim_step", **step, model_id=other, seq_id=2)
            assert first == second

    asyncio.run(main())


def _operations() -> list[tuple[str, dict[str, Any]]]:
    """Gradients and steps that do not commute; each without its run and seq id."""
    return [
        ("optim_step", {"adam_params": {"learning_rate": 0.01 * seq}})
        if seq % 3 == 0
        else ("forward_backward", batch("", seq, tokens=[*TOKENS, seq]))
        for seq in range(1, 9)
    ]


async def _end_of(api: Api, run: str, arriving: list[int], refused: set[int]) -> Any:
    """Submit in this order, some of them malformed; what the run computes when all are done."""
    accepted = []
    for seq in arriving:
        path, body = _operations()[seq - 1]
        body |= {"model_id": run, "seq_id": seq}
        if seq in refused:
            response = await api.http.post(path, json=body | {"surprise": 1})
            assert response.status_code == 422, response.text
        else:
            accepted.append((await api.post(path, **body))["request_id"])
    assert all("error" not in result for result in await asyncio.gather(*map(api.result, accepted)))
    return await api.loss(run, 9, "forward")


def test_operations_run_in_seq_order_whatever_order_they_arrive_in(serve: Serve) -> None:
    """In any order, some twice, some refused: it ends in the same bits as one after the other."""
    numbers = itertools.count()

    with asyncio.Runner() as runner:
        service = serve(gap_timeout=3600)
        api = runner.run(service.__aenter__())
        session = runner.run(api.session())

        @settings(max_examples=12)
        @given(
            st.permutations(range(1, 9)), st.lists(st.integers(0, 7), max_size=3), st.sets(st.integers(1, 8))
        )
        def property_of(order: list[int], again: list[int], refused: set[int]) -> None:
            async def both() -> tuple[Any, Any]:
                straight, mixed = [await api.run(session, next(numbers)) for _ in range(2)]
                arriving = [*order, *(order[at] for at in again)]
                return (
                    await _end_of(api, straight, list(range(1, 9)), refused),
                    await _end_of(api, mixed, arriving, refused),
                )

            one, other = runner.run(both())
            assert one == other

        try:
            property_of()
        finally:
            runner.run(service.__aexit__(None, None, None))


def test_a_resubmission_finds_its_future_and_runs_nothing_twice(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            once, often = await api.run(session, 0), await api.run(session, 1)
            await api.loss(once, 1)
            body = batch(often, 1)
            replies = await asyncio.gather(*(api.post("forward_backward", **body) for _ in range(5)))
            assert {reply["request_id"] for reply in replies} == {f"{often}:1"}
            first = await api.result(f"{often}:1")
            assert await api.post("forward_backward", **body) == replies[0]
            assert await api.result(f"{often}:1") == first
            step = {"adam_params": {}, "seq_id": 2}
            norm = await api.do("optim_step", **step, model_id=once)
            assert await api.do("optim_step", **step, model_id=often) == norm

    asyncio.run(main())


def test_a_refused_submit_uses_up_its_seq_id_and_nothing_waits_for_it(serve: Serve) -> None:
    async def main() -> None:
        async with serve(gap_timeout=3600) as api:
            run = await api.run(await api.session())
            bad = batch(run, 1)
            bad["forward_backward_input"]["data"][0]["loss_fn_inputs"]["weights"]["data"][0] = None
            response = await api.http.post("forward_backward", json=bad)
            assert response.status_code == 422
            assert "data[0].loss_fn_inputs['weights']" in response.json()["detail"]
            unknown = {"adam_params": {"momentum": 1}, "model_id": run, "seq_id": 2}
            response = await api.http.post("optim_step", json=unknown)
            assert response.status_code == 422
            assert "momentum" in response.json()["detail"]
            assert "loss:sum" in (await api.loss(run, 3))["metrics"]

    asyncio.run(main())


def test_a_seq_id_that_never_comes_is_skipped_and_refused_when_late(serve: Serve) -> None:
    async def main() -> None:
        async with serve(gap_timeout=0.05) as api:
            run = await api.run(await api.session())
            assert "loss:sum" in (await api.loss(run, 2))["metrics"]
            response = await api.http.post("forward_backward", json=batch(run, 1))
            assert response.status_code == 400
            assert "seq_id: 1 is closed" in response.json()["detail"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda b: b["forward_backward_input"].update(loss_fn="mse"), "loss_fn"),
        (lambda b: b["forward_backward_input"].update(loss_fn="stable_reinforce"), "importance_sampling"),
        (lambda b: b["forward_backward_input"].update(loss_fn_config={"beta": 1.0}), "beta"),
        (lambda b: b["forward_backward_input"]["data"][0]["loss_fn_inputs"].pop("weights"), "weights"),
        (
            lambda b: b["forward_backward_input"]["data"][0]["model_input"]["chunks"][0]["tokens"].append(1),
            "data[0]",
        ),
        (
            lambda b: b["forward_backward_input"]["data"][0]["model_input"]["chunks"][0].update(
                tokens=[9999] * 5
            ),
            "9999",
        ),
    ],
)
def test_a_wrong_value_fails_through_the_future_and_spoils_nothing(serve: Serve, change, names: str) -> None:
    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
            body = batch(run, 1)
            change(body)
            failed = await api.do("forward_backward", **body)
            assert failed["category"] == "user"
            assert names in failed["error"]
            assert "loss:sum" in (await api.loss(run, 2))["metrics"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"base_model": "gpt-9"}, "tiny-llama"),
        ({"lora_config": {"rank": 0}}, "lora_config.rank"),
        ({"lora_config": {"rank": 100000}}, "lora_config.rank"),
        ({"optimizer_config": {"type": "dimuon"}}, "optimizer_config"),
    ],
)
def test_a_run_that_cannot_be_made_says_why_to_all_its_operations(serve: Serve, fields, names: str) -> None:
    async def main() -> None:
        async with serve() as api:
            body = {"session_id": await api.session(), "model_seq_id": 0, "base_model": "tiny-llama"} | fields
            accepted = await api.post("create_model", **body)
            failed = await api.result(accepted["request_id"])
            assert failed["category"] == "user"
            assert names in failed["error"]
            after = await api.loss(accepted["model_id"], 1)
            assert names in after["error"]

    asyncio.run(main())


def test_checkpoints_keep_their_names_unless_told_otherwise(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
            await api.do("save_weights", model_id=run, path="a", seq_id=1)
            taken = await api.do("save_weights", model_id=run, path="a", seq_id=2)
            assert "exists" in taken["error"]
            await api.do(
                "save_weights", model_id=run, path="a", seq_id=3, overwrite=True, user_metadata={"k": 1}
            )
            bad = await api.do("save_weights", model_id=run, path="../../etc", seq_id=4)
            assert "name" in bad["error"]
            listed = (await api.http.get(f"training_runs/{run}/checkpoints")).json()["checkpoints"]
            assert [(c["checkpoint_id"], c["user_metadata"]) for c in listed] == [("weights/a", {"k": 1})]

    asyncio.run(main())


def test_a_run_made_from_a_checkpoint_needs_no_create_model(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            run = await api.run(session, rank=8, train_unembed=False)
            await api.loss(run, 1)
            await api.do("optim_step", adam_params={"learning_rate": 0.1}, model_id=run, seq_id=2)
            path = (await api.do("save_weights", model_id=run, path="x", seq_id=3))["path"]
            expected = await api.loss(run, 4, "forward")
            made = await api.do("load_weights", session_id=session, model_seq_id=7, path=path, optimizer=True)
            assert made["model_id"] == f"{session}:train:7"
            info = await api.post("get_info", model_id=made["model_id"])
            assert info["lora_rank"] == 8
            assert await api.loss(made["model_id"], 1, "forward") == expected
            # The moments came along: the same step takes both to the same place.
            ends = []
            for model, seq in ((run, 5), (made["model_id"], 2)):
                await api.loss(model, seq)
                await api.do("optim_step", adam_params={}, model_id=model, seq_id=seq + 1)
                ends.append(await api.loss(model, seq + 2, "forward"))
            assert ends[0] == ends[1]

    asyncio.run(main())
