"""Probes of ServiceClient: making runs and samplers, copying weights, closing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinker
from probing import RANK, World, close, loss_of, probe, prompt, settled

Call = Callable[..., Any]


@probe("ServiceClient.create_lora_training_client", checks="the run has the model, rank and layers asked for")
def create_lora_training_client(world: World, it: Any, call: Call) -> None:
    training = call(world.model, rank=6, seed=3, train_unembed=False, user_metadata={"a": "b"})
    info = settled(training.get_info())
    assert (info.model_data.model_name, info.lora_rank, info.is_lora) == (world.model, 6, True)
    run = settled(world.rest.get_training_run(training.model_id))
    assert run.user_metadata == {"a": "b"}
    twin = call(world.model, rank=6, seed=3, train_unembed=False)
    assert loss_of(training) == loss_of(twin)


@probe("ServiceClient.create_rest_client", checks="the client lists runs")
def create_rest_client(world: World, it: Any, call: Call) -> None:
    assert settled(call().list_training_runs(limit=1)).cursor.limit == 1


@probe("ServiceClient.create_sampling_client", checks="samples the base model or the saved weights it names")
def create_sampling_client(world: World, it: Any, call: Call) -> None:
    training = world.trained()
    path = settled(training.save_weights_for_sampler(world.name())).path
    trained = settled(call(model_path=path).compute_logprobs(prompt()))
    base = settled(call(base_model=world.model).compute_logprobs(prompt()))
    assert trained[0] is None and trained != base


@probe("ServiceClient.create_training_client_from_state", checks="a new run with the saved weights and rank")
def create_training_client_from_state(world: World, it: Any, call: Call) -> None:
    saved = world.trained()
    loaded = call(world.saved(saved), user_metadata={"loaded": "yes"})
    assert loaded.model_id != saved.model_id
    assert close(loss_of(loaded), loss_of(saved))
    run = settled(world.rest.get_training_run(loaded.model_id))
    assert run.lora_rank == RANK and run.user_metadata["loaded"] == "yes"


@probe(
    "ServiceClient.create_training_client_from_state_with_optimizer",
    checks="the next step is the very step the saved run would take",
)
def create_training_client_from_state_with_optimizer(world: World, it: Any, call: Call) -> None:
    saved = world.trained()
    loaded = call(world.saved(saved))
    for training in (saved, loaded):
        step(training)
    assert loss_of(loaded) == loss_of(saved)


def step(training: Any) -> None:
    """One more step on the example."""
    from probing import datum

    settled(training.forward_backward([datum()], "cross_entropy"))
    settled(training.optim_step(tinker.AdamParams(learning_rate=0.01)))


@probe("ServiceClient.get_server_capabilities", checks="lists the model, trainable and sampleable")
def get_server_capabilities(world: World, it: Any, call: Call) -> None:
    (model,) = [m for m in call().supported_models if m.model_name == world.model]
    assert world.old or (model.trainable and model.sampleable and model.max_context_length > 0)


@probe(
    "ServiceClient.get_telemetry",
    "TrainingClient.get_telemetry",
    "SamplingClient.get_telemetry",
    "RestClient.get_telemetry",
    "AdminClient.get_telemetry",
    checks="takes an event",
)
def get_telemetry(world: World, it: Any, call: Call) -> None:
    telemetry = call()
    assert telemetry is not None and telemetry.log("probe", event_data={"a": 1}, severity="INFO")


@probe("ServiceClient.get_console_url", "TrainingClient.get_console_url", checks="names the session or run")
def get_console_url(world: World, it: Any, call: Call) -> None:
    training = world.training() if isinstance(it, tinker.ServiceClient) else settled(it)
    assert training.model_id.partition(":")[0] in call()


@probe("ServiceClient.holder", checks="holds the open session")
def holder(world: World, it: Any, call: Call) -> None:
    assert call().get_session_id() == world.session_id()


@probe("ServiceClient.close", checks="the session is finished and its runs end")
def close_service(world: World, it: Any, call: Call) -> None:
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(world.model, rank=RANK).result()
    service.close("success", "done").result()
    run = settled(world.rest.get_training_run(training.model_id))
    assert run.training_run_id == training.model_id
    found = settled(world.rest.get_session(training.model_id.partition(":")[0]))
    assert found.training_run_ids == [training.model_id]


@probe("ServiceClient.copy_weights", checks="the copy loads, belongs to a new run and outlives its source")
def copy_weights(world: World, it: Any, call: Call) -> None:
    training = world.trained()
    source = world.saved(training)
    copy = call(source, ttl_seconds=7200)
    assert copy.startswith("tinker://") and copy.split("/")[2] != training.model_id
    settled(world.rest.delete_checkpoint_from_tinker_path(source))
    loaded = settled(world.service.create_training_client_from_state(copy))
    assert close(loss_of(loaded), loss_of(training))


@probe("ServiceClient.create_custom_loss", checks="the handle computes the same loss as the formula")
def create_custom_loss(world: World, it: Any, call: Call) -> None:
    import torch
    from probing import datum

    def negated(logprobs, weights):  # type: ignore[no-untyped-def]
        loss = torch.sum(-logprobs * weights)
        return loss, {"custom/tokens:sum": torch.sum(weights)}

    handle = call(negated, {"logprobs": 1, "weights": 1})
    assert handle.input_names == ("weights",)
    training = world.training()
    result = settled(training.forward_backward_custom([datum(), datum()], handle))
    assert close(result.metrics["loss:sum"], 2 * loss_of(training))
    assert result.metrics["custom/tokens:sum"] == 14
