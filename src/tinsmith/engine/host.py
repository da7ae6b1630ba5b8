"""Putting an engine together: names and folders from the catalogue, numbers from the local engine."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tinsmith.types import UserError

from .interface import BaseModel, EngineOptions
from .models import Alias, Catalogue, ModelUnavailable

if TYPE_CHECKING:
    from .local import LocalEngine

log = logging.getLogger(__name__)


def offer(catalogue: Catalogue, names: Iterable[str], aliases: Iterable[Alias] = ()) -> dict[str, BaseModel]:
    """The models of these names or folders, ready on disk, under their public names and aliases."""
    offered = {}
    for name in names:
        entry = catalogue.resolve(name)
        offered[entry.name] = describe(entry.name, entry.folder)
    for alias in aliases:
        offered[alias.name] = describe(alias.name, catalogue.resolve(alias.target).folder)
    return offered


def describe(name: str, folder: Path) -> BaseModel:
    """What a model folder holds, read from its configuration alone."""
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    return BaseModel(
        name=name,
        folder=folder,
        arch=(config.get("architectures") or [config.get("model_type", "unknown")])[0],
        vocab_size=text["vocab_size"],
        max_context_length=text["max_position_embeddings"],
    )


class LocalModels:
    """Models brought in when they are first asked for: for a service whose one user owns this machine."""

    def __init__(self) -> None:
        self._catalogue = Catalogue(on_progress=log.info)

    def find(self, name: str) -> BaseModel:
        """A built-in model, one pulled before, or a folder."""
        try:
            entry = self._catalogue.resolve(name)
        except ModelUnavailable as error:
            raise UserError(str(error), field="base_model") from error
        return describe(name, entry.folder)

    def known(self) -> dict[str, int | None]:
        """Names there are without asking anybody, with their context lengths."""
        return {entry.name: entry.context_length for entry in self._catalogue.entries()}


def open_engine(base_models: dict[str, BaseModel], options: EngineOptions | None = None) -> LocalEngine:
    """The engine in this process."""
    from .local import LocalEngine  # brings torch in

    options = options or EngineOptions()
    device, dtype = choose(options)
    return LocalEngine(base_models, device=device, dtype=dtype, lora_alpha=options.lora_alpha)


def choose(options: EngineOptions) -> tuple[str, str]:
    """The device and the data type that `auto` stands for here; a device that is not here is refused."""
    import torch

    gpu = torch.cuda.is_available()
    device = ("cuda" if gpu else "cpu") if options.device == "auto" else options.device
    present = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if device not in ("cpu", "cuda", *present) or (device == "cuda" and not gpu):
        raise ValueError(f"device: {device!r} is not here; torch finds {', '.join(('cpu', *present))}")
    if options.dtype != "auto":
        return device, options.dtype
    return device, "float32" if device == "cpu" else "bfloat16"
