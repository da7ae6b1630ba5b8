"""What a training run is asked and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .base import Params, Reply
from .custom_loss import CustomLoss
from .datum import Datum
from .tensor import TensorData

LossFnType = Literal[
    "cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce", "custom"
]
LossFnOutput = dict[str, TensorData]
ModelID = str


@dataclass(frozen=True, slots=True)
class ForwardBackwardInput:
    """The batch of one forward or forward_backward call."""

    data: list[Datum]
    loss_fn: str
    loss_fn_config: Mapping[str, float | str] | None = None
    custom_loss: CustomLoss | None = None  # filled in by the service for ``loss_fn="custom"``


@dataclass(frozen=True, slots=True)
class ForwardBackwardOutput:
    """Per-datum tensors in input order, and metrics named ``name:reduction``.

    >>> output = training.forward([DATUM], "cross_entropy").result()
    >>> output.loss == output.metrics["loss:sum"], len(output.loss_fn_outputs)
    (True, 1)
    """

    loss_fn_output_type: str
    loss_fn_outputs: list[LossFnOutput]
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def loss(self) -> float | None:
        """The summed loss: ``metrics["loss:sum"]``."""
        return self.metrics.get("loss:sum")


class LoraConfig(Params):
    """Which layers get an adapter, and of what rank. The seed decides the initial weights.

    >>> LoraConfig(rank=8, train_unembed=False).train_attn
    True
    """

    rank: int
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True

    @model_validator(mode="after")
    def _something_trains(self) -> LoraConfig:
        if not (self.train_unembed or self.train_mlp or self.train_attn):
            raise ValueError("train_unembed, train_mlp, train_attn: at least one must be true")
        return self


class AdamParams(Params):
    """One step of AdamW, as in torch. ``grad_clip_norm`` 0 means no clipping.

    >>> training.optim_step(AdamParams(learning_rate=1e-3)).result().metrics is not None
    True
    """

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class OptimParamsBase(BaseModel):
    """Parameters of an optimizer family, told apart by ``type``."""

    model_config = ConfigDict(frozen=True, extra="allow")
    type: str


class DimuonParams(OptimParamsBase):
    """One step of dimuon.

    >>> training.optim_step(DimuonParams(learning_rate=0.1)).result()  # its update rule is not public
    Traceback (most recent call last):
    RequestFailedError: ...
    """

    type: str = "dimuon"
    learning_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    grad_clip_norm: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.9


OptimParams = AdamParams | OptimParamsBase


class OptimizerConfigBase(BaseModel):
    """The optimizer a run is created with, told apart by ``type``."""

    model_config = ConfigDict(frozen=True, extra="allow")
    type: str


class AdamOptimizerConfig(OptimizerConfigBase):
    """AdamW.

    >>> service.create_lora_training_client("tiny-llama", optimizer=AdamOptimizerConfig()).result().model_id
    '...:train:...'
    """

    type: str = "adamw"


class DimuonOptimizerConfig(OptimizerConfigBase):
    """dimuon.

    >>> DimuonOptimizerConfig().type
    'dimuon'
    """

    type: str = "dimuon"
    version: int = 1


class OptimStepResponse(Reply):
    """What an optimizer step reports, e.g. the gradient norm before clipping.

    >>> isinstance(training.optim_step(AdamParams()).result(), OptimStepResponse)
    True
    """

    metrics: dict[str, float] | None = None


class SaveWeightsResponse(Reply):
    """Where a training checkpoint was saved."""

    path: str
    type: Literal["save_weights"] = "save_weights"


class LoadWeightsResponse(Reply):
    """What was loaded."""

    path: str | None = None
    model_id: str | None = None
    type: Literal["load_weights"] = "load_weights"


class SaveWeightsForSamplerResponse(Reply):
    """Where a sampler snapshot was saved."""

    path: str
    type: Literal["save_weights_for_sampler"] = "save_weights_for_sampler"


class ModelData(Reply):
    """What a model is."""

    arch: str | None = None
    model_name: str | None = None
    tokenizer_id: str | None = None


class GetInfoResponse(Reply):
    """What a run is."""

    model_data: ModelData
    model_id: str
    is_lora: bool | None = None
    lora_rank: int | None = None
    model_name: str | None = None
    optimizer_config: dict[str, Any] | None = None
    type: Literal["get_info"] | None = "get_info"


class SupportedModel(Reply):
    """One base model the service offers."""

    model_name: str | None = None
    max_context_length: int | None = None
    trainable: bool | None = None
    sampleable: bool | None = None


class GetServerCapabilitiesResponse(Reply):
    """The base models the service offers."""

    supported_models: list[SupportedModel]
