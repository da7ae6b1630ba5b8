"""Probes of RestClient: runs, checkpoints, sessions."""

from __future__ import annotations

import io
import tarfile
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from probing import RANK, World, close, loss_of, parts, probe, refused, settled

Call = Callable[..., Any]


@probe("RestClient.get_server_capabilities", checks="lists the model")
def get_server_capabilities(world: World, it: Any, call: Call) -> None:
    assert world.model in [model.model_name for model in call().supported_models]


@probe("RestClient.get_training_run", checks="base model, rank, last checkpoint; an unknown id is refused")
def get_training_run(world: World, it: Any, call: Call) -> None:
    training = world.training()
    path = world.saved(training)
    run = call(training.model_id)
    assert (run.base_model, run.lora_rank, run.is_lora, run.corrupted) == (world.model, RANK, True, False)
    assert run.last_checkpoint.tinker_path == path and run.last_sampler_checkpoint is None
    with refused("no-such-run"):
        call("no-such-run")


@probe("RestClient.get_training_run_by_tinker_path", checks="the run the checkpoint belongs to")
def get_training_run_by_tinker_path(world: World, it: Any, call: Call) -> None:
    path = world.saved()
    assert call(path).training_run_id == parts(path)[0]


@probe("RestClient.get_weights_info_by_tinker_path", checks="model, rank and which layers train")
def get_weights_info_by_tinker_path(world: World, it: Any, call: Call) -> None:
    info = call(world.saved(world.training(train_mlp=False)))
    assert (info.base_model, info.lora_rank, info.train_mlp, info.train_attn) == (
        world.model,
        RANK,
        False,
        True,
    )


@probe("RestClient.list_training_runs", checks="newest first; pages join up; the count is the whole")
def list_training_runs(world: World, it: Any, call: Call) -> None:
    made = [world.training().model_id for _ in range(3)]
    first, second = call(limit=2), call(limit=2, offset=2)
    listed = [run.training_run_id for page in (first, second) for run in page.training_runs]
    assert listed[:3] == made[::-1]
    assert first.cursor.total_count == second.cursor.total_count >= 3
    nothing = call(limit=0)
    assert nothing.training_runs == [] and nothing.cursor.total_count == first.cursor.total_count


@probe("RestClient.list_checkpoints", checks="all of the run's and no other's")
def list_checkpoints(world: World, it: Any, call: Call) -> None:
    training = world.training()
    paths = {world.saved(training), settled(training.save_weights_for_sampler(world.name())).path}
    world.saved()
    listed = call(training.model_id).checkpoints
    assert {checkpoint.tinker_path for checkpoint in listed} == paths
    assert all(checkpoint.size_bytes > 0 and not checkpoint.public for checkpoint in listed)


@probe("RestClient.list_user_checkpoints", checks="newest first; pages join up; the count is the whole")
def list_user_checkpoints(world: World, it: Any, call: Call) -> None:
    training = world.training()
    paths = [world.saved(training) for _ in range(3)]
    first, second = call(limit=2), call(limit=2, offset=2)
    listed = [checkpoint.tinker_path for page in (first, second) for checkpoint in page.checkpoints]
    assert listed[:3] == paths[::-1]
    assert first.cursor.total_count >= 3 and call(limit=0).checkpoints == []


def _gone(world: World, path: str) -> bool:
    run_id = parts(path)[0]
    return path not in [c.tinker_path for c in settled(world.rest.list_checkpoints(run_id)).checkpoints]


@probe("RestClient.delete_checkpoint", checks="it is gone; deleting it again is refused")
def delete_checkpoint(world: World, it: Any, call: Call) -> None:
    path = world.saved()
    call(*parts(path))
    assert _gone(world, path)
    with refused("404"):
        call(*parts(path))


@probe("RestClient.delete_checkpoint_from_tinker_path", checks="it is gone; deleting it again is refused")
def delete_checkpoint_from_tinker_path(world: World, it: Any, call: Call) -> None:
    path = world.saved()
    call(path)
    assert _gone(world, path)
    with refused("404"):
        call(path)


def _check_archive(world: World, answer: Any) -> None:
    expires = answer.expires
    if expires.tzinfo is None:  # this SDK parses the header so
        expires = expires.replace(tzinfo=UTC)
    assert expires > datetime.now(UTC)
    with urllib.request.urlopen(answer.url) as response:
        content = response.read()
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        names = set(archive.getnames())
    assert {"adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"} <= names
    last = "0" if answer.url[-1] != "0" else "1"
    with refused("403"):
        urllib.request.urlopen(answer.url[:-1] + last)


@probe("RestClient.get_checkpoint_archive_url", checks="a signed URL of a tar.gz of the PEFT files")
def get_checkpoint_archive_url(world: World, it: Any, call: Call) -> None:
    _check_archive(world, call(*parts(world.saved())))


@probe(
    "RestClient.get_checkpoint_archive_url_from_tinker_path",
    checks="a signed URL of a tar.gz of the PEFT files",
)
def get_checkpoint_archive_url_from_tinker_path(world: World, it: Any, call: Call) -> None:
    _check_archive(world, call(world.saved()))


@probe("RestClient.get_external_weights_urls", checks="a URL per file that expires later than now")
def get_external_weights_urls(world: World, it: Any, call: Call) -> None:
    path = settled(world.training().save_weights_external(world.name())).path
    answer = call(path)
    assert answer.expires > datetime.now(UTC)
    with urllib.request.urlopen(answer.urls["adapter_model.safetensors"]) as response:
        assert int(response.headers["Content-Length"]) == len(response.read()) > 1000
    with refused("external_weights"):
        call(world.saved())


@probe("RestClient.copy_weights", checks="the copy loads and belongs to the project named")
def copy_weights(world: World, it: Any, call: Call) -> None:
    training = world.trained()
    copy = call(world.saved(training), "project-copies", ttl_seconds=7200)
    loaded = settled(world.service.create_training_client_from_state(copy))
    assert close(loss_of(loaded), loss_of(training))
    runs = settled(world.rest.list_training_runs(project_id="project-copies")).training_runs
    assert parts(copy)[0] in [run.training_run_id for run in runs]


def _public(world: World, path: str) -> bool:
    listed = settled(world.rest.list_checkpoints(parts(path)[0])).checkpoints
    return next(checkpoint.public for checkpoint in listed if checkpoint.tinker_path == path)


@probe("RestClient.publish_checkpoint_from_tinker_path", checks="public; publishing again is fine")
def publish_checkpoint_from_tinker_path(world: World, it: Any, call: Call) -> None:
    path = world.saved()
    for _ in range(2):
        call(path)
        assert _public(world, path)


@probe("RestClient.unpublish_checkpoint_from_tinker_path", checks="private again; doing so again is fine")
def unpublish_checkpoint_from_tinker_path(world: World, it: Any, call: Call) -> None:
    path = world.saved()
    settled(world.rest.publish_checkpoint_from_tinker_path(path))
    for _ in range(2):
        call(path)
        assert not _public(world, path)


@probe("RestClient.set_checkpoint_ttl_from_tinker_path", checks="sets and removes the expiry; 0 is refused")
def set_checkpoint_ttl_from_tinker_path(world: World, it: Any, call: Call) -> None:
    path = world.saved()
    run_id = parts(path)[0]
    call(path, 7200)
    (saved,) = settled(world.rest.list_checkpoints(run_id)).checkpoints
    assert 7000 < (saved.expires_at - datetime.now(UTC)).total_seconds() <= 7200
    call(path, None)
    (saved,) = settled(world.rest.list_checkpoints(run_id)).checkpoints
    assert saved.expires_at is None
    with refused("ttl_seconds"):
        call(path, 0)


@probe("RestClient.get_session", checks="its runs, samplers and metadata")
def get_session(world: World, it: Any, call: Call) -> None:
    training = world.training()
    session = call(training.model_id.partition(":")[0])
    assert training.model_id in session.training_run_ids
    assert session.user_metadata == {"made_by": "probe"}


@probe("RestClient.list_sessions", checks="holds this one; pages differ")
def list_sessions(world: World, it: Any, call: Call) -> None:
    first, rest = call(limit=1).sessions, call(limit=1000, offset=1).sessions
    assert len(first) == 1 and first[0] not in rest
    assert world.session_id() in first + rest


@probe("RestClient.get_sampler", checks="base model, and the path where there is one")
def get_sampler(world: World, it: Any, call: Call) -> None:
    path = settled(world.training().save_weights_for_sampler(world.name())).path
    settled(world.service.create_sampling_client(model_path=path))
    ids = settled(world.rest.get_session(world.session_id())).sampler_ids
    found = [call(sampler_id) for sampler_id in ids]
    assert all(sampler.base_model == world.model for sampler in found)
    assert path in [sampler.model_path for sampler in found]
