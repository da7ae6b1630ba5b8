"""What each kind of training operation does: one method a kind, called in seq order within a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tinsmith.engine.interface import Engine
from tinsmith.store import Blobs
from tinsmith.types import (
    CreateModelRequest,
    LoraConfig,
    OptimStepRequest,
    SaveWeightsForSamplerRequest,
    UserError,
)

from . import ids
from .base_models import BaseModels
from .checkpoints import Checkpoints
from .custom_losses import CustomLosses
from .journal import Operation
from .kinds import AcceptedLoad
from .quotas import Quotas
from .saving import Saver
from .settings import Settings

if TYPE_CHECKING:
    from .run import Run
    from .samplers import Samplers


class Executor:
    """Carries operations out on the engine, the checkpoints and the samplers."""

    def __init__(
        self,
        engine: Engine,
        base_models: BaseModels,
        checkpoints: Checkpoints,
        samplers: Samplers,
        custom_losses: CustomLosses,
        blobs: Blobs,
        quotas: Quotas,
        settings: Settings,
    ) -> None:
        self._engine = engine
        self._base_models = base_models
        self._checkpoints = checkpoints
        self._samplers = samplers
        self._custom_losses = custom_losses
        self._saver = Saver(engine, checkpoints, blobs, quotas)
        self._quotas = quotas
        self._settings = settings
        self._methods: dict[str, Callable[[Run, Operation], Awaitable[Any]]] = {
            "create_model": self._create_model,
            "forward": self._forward_backward,
            "forward_backward": self._forward_backward,
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "load_weights": self._load_weights,
            "save_weights_external": self._save_weights_external,
            "save_weights_for_sampler": self._save_weights_for_sampler,
            "unload_model": self._unload_model,
        }

    async def execute(self, run: Run, operation: Operation) -> Any:
        """Do it; the result is what the kind's codec encodes."""
        return await self._methods[operation.kind](run, operation)

    async def _create_model(self, run: Run, operation: Operation) -> Any:
        request: CreateModelRequest = operation.payload
        _check_optimizer(request.optimizer_config)
        if not 1 <= run.lora.rank <= self._settings.max_rank:
            raise UserError(
                f"{run.lora.rank} is not between 1 and {self._settings.max_rank}", field="lora_config.rank"
            )
        await self._base_models.get(run.base_model)
        await self._create_adapter(run)
        return {"model_id": run.run_id, "type": "create_model"}

    async def _create_adapter(self, run: Run) -> None:
        tenant = self._quotas.tenant(run.owner)
        await self._engine.create_adapter(run.run_id, run.base_model, run.lora, tenant)
        self._base_models.mark_loaded(run.base_model)

    async def _forward_backward(self, run: Run, operation: Operation) -> Any:
        backward = operation.kind == "forward_backward"
        batch = await self._custom_losses.beside(run.session_id, operation.payload.batch)
        return await self._engine.forward_backward(run.run_id, batch, backward)

    async def _optim_step(self, run: Run, operation: Operation) -> Any:
        request: OptimStepRequest = operation.payload
        if request.adam_params is None:
            family = (request.optimizer_params or {}).get("type")
            raise UserError(
                f"{family!r} is not available; this run's optimizer is adamw", field="optimizer_params"
            )
        metrics = await self._engine.optim_step(run.run_id, request.adam_params)
        return {"metrics": metrics}

    async def _save_weights(self, run: Run, operation: Operation) -> Any:
        row = await self._saver.save(run, operation, "weights", operation.payload.path)
        return {"path": row["tinker_path"], "type": "save_weights"}

    async def _save_weights_external(self, run: Run, operation: Operation) -> Any:
        row = await self._saver.save(run, operation, "external_weights", operation.payload.path)
        return {"path": row["tinker_path"], "size_bytes": row["size_bytes"], "type": "save_weights_external"}

    async def _load_weights(self, run: Run, operation: Operation) -> Any:
        request: AcceptedLoad = operation.payload
        _check_optimizer(request.optimizer_config)
        row = await self._checkpoints.find(request.reader or run.owner, request.path, purpose="load_weights")
        if row.base_model != run.base_model:
            raise UserError(
                f"{request.path!r} is of {row.base_model!r}, this run is of {run.base_model!r}", field="path"
            )
        if operation.seq_id == 0:  # the run is made by this very load
            await self._base_models.get(run.base_model)
            await self._create_adapter(run)
        elif LoraConfig(**row.lora).model_copy(update={"seed": run.lora.seed}) != run.lora:
            raise UserError(
                f"{request.path!r} was saved with {_describe(LoraConfig(**row.lora))}, "
                f"this run has {_describe(run.lora)}",
                field="path",
            )
        optimizer = request.optimizer
        if optimizer is None:
            optimizer = self._settings.legacy_load_restores_optimizer and row.has_optimizer
        elif optimizer and not row.has_optimizer:
            raise UserError(
                f"{request.path!r} holds no optimizer state; load weights saved by save_state", field="path"
            )
        await self._engine.load_adapter(run.run_id, self._checkpoints.folder(row), optimizer)
        return {"path": request.path, "model_id": run.run_id, "type": "load_weights"}

    async def _save_weights_for_sampler(self, run: Run, operation: Operation) -> Any:
        request: SaveWeightsForSamplerRequest = operation.payload
        if request.path is not None:
            row = await self._saver.save(run, operation, "sampler_weights", request.path)
            return {"path": row["tinker_path"], "type": "save_weights_for_sampler"}
        assert request.sampling_session_seq_id is not None
        sampler_id = ids.sampler_id(run.session_id, request.sampling_session_seq_id)
        staged = await self._saver.write(run, optimizer=False)
        await self._samplers.add_snapshot(run, sampler_id, staged)
        return {"path": None, "sampling_session_id": sampler_id, "type": "save_weights_for_sampler"}

    async def _unload_model(self, run: Run, operation: Operation) -> Any:
        await self._engine.drop_adapter(run.run_id)
        run.closing = True
        return {"model_id": run.run_id, "type": "unload_model"}


def _check_optimizer(config: dict[str, Any] | None) -> None:
    family = (config or {"type": "adamw"}).get("type")
    if family != "adamw":
        raise UserError(f"{family!r} is not available; use adamw", field="optimizer_config.type")


def _describe(lora: LoraConfig) -> str:
    layers = [name for name in ("attn", "mlp", "unembed") if getattr(lora, f"train_{name}")]
    return f"rank {lora.rank} on {' + '.join(layers)}"
