"""Adapters on disk in PEFT's layout, so any inference stack loads them; the optimizer's state beside them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor, nn

from tinsmith import failpoints
from tinsmith.types import UserError

from .adamw import AdamState
from .lora import LoraPair, LoraWeights

CONFIG, WEIGHTS, OPTIMIZER = "adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors"
GRADIENTS = "gradients.safetensors"
_PREFIX = "base_model.model."
_KEY = re.compile(re.escape(_PREFIX) + r"(?P<layer>.+)\.(?P<part>lora_[AB])\.weight")
# Options of PEFT that change what the tensors mean; none of them can be honoured here.
_MUST_BE_OFF = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save",
                "fan_in_fan_out", "layer_replication", "trainable_token_indices", "lora_bias")  # fmt: skip


@dataclass(frozen=True, slots=True)
class SavedAdapter:
    """What a folder holds."""

    weights: LoraWeights
    optimizer: AdamState | None
    gradients: dict[str, Tensor] | None = None  # accumulated since the last step


def write_adapter(folder: Path, saved: SavedAdapter, base_name: str) -> None:
    """Write the files into an existing folder; on return they are on the disk."""
    config = _peft_config(saved.weights, base_name)
    _write(folder / CONFIG, json.dumps(config, indent=2, sort_keys=True).encode())
    failpoints.reach("adapter.config")
    tensors = {_peft_key(name): tensor for name, tensor in saved.weights.tensors().items()}
    _write(folder / WEIGHTS, _dumped(tensors))
    failpoints.reach("adapter.weights")
    if saved.optimizer is not None:
        _write(folder / OPTIMIZER, _dumped(_optimizer_tensors(saved.optimizer)))
        failpoints.reach("adapter.optimizer")
    if saved.gradients is not None:
        _write(folder / GRADIENTS, _dumped(saved.gradients))
        failpoints.reach("adapter.gradients")
    _sync(folder)
    failpoints.reach("adapter.synced")


def read_adapter(folder: Path, optimizer: bool) -> SavedAdapter:
    """Read a folder, or say which file of it is missing or wrong."""
    config = _read_config(folder / CONFIG)
    tensors = _parsed(folder / WEIGHTS)
    weights = _weights(config, tensors, folder)
    return SavedAdapter(weights, _read_optimizer(folder / OPTIMIZER) if optimizer else None)


def read_state(folder: Path) -> SavedAdapter:
    """Read a folder with all there is of a run."""
    saved = read_adapter(folder, optimizer=True)
    gradients = _parsed(folder / GRADIENTS) if (folder / GRADIENTS).exists() else None
    return replace(saved, gradients=gradients)


def check_fits(saved: SavedAdapter, linears: Mapping[str, nn.Linear], *, every_layer: bool) -> None:
    """Refuse an adapter whose layers or shapes are not the model's (for a run: exactly the run's)."""
    weights = saved.weights
    unknown, missing = weights.pairs.keys() - linears.keys(), linears.keys() - weights.pairs.keys()
    if unknown:
        raise _differs(f"holds {_some(unknown)}, which the run does not train or the model does not have")
    if missing and every_layer:
        raise _differs(f"lacks {_some(missing)}, which the run trains")
    for name, pair in weights.pairs.items():
        linear = linears[name]
        expected = ((weights.rank, linear.in_features), (linear.out_features, weights.rank))
        found = (tuple(pair.a.shape), tuple(pair.b.shape))
        if found != expected:
            raise _differs(f"{name} has the shapes {found}, the model needs {expected}")
    _check_moments(saved)


def _check_moments(saved: SavedAdapter) -> None:
    if saved.optimizer is None or saved.optimizer.step == 0:
        return
    expected = {name: tensor.shape for name, tensor in saved.weights.tensors().items()}
    for moments in (saved.optimizer.exp_avg, saved.optimizer.exp_avg_sq):
        if {name: tensor.shape for name, tensor in moments.items()} != expected:
            raise _differs("has an optimizer state that does not fit its weights")


def _differs(what: str) -> UserError:
    return UserError(f"the saved adapter {what}", field="path")


def _some(names: set[str]) -> str:
    first = sorted(names)[0]
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more layers"


def _peft_key(tensor_name: str) -> str:
    return f"{_PREFIX}{tensor_name}.weight"


def _peft_config(weights: LoraWeights, base_name: str) -> dict[str, Any]:
    return {
        "base_model_name_or_path": base_name,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": weights.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": weights.rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in weights.pairs}),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path.name} is not JSON: {error}", field="path") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise UserError(f"{path.name} does not describe a LoRA adapter", field="path")
    on = [key for key in _MUST_BE_OFF if config.get(key)]
    if on or config.get("bias", "none") != "none":
        raise UserError(f"{path.name} asks for {(on or ['bias'])[0]}, which is not supported", field="path")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float) or alpha <= 0:
        raise UserError(
            f"{path.name} needs r >= 1 and lora_alpha > 0, not {rank!r} and {alpha!r}", field="path"
        )
    return config


def _weights(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> LoraWeights:
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None or tensor.ndim != 2 or not tensor.is_floating_point():
            raise UserError(
                f"{WEIGHTS} in {folder.name} holds {key!r}, which is no LoRA matrix", field="path"
            )
        parts.setdefault(match["layer"], {})[match["part"]] = tensor.float()
    if halves := [layer for layer, part in parts.items() if len(part) != 2]:
        raise UserError(f"{WEIGHTS} holds only one of two matrices of {halves[0]}", field="path")
    pairs = {layer: LoraPair(part["lora_A"], part["lora_B"]) for layer, part in parts.items()}
    return LoraWeights(config["r"], float(config["lora_alpha"]), pairs)


def _optimizer_tensors(state: AdamState) -> dict[str, Tensor]:
    tensors = {"step": torch.tensor(state.step)}
    for kind, moments in (("exp_avg", state.exp_avg), ("exp_avg_sq", state.exp_avg_sq)):
        tensors |= {f"{kind}.{name}": tensor for name, tensor in moments.items()}
    return tensors


def _read_optimizer(path: Path) -> AdamState:
    if not path.is_file():
        raise UserError(
            "holds no optimizer state; load the weights alone, or a training checkpoint", field="path"
        )
    tensors = _parsed(path)
    if "step" not in tensors:
        raise UserError(f"{path.name} does not say how many steps were taken", field="path")
    moments = {kind: _moments(tensors, f"{kind}.") for kind in ("exp_avg", "exp_avg_sq")}
    return AdamState(int(tensors["step"]), **moments)


def _moments(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def _dumped(tensors: dict[str, Tensor]) -> bytes:
    return dump_tensors(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, metadata={"format": "pt"}
    )


def _parsed(path: Path) -> dict[str, Tensor]:
    try:
        return parse_tensors(_read(path))
    except SafetensorError as error:
        raise UserError(f"{path.name} is damaged: {error}", field="path") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path.name} is missing in the saved folder", field="path") from None


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """A new file's name is on the disk only once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
