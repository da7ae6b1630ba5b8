"""Every endpoint, one row each: where it is, what it takes, who handles it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import BaseModel
from starlette.responses import Response

from tinsmith import types as t
from tinsmith.types import account as a
from tinsmith.types import custom_loss as c
from tinsmith.types import openai as o
from tinsmith.types import polling as p
from tinsmith.types import queries as q
from tinsmith.types import replies
from tinsmith.types import requests as r
from tinsmith.types import session as s
from tinsmith.types import transfer as x
from tinsmith.types.base import Request as RequestType

from . import account, catalogue, inference, openai, sessions, training, transfers
from .call import Call

Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """One row.

    ``takes`` is the body's type; None: no body, or (``raw``) one the handler reads itself. ``gives`` is the
    answer's type; None: something other than plain JSON, which `openapi` describes by hand. ``query`` says
    what may stand in the address; None: the handler looks for itself.
    """

    method: str
    path: str
    handler: Handler
    takes: type[RequestType] | None = None
    gives: type[BaseModel] | None = replies.Empty
    query: type[q.Query] | None = q.Query
    raw: bool = False
    bulk: bool = False  # its body may be as large as a batch
    open: bool = False  # no key needed
    prefix: str = "/api/v1"

    @property
    def address(self) -> str:
        """The whole path."""
        return f"{self.prefix}/{self.path}"


API = "/api/v1"
_OPENAI = "/oai/api/v1"
_CHECKPOINT = "training_runs/{run_id}/checkpoints/{kind}/{name}"
_DOWNLOAD = "downloads/checkpoints/{run_id}/{kind}/{name}"
_FUTURE = replies.FutureResponse

ROUTES = [
    # service
    Route("GET", "healthz", sessions.healthz, None, replies.HealthResponse, open=True),
    Route(
        "POST", "client/config", sessions.client_config, r.ClientConfigRequest, replies.ClientConfigResponse
    ),
    Route(
        "POST",
        "client/dynamic_config",
        sessions.dynamic_config,
        r.ClientConfigRequest,
        replies.DynamicConfigResponse,
    ),
    Route("GET", "get_server_capabilities", sessions.capabilities, None, t.GetServerCapabilitiesResponse),
    Route("POST", "telemetry", sessions.telemetry, r.TelemetryRequest, replies.TelemetryResponse),
    # the account
    Route("POST", "auth/token", account.token, r.AuthTokenRequest, a.AuthTokenResponse),
    Route("GET", "auth/apikey/me", account.own_key, None, a.ApiKeyResponse),
    Route("DELETE", "auth/apikey/me", account.revoke_own_key),
    Route("GET", "audit", account.audit_log, None, a.AuditLogResponse, q.AuditQuery),
    Route("GET", "billing/usage/events", account.usage, None, a.BillingUsageResponse, q.UsageQuery),
    Route(
        "GET",
        "billing/usage/checkpoints/current",
        account.storage,
        None,
        a.CheckpointStorageResponse,
        q.StorageQuery,
    ),
    # sessions
    Route(
        "POST",
        "create_session",
        sessions.create_session,
        r.CreateSessionRequest,
        replies.CreateSessionResponse,
    ),
    Route(
        "POST", "session_heartbeat", sessions.heartbeat, r.SessionHeartbeatRequest, replies.HeartbeatResponse
    ),
    Route("POST", "sessions/search", sessions.search, s.SessionSearchRequest, s.SessionSearchResponse),
    Route("POST", "sessions/{session_id}/finish", sessions.finish, r.FinishSessionRequest),
    Route("PUT", "sessions/{session_id}/project", sessions.assign_project, s.AssignProjectRequest),
    Route("GET", "sessions/{session_id}/trace_export", sessions.trace_export, None, s.TraceExportResponse),
    Route(
        "GET",
        "downloads/traces/{session_id}",
        sessions.download_trace,
        gives=None,
        query=q.SignedQuery,
        open=True,  # to whoever has the signed address
    ),
    Route("GET", "sessions", sessions.list_sessions, None, t.ListSessionsResponse, q.SessionsQuery),
    Route("GET", "sessions/{session_id}", sessions.get_session, None, t.GetSessionResponse, q.ScopeQuery),
    # training
    Route("POST", "create_custom_loss", training.create_custom_loss, c.CreateCustomLossRequest, _FUTURE),
    Route("POST", "create_model", training.create_model, r.CreateModelRequest, _FUTURE),
    Route("POST", "get_info", training.get_info, r.GetInfoRequest, t.GetInfoResponse),
    Route("POST", "unload_model", training.unload_model, r.UnloadModelRequest, _FUTURE),
    Route("POST", "forward", training.forward, gives=_FUTURE, raw=True),
    Route("POST", "forward_backward", training.forward_backward, gives=_FUTURE, raw=True),
    Route("POST", "optim_step", training.optim_step, r.OptimStepRequest, _FUTURE),
    Route("POST", "save_weights", training.save_weights, r.SaveWeightsRequest, _FUTURE),
    Route("POST", "load_weights", training.load_weights, r.LoadWeightsRequest, _FUTURE),
    Route(
        "POST",
        "save_weights_for_sampler",
        training.save_weights_for_sampler,
        r.SaveWeightsForSamplerRequest,
        _FUTURE,
    ),
    Route(
        "POST", "save_weights_external", training.save_weights_external, x.SaveWeightsExternalRequest, _FUTURE
    ),
    # sampling and futures
    Route(
        "POST",
        "create_sampling_session",
        inference.create_sampling_session,
        r.CreateSamplingSessionRequest,
        replies.CreateSamplingSessionResponse,
    ),
    Route(
        "POST",
        "join_sampling_session",
        inference.join_sampling_session,
        p.JoinSamplingSessionRequest,
        p.JoinSamplingSessionResponse,
    ),
    Route("POST", "asample", inference.asample, r.SampleRequest, _FUTURE, bulk=True),
    Route("POST", "sample_stream", inference.sample_stream, r.SampleRequest, None, bulk=True),
    Route("GET", "samplers/{sampler_id}", inference.get_sampler, None, t.GetSamplerResponse),
    Route("POST", "retrieve_future", inference.retrieve_future, r.RetrieveFutureRequest, None),
    Route(
        "POST",
        "retrieve_futures",
        inference.retrieve_futures,
        p.RetrieveFuturesRequest,
        p.RetrieveFuturesResponse,
    ),
    Route("POST", "cancel_future", inference.cancel_future, r.CancelFutureRequest),
    # runs and checkpoints
    Route("GET", "training_runs", catalogue.list_runs, None, t.TrainingRunsResponse, q.RunsQuery),
    Route("GET", "training_runs/{run_id}", catalogue.get_run, None, t.TrainingRun, q.ScopeQuery),
    Route(
        "GET",
        "training_runs/{run_id}/checkpoints",
        catalogue.list_run_checkpoints,
        None,
        t.CheckpointsListResponse,
    ),
    Route("DELETE", _CHECKPOINT, catalogue.delete_checkpoint),
    Route("POST", f"{_CHECKPOINT}/publish", catalogue.publish),
    Route("DELETE", f"{_CHECKPOINT}/publish", catalogue.unpublish),
    Route("PUT", f"{_CHECKPOINT}/ttl", catalogue.set_ttl, r.SetTtlRequest),
    Route("GET", f"{_CHECKPOINT}/archive", transfers.archive, gives=None),
    Route(
        "GET",
        f"{_CHECKPOINT}/external_weights_urls",
        transfers.external_urls,
        None,
        x.ExternalWeightsUrlsResponse,
    ),
    Route("POST", "copy_weights", transfers.copy_weights, x.CopyWeightsRequest, x.CopyWeightsResponse),
    Route(
        "GET",
        f"{_DOWNLOAD}/archive.tar.gz",
        transfers.download_archive,
        gives=None,
        query=q.SignedQuery,
        open=True,
    ),
    Route(
        "GET",
        f"{_DOWNLOAD}/files/{{file}}",
        transfers.download_file,
        gives=None,
        query=q.SignedQuery,
        open=True,
    ),
    Route(
        "GET",
        "checkpoints",
        catalogue.list_user_checkpoints,
        None,
        t.CheckpointsListResponse,
        q.CheckpointsQuery,
    ),
    Route("POST", "weights_info", catalogue.weights_info, r.WeightsInfoRequest, t.WeightsInfoResponse),
    # for OpenAI's clients
    Route("GET", "models", openai.models, None, o.ModelsReply, prefix=_OPENAI),
    Route("POST", "completions", openai.completions, o.CompletionRequest, o.CompletionReply, prefix=_OPENAI),
    Route(
        "POST",
        "chat/completions",
        openai.chat_completions,
        o.ChatCompletionRequest,
        o.CompletionReply,
        prefix=_OPENAI,
    ),
]
