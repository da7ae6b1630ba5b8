"""Probes of TrainingClient: passes, steps, saving, loading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from probing import RANK, TOKENS, World, close, datum, loss_of, probe, prompt, refused, settled
from tinker import types

Call = Callable[..., Any]


@probe("TrainingClient.forward", checks="loss is the sum of -logprob·weight; no gradient is left behind")
def forward(world: World, it: Any, call: Call) -> None:
    result = call([datum(), datum(TOKENS[:5])], "cross_entropy")
    first, second = (output["logprobs"].to_numpy() for output in result.loss_fn_outputs)
    assert first.shape == (7,) and second.shape == (4,)
    assert close(result.metrics["loss:sum"], -float(first.sum() + second.sum()))
    before = loss_of(it)
    settled(it.optim_step(types.AdamParams(learning_rate=1.0)))
    assert loss_of(it) == before
    with refused("no_such_loss"):
        call([datum()], "no_such_loss" if not world.old else "importance_sampling", {"no_such_loss": 1.0})


@probe("TrainingClient.forward_backward", checks="gradients of two calls add up; unknown config is refused")
def forward_backward(world: World, it: Any, call: Call) -> None:
    call([datum()], "cross_entropy")
    call([datum(TOKENS[:5])], "cross_entropy")
    other = world.training()
    settled(other.forward_backward([datum(), datum(TOKENS[:5])], "cross_entropy"))
    norms = [settled(t.optim_step(types.AdamParams())).metrics["unclipped_grad_l2:mean"] for t in (it, other)]
    assert norms[0] > 0 and close(*norms)
    with refused("beta"):
        call([datum()], "cross_entropy", {"beta": 1.0})


@probe(
    "TrainingClient.forward_backward_custom",
    checks="a Python loss gives the built-in one's gradient",
)
def forward_backward_custom(world: World, it: Any, call: Call) -> None:
    def loss(data: Any, logprobs: Any) -> Any:
        total = -sum(row.sum() for row in logprobs)
        return total, {"mine:sum": 7.0}

    result = call([datum()], loss)
    assert result.metrics["mine:sum"] == 7.0
    other = world.training()
    settled(other.forward_backward([datum()], "cross_entropy"))
    norms = [settled(t.optim_step(types.AdamParams())).metrics["unclipped_grad_l2:mean"] for t in (it, other)]
    assert close(*norms)


@probe("TrainingClient.optim_step", checks="lowers the loss; reports the gradient norm")
def optim_step(world: World, it: Any, call: Call) -> None:
    before = loss_of(it)
    settled(it.forward_backward([datum()], "cross_entropy"))
    metrics = call(types.AdamParams(learning_rate=0.01)).metrics
    assert metrics["unclipped_grad_l2:mean"] > 0
    assert loss_of(it) < before


@probe("TrainingClient.save_state", checks="listed and loadable; a taken name is refused, overwrite replaces")
def save_state(world: World, it: Any, call: Call) -> None:
    options = {} if world.old else {"ttl_seconds": 7200, "user_metadata": {"step": "1"}}
    name = world.name()
    path = call(name, **options).path
    run_id, checkpoint_id = path.removeprefix("tinker://").split("/", 1)
    (saved,) = settled(world.rest.list_checkpoints(run_id)).checkpoints
    assert (saved.checkpoint_id, saved.checkpoint_type) == (checkpoint_id, "training")
    with refused(name):
        call(name)
    if not world.old:
        assert saved.user_metadata == {"step": "1"} and saved.expires_at > saved.time
        call(name, overwrite=True, user_metadata={"other": "2"})
        (saved,) = settled(world.rest.list_checkpoints(run_id)).checkpoints
        assert saved.user_metadata == {"other": "2"} and saved.expires_at is None


@probe("TrainingClient.load_state", checks="the loss is the saved one again")
def load_state(world: World, it: Any, call: Call) -> None:
    before, path = loss_of(it), world.saved(it)
    settled(it.forward_backward([datum()], "cross_entropy"))
    settled(it.optim_step(types.AdamParams(learning_rate=0.1)))
    assert loss_of(it) != before
    call(path)
    assert loss_of(it) == before
    with refused("nothing-there"):
        call(path + "nothing-there")


@probe("TrainingClient.load_state_with_optimizer", checks="the step after loading is the step after saving")
def load_state_with_optimizer(world: World, it: Any, call: Call) -> None:
    def step() -> float:
        settled(it.forward_backward([datum()], "cross_entropy"))
        settled(it.optim_step(types.AdamParams(learning_rate=0.02)))
        return loss_of(it)

    step()
    path = world.saved(it)
    after = step()
    call(path)
    assert step() == after


@probe("TrainingClient.save_weights_for_sampler", checks="the snapshot samples; its kind is sampler")
def save_weights_for_sampler(world: World, it: Any, call: Call) -> None:
    path = call(world.name()).path
    (saved,) = settled(world.rest.list_checkpoints(settled(it).model_id)).checkpoints
    assert saved.tinker_path == path and saved.checkpoint_type == "sampler"
    sampler = settled(world.service.create_sampling_client(model_path=path))
    assert len(settled(sampler.compute_logprobs(prompt()))) == 4


@probe(
    "TrainingClient.save_weights_external",
    checks="signed URLs of the PEFT files, or of .age files",
)
def save_weights_external(world: World, it: Any, call: Call) -> None:
    import urllib.request

    path = call(world.name(), ttl_seconds=3600).path
    assert "/external_weights/" in path
    urls = settled(world.rest.get_external_weights_urls(path)).urls
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(urls)
    with urllib.request.urlopen(urls["adapter_config.json"]) as response:
        assert b'"r": ' + str(RANK).encode() in response.read()
    recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
    encrypted = call(world.name(), age_encryption_recipients=[recipient]).path
    urls = settled(world.rest.get_external_weights_urls(encrypted)).urls
    assert "adapter_model.safetensors.age" in urls
    with urllib.request.urlopen(urls["adapter_config.json.age"]) as response:
        assert response.read().startswith(b"age-encryption.org/v1\n-> X25519")
    with refused("age_encryption_recipients"):
        call(world.name(), age_encryption_recipients=["age1nonsense"])


@probe(
    "TrainingClient.save_weights_and_get_sampling_client",
    "TrainingClient.save_weights_and_get_sampling_client_submit",
    checks="samples the weights as they were at the call",
)
def save_weights_and_get_sampling_client(world: World, it: Any, call: Call) -> None:
    settled(it.forward_backward([datum()], "cross_entropy"))
    settled(it.optim_step(types.AdamParams(learning_rate=0.05)))
    sampler = call()
    expected = -loss_of(it)
    settled(it.forward_backward([datum()], "cross_entropy"))
    settled(it.optim_step(types.AdamParams(learning_rate=0.05)))
    logprobs = settled(sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS)))
    assert close(sum(logprobs[1:]), expected)


@probe("TrainingClient.get_info", checks="model, rank and id of the run")
def get_info(world: World, it: Any, call: Call) -> None:
    info = call()
    assert (info.model_data.model_name, info.lora_rank) == (world.model, RANK)
    assert info.model_id == settled(it).model_id


@probe("TrainingClient.get_tokenizer", "SamplingClient.get_tokenizer", checks="text survives there and back")
def get_tokenizer(world: World, it: Any, call: Call) -> None:
    here = Path(world.model)  # the newest SDK looks for a folder of the model's name before it asks a hub
    if not here.exists():
        here.symlink_to(settled(world.training().get_info()).model_data.tokenizer_id)
    tokenizer = call()
    assert tokenizer.decode(tokenizer.encode("hello", add_special_tokens=False)) == "hello"


@probe("TrainingClient.create_sampling_client", checks="samples the saved weights it names")
def create_sampling_client(world: World, it: Any, call: Call) -> None:
    path = settled(it.save_weights_for_sampler(world.name())).path
    sampler = call(path)
    logprobs = settled(sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS)))
    assert close(-sum(logprobs[1:]), loss_of(it))


@probe(
    "TrainingClient.on_queue_state_change",
    "SamplingClient.on_queue_state_change",
    checks="takes a queue state",
)
def on_queue_state_change(world: World, it: Any, call: Call) -> None:
    from tinker.lib.api_future_impl import QueueState

    arguments = (QueueState.PAUSED_CAPACITY,) if world.old else (QueueState.PAUSED_CAPACITY, "a reason")
    assert call(*arguments) is None


@probe(
    "BackcompatTrainingClientFuture.result",
    "BackcompatTrainingClientFuture.future",
    "BackcompatTrainingClientFuture.coroutine",
    checks="becomes the training client",
)
def becomes_training_client(world: World, it: Any, call: Call) -> None:
    assert call().model_id == settled(it).model_id
