"""Probes of what concerns the account: projects, search, traces, audit, usage, identity."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from probing import World, loss_of, parts, probe, refused, settled
from tinker import types

Call = Callable[..., Any]


@probe("RestClient.assign_session_project", checks="the session's runs are listed under the project")
def assign_session_project(world: World, it: Any, call: Call) -> None:
    training = world.training()
    call(training.model_id.partition(":")[0], "project-moved")
    runs = settled(world.rest.list_training_runs(project_id="project-moved")).training_runs
    assert training.model_id in [run.training_run_id for run in runs]


@probe("RestClient.search_sessions", checks="finds by id and metadata, and nothing else; pages by cursor")
def search_sessions(world: World, it: Any, call: Call) -> None:
    session_id = world.session_id()
    (found,) = call(types.SessionSearchRequest(session_id=session_id)).sessions
    assert found.session_id == session_id and found.status.type == "active"
    by_metadata = call(types.SessionSearchRequest(user_metadata={"made_by": "probe"}, limit=200)).sessions
    assert session_id in [session.session_id for session in by_metadata]
    assert call(types.SessionSearchRequest(user_metadata={"made_by": "nobody"})).sessions == []
    page = call(types.SessionSearchRequest(limit=1))
    if page.next_cursor is not None:
        following = call(types.SessionSearchRequest(limit=1, cursor=page.next_cursor)).sessions
        assert following[0].session_id != page.sessions[0].session_id


@probe("RestClient.export_session_trace", checks="a URL of a trace that names the session's operations")
def export_session_trace(world: World, it: Any, call: Call) -> None:
    training = world.training()
    loss_of(training)
    with urllib.request.urlopen(call(training.model_id.partition(":")[0])) as response:
        trace = response.read()
    assert b"forward" in trace


@probe("RestClient.whoami", checks="who the key belongs to")
def whoami(world: World, it: Any, call: Call) -> None:
    identity = call()
    assert identity.user_urn and identity.org_urn.startswith("tml:organization:")


@probe(
    "RestClient.get_audit_log",
    "AdminClient.get_audit_log",
    checks="saving and deleting a checkpoint are told",
)
def get_audit_log(world: World, it: Any, call: Call) -> None:
    path = world.saved()
    settled(world.rest.delete_checkpoint_from_tinker_path(path))
    today = datetime.now(UTC).date()
    entries = [entry for entry in call("checkpoints", today).entries if entry.tinker_path == path]
    assert len(entries) >= 2 and all(entry.model_id == parts(path)[0] for entry in entries)
    assert call("checkpoints", today - timedelta(days=400)).entries == []


@probe(
    "RestClient.get_billing_usage",
    "AdminClient.get_billing_usage",
    checks="training and sampling are counted in tokens",
)
def get_billing_usage(world: World, it: Any, call: Call) -> None:
    training = world.trained()
    sampler = settled(training.save_weights_and_get_sampling_client())
    from probing import prompt

    settled(sampler.sample(prompt(), 1, types.SamplingParams(max_tokens=3, stop=[])))
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    usage = call(hour - timedelta(hours=1), hour + timedelta(hours=1)).data
    session_id = world.session_id()
    mine = [event for event in usage if event.session_id == session_id]
    counted = {event.event_info.type: event.event_info for event in mine}
    assert counted["training"].token_count >= 7
    assert counted["sampling_sample"].token_count >= 3
    assert counted["sampling_prefill"].token_count >= 1
    with refused("ending_before"):
        call(hour - timedelta(days=30), hour)


@probe(
    "RestClient.get_current_checkpoint_storage_usage",
    "AdminClient.get_current_checkpoint_storage_usage",
    checks="a new checkpoint adds its own size",
)
def get_current_checkpoint_storage_usage(world: World, it: Any, call: Call) -> None:
    def stored() -> tuple[int, int]:
        rows = call().data
        return sum(row.checkpoint_count for row in rows), sum(row.size_bytes for row in rows)

    count, size = stored()
    path = world.saved()
    (saved,) = settled(world.rest.list_checkpoints(parts(path)[0])).checkpoints
    assert stored() == (count + 1, size + saved.size_bytes)


@probe(
    "tinker auth login",
    "tinker auth logout",
    "tinker auth status",
    checks="stores the key, uses it, forgets it",
)
def auth(world: World, it: Any, call: Call) -> None:
    home = str(world.folder_of_its_own())
    without = {"HOME": home, "TINKER_API_KEY": ""}
    assert "no" in world.cli("auth", "status", ok=False, **without)
    assert "Logged in" in world.cli("auth", "login", answer=f"{world.key}\n", **without)
    assert "accessible: yes" in world.cli("auth", "status", **without)
    world.cli("auth", "logout", **without)
    world.cli("auth", "status", ok=False, **without)


@probe("tinker auth whoami", checks="who the key belongs to")
def auth_whoami(world: World, it: Any, call: Call) -> None:
    assert json.loads(world.cli("-f", "json", "auth", "whoami"))["user_urn"]


@probe("tinker billing usage", checks="JSON and CSV hold the training just done")
def billing_usage(world: World, it: Any, call: Call) -> None:
    world.trained()
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    window = [(hour + timedelta(hours=by)).strftime("%Y-%m-%dT%H:00:00Z") for by in (-1, 1)]
    assert "training" in world.cli("-f", "json", "billing", "usage", *window)
    assert "training" in world.cli("billing", "usage", *window, "--csv", "-")


@probe("tinker billing checkpoint-storage", checks="counts what is stored")
def billing_checkpoint_storage(world: World, it: Any, call: Call) -> None:
    world.saved()
    assert '"checkpoint_count"' in world.cli("-f", "json", "billing", "checkpoint-storage")


@probe("tinker session export-trace", checks="a file with the trace; its URL alone")
def session_export_trace(world: World, it: Any, call: Call) -> None:
    session_id = world.session_id()
    assert world.cli("session", "export-trace", session_id, "--url-only").startswith("http")
    target = world.folder_of_its_own() / "trace"
    world.cli("session", "export-trace", session_id, "-o", str(target))
    assert target.stat().st_size > 0
