"""Every endpoint, one row each: where it is, what it takes, who handles it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from tinsmith.types import requests as r
from tinsmith.types.base import Request as RequestType

from . import catalogue, inference, sessions, training
from .call import Call

Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """One row. ``takes`` is the body's type; None: no body, or (``raw``) one the handler reads itself."""

    method: str
    path: str
    handler: Handler
    takes: type[RequestType] | None = None
    raw: bool = False
    open: bool = False  # no key needed


API = "/api/v1"

ROUTES = [
    # service
    Route("GET", "healthz", sessions.healthz, open=True),
    Route("POST", "client/config", sessions.client_config, takes=r.ClientConfigRequest),
    Route("POST", "client/dynamic_config", sessions.dynamic_config, takes=r.ClientConfigRequest),
    Route("GET", "get_server_capabilities", sessions.capabilities),
    Route("POST", "telemetry", sessions.telemetry, takes=r.TelemetryRequest),
    # sessions
    Route("POST", "create_session", sessions.create_session, takes=r.CreateSessionRequest),
    Route("POST", "session_heartbeat", sessions.heartbeat, takes=r.SessionHeartbeatRequest),
    Route("POST", "sessions/{session_id}/finish", sessions.finish, takes=r.FinishSessionRequest),
    Route("GET", "sessions", sessions.list_sessions),
    Route("GET", "sessions/{session_id}", sessions.get_session),
    # training
    Route("POST", "create_model", training.create_model, takes=r.CreateModelRequest),
    Route("POST", "get_info", training.get_info, takes=r.GetInfoRequest),
    Route("POST", "unload_model", training.unload_model, takes=r.UnloadModelRequest),
    Route("POST", "forward", training.forward, raw=True),
    Route("POST", "forward_backward", training.forward_backward, raw=True),
    Route("POST", "optim_step", training.optim_step, takes=r.OptimStepRequest),
    Route("POST", "save_weights", training.save_weights, takes=r.SaveWeightsRequest),
    Route("POST", "load_weights", training.load_weights, takes=r.LoadWeightsRequest),
    Route(
        "POST",
        "save_weights_for_sampler",
        training.save_weights_for_sampler,
        takes=r.SaveWeightsForSamplerRequest,
    ),
    # sampling and futures
    Route(
        "POST",
        "create_sampling_session",
        inference.create_sampling_session,
        takes=r.CreateSamplingSessionRequest,
    ),
    Route("POST", "asample", inference.asample, takes=r.SampleRequest),
    Route("GET", "samplers/{sampler_id}", inference.get_sampler),
    Route("POST", "retrieve_future", inference.retrieve_future, takes=r.RetrieveFutureRequest),
    Route("POST", "cancel_future", inference.cancel_future, takes=r.CancelFutureRequest),
    # runs and checkpoints
    Route("GET", "training_runs", catalogue.list_runs),
    Route("GET", "training_runs/{run_id}", catalogue.get_run),
    Route("GET", "training_runs/{run_id}/checkpoints", catalogue.list_run_checkpoints),
    Route("DELETE", "training_runs/{run_id}/checkpoints/{kind}/{name}", catalogue.delete_checkpoint),
    Route("POST", "training_runs/{run_id}/checkpoints/{kind}/{name}/publish", catalogue.publish),
    Route("DELETE", "training_runs/{run_id}/checkpoints/{kind}/{name}/publish", catalogue.unpublish),
    Route(
        "PUT",
        "training_runs/{run_id}/checkpoints/{kind}/{name}/ttl",
        catalogue.set_ttl,
        takes=r.SetTtlRequest,
    ),
    Route("GET", "checkpoints", catalogue.list_user_checkpoints),
    Route("POST", "weights_info", catalogue.weights_info, takes=r.WeightsInfoRequest),
]
