"""The official package's names of types that are called, or cut, otherwise here."""

from __future__ import annotations

from typing import Literal

from .account import (
    AuditLogEntry,
    AuditLogResponse,
    AuthTokenResponse,
    BillingUsageResponse,
    WhoamiResponse,
)
from .account import CheckpointStorageItem as CurrentCheckpointStorageUsageItem
from .account import CheckpointStorageResponse as CurrentCheckpointStorageUsageResponse
from .account import CheckpointUsage as CheckpointBillingEvent
from .account import PrefillUsage as SamplingPrefillBillingEvent
from .account import SampleUsage as SamplingSampleBillingEvent
from .account import StorageUsage as StorageBillingEvent
from .account import TrainingUsage as TrainingBillingEvent
from .account import UsageEvent as BillingUsageEvent
from .account import UsageInfo as BillingEventInfo
from .account import UsageSession as BillingUsageSession
from .checkpoint import CheckpointArchiveUrlResponse
from .custom_loss import (
    CreateCustomLossRequest,
    CreateCustomLossResponse,
    CustomLossGraph,
    CustomLossInput,
    CustomLossNode,
)
from .datum import ProvenanceSpan
from .polling import Failed as FutureFailed
from .polling import Finished as FutureFinished
from .polling import (
    JoinSamplingSessionRequest,
    JoinSamplingSessionResponse,
)
from .polling import RetrieveFuturesRequest as FuturesRetrieveRequest
from .polling import RetrieveFuturesResponse as FuturesRetrieveResponse
from .polling import SamplingTarget as SamplingSessionFuturesTarget
from .queries import StorageQuery as GetCurrentCheckpointStorageUsageRequest
from .queries import UsageQuery as GetBillingUsageRequest
from .replies import (
    ClientConfigResponse,
    CreateSamplingSessionResponse,
    CreateSessionResponse,
    HealthResponse,
    TelemetryResponse,
)
from .replies import DynamicConfigResponse as ClientDynamicConfigResponse
from .replies import FutureResponse as UntypedAPIFuture
from .replies import HeartbeatResponse as SessionHeartbeatResponse
from .requests import (
    ClientConfigRequest,
    GetInfoRequest,
    SessionHeartbeatRequest,
    UnloadModelRequest,
)
from .requests import RetrieveFutureRequest as FutureRetrieveRequest
from .requests import TelemetryRequest as TelemetrySendRequest
from .session import AccessibleSessions as AccessibleSearchOwner
from .session import FinishDetail as ClientSessionFinishReason
from .session import FinishedQuery as ClientFinishedSessionStatusQuery
from .session import FinishKind as ClientSessionFinishReasonType
from .session import OwnSessions as OwnSearchOwner
from .session import SearchCursor as SessionSearchCursor
from .session import (
    SessionActive,
    SessionCancelled,
    SessionFailed,
    SessionSearchRequest,
    SessionSearchResponse,
    SessionStatus,
    SessionSummary,
    StatusQuery,
)
from .session import SessionFinished as ClientSessionFinished
from .session import SessionsOf as UserSearchOwner
from .tensor import TensorData
from .training import AdamOptimizerConfig, DimuonOptimizerConfig, OptimizerConfigBase
from .transfer import (
    CopyWeightsRequest,
    CopyWeightsResponse,
    ExternalWeightsUrlsResponse,
    SaveWeightsExternalRequest,
    SaveWeightsExternalResponse,
)

CustomLossInputRank = Literal[0, 1, 2]
EventType = Literal["SESSION_START", "SESSION_END", "UNHANDLED_EXCEPTION", "GENERIC_EVENT"]
Severity = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
SamplingClientKind = Literal["snapshot", "inflight"]
FutureCompletion = FutureFinished | FutureFailed
LossFnInputs = dict[str, TensorData]
OptimizerConfig = AdamOptimizerConfig | DimuonOptimizerConfig | OptimizerConfigBase
ProvenanceSpans = tuple[ProvenanceSpan, ...]
RequestID = str
SearchOwner = OwnSearchOwner | AccessibleSearchOwner | UserSearchOwner


class ActiveSessionStatusQuery(StatusQuery):
    """Sessions whose client is there."""

    type: Literal["active"] = "active"


class CancelledSessionStatusQuery(StatusQuery):
    """Sessions the service ended."""

    type: Literal["cancelled"] = "cancelled"


class FailedSessionStatusQuery(StatusQuery):
    """Sessions that failed."""

    type: Literal["failed"] = "failed"


SessionStatusQuery = (
    ActiveSessionStatusQuery
    | CancelledSessionStatusQuery
    | FailedSessionStatusQuery
    | ClientFinishedSessionStatusQuery
)

__all__ = [
    "AccessibleSearchOwner",
    "ActiveSessionStatusQuery",
    "AuditLogEntry",
    "AuditLogResponse",
    "AuthTokenResponse",
    "BillingEventInfo",
    "BillingUsageEvent",
    "BillingUsageResponse",
    "BillingUsageSession",
    "CancelledSessionStatusQuery",
    "CheckpointArchiveUrlResponse",
    "CheckpointBillingEvent",
    "ClientConfigRequest",
    "ClientConfigResponse",
    "ClientDynamicConfigResponse",
    "ClientFinishedSessionStatusQuery",
    "ClientSessionFinishReason",
    "ClientSessionFinishReasonType",
    "ClientSessionFinished",
    "CopyWeightsRequest",
    "CopyWeightsResponse",
    "CreateCustomLossRequest",
    "CreateCustomLossResponse",
    "CreateSamplingSessionResponse",
    "CreateSessionResponse",
    "CurrentCheckpointStorageUsageItem",
    "CurrentCheckpointStorageUsageResponse",
    "CustomLossGraph",
    "CustomLossInput",
    "CustomLossInputRank",
    "CustomLossNode",
    "EventType",
    "ExternalWeightsUrlsResponse",
    "FailedSessionStatusQuery",
    "FutureCompletion",
    "FutureFailed",
    "FutureFinished",
    "FutureRetrieveRequest",
    "FuturesRetrieveRequest",
    "FuturesRetrieveResponse",
    "GetBillingUsageRequest",
    "GetCurrentCheckpointStorageUsageRequest",
    "GetInfoRequest",
    "HealthResponse",
    "JoinSamplingSessionRequest",
    "JoinSamplingSessionResponse",
    "LossFnInputs",
    "OptimizerConfig",
    "OwnSearchOwner",
    "ProvenanceSpans",
    "RequestID",
    "SamplingClientKind",
    "SamplingPrefillBillingEvent",
    "SamplingSampleBillingEvent",
    "SamplingSessionFuturesTarget",
    "SaveWeightsExternalRequest",
    "SaveWeightsExternalResponse",
    "SearchOwner",
    "SessionActive",
    "SessionCancelled",
    "SessionFailed",
    "SessionHeartbeatRequest",
    "SessionHeartbeatResponse",
    "SessionSearchCursor",
    "SessionSearchRequest",
    "SessionSearchResponse",
    "SessionStatus",
    "SessionStatusQuery",
    "SessionSummary",
    "Severity",
    "StorageBillingEvent",
    "TelemetryResponse",
    "TelemetrySendRequest",
    "TrainingBillingEvent",
    "UnloadModelRequest",
    "UntypedAPIFuture",
    "UserSearchOwner",
    "WhoamiResponse",
]
