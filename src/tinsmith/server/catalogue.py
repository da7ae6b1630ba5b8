"""Endpoints of runs and checkpoints."""

from __future__ import annotations

from starlette.responses import Response

from tinsmith.service.checkpoints import expiry
from tinsmith.service.checkpoints import weights_info as describe_weights
from tinsmith.types import CheckpointsListResponse, Cursor, TrainingRunsResponse
from tinsmith.types.replies import Empty

from .call import Call, reply


async def list_runs(call: Call) -> Response:
    """A page of runs, newest first."""
    limit, offset = call.query.limit, call.query.offset
    runs, total = await call.service.run_listing.page(call.owner, limit, offset, call.query.project_id)
    cursor = Cursor(offset=offset, limit=limit, total_count=total)
    return reply(TrainingRunsResponse(training_runs=runs, cursor=cursor))


async def get_run(call: Call) -> Response:
    """One run."""
    return reply(await call.service.run_listing.get(call.owner, call.path["run_id"]))


async def list_run_checkpoints(call: Call) -> Response:
    """All checkpoints of a run."""
    run = await call.service.run_listing.get(call.owner, call.path["run_id"])
    saved = await call.service.checkpoints.of_run(run.training_run_id, call.checkpoint_types)
    return reply(CheckpointsListResponse(checkpoints=saved))


async def list_user_checkpoints(call: Call) -> Response:
    """A page of all checkpoints, newest first."""
    limit, offset = call.query.limit, call.query.offset
    saved, total = await call.service.checkpoints.of_user(call.owner, limit, offset, call.checkpoint_types)
    cursor = Cursor(offset=offset, limit=limit, total_count=total)
    return reply(CheckpointsListResponse(checkpoints=saved, cursor=cursor))


def _address(call: Call) -> tuple[str, str]:
    return call.path["run_id"], f"{call.path['kind']}/{call.path['name']}"


async def delete_checkpoint(call: Call) -> Response:
    """Remove a checkpoint."""
    await call.service.checkpoints.delete(call.owner, *_address(call))
    return reply(Empty())


async def publish(call: Call) -> Response:
    """Let everybody read a checkpoint."""
    await call.service.checkpoints.change(call.owner, *_address(call), public=True)
    return reply(Empty())


async def unpublish(call: Call) -> Response:
    """Let only its owner read a checkpoint."""
    await call.service.checkpoints.change(call.owner, *_address(call), public=False)
    return reply(Empty())


async def set_ttl(call: Call) -> Response:
    """Say how long a checkpoint is kept."""
    await call.service.checkpoints.change(
        call.owner, *_address(call), expires_at=expiry(call.body.ttl_seconds)
    )
    return reply(Empty())


async def weights_info(call: Call) -> Response:
    """What is needed to load a checkpoint."""
    return reply(describe_weights(await call.service.checkpoints.find(call.owner, call.body.tinker_path)))
