"""TrainingClient against a real HTTP server: order, chunks, refusals, both dialects."""

from __future__ import annotations

import asyncio
import math
import threading

import numpy as np
import pytest
from client_stub import Answer, Stub, serve

import tinsmith
from tinsmith import AdamParams, Datum, ModelInput
from tinsmith.types import DimuonParams, RequestErrorCategory, UserError


def datum(token: int = 1, length: int = 2) -> Datum:
    tokens = [token] * length
    return Datum(ModelInput.from_ints(tokens), {"target_tokens": tokens, "weights": [1.0] * length})


@pytest.fixture
def training(service):
    return service.create_lora_training_client("m", rank=4, seed=7).result(30)


SEQ_PATHS = ("forward_backward", "optim_step", "save_weights", "load_weights", "save_weights_for_sampler")


def seq_ids(stub: Stub) -> list[int]:
    """Of everything submitted, in order of arrival."""
    with stub._lock:
        requests = [request for request in stub.requests if request.path in SEQ_PATHS]
    return [r.call.seq_id if r.path == "forward_backward" else r.json["seq_id"] for r in requests]


def test_the_handshake_and_the_first_run(stub, training):
    paths = [request.path for request in stub.requests]
    assert paths == ["client/config", "create_session", "create_model", "retrieve_future", "get_info"]
    assert stub.to("create_model")[0].json == {
        "session_id": "S",
        "model_seq_id": 0,
        "base_model": "m",
        "lora_config": {
            "rank": 4,
            "seed": 7,
            "train_unembed": True,
            "train_mlp": True,
            "train_attn": True,
        },
        "optimizer_config": {"type": "adamw"},
        "type": "create_model",
    }
    assert training.model_id == "S:train:0"
    assert training.get_info().model_data.arch == "a"
    headers = stub.to("create_model")[0].headers
    assert headers["x-api-key"] == "tml-secret"
    assert headers["x-idempotency-key"]


def test_every_operation(stub, training):
    data = [datum()]
    futures = [
        training.forward_backward(data, "cross_entropy"),
        training.optim_step(AdamParams(learning_rate=0.5)),
        training.forward(data, "cross_entropy"),
        training.save_state("one", ttl_seconds=3600, overwrite=True, user_metadata={"k": "v"}),
        training.load_state("tinker://S:train:0/weights/one"),
        training.load_state_with_optimizer("tinker://S:train:0/weights/one"),
        training.save_weights_for_sampler("s"),
        training.optim_step(DimuonParams(learning_rate=0.1)),
        training.save_weights_and_get_sampling_client(),
    ]
    results = [future.result(30) for future in futures]
    assert seq_ids(stub) == list(range(1, 10))
    assert results[0].loss == 2.0
    assert results[3].path == "tinker://S:train:0/weights/one"
    assert results[6].path == "tinker://S:train:0/sampler_weights/s"
    assert isinstance(results[8], tinsmith.SamplingClient)
    backward, forward = stub.to("forward_backward")
    assert (backward.call.forward_only, forward.call.forward_only) == (False, True)
    first, second = stub.to("optim_step")
    assert first.json["adam_params"] == {
        "learning_rate": 0.5,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-12,
        "weight_decay": 0.0,
        "grad_clip_norm": 0.0,
    }
    assert second.json["optimizer_params"]["type"] == "dimuon"
    assert [r.json["optimizer"] for r in stub.to("load_weights")] == [False, True]
    saved = stub.to("save_weights")[0].json
    assert (saved["ttl_seconds"], saved["overwrite"], saved["user_metadata"]) == (3600, True, {"k": "v"})


def test_calls_from_many_threads_arrive_in_the_order_of_their_ids(stub, training):
    def work():
        futures = []
        for _ in range(10):
            futures.append(training.forward_backward([datum()], "cross_entropy"))
            futures.append(training.optim_step(AdamParams()))
        for future in futures:
            future.result(60)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seq_ids(stub) == list(range(1, 101))


def test_both_styles_of_async(training):
    async def main():
        new = await training.forward_backward([datum()], "cross_entropy")
        future = await training.forward_backward_async([datum()], "cross_entropy")
        old = await future
        step = await (await training.optim_step_async(AdamParams()))
        named = await (await training.save_state_async("x")).result_async(30)
        return new.loss, old.loss, future.result().loss, step.metrics, named.path

    assert asyncio.run(main()) == (2.0, 2.0, 2.0, {"step:unique": 3.0}, "tinker://S:train:0/weights/x")


@pytest.fixture
def small_chunks():
    app = Stub({"fwdbwd_max_chunk_len": 2})
    with serve(app) as app.url, tinsmith.ServiceClient(base_url=app.url) as client:
        yield app, client.create_lora_training_client("m").result(30)


def test_chunks_each_have_an_id_and_come_back_as_one(small_chunks):
    stub, training = small_chunks
    data = [datum(n, length=n) for n in range(1, 6)]
    output = training.forward_backward(data, "cross_entropy").result(30)
    step = training.optim_step(AdamParams()).result(30)
    assert [len(o["logprobs"]) for o in output.loss_fn_outputs] == [1, 2, 3, 4, 5]
    assert output.metrics == {"loss:sum": 15.0, "seq:unique": 1.0, "seq:unique_1": 2.0, "seq:unique_2": 3.0}
    calls = {r.call.seq_id: len(r.call.batch.data) for r in stub.to("forward_backward")}
    assert calls == {1: 2, 2: 2, 3: 1}
    assert stub.to("forward_backward")[-1].call.seq_id == 1
    assert step.metrics == {"step:unique": 4.0}


def test_a_refused_chunk_leaves_no_hole(small_chunks):
    stub, training = small_chunks
    stub.script["forward_backward"].append(Answer(400, {"detail": "bad token"}))
    with pytest.raises(tinsmith.BadRequestError, match="bad token"):
        training.forward_backward([datum()] * 4, "cross_entropy").result(30)
    training.optim_step(AdamParams()).result(30)
    calls = [r.call for r in stub.to("forward_backward")]
    assert [call.seq_id for call in calls] == [2, 1]
    assert calls[1].forward_only  # used up by what touches no gradient
    assert stub.to("optim_step")[0].json["seq_id"] == 3


def test_chunks_go_one_by_one_where_the_service_wants_it():
    app = Stub({"fwdbwd_max_chunk_len": 1, "parallel_fwdbwd_chunks": False, "proto_compress_fwdbwd": True})
    with serve(app) as url, tinsmith.ServiceClient(base_url=url) as client:
        training = client.create_lora_training_client("m").result(30)
        app.script["forward_backward"].append(Answer(422, {"detail": "no"}))
        with pytest.raises(tinsmith.UnprocessableEntityError):
            training.forward_backward([datum()] * 3, "cross_entropy").result(30)
    assert [r.headers["content-encoding"] for r in app.to("forward_backward")] == ["zstd"] * 3


def test_a_local_refusal_takes_no_id_and_sends_nothing(stub, training):
    refusals = [
        lambda: training.forward_backward([], "cross_entropy"),
        lambda: training.forward_backward([datum()], "cross_entropie"),
        lambda: training.forward_backward([Datum(ModelInput.from_ints([1]), {})], "cross_entropy"),
        lambda: training.forward_backward([{"not": "a datum"}], "cross_entropy"),
        lambda: training.forward_backward([datum()], "ppo", {"clip": 1}),
        lambda: training.optim_step(AdamParams(learning_rate=-1)),
        lambda: training.optim_step(),
        lambda: training.optim_step({"learning_rate": 1}),
        lambda: training.save_state("a/b"),
        lambda: training.save_state("a", user_metadata={"x": object()}),
        lambda: training.save_state("a", ttl_seconds="soon"),
        lambda: training.load_state("one"),
        lambda: training.save_weights_for_sampler(""),
        lambda: training.forward_backward_custom([Datum(ModelInput.from_ints([1]), {})], lambda d, lp: lp),
        lambda: training.forward_backward_custom([datum()], "cross_entropy"),
    ]
    for refusal in refusals:
        with pytest.raises((ValueError, TypeError)):
            refusal()
    with pytest.raises(TypeError, match="unexpected keyword"):
        training.forward_backward([datum()], "cross_entropy", loss_config={})
    training.optim_step(AdamParams()).result(30)
    assert seq_ids(stub) == [1]


def test_nan_is_refused_before_it_is_sent(training):
    with pytest.raises(ValueError, match="learning_rate"):
        AdamParams(learning_rate=math.nan)
    bad = Datum(
        ModelInput.from_ints([1]),
        {"target_tokens": [1], "weights": np.array([np.nan], np.float32)},
    )
    with pytest.raises(UserError, match=r"data\[0\].*weights"):
        training.forward_backward([bad], "cross_entropy")


def test_trouble_is_retried_under_the_same_id_and_order_is_kept(stub, training):
    soon = {"retry-after-ms": "1"}
    stub.script["optim_step"].extend([Answer(503, {}, soon), Answer(429, {}, soon), Answer(409, {}, soon)])
    first, second = training.optim_step(AdamParams()), training.optim_step(AdamParams())
    assert (first.result(30).metrics, second.result(30).metrics) == ({"step:unique": 1}, {"step:unique": 2})
    assert seq_ids(stub) == [1, 1, 1, 1, 2]
    tries = stub.to("optim_step")
    assert len({r.headers["x-idempotency-key"] for r in tries}) == 2
    assert [r.headers["x-stainless-retry-count"] for r in tries] == ["0", "1", "2", "3", "0"]


def test_a_failed_operation_does_not_stop_what_follows(stub, training):
    async def refuse(request):
        return stub.accept({"error": "no gradient", "category": "user"})

    stub.script["optim_step"].append(refuse)
    first, second = training.optim_step(AdamParams()), training.optim_step(AdamParams())
    with pytest.raises(tinsmith.RequestFailedError, match="no gradient") as caught:
        first.result(30)
    assert caught.value.category is RequestErrorCategory.User
    assert second.result(30).metrics == {"step:unique": 2.0}


def test_cancelling_a_result_still_submits(stub, training):
    futures = [training.optim_step(AdamParams()) for _ in range(20)]
    for future in futures[:-1]:
        future.cancel()
    assert futures[-1].result(30).metrics == {"step:unique": 20.0}
    assert seq_ids(stub) == list(range(1, 21))


def test_editing_an_array_after_the_call_changes_nothing(stub, training):
    weights = np.ones(2, np.float32)
    data = [Datum(ModelInput.from_ints([1, 1]), {"target_tokens": [1, 1], "weights": weights})]
    future = training.forward_backward(data, "cross_entropy")
    weights[:] = 9
    assert future.result(30).loss == 2.0


def test_from_state(stub, service):
    path = "tinker://S:train:0/weights/one"
    fresh = service.create_training_client_from_state(path, user_metadata={"a": "b"}).result(30)
    resumed = service.create_training_client_from_state_with_optimizer(path).result(30)
    assert (fresh.model_id, resumed.model_id) == ("S:train:0", "S:train:1")
    first, second = (r.json for r in stub.to("load_weights"))
    assert first == {
        "path": path,
        "session_id": "S",
        "model_seq_id": 0,
        "user_metadata": {"a": "b"},
        "optimizer": False,
        "type": "load_weights",
    }
    assert second["optimizer"] is True
    resumed.optim_step(AdamParams()).result(30)
    assert stub.to("optim_step")[0].json["seq_id"] == 1


def test_the_old_dialect():
    app = Stub()
    app.config = None
    with serve(app) as url, tinsmith.ServiceClient(base_url=url) as client:
        training = client.create_lora_training_client("m").result(30)
        assert training.forward_backward([datum()], "cross_entropy").result(30).loss == 2.0
        assert training.forward([datum()], "cross_entropy").result(30).loss == 2.0
        assert [r.json["seq_id"] for r in app.to("forward_backward") + app.to("forward")] == [1, 2]
        other = client.create_training_client_from_state("tinker://S:train:0/weights/one").result(30)
        assert other.model_id == "S:train:1"
        made = app.to("create_model")[1].json
        assert made["lora_config"]["rank"] == 4
        assert made["lora_config"]["train_mlp"] is False
        assert app.to("load_weights")[0].json["seq_id"] == 1


def test_a_future_of_a_client_can_be_used_as_the_client(service):
    training = service.create_lora_training_client("m")
    assert isinstance(training, tinsmith.TrainingClient)
    assert training.forward_backward([datum()], "cross_entropy").result(30).loss == 2.0
    assert training.model_id == "S:train:0"

    async def main():
        future = await training.optim_step_async(AdamParams())
        client = await service.create_lora_training_client_async("m")
        same = await training
        return (await future).metrics, client.model_id, same.model_id

    assert asyncio.run(main()) == ({"step:unique": 2.0}, "S:train:1", "S:train:0")
    with pytest.raises(AttributeError):
        _ = training.nonsense


def test_a_client_that_could_not_be_made_says_so(stub, service):
    stub.script["create_model"].append(Answer(400, {"detail": "no model m"}))
    training = service.create_lora_training_client("m")
    with pytest.raises(tinsmith.BadRequestError, match="no model m"):
        training.result(30)
    with pytest.raises(tinsmith.BadRequestError):
        training.forward([datum()], "cross_entropy")


@pytest.mark.parametrize(
    "arguments",
    [{"rank": 0}, {"seed": -1}, {"train_mlp": False, "train_attn": False, "train_unembed": False}],
)
def test_a_wrong_adapter_is_refused_at_once(stub, service, arguments):
    with pytest.raises(ValueError, match=r"rank|seed|at least one"):
        service.create_lora_training_client("m", **arguments)
    assert stub.requests == []


def test_metadata_and_unknown_arguments(service):
    with pytest.raises(TypeError):
        service.create_lora_training_client("m", alpha=16)
    with pytest.raises(TypeError):
        tinsmith.ServiceClient(nonsense=1)
