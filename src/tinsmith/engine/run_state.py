"""All there is of a run, taken out of the engine and put back in, to the bit."""

from __future__ import annotations

import torch

from tinsmith.types import LoraConfig

from .adamw import AdamState
from .base import LoadedBase
from .interface import BaseModel, Tenant
from .peft_files import SavedAdapter
from .trainer import TrainingAdapter


def taken(adapter: TrainingAdapter) -> SavedAdapter:
    """A copy of weights, optimizer and accumulated gradient that later steps do not touch."""
    cpu = torch.device("cpu")
    gradients = adapter.gradients
    if gradients is not None:
        gradients = {name: gradient.to(cpu, copy=True) for name, gradient in gradients.items()}
    return SavedAdapter(adapter.weights.copy(cpu), adapter.optimizer.copy(cpu), gradients)


def restored(
    base: LoadedBase,
    model: BaseModel,
    lora: LoraConfig,
    saved: SavedAdapter,
    device: torch.device,
    tenant: Tenant,
) -> TrainingAdapter:
    """The run again. Tensors are copied out of the file, so that they lie in memory as they did."""
    gradients = saved.gradients
    if gradients is not None:
        gradients = {name: gradient.to(device, copy=True) for name, gradient in gradients.items()}
    optimizer = saved.optimizer.copy(device) if saved.optimizer is not None else AdamState()
    return TrainingAdapter(base, model, lora, saved.weights.copy(device), optimizer, gradients, tenant)
