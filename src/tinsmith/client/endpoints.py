"""The endpoints this client calls, one row each: where it is, on whose connections, and who tries again."""

from __future__ import annotations

from dataclasses import dataclass

from .retry import Layer
from .transport import Pool


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How one endpoint is called. Without a layer it is tried once: its caller does the retrying."""

    method: str
    path: str
    pool: Pool = "session"
    layer: Layer | None = Layer.CALL
    seconds: float = 300.0  # the retry budget
    timeout: float | None = None  # of one attempt; None: the config's
    redirects: bool = False  # a redirection is the answer and not to be followed


CONFIG = Endpoint("POST", "client/config")
CREATE_SESSION = Endpoint("POST", "create_session")
HEARTBEAT = Endpoint("POST", "session_heartbeat", layer=None, timeout=10)
FINISH = Endpoint("POST", "sessions/{session_id}/finish", layer=None, timeout=5)
CAPABILITIES = Endpoint("GET", "get_server_capabilities", layer=Layer.CALL, seconds=60)
TELEMETRY = Endpoint("POST", "telemetry", "telemetry", layer=None, timeout=5)
CREATE_SAMPLING = Endpoint("POST", "create_sampling_session", "sample")
CREATE_MODEL = Endpoint("POST", "create_model", "train")
GET_INFO = Endpoint("POST", "get_info", "train")
FORWARD = Endpoint("POST", "forward", "train")
FORWARD_BACKWARD = Endpoint("POST", "forward_backward", "train")
OPTIM_STEP = Endpoint("POST", "optim_step", "train")
SAVE_WEIGHTS = Endpoint("POST", "save_weights", "train")
LOAD_WEIGHTS = Endpoint("POST", "load_weights", "train")
SAVE_EXTERNAL = Endpoint("POST", "save_weights_external", "train")
UNLOAD = Endpoint("POST", "unload_model", "train")
CREATE_LOSS = Endpoint("POST", "create_custom_loss", "train")
SAVE_SAMPLER = Endpoint("POST", "save_weights_for_sampler", "train")
ASAMPLE = Endpoint("POST", "asample", "sample", layer=None)
STREAM = Endpoint("POST", "sample_stream", "stream", layer=None)
RETRIEVE = Endpoint("POST", "retrieve_future", "retrieve", layer=None, timeout=45)
RETRIEVE_MANY = Endpoint("POST", "retrieve_futures", "poll", layer=None, timeout=45)
CANCEL = Endpoint("POST", "cancel_future", layer=None, timeout=30)
JOIN = Endpoint("POST", "join_sampling_session", "sample")
WEIGHTS_INFO = Endpoint("POST", "weights_info", layer=Layer.REST, seconds=60)
RUNS = Endpoint("GET", "training_runs", layer=Layer.REST, seconds=60)
RUN = Endpoint("GET", "training_runs/{run_id}", layer=Layer.REST, seconds=60)
RUN_CHECKPOINTS = Endpoint("GET", "training_runs/{run_id}/checkpoints", layer=Layer.REST, seconds=60)
CHECKPOINTS = Endpoint("GET", "checkpoints", layer=Layer.REST, seconds=60)
DELETE = Endpoint(
    "DELETE", "training_runs/{run_id}/checkpoints/{checkpoint_id}", layer=Layer.REST, seconds=60
)
PUBLISH = Endpoint(
    "POST", "training_runs/{run_id}/checkpoints/{checkpoint_id}/publish", layer=Layer.REST, seconds=60
)
UNPUBLISH = Endpoint(
    "DELETE", "training_runs/{run_id}/checkpoints/{checkpoint_id}/publish", layer=Layer.REST, seconds=60
)
TTL = Endpoint("PUT", "training_runs/{run_id}/checkpoints/{checkpoint_id}/ttl", layer=Layer.REST, seconds=60)
SESSIONS = Endpoint("GET", "sessions", layer=Layer.REST, seconds=60)
SESSION = Endpoint("GET", "sessions/{session_id}", layer=Layer.REST, seconds=60)
SAMPLER = Endpoint("GET", "samplers/{sampler_id}", layer=Layer.REST, seconds=60)
EXTERNAL_URLS = Endpoint(
    "GET",
    "training_runs/{run_id}/checkpoints/{checkpoint_id}/external_weights_urls",
    layer=Layer.REST,
    seconds=60,
)
ARCHIVE = Endpoint(
    "GET",
    "training_runs/{run_id}/checkpoints/{checkpoint_id}/archive",
    layer=Layer.REST,
    seconds=60,
    redirects=True,
)
COPY = Endpoint("POST", "copy_weights", layer=Layer.REST)
SEARCH = Endpoint("POST", "sessions/search", layer=Layer.REST, seconds=60)
PROJECT = Endpoint("PUT", "sessions/{session_id}/project", layer=Layer.REST, seconds=60)
TRACE = Endpoint("GET", "sessions/{session_id}/trace_export", layer=Layer.REST, seconds=60)
TOKEN = Endpoint("POST", "auth/token", layer=Layer.REST, seconds=60)
AUDIT = Endpoint("GET", "audit", layer=Layer.REST, seconds=60)
USAGE = Endpoint("GET", "billing/usage/events", layer=Layer.REST, seconds=60)
STORAGE = Endpoint("GET", "billing/usage/checkpoints/current", layer=Layer.REST, seconds=60)
