"""Samples over HTTP in the JSON dialect: every field, every generation of prompts, what is refused."""

from __future__ import annotations

import asyncio
import base64
import math
from typing import Any

import pytest
from server_support import TOKENS, Serve, batch, sampler_of

from tinsmith.types import SamplingParams
from tinsmith.types.requests import SampleRequest
from tinsmith.wire import protobuf

PROMPT = {"chunks": [{"tokens": TOKENS}]}
PNG = base64.b64encode(b"not looked at").decode()
# As SDKs wrote them: 0.4.1, those after it, and the newest; the first without its type.
IMAGES = [
    {"data": PNG, "format": "png", "height": 32, "width": 32, "tokens": 3},
    {"data": PNG, "format": "png", "expected_tokens": 3, "type": "image"},
    {"data": PNG, "format": "jpeg", "type": "image"},
    {"location": "asset://1", "format": "png", "height": 32, "width": 32, "tokens": 3},
    {"location": "asset://1", "format": "png", "expected_tokens": 3, "type": "image_asset_pointer"},
    {"dmel": base64.b64encode(bytes([4, 1, 3])).decode(), "type": "dmel"},
]


def request(sampler: str, seq: int, **fields: Any) -> dict[str, Any]:
    least = {"sampling_session_id": sampler, "seq_id": seq, "prompt": PROMPT}
    return least | {"sampling_params": {"max_tokens": 4, "seed": 1}} | fields


def test_every_field_of_a_sample_request_is_honoured(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            sampler = await sampler_of(api)
            targets = {"data": [20, 5, 30, -1, 40, 7, 50, 6, 60, -1], "dtype": "int64", "shape": [5, 2]}
            asked = request(
                sampler,
                0,
                num_samples=2,
                sampling_params={
                    "max_tokens": 6, "seed": 7, "stop": [], "temperature": 0.5, "top_k": 40, "top_p": 0.9,
                },
                prompt_logprobs=True,
                topk_prompt_logprobs=3,
                topk_sample_logprobs=2,
                target_prompt_logprobs=targets,
                prompt_alt_tokens_k=4,
                prompt_logprobs_last_n=3,
                base_model=None,
                model_path=None,
                record_stability_info=False,
                type="sample",
            )  # fmt: skip
            assert asked.keys() == SampleRequest.model_fields.keys()
            assert asked["sampling_params"].keys() == SamplingParams.model_fields.keys()
            accepted = await api.post("asample", **asked)
            assert len(accepted["sample_sequence_ids"]) == len(set(accepted["sample_sequence_ids"])) == 2
            result = await api.result(accepted["request_id"])
            first, second = result["sequences"]
            assert first["tokens"] != second["tokens"]
            for sequence in (first, second):
                assert sequence["stop_reason"] == "length"
                assert len(sequence["tokens"]) == len(sequence["logprobs"]) == 6
                assert [len(row) for row in sequence["topk_logprobs"]] == [2] * 6
            assert [value is None for value in result["prompt_logprobs"]] == [True] * 3 + [False] * 3
            assert [row and len(row) for row in result["topk_prompt_logprobs"]] == [None] * 3 + [3] * 3
            found = result["target_prompt_logprobs"]
            assert found["shape"] == [5, 2]
            assert found["data"][3] == found["data"][9] == 0.0
            assert found["data"][4] == pytest.approx(result["prompt_logprobs"][3], abs=1e-5)
            assert result["prompt_alt_tokens"]["tokens"]["shape"] == [5, 4]
            assert all(value <= 0 for value in result["prompt_alt_tokens"]["logprobs"]["data"])
            again = await api.do("asample", **asked | {"seq_id": 1})
            assert again["sequences"] == result["sequences"]
            greedy = {"max_tokens": 6, "temperature": 0.0, "stop": []}
            plain = (await api.do("asample", **request(sampler, 2, sampling_params=greedy)))["sequences"][0]
            stop = plain["tokens"][2]
            cut = request(sampler, 3, sampling_params=greedy | {"stop": [stop]})
            sequence = (await api.do("asample", **cut))["sequences"][0]
            assert sequence["stop_reason"] == "stop"
            assert sequence["tokens"] == plain["tokens"][: plain["tokens"].index(stop) + 1]

    asyncio.run(main())


def test_missing_null_and_default_are_the_same_sample(serve: Serve) -> None:
    optional = [name for name, field in SampleRequest.model_fields.items() if not field.is_required()]
    optional = [name for name in optional if name not in ("sampling_session_id", "seq_id")]

    async def main() -> None:
        async with serve() as api:
            sampler = await sampler_of(api)
            expected = (await api.do("asample", **request(sampler, 0)))["sequences"]
            for seq, name in enumerate(optional, start=1):
                for at, value in enumerate((None, SampleRequest.model_fields[name].get_default())):
                    asked = request(sampler, 2 * seq + at, **{name: value})
                    assert (await api.do("asample", **asked))["sequences"] == expected, name

    asyncio.run(main())


@pytest.mark.parametrize("chunk", IMAGES, ids=lambda chunk: " ".join(chunk))
def test_what_is_no_text_is_read_and_refused_through_the_future(serve: Serve, chunk: dict[str, Any]) -> None:
    prompt = {"chunks": [{"tokens": TOKENS}, chunk]}

    async def main() -> None:
        async with serve(gap_timeout=3600) as api:
            session = await api.session()
            run, sampler = await api.run(session), await sampler_of(api, session)
            sampled = await api.do("asample", **request(sampler, 0, prompt=prompt))
            body = batch(run, 1)
            body["forward_backward_input"]["data"].append(
                body["forward_backward_input"]["data"][0] | {"model_input": prompt}
            )
            assert sampled["category"] == "user"
            assert sampled["error"].startswith("prompt.chunks[1]: ")
            assert "text" in sampled["error"]
            answer = await api.http.post("forward_backward", json=body)
            if "location" in chunk:  # what it points to would have to be sent; nothing waits for its seq id
                assert answer.status_code == 400
                said = answer.json()["detail"]
            else:
                failed = await api.result(answer.json()["request_id"])
                assert failed["category"] == "user"
                assert "text" in (said := failed["error"])
            assert said.startswith("data[1].model_input.chunks[1]: ")
            assert "loss:sum" in (await api.loss(run, 2))["metrics"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"prompt": {"chunks": [{"tokens": [5, 512]}]}}, "prompt"),
        ({"prompt": {"chunks": [{"tokens": [5] * 5000}]}}, "prompt: 5000 tokens"),
        ({"prompt": {"chunks": []}}, "prompt"),
        ({"num_samples": 0}, "num_samples"),
        ({"num_samples": 10**6}, "num_samples"),
        ({"sampling_params": {"temperature": -1.0}}, "sampling_params.temperature"),
        ({"sampling_params": {"top_p": 2.0}}, "sampling_params.top_p"),
        ({"sampling_params": {"top_k": 0}}, "sampling_params.top_k"),
        ({"sampling_params": {"seed": -1}}, "sampling_params.seed"),
        ({"sampling_params": {"stop": [""]}}, "sampling_params.stop[0]"),
        ({"topk_prompt_logprobs": -1}, "topk_prompt_logprobs"),
        ({"prompt_logprobs_last_n": 2}, "prompt_logprobs_last_n"),
        (
            {"target_prompt_logprobs": {"data": [1], "dtype": "int64", "shape": [1, 1]}},
            "target_prompt_logprobs",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_value_of_a_sample_fails_through_the_future(serve: Serve, fields, names: str) -> None:
    async def main() -> None:
        async with serve() as api:
            failed = await api.do("asample", **request(await sampler_of(api), 0, **fields))
            assert failed["category"] == "user"
            assert failed["error"].startswith(names), failed

    asyncio.run(main())


def test_a_number_that_json_cannot_write_fails_through_the_future_in_protobuf(serve: Serve) -> None:
    from tinsmith.types import Datum, ForwardBackwardInput, ModelInput

    good = {"target_tokens": TOKENS[1:], "weights": [1.0] * 5}
    data = [
        Datum(ModelInput.from_ints(TOKENS[:-1]), good | {"weights": weights})
        for weights in ([1.0] * 5, [1.0, math.nan, 1.0, 1.0, 1.0])
    ]

    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
            call = protobuf.ForwardBackwardCall(run, 1, ForwardBackwardInput(data, "cross_entropy"), False)
            headers = {"Content-Type": protobuf.CONTENT_TYPE}
            content = protobuf.encode_forward_backward(call)
            accepted = await api.http.post("forward_backward", content=content, headers=headers)
            failed = await api.result(accepted.json()["request_id"])
            assert failed["category"] == "user"
            assert failed["error"].startswith("data[1].loss_fn_inputs['weights']: value 1 is nan")

    asyncio.run(main())


def test_a_large_result_is_announced_by_its_size_to_whoever_can_wait(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
            length, wide = 36, 4096  # float32, and twice: log-probabilities and losses
            body = batch(run, 1, tokens=[1 + at for at in range(length + 1)])
            for key, value in (("target_tokens", 7), ("weights", 1.0)):
                column = body["forward_backward_input"]["data"][0]["loss_fn_inputs"][key]
                column |= {"data": [value] * length * wide, "shape": [length, wide]}
            request_id = (await api.post("forward_backward", **body))["request_id"]
            json_size = len(str(await api.result(request_id)))
            proto = {"Accept": protobuf.CONTENT_TYPE}

            async def poll(**fields: Any) -> Any:
                asked = {"request_id": request_id} | fields
                return await api.http.post("retrieve_future", json=asked, headers=proto)

            announced = (await poll(allow_metadata_only=True)).json()
            whole = await poll(allow_metadata_only=False)
            assert announced == {
                "status": "complete_metadata",
                "response_payload_size": len(whole.content),
            }
            assert 2**20 < len(whole.content) < json_size
            # Who asks for JSON, or does not say that a size is enough, is given the result.
            plain = await api.http.post(
                "retrieve_future", json={"request_id": request_id, "allow_metadata_only": True}
            )
            assert "loss:sum" in plain.json()["metrics"]

    asyncio.run(main())


def test_a_cancelled_sample_makes_room_at_once(serve: Serve) -> None:
    """Of one place, the second sample gets it though the first, cancelled, had thousands of tokens to go."""

    async def main() -> None:
        async with serve() as api:
            sampler = await sampler_of(api)
            long = {"max_tokens": 4000, "stop": [], "seed": 1}
            going = [
                (await api.post("asample", **request(sampler, seq, sampling_params=long, num_samples=16)))
                for seq in range(3)
            ]
            ids = [accepted["request_id"] for accepted in going]
            for request_id in ids:
                assert await api.post("cancel_future", request_id=request_id) == {}
            for request_id in ids:
                failed = await api.result(request_id)
                assert failed == {"error": "cancelled by the client", "category": "user"}
            while api.service.samplers.running_count:
                await asyncio.sleep(0)
            assert len((await api.do("asample", **request(sampler, 9)))["sequences"]) == 1
            assert await api.post("cancel_future", request_id=ids[0]) == {}

    asyncio.run(main())


def test_a_sampler_outlives_who_first_asked_for_it(serve: Serve) -> None:
    """Cancelled while the engine opens its sampler, a sample leaves it as good for the next."""

    async def main() -> None:
        async with serve() as api:
            for _ in range(20):
                sampler = await sampler_of(api)
                first = (await api.post("asample", **request(sampler, 0)))["request_id"]
                await api.post("cancel_future", request_id=first)
                assert len((await api.do("asample", **request(sampler, 1)))["sequences"]) == 1

    asyncio.run(main())
