"""A base model in memory: its layers found and classified, its pass with or without an adapter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging as transformers_logging

from tinsmith.types import LoraConfig, UserError

from .fast.model import read_decoder, why_not_fast
from .lora import AdapterSlot, LoraWeights

LayerKind = Literal["attn", "mlp", "unembed"]

# A linear layer belongs to what the module around it is called.
_KIND_OF_PART: tuple[tuple[str, LayerKind], ...] = (
    ("attn", "attn"),
    ("attention", "attn"),
    ("mlp", "mlp"),
    ("feed_forward", "mlp"),
    ("ffn", "mlp"),
)
_CHECK_LENGTH, _CHECK_TOLERANCE = 8, 1e-2


class UnsupportedModel(RuntimeError):
    """The folder holds a model whose layers this engine cannot train exactly; the message says why."""


@dataclass(frozen=True, slots=True)
class _Layer:
    kind: LayerKind
    module: nn.Linear


class LoadedBase:
    """The frozen weights of one model folder. `hidden` and `logits` are the only ways through it."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.folder = folder
        self.device = device
        loader: Any = AutoModelForCausalLM
        with _no_progress_bar():
            self._model = loader.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation="sdpa",
                trust_remote_code=False,  # and no pickles: a folder is data, whoever made it
                use_safetensors=True,
            )
        self._model.to(device).eval().requires_grad_(False)
        self._decoder: Any = self._model.get_decoder()
        self._head = _head(self._model)
        self._layers = _classified(self._model, self._decoder, self._head)
        self._check_head()
        self.why_not_fast = why_not_fast(self._model)
        self.decoder = None if self.why_not_fast else read_decoder(self._model)
        self._slot = AdapterSlot()
        for name, layer in self._layers.items():
            self._slot.attach(name, layer.module)

    def linears(self, config: LoraConfig) -> dict[str, nn.Linear]:
        """The layers a run with this configuration trains."""
        wanted: dict[LayerKind, bool] = {
            "attn": config.train_attn,
            "mlp": config.train_mlp,
            "unembed": config.train_unembed,
        }
        return {name: layer.module for name, layer in self._layers.items() if wanted[layer.kind]}

    def all_linears(self) -> dict[str, nn.Linear]:
        """Every layer an adapter may change."""
        return {name: layer.module for name, layer in self._layers.items()}

    @cached_property
    def unembedding(self) -> str:
        """The name of the unembedding among the layers."""
        return next(name for name, layer in self._layers.items() if layer.kind == "unembed")

    @property
    def vocab_size(self) -> int:
        """How many tokens the model tells apart."""
        return self._head.out_features

    def new_cache(self) -> DynamicCache:
        """An empty key-value cache."""
        return DynamicCache(config=self._model.config)

    def hidden(self, ids: Tensor, weights: LoraWeights | None, cache: DynamicCache | None = None) -> Tensor:
        """Final hidden states [rows, length, size] of token ids [rows, length] that follow what is cached.

        Attention is causal, so tokens that pad a row at its end change nothing before them: no mask needed.
        """
        with self._slot.plugged(weights):
            output = self._decoder(input_ids=ids, past_key_values=cache, use_cache=cache is not None)
        states: Tensor = output.last_hidden_state
        return states

    def logits(self, hidden: Tensor, weights: LoraWeights | None) -> Tensor:
        """float32 logits [..., vocabulary] of hidden states."""
        with self._slot.plugged(weights):
            logits: Tensor = self._head(hidden)
        return logits.float()

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a sequence."""
        for config in (self._model.generation_config, self._model.config):
            ids = getattr(config, "eos_token_id", None)
            if ids is not None:
                return frozenset([ids] if isinstance(ids, int) else ids)
        return frozenset()

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer beside the weights; only stop strings need it."""
        try:
            return AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise UserError(
                "this model has no tokenizer here, so strings cannot be found; use token ids",
                field="sampling_params.stop",
            ) from error

    @torch.no_grad()
    def _check_head(self) -> None:
        """Some architectures scale or cap their logits; computing without that would be quietly wrong."""
        ids = torch.arange(_CHECK_LENGTH, device=self.device)[None] % self._head.out_features
        theirs = self._model(input_ids=ids, use_cache=False).logits.float()
        ours = self._head(self._decoder(input_ids=ids, use_cache=False).last_hidden_state).float()
        if (theirs - ours).abs().max() > _CHECK_TOLERANCE * theirs.abs().max().clamp(min=1):
            raise UnsupportedModel(
                f"{type(self._model).__name__} changes logits after the unembedding, which is not supported"
            )


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """transformers draws one on standard error for every load."""
    progress: Any = transformers_logging
    shown = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            progress.enable_progress_bar()


def _head(model: Any) -> nn.Linear:
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise UnsupportedModel(
            f"{type(model).__name__} has {type(head).__name__} as unembedding, not a linear layer"
        )
    return head


def _classified(model: Any, decoder: Any, head: nn.Linear) -> dict[str, _Layer]:
    """Every linear layer of the decoder's blocks, by its name in the model, then the unembedding."""
    names = {module: name for name, module in model.named_modules()}
    layers = {}
    for block in _blocks(decoder):
        for module in block.modules():
            name = names[module]
            if isinstance(module, nn.Linear):
                layers[name] = _Layer(_kind(name, module), module)
            elif any(parameter.ndim > 1 for parameter in module.parameters(recurse=False)):
                raise UnsupportedModel(
                    f"{name} ({type(module).__name__}) holds weight matrices outside linear layers; "
                    "no adapter can be put there"
                )
    return {**layers, names[head]: _Layer("unembed", head)}


def _blocks(decoder: Any) -> nn.ModuleList:
    depth = decoder.config.num_hidden_layers
    for child in decoder.children():
        if isinstance(child, nn.ModuleList) and len(child) == depth:
            return child
    raise UnsupportedModel(f"{type(decoder).__name__} has no list of {depth} decoder layers")


def _kind(name: str, module: nn.Module) -> LayerKind:
    for part in reversed(name.split(".")[:-1]):
        for mark, kind in _KIND_OF_PART:
            if mark in part:
                return kind
    raise UnsupportedModel(
        f"{name} ({type(module).__name__}) lies in no module called attention or MLP, "
        "so train_attn and train_mlp do not say whether to train it"
    )
