"""ServiceClient: where everything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from tinsmith.types import (
    AdamOptimizerConfig,
    CreateModelRequest,
    GetServerCapabilitiesResponse,
    LoadWeightsRequest,
    LoraConfig,
)
from tinsmith.types.checkpoint import ParsedCheckpointTinkerPath
from tinsmith.types.training import OptimizerConfigBase
from tinsmith.types.transfer import CopyWeightsRequest
from tinsmith.types.validation import check_lora
from tinsmith.wire import json as wire_json

from .client_futures import BackcompatSamplingClientFuture, BackcompatTrainingClientFuture
from .config import ClientConfig, Timeout
from .console import console_url
from .errors import NotFoundError, TinkerError
from .futures import APIFuture, spawn, spawn_into
from .loop import in_thread
from .loss_handle import LossHandle, PerDatumLossFn, trace
from .observe import Listener, OperationStats
from .polling import QueueWatch
from .recovery import RUN_NAME, ResumedRun, newest_checkpoint
from .rest_client import RestClient
from .results import CREATE_LOSS, CREATE_MODEL, LOAD_WEIGHTS
from .retry import RetryConfig
from .sampling_client import SamplingClient, open_sampler
from .session import Live, Session, Status
from .telemetry import Telemetry
from .training_client import TrainingClient

_MAX_RANK = 2**31 - 1  # the service knows its own limit


class ServiceClient:
    """The way to a Tinker service: hosted, your own, or (with nothing configured) inside this process.

    ::

        with tinsmith.ServiceClient() as service:
            training_client = service.create_lora_training_client("Qwen/Qwen3-8B", rank=16)

    Nothing is sent until something is asked for. Where requests go: ``base_url``, else
    TINKER_BASE_URL, else the hosted Tinker if there is an API key (``api_key`` or TINKER_API_KEY),
    else the embedded service. ``timeout`` is for one attempt of one request, in seconds;
    ``max_retries`` bounds the attempts, which otherwise only their time does; ``deadline`` is the longest
    that an accepted operation is waited for (None: for ever).

    >>> with ServiceClient() as client:
    ...     models = client.get_server_capabilities().supported_models
    >>> len(models) > 0
    True
    """

    def __init__(
        self,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        *,
        display_name: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        default_headers_overrides: Mapping[str, str] | None = None,
        default_headers: Mapping[str, str] | None = None,
        timeout: float | Timeout | None = None,
        max_retries: int | None = None,
        deadline: float | None = 12 * 3600.0,
    ) -> None:
        config = ClientConfig.resolve(
            base_url=base_url,
            api_key=api_key,
            headers={**(default_headers or {}), **(default_headers_overrides or {})},
            project_id=project_id,
            timeout=timeout,
            max_retries=max_retries,
            deadline=deadline,
        )
        self._session = Session(config, user_metadata, display_name)

    @property
    def config(self) -> ClientConfig:
        """What was resolved from the arguments and the environment."""
        return self._session.config

    @property
    def holder(self) -> Session:
        """The session that this client and all made from it share."""
        return self._session

    def get_console_url(self) -> str:
        """Where the session is to be looked at; opens it if need be (blocks)."""
        return console_url(self.config, "sessions", self._session.get_session_id())

    def get_telemetry(self) -> Telemetry:
        """The session's telemetry, for events of your own."""
        return self._session.telemetry

    def metrics(self) -> dict[str, OperationStats]:
        """How the operations of this session have gone: counts, errors, and durations as percentiles."""
        return self._session.observer.snapshot()

    def add_listener(self, listener: Listener) -> None:
        """Call this at the beginning and the end of every operation, on the client's own thread."""
        self._session.observer.listeners.append(listener)

    # ---- lifetime -------------------------------------------------------------------------------

    def close(self, status: Status = "success", detail: str | None = None) -> APIFuture[None]:
        """Tell the service how the work ended and let go of everything, also of clients made from this."""
        return spawn(self._session.close(status, detail), "close")

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close(*_ending(error)).result()

    async def __aenter__(self) -> ServiceClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close(*_ending(error))

    # ---- the service itself ---------------------------------------------------------------------

    def get_server_capabilities(self) -> GetServerCapabilitiesResponse:
        """The models on offer."""
        return self.create_rest_client().get_server_capabilities().result()

    async def get_server_capabilities_async(self) -> GetServerCapabilitiesResponse:
        """The models on offer."""
        return await self.create_rest_client().get_server_capabilities()

    def create_rest_client(self) -> RestClient:
        """What is stored on the service, over this client's connection."""
        return RestClient(self._session.connection)

    def copy_weights(
        self, path: str, *, ttl_seconds: int | None = None, weights_access_token: str | None = None
    ) -> APIFuture[str]:
        """Copy a checkpoint into this session; the copy's path. Others' weights need their token."""
        ParsedCheckpointTinkerPath.from_tinker_path(path)
        self._session.check()
        work = self._copy(next(self._session.model_seq_ids), path, ttl_seconds, weights_access_token)
        return spawn(work, "copy_weights")

    async def copy_weights_async(
        self, path: str, *, ttl_seconds: int | None = None, weights_access_token: str | None = None
    ) -> str:
        """`copy_weights`, awaited."""
        return await self.copy_weights(
            path, ttl_seconds=ttl_seconds, weights_access_token=weights_access_token
        )

    def create_custom_loss(self, fn: PerDatumLossFn, input_ranks: Mapping[str, int]) -> APIFuture[LossHandle]:
        """A loss of your own that runs on the service: traced here, once, into a graph of operations::

            def loss(logprobs, weights):
                total = -(logprobs * weights).sum()
                return total, {"custom/nll:sum": total}

            handle = service.create_custom_loss(loss, {"logprobs": 1, "weights": 1}).result()
            training_client.forward_backward_custom(data, handle)

        It gets the log-probabilities of the target tokens and those ``loss_fn_inputs`` it names, of one
        datum, and returns (a number, metrics called ``custom/…:sum`` or ``custom/…:mean``). On a service
        that runs no custom losses it runs here instead.
        """
        self._session.check()
        work = self._create_loss(next(self._session.loss_seq_ids), fn, dict(input_ranks))
        return spawn(work, "create_custom_loss")

    async def create_custom_loss_async(
        self, fn: PerDatumLossFn, input_ranks: Mapping[str, int]
    ) -> LossHandle:
        """`create_custom_loss`, awaited."""
        return await self.create_custom_loss(fn, input_ranks)

    # ---- training -------------------------------------------------------------------------------

    def create_lora_training_client(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
        optimizer: OptimizerConfigBase | None = None,
    ) -> BackcompatTrainingClientFuture:
        """A new run: a fresh LoRA adapter on a base model.

        The result can be waited for (``.result()``, ``await``) or used as the client at once.
        """
        lora = LoraConfig(
            rank=rank, seed=seed, train_mlp=train_mlp, train_attn=train_attn, train_unembed=train_unembed
        )
        check_lora(lora, max_rank=_MAX_RANK)
        if not isinstance(base_model, str) or not base_model:
            raise ValueError(f"base_model: {base_model!r} is not the name of a model")
        fields = {
            "base_model": base_model,
            "lora_config": lora,
            "user_metadata": user_metadata,
            "optimizer_config": _optimizer(optimizer) if optimizer else _optimizer(AdamOptimizerConfig()),
        }
        self._session.check()
        work = self._create_model(next(self._session.model_seq_ids), fields)
        return spawn_into(BackcompatTrainingClientFuture(), work, "create_lora_training_client")

    async def create_lora_training_client_async(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
        optimizer: OptimizerConfigBase | None = None,
    ) -> TrainingClient:
        """`create_lora_training_client`, awaited."""
        return await self.create_lora_training_client(
            base_model, rank, seed, train_mlp, train_attn, train_unembed, user_metadata, optimizer
        )

    def create_training_client_from_state(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
        optimizer: OptimizerConfigBase | None = None,
    ) -> BackcompatTrainingClientFuture:
        """A new run that starts from saved weights, with a fresh optimizer."""
        if isinstance(base_model, dict):  # where the oldest client's second argument was the metadata
            base_model, user_metadata = None, base_model
        fields = {"optimizer": False, "optimizer_config": _optimizer(optimizer) if optimizer else None}
        return self._from_state(path, base_model, user_metadata, weights_access_token, fields)

    async def create_training_client_from_state_async(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
        optimizer: OptimizerConfigBase | None = None,
    ) -> TrainingClient:
        """`create_training_client_from_state`, awaited."""
        return await self.create_training_client_from_state(
            path, base_model, user_metadata, weights_access_token, optimizer
        )

    def create_training_client_from_state_with_optimizer(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
    ) -> BackcompatTrainingClientFuture:
        """A new run that goes on where a checkpoint was saved: its weights and its optimizer."""
        return self._from_state(path, base_model, user_metadata, weights_access_token, {"optimizer": True})

    async def create_training_client_from_state_with_optimizer_async(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
    ) -> TrainingClient:
        """`create_training_client_from_state_with_optimizer`, awaited."""
        return await self.create_training_client_from_state_with_optimizer(
            path, base_model, user_metadata, weights_access_token
        )

    def resume_training(
        self,
        run_name: str,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> APIFuture[ResumedRun]:
        """Go on with the run of this name where its newest checkpoint was saved, or begin it::

            resumed = service.resume_training("my-run", "Qwen/Qwen3-8B").result()
            for step in range(resumed.step, 1000):
                ...  # forward_backward, optim_step
                if step % 50 == 0:
                    resumed.training_client.save_state(f"step-{step}", user_metadata={"step": str(step + 1)})

        The name is kept in the run's metadata; weights and optimizer are those of the checkpoint.
        """
        if not run_name:
            raise ValueError("run_name: is empty; give the run a name to find it by")
        self._session.check()
        metadata = {**(user_metadata or {}), RUN_NAME: run_name}
        return spawn(self._resume(run_name, base_model, rank, seed, metadata), "resume_training")

    async def resume_training_async(
        self,
        run_name: str,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> ResumedRun:
        """`resume_training`, awaited."""
        return await self.resume_training(run_name, base_model, rank, seed, user_metadata)

    # ---- sampling -------------------------------------------------------------------------------

    def create_sampling_client(
        self,
        model_path: str | None = None,
        base_model: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> BackcompatSamplingClientFuture:
        """A sampler of saved weights (``model_path``) or of a base model."""
        return open_sampler(self._session, model_path, base_model, retry_config, record_stability_info)

    async def create_sampling_client_async(
        self,
        model_path: str | None = None,
        base_model: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """`create_sampling_client`, awaited."""
        return await self.create_sampling_client(model_path, base_model, retry_config, record_stability_info)

    # ---- how all this is done -------------------------------------------------------------------

    async def _copy(self, seq_id: int, path: str, ttl_seconds: int | None, token: str | None) -> str:
        live = await self._session.live()
        request = CopyWeightsRequest(
            source_path=path, session_id=live.session_id, model_seq_id=seq_id, ttl_seconds=ttl_seconds
        )
        return await live.api.copy_weights(request, token)

    async def _create_loss(self, seq_id: int, fn: PerDatumLossFn, input_ranks: dict[str, int]) -> LossHandle:
        live = await self._session.live()
        request, graph = await in_thread(trace, fn, input_ranks, live.session_id, seq_id)
        handle = LossHandle(request.name, tuple(request.inputs), live.session_id, graph)
        if not live.server.custom_loss_server_side:
            return handle
        submitted = await live.api.create_custom_loss(request)
        made = await live.poller.wait(submitted.request_id, CREATE_LOSS)
        return replace(handle, loss_id=made.loss_id)

    async def _resume(
        self, run_name: str, base_model: str, rank: int, seed: int | None, metadata: dict[str, str]
    ) -> ResumedRun:
        live = await self._session.live()
        newest = await newest_checkpoint(live.api, run_name)
        if newest is None:
            client = await self.create_lora_training_client(base_model, rank, seed, user_metadata=metadata)
        else:
            client = await self.create_training_client_from_state_with_optimizer(
                newest.tinker_path, base_model, metadata
            )
        return ResumedRun(client, newest)

    # ---- how runs are made ----------------------------------------------------------------------

    def _from_state(
        self,
        path: str,
        base_model: str | None,
        user_metadata: dict[str, str] | None,
        token: str | None,
        fields: dict[str, Any],
    ) -> BackcompatTrainingClientFuture:
        ParsedCheckpointTinkerPath.from_tinker_path(path)
        fields = {
            **fields,
            "path": path,
            "base_model": base_model,
            "user_metadata": user_metadata,
            "weights_access_token": token,
        }
        self._session.check()
        work = self._load_model(next(self._session.model_seq_ids), fields)
        return spawn_into(BackcompatTrainingClientFuture(), work, "create_training_client_from_state")

    async def _create_model(self, seq_id: int, fields: dict[str, Any]) -> TrainingClient:
        live = await self._session.live()
        return await self._client(live, await self._new_run(live, seq_id, fields))

    async def _new_run(self, live: Live, seq_id: int, fields: dict[str, Any]) -> str:
        request = wire_json.parse_model(
            CreateModelRequest, {"session_id": live.session_id, "model_seq_id": seq_id, **fields}
        )
        submitted = await live.api.create_model(request)
        watch = QueueWatch(f"making a run of {request.base_model}", self._session.clock)
        return (await live.poller.wait(submitted.request_id, CREATE_MODEL, watch)).model_id

    async def _load_model(self, seq_id: int, fields: dict[str, Any]) -> TrainingClient:
        live = await self._session.live()
        if live.server.old_dialect:
            return await self._load_model_in_two(live, seq_id, fields)
        address = {"session_id": live.session_id, "model_seq_id": seq_id}
        request = wire_json.parse_model(LoadWeightsRequest, {**address, **fields})
        submitted = await live.api.load_weights(request)
        watch = QueueWatch(f"making a run from {request.path}", self._session.clock)
        loaded = await live.poller.wait(submitted.request_id, LOAD_WEIGHTS, watch)
        # A run's id follows from the session's, for a service that does not say it.
        return await self._client(live, loaded.model_id or f"{live.session_id}:train:{seq_id}")

    async def _load_model_in_two(self, live: Live, seq_id: int, fields: dict[str, Any]) -> TrainingClient:
        """A service of the old dialect makes a run like the saved one first, then loads into it."""
        saved = await self._saved_run(live, fields["path"])
        lora = LoraConfig(**{"rank": saved.pop("rank"), **saved.pop("trains")})
        base_model = fields["base_model"] or saved["base_model"]
        run = {"base_model": base_model, "lora_config": lora, "user_metadata": fields["user_metadata"]}
        client = await self._client(live, await self._new_run(live, seq_id, run))
        load = client.load_state_with_optimizer if fields["optimizer"] else client.load_state
        await load(fields["path"], fields["weights_access_token"])
        return client

    async def _saved_run(self, live: Live, path: str) -> dict[str, Any]:
        try:
            info = await live.api.weights_info(path)
        except NotFoundError:
            run_id = ParsedCheckpointTinkerPath.from_tinker_path(path).training_run_id
            run = await live.api.training_run(run_id, {})
            base_model, rank, trains = run.base_model, run.lora_rank, {}
        else:
            base_model, rank = info.base_model, info.lora_rank
            flags = {name: getattr(info, name) for name in ("train_mlp", "train_attn", "train_unembed")}
            trains = {name: value for name, value in flags.items() if value is not None}
        if rank is None:
            raise TinkerError(f"{path}: the service does not say of what rank its adapter is")
        return {"base_model": base_model, "rank": rank, "trains": trains}

    async def _client(self, live: Live, model_id: str) -> TrainingClient:
        return TrainingClient(self._session, live, await live.api.get_info(model_id))


def _optimizer(config: OptimizerConfigBase) -> dict[str, Any]:
    dumped: dict[str, Any] = config.model_dump(mode="json")
    return dumped


def _ending(error: BaseException | None) -> tuple[Status, str | None]:
    if error is None:
        return "success", None
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", None
    return "errored", type(error).__name__  # not its text, which may tell secrets
