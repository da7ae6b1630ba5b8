"""The whole of the client against a real service with the model tiny-llama."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch

import tinsmith
from tinsmith import AdamParams, Datum, ModelInput, SamplingParams
from tinsmith import types as t

PROMPT = ModelInput.from_ints([5, 6, 7])
GREEDY = SamplingParams(max_tokens=4, temperature=0.0)
_names = itertools.count()


def datum(targets=(3, 4, 5), weights=(1.0, 0.5, 2.0)) -> Datum:
    return Datum(ModelInput.from_ints([1, 2, 3]), {"target_tokens": [*targets], "weights": [*weights]})


@pytest.fixture(scope="module")
def service(tinsmith_service):
    with tinsmith.ServiceClient({"who": "test"}, base_url=tinsmith_service.url, api_key="tml-test") as client:
        yield client


@pytest.fixture(scope="module")
def rest(service):
    return service.create_rest_client()


@pytest.fixture(scope="module")
def training(service):
    return service.create_lora_training_client("tiny-llama", rank=4, seed=1).result(120)


@pytest.fixture
def name():
    return f"n{next(_names)}"


def test_the_books(service, training, name):
    training.forward_backward([datum()], "cross_entropy").result(60)
    path = training.save_state(name).result(60).path
    admin = tinsmith.AdminClient(base_url=service.config.base_url)
    entries = admin.get_audit_log("checkpoints").result(60).entries
    assert path in [entry.tinker_path for entry in entries]
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    usage = admin.get_billing_usage(now - timedelta(hours=1), now + timedelta(hours=1))
    assert isinstance(usage.result(60), t.BillingUsageResponse)
    stored = asyncio.run(admin.get_current_checkpoint_storage_usage_async())
    assert sum(item.checkpoint_count for item in stored.data) >= 1
    with pytest.raises(ValueError, match="time zone"):
        admin.get_billing_usage(datetime(2026, 1, 1), now)


def test_who_asks(rest):
    me = rest.whoami().result(60)
    assert me.org_urn.startswith("tml:organization:")
    assert me.user_urn


def test_copies(service, rest, training, name):
    path = training.save_state(name).result(60).path
    ours = service.copy_weights(path).result(60)
    assert ours.split("/")[2] != path.split("/")[2]
    elsewhere = rest.copy_weights(path, "project-x", ttl_seconds=7200).result(60)
    assert rest.get_training_run_by_tinker_path(elsewhere).result(60).base_model == "tiny-llama"
    with pytest.raises(ValueError, match="TINKER_PROJECT_ID"):
        rest.copy_weights(path)


@pytest.mark.parametrize("save", ["save_weights_external", "save_weights_for_sampler", "save_state"])
def test_downloads(rest, training, name, tmp_path, save):
    path = getattr(training, save)(name).result(60).path
    files = rest.download_checkpoint(path, tmp_path / "here").result(60)
    names = {file.name for file in files}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names
    assert json.loads((tmp_path / "here" / "adapter_config.json").read_text())["r"] == 4
    assert not [left.name for left in (tmp_path / "here").iterdir() if left.name not in names]


def test_an_archive_s_address(rest, training, name):
    path = training.save_weights_for_sampler(name).result(60).path
    where = rest.get_checkpoint_archive_url_from_tinker_path(path).result(60)
    assert where.expires > datetime.now(UTC)
    with urllib.request.urlopen(where.url) as answer:
        assert answer.read(2) == b"\x1f\x8b"
    with pytest.raises(ValueError, match="save_weights_external"):
        rest.get_external_weights_urls(path)


def test_sessions(service, rest, training):
    session_id = service.holder.get_session_id()
    rest.assign_session_project(session_id, "project-y").result(60)
    found = rest.search_sessions(t.SessionSearchRequest(session_id=session_id)).result(60)
    assert [(one.session_id, one.project_id) for one in found.sessions] == [(session_id, "project-y")]
    assert session_id in service.get_console_url()
    assert training.model_id in training.get_console_url()
    url = rest.export_session_trace(session_id).result(60)
    with urllib.request.urlopen(url) as answer:
        assert answer.read()


def test_a_custom_loss_by_handle_is_the_formula_here_and_there(service, training, monkeypatch):
    def loss(logprobs, weights):
        total = -(logprobs * weights).sum()
        return total, {"custom/total:sum": total, "custom/first:mean": logprobs[..., 0].exp()}

    handle = service.create_custom_loss(loss, {"logprobs": 1, "weights": 1}).result(60)
    assert handle.loss_id is not None
    assert handle.input_names == ("weights",)
    data = [datum(), datum((7, 8, 9), (1.0, 1.0, 1.0))]
    built_in = training.forward(data, "cross_entropy").result(60)
    there = training.forward_backward_custom(data, handle).result(60)
    here = training.forward_backward_custom(data, tinsmith.LossHandle(
        handle.name, handle.inputs, handle.session_id, handle.graph)).result(60)  # fmt: skip
    for result in (there, here):
        assert result.loss == pytest.approx(built_in.loss, rel=1e-5)
        assert result.metrics["custom/total:sum"] == pytest.approx(built_in.loss, rel=1e-5)
    assert here.metrics["custom/first:mean"] == pytest.approx(there.metrics["custom/first:mean"], rel=1e-5)
    with pytest.raises(ValueError, match=r"data\[0\].*'weights'.*missing"):
        training.forward_backward_custom([Datum(PROMPT, {"target_tokens": [1, 2, 3]})], handle)


@pytest.mark.parametrize(
    ("loss", "ranks", "wrong"),
    [
        (lambda logprobs: (logprobs.sum().item(), {}), {"logprobs": 1}, "item"),
        (lambda logprobs: (torch.rand_like(logprobs).sum(), {}), {"logprobs": 1}, "rand"),
        (lambda logprobs: (logprobs if logprobs.sum() > 0 else 0, {}), {"logprobs": 1}, "traced"),
        (lambda logprobs, weights: (logprobs.sum(), {}), {"logprobs": 1}, "weights"),
        (lambda logprobs: (logprobs.sum(), {"x": logprobs.sum()}), {"logprobs": 1}, "custom/"),
        (lambda other: (other.sum(), {}), {"other": 1}, "logprobs"),
        (lambda logprobs: (logprobs.sum(), {}), {"logprobs": 3}, "not 0, 1 or 2"),
    ],
)  # fmt: skip
def test_a_custom_loss_that_cannot_be_is_refused_here(service, loss, ranks, wrong):
    with pytest.raises(ValueError, match=wrong):
        service.create_custom_loss(loss, ranks).result(60)


def test_a_run_goes_on_from_its_newest_checkpoint(service, name):
    first = service.resume_training(name, "tiny-llama", rank=4, seed=3).result(120)
    assert (first.checkpoint, first.step) == (None, 0)
    client = first.training_client
    client.forward_backward([datum()], "cross_entropy")
    client.optim_step(AdamParams(learning_rate=0.01))
    client.save_state("old", user_metadata={"step": "1"}).result(60)
    client.forward_backward([datum()], "cross_entropy")
    client.optim_step(AdamParams(learning_rate=0.01))
    saved = client.save_state("new", user_metadata={"step": "2"}).result(60)
    again = service.resume_training(name, "tiny-llama").result(120)
    assert again.step == 2
    assert again.checkpoint is not None
    assert again.checkpoint.tinker_path == saved.path
    assert again.training_client.model_id != client.model_id

    def next_step(which):
        which.forward_backward([datum()], "cross_entropy")
        which.optim_step(AdamParams(learning_rate=0.01))
        return which.forward([datum()], "cross_entropy").result(60).loss

    assert next_step(again.training_client) == pytest.approx(next_step(client), rel=1e-6)


def test_an_unloaded_run_takes_nothing_more(service):
    client = service.create_lora_training_client("tiny-llama", rank=2).result(120)
    step = client.forward_backward([datum()], "cross_entropy")
    step.result(60)
    client.unload().result(60)
    with pytest.raises(tinsmith.TinkerError) as caught:
        client.optim_step(AdamParams()).result(60)
    assert caught.value.model_id == client.model_id
    assert not caught.value.retryable


# ---- samplers between processes -------------------------------------------------------------------

WORKER = """
import pickle, sys
import tinsmith
client = pickle.loads(bytes.fromhex(sys.argv[1]))
params = tinsmith.SamplingParams(max_tokens=4, temperature=0.0)
futures = [client.sample(tinsmith.ModelInput.from_ints([5, 6, 7]), 1, params) for _ in range(3)]
for future in futures:
    sequence = future.result(60).sequences[0]
    print(sequence.sequence_id, *sequence.tokens)
"""


def test_a_pickled_sampler_samples_the_same_under_numbers_of_its_own(service):
    client = service.create_sampling_client(base_model="tiny-llama").result(120)
    mine = [client.sample(PROMPT, 1, GREEDY).result(60).sequences[0] for _ in range(3)]
    state = pickle.dumps(client)
    assert b"tml-test" not in state
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, state.hex()], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    lines = [line.split() for worker in workers for line in worker.communicate(timeout=120)[0].splitlines()]
    assert len(lines) == 6
    ids = [line[0] for line in lines] + [sequence.sequence_id for sequence in mine]
    assert len(set(ids)) == 9
    assert {tuple(map(int, line[1:])) for line in lines} == {tuple(sequence.tokens) for sequence in mine}


def test_a_handle_is_text_without_secrets(service):
    client = service.create_sampling_client(base_model="tiny-llama").result(120)
    handle = client.get_sampler_handle()
    assert handle.isascii()
    other = tinsmith.SamplingClient.from_sampler_handle(handle, api_key="tml-other")
    assert other.holder.config.api_key == "tml-other"
    assert other.sample(PROMPT, 1, GREEDY).result(60).sequences[0].tokens == (
        client.sample(PROMPT, 1, GREEDY).result(60).sequences[0].tokens
    )
    assert tinsmith.SamplingClient.from_sampler_handle(handle, api_key="tml-other").holder is other.holder
    with pytest.raises(ValueError, match="get_sampler_handle"):
        tinsmith.SamplingClient.from_sampler_handle("nonsense")


def test_many_samples_are_polled_for_together(service):
    client = service.create_sampling_client(base_model="tiny-llama").result(120)
    futures = [client.sample(PROMPT, 1, SamplingParams(max_tokens=2, seed=n)) for n in range(200)]
    assert len({future.result(120).sequences[0].sequence_id for future in futures}) == 200
    stats = service.metrics()["sample"]
    assert stats.count >= 200
    assert stats.in_flight == 0
    assert 0 < stats.p50 <= stats.p95 <= stats.p99


def test_a_sampler_in_another_client_s_session(service):
    made = tinsmith.SamplingClient.create(service.holder, base_model="tiny-llama").result(120)
    same = tinsmith.SamplingClient.create(
        service.holder, sampling_session_id=made.sampling_session_id
    ).result(60)
    sequences = [client.sample(PROMPT, 1, GREEDY).result(60).sequences[0] for client in (made, same)]
    np.testing.assert_array_equal(sequences[0].tokens_np, sequences[1].tokens_np)
    assert sequences[0].sequence_id != sequences[1].sequence_id
