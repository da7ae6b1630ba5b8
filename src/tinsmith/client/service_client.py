"""ServiceClient: where everything starts."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tinsmith.types import (
    AdamOptimizerConfig,
    CreateModelRequest,
    GetServerCapabilitiesResponse,
    LoadWeightsRequest,
    LoraConfig,
)
from tinsmith.types.checkpoint import ParsedCheckpointTinkerPath
from tinsmith.types.training import OptimizerConfigBase
from tinsmith.types.validation import check_lora
from tinsmith.wire import json as wire_json

from .client_futures import BackcompatSamplingClientFuture, BackcompatTrainingClientFuture
from .config import ClientConfig
from .errors import NotFoundError, TinkerError
from .futures import APIFuture, spawn, spawn_into
from .polling import QueueWatch
from .rest_client import RestClient
from .results import CREATE_MODEL, LOAD_WEIGHTS
from .retry import RetryConfig
from .sampling_client import SamplingClient, open_sampler
from .session import Live, Session, Status
from .training_client import TrainingClient

if TYPE_CHECKING:
    from httpx import Timeout

_MAX_RANK = 2**31 - 1  # the service knows its own limit


class ServiceClient:
    """The way to a Tinker service: hosted, your own, or (with nothing configured) inside this process.

    ::

        with tinsmith.ServiceClient() as service:
            training_client = service.create_lora_training_client("Qwen/Qwen3-8B", rank=16)

    Nothing is sent until something is asked for. Where requests go: ``base_url``, else
    TINKER_BASE_URL, else the hosted Tinker if there is an API key (``api_key`` or TINKER_API_KEY),
    else the embedded service. ``timeout`` is for one attempt of one request, in seconds;
    ``max_retries`` bounds the attempts, which otherwise only their time does.
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
    ) -> None:
        config = ClientConfig.resolve(
            base_url=base_url,
            api_key=api_key,
            headers={**(default_headers or {}), **(default_headers_overrides or {})},
            project_id=project_id,
            timeout=timeout,
            max_retries=max_retries,
        )
        self._session = Session(config, user_metadata, display_name)

    @property
    def config(self) -> ClientConfig:
        """What was resolved from the arguments and the environment."""
        return self._session.config

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
