"""SamplingClient against a real HTTP server: ids, retries that do not multiply, the shared pause."""

from __future__ import annotations

import asyncio
import logging
import threading

import numpy as np
import pytest
from client_stub import Answer, Stub, serve

import tinsmith
from tinsmith import ModelInput, RetryConfig, SamplingParams, TensorData
from tinsmith.client import gate
from tinsmith.client.samples import Progress

PROMPT = ModelInput.from_ints([1, 2, 3])
PARAMS = SamplingParams(max_tokens=4, stop=[], temperature=0.5)
SOON = {"retry-after-ms": "1"}


@pytest.fixture
def sampling(service):
    return service.create_sampling_client(base_model="m").result(30)


def test_a_sample(stub, sampling):
    response = sampling.sample(PROMPT, 2, PARAMS).result(30)
    assert [(s.tokens, s.sequence_id) for s in response.sequences] == [([0, 1], "q0.0"), ([0, 1], "q0.1")]
    request = stub.to("asample")[0]
    assert request.headers["x-tinker-sampling-backpressure"] == "1"
    assert request.json == {
        "num_samples": 2,
        "prompt": {"chunks": [{"tokens": [1, 2, 3], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": 4, "stop": [], "temperature": 0.5, "top_k": -1, "top_p": 1.0},
        "sampling_session_id": "S:sample:0",
        "seq_id": 0,
        "prompt_logprobs": False,
        "topk_prompt_logprobs": 0,
        "topk_sample_logprobs": 0,
        "prompt_alt_tokens_k": 0,
        "record_stability_info": False,
        "type": "sample",
    }


def test_seq_ids_count_up_over_many_samples(stub, sampling):
    futures = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(100)]
    assert [future.result(60).sequences[0].tokens[0] for future in futures] == list(range(100))
    assert sorted(r.json["seq_id"] for r in stub.to("asample")) == list(range(100))


def test_logprobs_in_both_styles(sampling):
    async def main():
        return await sampling.compute_logprobs(PROMPT), await sampling.compute_logprobs_async(PROMPT)

    expected = [None, -1.0, -1.0]
    assert sampling.compute_logprobs(PROMPT).result(30) == expected
    assert asyncio.run(main()) == (expected, expected)
    assert len(asyncio.run(sampling.sample_async(PROMPT, 3, PARAMS)).sequences) == 3


def test_three_failures_are_four_attempts_with_one_id(stub, sampling):
    stub.script["asample"].extend([Answer(503, {}, SOON)] * 3)
    sampling.sample(PROMPT, 1, PARAMS).result(30)
    assert [r.json["seq_id"] for r in stub.to("asample")] == [0, 0, 0, 0]


def test_no_retries_where_none_are_wanted(stub, service):
    sampling = service.create_sampling_client(
        base_model="m", retry_config=RetryConfig(enable_retry_logic=False)
    ).result(30)
    for status in (503, 429):
        stub.script["asample"].append(Answer(status, {}, SOON))
        with pytest.raises(tinsmith.APIStatusError):
            sampling.sample(PROMPT, 1, PARAMS).result(30)
    assert len(stub.to("asample")) == 2


@pytest.fixture
def short_pause(monkeypatch):
    monkeypatch.setattr(gate, "SHORTEST_PAUSE", 0.001)


def test_backpressure_pauses_all_clients_of_the_service(stub, sampling, short_pause, monkeypatch):
    pauses: list[float | None] = []
    pause = gate.SampleGate.pause

    def noted(self, hint):
        pauses.append(hint)
        pause(self, hint)

    monkeypatch.setattr(gate.SampleGate, "pause", noted)
    stub.script["asample"].extend([Answer(429, {}, {"retry-after": "0.01"})] * 2 + [Answer(429)])
    with tinsmith.ServiceClient(base_url=stub.url, api_key="tml-secret") as other:
        second = other.create_sampling_client(base_model="m").result(30)
        assert second.holder._live.gate is sampling.holder._live.gate
        sampling.sample(PROMPT, 1, PARAMS).result(30)
    assert pauses == [0.01, 0.01, None]
    assert [r.json["seq_id"] for r in stub.to("asample")] == [0] * 4


def test_never_more_submits_at_once_than_the_gate_lets_through(stub, service, monkeypatch):
    monkeypatch.setattr(gate, "MAX_SUBMITS", 400)
    sampling = service.create_sampling_client(base_model="m").result(30)
    inside = most = 0
    lock = threading.Lock()

    async def slow(request):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        await asyncio.sleep(0.001)
        with lock:
            inside -= 1
        return stub.default(request)

    stub.script["asample"].extend([slow] * 500)
    for future in [sampling.sample(PROMPT, 1, PARAMS) for _ in range(500)]:
        future.result(120)
    assert 1 <= most <= 400


def test_a_lost_result_is_sampled_anew(stub, sampling):
    stub.script["retrieve_future"].append(Answer(410, {"detail": "expired"}))
    assert sampling.sample(PROMPT, 1, PARAMS).result(30).sequences[0].tokens == [1, 1]
    assert [r.json["seq_id"] for r in stub.to("asample")] == [0, 1]


def test_a_failed_sample_is_an_error_unless_asked_otherwise(stub, service, sampling):
    failed = Answer(200, {"error": "out of memory", "category": "server"})
    stub.script["retrieve_future"].append(failed)
    with pytest.raises(tinsmith.RequestFailedError, match="out of memory"):
        sampling.sample(PROMPT, 1, PARAMS).result(30)
    patient = service.create_sampling_client(base_model="m", retry_config=RetryConfig(retry_failed=True))
    patient.result(30)
    stub.script["retrieve_future"].append(failed)
    assert patient.sample(PROMPT, 1, PARAMS).result(30).sequences
    stub.script["retrieve_future"].append(Answer(200, {"error": "bad", "category": "user"}))
    with pytest.raises(tinsmith.RequestFailedError, match="bad"):
        patient.sample(PROMPT, 1, PARAMS).result(30)


def test_cancelling_tells_the_service(stub, sampling):
    polled = threading.Event()

    async def hold(request):
        polled.set()
        await asyncio.sleep(0.05)
        return Answer(408, {"queue_state": "active"})

    stub.script["retrieve_future"].extend([hold] * 100)
    future = sampling.sample(PROMPT, 1, PARAMS)
    assert polled.wait(30)
    assert future.cancel()
    request = stub.wait_for("cancel_future")[0]
    assert request.json["request_id"] in stub.results


def test_what_was_asked_for_and_not_given_is_an_error(sampling):
    targets = TensorData(np.zeros((2, 1)), "int64", [2, 1])
    with pytest.raises(tinsmith.TinkerError, match="target_prompt_logprobs"):
        sampling.sample(PROMPT, 1, PARAMS, target_prompt_logprobs=targets).result(30)


def test_local_refusals_take_no_id(stub, sampling):
    for arguments in (
        (PROMPT, 0, PARAMS),
        (ModelInput.empty(), 1, PARAMS),
        ([1, 2], 1, PARAMS),
        (PROMPT, 1, {"max_tokens": 1}),
        (PROMPT, 1, SamplingParams(top_p=0)),
        (PROMPT, 1, PARAMS, False, -1),
    ):
        with pytest.raises((ValueError, TypeError)):
            sampling.sample(*arguments)
    with pytest.raises(ValueError, match="prompt_logprobs_last_n"):
        sampling.sample(PROMPT, 1, PARAMS, prompt_logprobs_last_n=1)
    sampling.sample(PROMPT, 1, PARAMS).result(30)
    assert [r.json["seq_id"] for r in stub.to("asample")] == [0]


def test_where_a_sampler_comes_from(stub, service):
    with pytest.raises(ValueError, match="model_path"):
        service.create_sampling_client()
    with pytest.raises(ValueError, match="tinker://"):
        service.create_sampling_client("weights/one")
    saved = service.create_sampling_client("tinker://S:train:0/sampler_weights/s").result(30)
    assert saved.get_base_model() == "m"
    assert asyncio.run(saved.get_base_model_async()) == "m"
    assert isinstance(service.create_sampling_client(base_model="m"), tinsmith.SamplingClient)
    seqs = [r.json["sampling_session_seq_id"] for r in stub.wait_for("create_sampling_session", 2)]
    assert seqs == [0, 1]


def test_a_standstill_is_noticed(clock):
    progress = Progress(60, clock)
    clock.time = 1000
    progress.began()
    progress.check()
    clock.time += 59
    progress.began()
    progress.check()
    clock.time += 2
    with pytest.raises(tinsmith.APIConnectionError, match="stuck"):
        progress.check()
    progress.ended()
    progress.check()


def test_broken_connections_are_survived(caplog):
    app = Stub()
    with serve(app) as url, tinsmith.ServiceClient(base_url=url) as client:
        sampling = client.create_sampling_client(base_model="m").result(30)

        async def hang_up(request):
            raise ConnectionResetError

        app.script["asample"].append(hang_up)
        logging.getLogger("uvicorn.error").disabled = True
        assert sampling.sample(PROMPT, 1, PARAMS).result(60).sequences
    assert [r.json["seq_id"] for r in app.to("asample")] == [0, 0]
