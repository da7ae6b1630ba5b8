"""What the client sends, word for word: one rule (every default written out, no nulls) for all requests."""

from __future__ import annotations

import ast
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from client_stub import Stub, serve

import tinsmith
from tinsmith import AdamParams, Datum, ModelInput, SamplingParams
from tinsmith.client import config
from tinsmith.client.loop import background
from tinsmith.types import SaveWeightsForSamplerResponse

PROMPT = ModelInput.from_ints([1, 2])
LORA = {"rank": 8, "train_attn": True, "train_mlp": True, "train_unembed": True}
ADAM = {
    "learning_rate": 0.0001,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-12,
    "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
}
GOLDEN: dict[str, dict[str, Any]] = {
    "client/config": {"sdk_version": "0.38.0"},
    "create_session": {"tags": [], "user_metadata": {}, "sdk_version": "0.38.0", "type": "create_session"},
    "create_model": {
        "session_id": "S",
        "model_seq_id": 0,
        "base_model": "m",
        "lora_config": LORA,
        "optimizer_config": {"type": "adamw"},
        "type": "create_model",
    },
    "optim_step": {"model_id": "S:train:0", "seq_id": 1, "adam_params": ADAM, "type": "optim_step"},
    "save_weights": {
        "model_id": "S:train:0",
        "path": "kept",
        "seq_id": 2,
        "overwrite": False,
        "type": "save_weights",
    },
    "load_weights": {
        "model_id": "S:train:0",
        "path": "tinker://r/weights/w",
        "optimizer": False,
        "seq_id": 3,
        "type": "load_weights",
    },
    "save_weights_for_sampler": {
        "model_id": "S:train:0",
        "path": "s",
        "seq_id": 4,
        "kind": "snapshot",
        "type": "save_weights_for_sampler",
    },
    "create_sampling_session": {
        "session_id": "S",
        "sampling_session_seq_id": 0,
        "base_model": "m",
        "type": "create_sampling_session",
    },
    "asample": {
        "sampling_session_id": "S:sample:0",
        "seq_id": 0,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
        "sampling_params": {"max_tokens": 5, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
        "prompt_logprobs": False,
        "topk_prompt_logprobs": 0,
        "topk_sample_logprobs": 0,
        "prompt_alt_tokens_k": 0,
        "record_stability_info": False,
        "type": "sample",
    },
}


@pytest.fixture(scope="module")
def sent() -> Stub:
    """Every operation once."""
    stub = Stub()
    with serve(stub) as stub.url, tinsmith.ServiceClient(base_url=stub.url) as service:
        training = service.create_lora_training_client("m", rank=8).result(30)
        sampler = service.create_sampling_client(base_model="m").result(30)
        for future in (
            training.optim_step(AdamParams()),
            training.save_state("kept"),
            training.load_state("tinker://r/weights/w"),
            training.save_weights_for_sampler("s"),
            sampler.sample(PROMPT, 1, SamplingParams(max_tokens=5)),
        ):
            future.result(30)
    return stub


@pytest.mark.parametrize("path", GOLDEN)
def test_a_request_word_for_word(sent: Stub, path: str) -> None:
    assert sent.to(path)[0].json == GOLDEN[path]


def test_no_request_says_null(sent: Stub) -> None:
    for request in sent.requests:
        if request.raw and "json" in request.headers.get("content-type", ""):
            assert b"null" not in request.raw, request.path


def test_several_services_and_keys_do_not_mix() -> None:
    one, other = Stub(), Stub()
    with serve(one) as one.url, serve(other) as other.url:
        clients = [
            tinsmith.ServiceClient(base_url=stub.url, api_key=key)
            for stub, key in ((one, "tml-a"), (other, "tml-b"), (one, "tml-c"))
        ]
        for client in clients:
            sampler = client.create_sampling_client(base_model="m").result(30)
            sampler.sample(PROMPT, 1, SamplingParams()).result(30)
        gates = {id(client.holder._live.gate) for client in clients}
        reporters = {id(client.get_telemetry()) for client in clients}
        assert len(gates) == len(reporters) == 3
        for client in clients:
            client.close().result(30)
    assert {request.headers["x-api-key"] for request in one.requests} == {"tml-a", "tml-c"}
    assert {request.headers["x-api-key"] for request in other.requests} == {"tml-b"}
    assert len(one.to("create_session")) == 2


def test_every_setting_is_used() -> None:
    folder = Path(config.__file__).parent
    used = {
        node.attr
        for file in folder.glob("*.py")
        if file.name != "config.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("config")
    }
    assert {field.name for field in fields(config.ClientConfig)} <= used | {"place"}


def test_a_plain_dict_is_no_client_and_no_datum() -> None:
    with pytest.raises(TypeError, match="base_url: text is needed"):
        tinsmith.ServiceClient(base_url={"url": "http://x"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="model_input: a ModelInput is needed"):
        Datum({"chunks": []}, {})  # type: ignore[arg-type]


def test_a_snapshot_tells_its_path_and_nothing_internal() -> None:
    assert set(SaveWeightsForSamplerResponse.model_fields) - {"type"} == {"path"}


def test_background_work_that_dies_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def die() -> None:
        raise RuntimeError("out of luck")

    loop, ended = background(), tinsmith.APIFuture[None]()

    def start() -> None:
        loop.start(die(), "a doomed task").add_done_callback(lambda _: ended.set_result(None))

    with caplog.at_level(logging.ERROR, "tinsmith"):
        loop.call(start)
        ended.result(30)
    assert "a doomed task" in caplog.text
    assert "out of luck" in caplog.text
