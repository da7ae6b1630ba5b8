"""Saving a run's weights under a name: to resume from, to sample, or to take away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinsmith.engine.interface import Engine
from tinsmith.store import Blobs
from tinsmith.types import SaveWeightsForSamplerRequest, SaveWeightsRequest, UserError
from tinsmith.types.checkpoint import PATH_KINDS, check_checkpoint_name
from tinsmith.types.transfer import SaveWeightsExternalRequest

from .checkpoints import Checkpoints, expiry
from .encryption import encrypt_folder, parse_recipients
from .exports import COMPLETE
from .journal import Operation
from .quotas import Quotas

if TYPE_CHECKING:
    from .run import Run

SaveRequest = SaveWeightsRequest | SaveWeightsForSamplerRequest | SaveWeightsExternalRequest


class Saver:
    """Writes adapters aside and enters them in the catalogue."""

    def __init__(self, engine: Engine, checkpoints: Checkpoints, blobs: Blobs, quotas: Quotas) -> None:
        self._engine = engine
        self._checkpoints = checkpoints
        self._blobs = blobs
        self._quotas = quotas

    async def save(self, run: Run, operation: Operation, kind: str, name: str) -> dict[str, Any]:
        """A checkpoint of this kind; gives its catalogue row."""
        request: SaveRequest = operation.payload
        row = _row(run, operation, kind, name)
        recipients = parse_recipients(getattr(request, "age_encryption_recipients", None) or ())
        await self._checkpoints.check_free(
            row["tinker_path"], operation.request_id, getattr(request, "overwrite", False)
        )
        staged = await self.write(run, optimizer=row["has_optimizer"])
        if recipients:
            await self._encrypt(staged, recipients)
        await self._checkpoints.add(staged, row)
        return row

    async def write(self, run: Run, *, optimizer: bool) -> Path:
        """The adapter's files in a folder aside."""
        await self._quotas.check_storage(run.owner)
        staged = self._blobs.stage()
        try:
            await self._engine.save_adapter(run.run_id, staged, optimizer)
            (staged / COMPLETE).touch()
        except BaseException:
            self._blobs.discard(staged)
            raise
        return staged

    async def _encrypt(self, staged: Path, recipients: list[Any]) -> None:
        try:
            await asyncio.to_thread(encrypt_folder, staged, recipients)
        except BaseException:
            self._blobs.discard(staged)
            raise


def _row(run: Run, operation: Operation, kind: str, name: str) -> dict[str, Any]:
    request: SaveRequest = operation.payload
    try:
        check_checkpoint_name(name)
    except ValueError as error:
        raise UserError(str(error)) from error
    checkpoint_id = f"{kind}/{name}"
    return {
        "tinker_path": f"tinker://{run.run_id}/{checkpoint_id}",
        "run_id": run.run_id,
        "owner": run.owner,
        "checkpoint_type": PATH_KINDS[kind],
        "checkpoint_id": checkpoint_id,
        "base_model": run.base_model,
        "lora": run.lora.model_dump(),
        "has_optimizer": kind == "weights",
        # Of this operation alone: what is overwritten may have copies.
        "blob": f"checkpoints/{run.run_id}/{checkpoint_id}/{operation.seq_id}",
        "expires_at": expiry(request.ttl_seconds),
        "public": False,
        "user_metadata": getattr(request, "user_metadata", None),
        "request_id": operation.request_id,
    }
