"""TrainingClient: one run, and the operations on it in the order they are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel

from tinsmith.types import (
    AdamParams,
    Datum,
    ForwardBackwardOutput,
    GetInfoResponse,
    LoadWeightsRequest,
    LoadWeightsResponse,
    ModelID,
    OptimParams,
    OptimStepRequest,
    OptimStepResponse,
    SaveWeightsForSamplerRequest,
    SaveWeightsForSamplerResponse,
    SaveWeightsRequest,
    SaveWeightsResponse,
)
from tinsmith.types.checkpoint import ParsedCheckpointTinkerPath, check_checkpoint_name
from tinsmith.types.transfer import SaveWeightsExternalRequest, SaveWeightsExternalResponse
from tinsmith.types.validation import check_adam

from .api import Api
from .console import console_url
from .errors import TinkerError
from .futures import APIFuture, spawn, spawn_into
from .loss_handle import LossHandle
from .replies import SnapshotResult
from .results import (
    LOAD_WEIGHTS,
    OPTIM_STEP,
    SAVE_EXTERNAL,
    SAVE_WEIGHTS,
    SNAPSHOT,
    pending_of,
)
from .retry import RetryConfig
from .run import Run
from .sampling_client import SamplingClient, open_sampler
from .session import Live, Session
from .telemetry import Telemetry
from .tokenized import Tokenized
from .tokenizer import load_tokenizer, tokenizer_id

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .client_futures import BackcompatSamplingClientFuture
    from .custom_loss import CustomLoss

_T = TypeVar("_T")
_R = TypeVar("_R", bound=BaseModel)


class TrainingClient(Tokenized):
    """A model being trained. Made by a `ServiceClient`.

    Every operation returns an `APIFuture` at once and is carried out in the order of the calls,
    from whatever thread or task they come::

        forward_backward = training_client.forward_backward(data, "cross_entropy")
        step = training_client.optim_step(tinsmith.AdamParams(learning_rate=1e-4))
        print(forward_backward.result().metrics["loss:sum"])

    The ``_async`` twins are coroutines that give the same future, so both
    ``await client.optim_step(...)`` and ``await (await client.optim_step_async(...))`` give the result.
    What is wrong with a call as such is raised by the call itself, before anything is sent.

    >>> before = training.forward([DATUM], "cross_entropy").result().loss
    >>> for _ in range(3):
    ...     step = training.forward_backward([DATUM], "cross_entropy")
    ...     stepped = training.optim_step(AdamParams(learning_rate=1e-2))
    >>> training.forward([DATUM], "cross_entropy").result().loss < before
    True
    """

    def __init__(self, session: Session, live: Live, info: GetInfoResponse) -> None:
        self._session = session
        self._live = live
        self._info = info
        self._run = Run(session, live, info.model_id)

    @property
    def model_id(self) -> ModelID:
        """The run's id."""
        return self._info.model_id

    @property
    def holder(self) -> Session:
        """The session it belongs to."""
        return self._session

    def get_console_url(self) -> str:
        """Where the run is to be looked at."""
        return console_url(self._session.config, "training_runs", self.model_id)

    def get_info(self) -> GetInfoResponse:
        """What the run is: its base model, adapter and tokenizer."""
        return self._info

    async def get_info_async(self) -> GetInfoResponse:
        """What the run is."""
        return self._info

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer, loaded with transformers (blocks while it loads)."""
        data = self._info.model_data
        return load_tokenizer(tokenizer_id(data.tokenizer_id, self._base_model))

    @property
    def _base_model(self) -> str | None:
        return self._info.model_data.model_name or self._info.model_name

    # ---- passes ---------------------------------------------------------------------------------

    def forward(
        self, data: list[Datum], loss_fn: str, loss_fn_config: Mapping[str, float | str] | None = None
    ) -> APIFuture[ForwardBackwardOutput]:
        """The loss of a batch, without touching gradients."""
        return self._run.run_pass(data, loss_fn, loss_fn_config, forward_only=True)

    async def forward_async(
        self, data: list[Datum], loss_fn: str, loss_fn_config: Mapping[str, float | str] | None = None
    ) -> APIFuture[ForwardBackwardOutput]:
        """`forward`, for ``await``."""
        return self.forward(data, loss_fn, loss_fn_config)

    def forward_backward(
        self, data: list[Datum], loss_fn: str, loss_fn_config: Mapping[str, float | str] | None = None
    ) -> APIFuture[ForwardBackwardOutput]:
        """The loss of a batch; its gradient is added to the accumulated one.

        The loss is summed over tokens and datums. Large batches travel in several requests and
        come back as one result.
        """
        return self._run.run_pass(data, loss_fn, loss_fn_config, forward_only=False)

    async def forward_backward_async(
        self, data: list[Datum], loss_fn: str, loss_fn_config: Mapping[str, float | str] | None = None
    ) -> APIFuture[ForwardBackwardOutput]:
        """`forward_backward`, for ``await``."""
        return self.forward_backward(data, loss_fn, loss_fn_config)

    def forward_backward_custom(
        self,
        data: list[Datum],
        loss_fn: CustomLoss | LossHandle,
        *,
        loss_type_input: Literal["logprobs"] | None = None,
    ) -> APIFuture[ForwardBackwardOutput]:
        """A loss of your own, in torch, of the log-probabilities of the target tokens::

            def loss_fn(data, logprobs):  # a tensor for each datum, shaped like its target_tokens
                loss = -sum(lp.sum() for lp in logprobs)
                return loss, {"nll:sum": loss.item()}

        It runs on a thread of its own, between a forward and a backward pass whose places in the order
        are both taken now. If it fails, the future says so and the run goes on: the backward's place
        is used up by something harmless, and an ``optim_step`` called meanwhile still happens.

        A `LossHandle` from `ServiceClient.create_custom_loss` runs on the service instead, where it can.
        """
        if loss_type_input not in (None, "logprobs"):
            raise ValueError(f"loss_type_input: {loss_type_input!r} is not known; use 'logprobs'")
        if isinstance(loss_fn, LossHandle):
            return self._run_handle(list(data), loss_fn)
        if not callable(loss_fn):
            raise TypeError(
                "loss_fn: a function of (data, logprobs) is needed; use forward_backward for a named one"
            )
        return self._run.run_custom(data, loss_fn)

    def _run_handle(self, data: list[Datum], loss: LossHandle) -> APIFuture[ForwardBackwardOutput]:
        loss.check(data, self._live.session_id)
        if loss.loss_id is None:
            return self._run.run_custom(data, loss.locally)
        return self._run.run_pass(data, "custom", {"loss_id": loss.loss_id}, forward_only=False)

    async def forward_backward_custom_async(
        self,
        data: list[Datum],
        loss_fn: CustomLoss | LossHandle,
        *,
        loss_type_input: Literal["logprobs"] | None = None,
    ) -> APIFuture[ForwardBackwardOutput]:
        """`forward_backward_custom`, for ``await``."""
        return self.forward_backward_custom(data, loss_fn, loss_type_input=loss_type_input)

    # ---- steps and checkpoints ------------------------------------------------------------------

    def optim_step(
        self, optim_params: OptimParams | None = None, *, adam_params: AdamParams | None = None
    ) -> APIFuture[OptimStepResponse]:
        """Apply the accumulated gradient and clear it."""
        if (optim_params is None) == (adam_params is None):
            raise TypeError("optim_step() takes exactly one of optim_params and adam_params")
        params = optim_params if optim_params is not None else adam_params
        if isinstance(params, AdamParams):
            check_adam(params)
            fields: dict[str, Any] = {"adam_params": params}
        elif isinstance(params, BaseModel):
            fields = {"optimizer_params": params.model_dump(mode="json")}
        else:
            raise TypeError(f"optim_params: AdamParams is needed, not {type(params).__name__}")
        return self._run.operate(OptimStepRequest, fields, Api.optim_step, OPTIM_STEP)

    async def optim_step_async(
        self, optim_params: OptimParams | None = None, *, adam_params: AdamParams | None = None
    ) -> APIFuture[OptimStepResponse]:
        """`optim_step`, for ``await``."""
        return self.optim_step(optim_params, adam_params=adam_params)

    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> APIFuture[SaveWeightsResponse]:
        """Save weights and optimizer, to resume training from; the result's ``path`` names them."""
        fields = {
            "path": check_checkpoint_name(name),
            "ttl_seconds": ttl_seconds,
            "overwrite": overwrite,
            "user_metadata": user_metadata,
        }
        return self._run.operate(SaveWeightsRequest, fields, Api.save_weights, SAVE_WEIGHTS)

    async def save_state_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> APIFuture[SaveWeightsResponse]:
        """`save_state`, for ``await``."""
        return self.save_state(name, ttl_seconds, overwrite, user_metadata)

    def load_state(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[LoadWeightsResponse]:
        """Load weights into this run; the optimizer starts afresh."""
        return self._load(path, weights_access_token, optimizer=False)

    async def load_state_async(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[LoadWeightsResponse]:
        """`load_state`, for ``await``."""
        return self.load_state(path, weights_access_token)

    def load_state_with_optimizer(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[LoadWeightsResponse]:
        """Load weights and the optimizer's state into this run, to go on where it was saved."""
        return self._load(path, weights_access_token, optimizer=True)

    async def load_state_with_optimizer_async(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[LoadWeightsResponse]:
        """`load_state_with_optimizer`, for ``await``."""
        return self.load_state_with_optimizer(path, weights_access_token)

    def save_weights_for_sampler(
        self, name: str, ttl_seconds: int | None = None, user_metadata: dict[str, str] | None = None
    ) -> APIFuture[SaveWeightsForSamplerResponse]:
        """Save an immutable snapshot to sample from; the result's ``path`` names it."""
        fields = {
            "path": check_checkpoint_name(name),
            "ttl_seconds": ttl_seconds,
            "user_metadata": user_metadata,
        }
        snapshot = self._snapshot(fields)
        return spawn(_named(snapshot), "save_weights_for_sampler")

    async def save_weights_for_sampler_async(
        self, name: str, ttl_seconds: int | None = None, user_metadata: dict[str, str] | None = None
    ) -> APIFuture[SaveWeightsForSamplerResponse]:
        """`save_weights_for_sampler`, for ``await``."""
        return self.save_weights_for_sampler(name, ttl_seconds, user_metadata)

    def save_weights_external(
        self, name: str, ttl_seconds: int | None = None, age_encryption_recipients: list[str] | None = None
    ) -> APIFuture[SaveWeightsExternalResponse]:
        """Save the adapter to be fetched file by file, in PEFT's layout; `download_checkpoint` fetches it.

        With ``age_encryption_recipients`` (public keys of age) only their owners can read the files.
        """
        fields = {
            "path": check_checkpoint_name(name),
            "ttl_seconds": ttl_seconds,
            "age_encryption_recipients": age_encryption_recipients,
        }
        return self._run.operate(SaveWeightsExternalRequest, fields, Api.save_weights_external, SAVE_EXTERNAL)

    async def save_weights_external_async(
        self, name: str, ttl_seconds: int | None = None, age_encryption_recipients: list[str] | None = None
    ) -> APIFuture[SaveWeightsExternalResponse]:
        """`save_weights_external`, for ``await``."""
        return self.save_weights_external(name, ttl_seconds, age_encryption_recipients)

    def unload(self) -> APIFuture[None]:
        """End the run and free what it takes on the service; its checkpoints stay."""
        return self._run.unload()

    async def unload_async(self) -> APIFuture[None]:
        """`unload`, for ``await``."""
        return self.unload()

    # ---- samplers -------------------------------------------------------------------------------

    def save_weights_and_get_sampling_client(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        kind: Literal["snapshot", "inflight"] = "snapshot",
    ) -> BackcompatSamplingClientFuture:
        """A sampler of the weights as they are at this place in the order. ``name`` is not used."""
        from .client_futures import BackcompatSamplingClientFuture

        self._session.check()
        fields = {"sampling_session_seq_id": next(self._session.sampling_seq_ids), "kind": kind}
        work = self._ephemeral(self._snapshot(fields), retry_config, record_stability_info)
        return spawn_into(BackcompatSamplingClientFuture(), work, "save_weights_and_get_sampling_client")

    async def save_weights_and_get_sampling_client_async(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        kind: Literal["snapshot", "inflight"] = "snapshot",
    ) -> SamplingClient:
        """`save_weights_and_get_sampling_client`, awaited."""
        return await self.save_weights_and_get_sampling_client(
            name, retry_config, record_stability_info, kind
        )

    def save_weights_and_get_sampling_client_submit(
        self, retry_config: RetryConfig | None = None
    ) -> BackcompatSamplingClientFuture:
        """`save_weights_and_get_sampling_client`, under the name it once had."""
        return self.save_weights_and_get_sampling_client(None, retry_config)

    def create_sampling_client(
        self, model_path: str, retry_config: RetryConfig | None = None, record_stability_info: bool = False
    ) -> BackcompatSamplingClientFuture:
        """A sampler of saved weights."""
        return open_sampler(self._session, model_path, None, retry_config, record_stability_info)

    async def create_sampling_client_async(
        self, model_path: str, retry_config: RetryConfig | None = None, record_stability_info: bool = False
    ) -> SamplingClient:
        """`create_sampling_client`, awaited."""
        return await self.create_sampling_client(model_path, retry_config, record_stability_info)

    # ---- what it tells --------------------------------------------------------------------------

    def on_queue_state_change(self, queue_state: str, queue_state_reason: str | None = None) -> None:
        """Note that the service keeps the run waiting; told in the log at most once a minute."""
        state = {"queue_state": str(queue_state).lower(), "queue_state_reason": queue_state_reason}
        self._run.watch.saw(pending_of(state))

    def get_telemetry(self) -> Telemetry:
        """The session's telemetry, for events of your own."""
        return self._session.telemetry

    # ---- shared ---------------------------------------------------------------------------------

    def _load(self, path: str, token: str | None, *, optimizer: bool) -> APIFuture[LoadWeightsResponse]:
        ParsedCheckpointTinkerPath.from_tinker_path(path)
        fields = {"path": path, "optimizer": optimizer, "weights_access_token": token}
        return self._run.operate(LoadWeightsRequest, fields, Api.load_weights, LOAD_WEIGHTS)

    def _snapshot(self, fields: dict[str, Any]) -> APIFuture[SnapshotResult]:
        return self._run.operate(SaveWeightsForSamplerRequest, fields, Api.save_weights_for_sampler, SNAPSHOT)

    async def _ephemeral(
        self, snapshot: APIFuture[SnapshotResult], retry_config: RetryConfig | None, stability: bool
    ) -> SamplingClient:
        result = await snapshot
        if result.sampling_session_id is None:
            raise TinkerError(f"the service took a snapshot of {self.model_id} but gave no sampler for it")
        return SamplingClient(
            self._session,
            sampling_session_id=result.sampling_session_id,
            base_model=self._base_model,
            tokenizer=self._info.model_data.tokenizer_id,
            retry_config=retry_config,
            record_stability_info=stability,
        )


async def _named(snapshot: APIFuture[SnapshotResult]) -> SaveWeightsForSamplerResponse:
    result = await snapshot
    if result.path is None:
        raise TinkerError("the service took a snapshot but gave no path for it")
    return SaveWeightsForSamplerResponse(path=result.path)
