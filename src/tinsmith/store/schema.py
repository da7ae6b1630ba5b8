"""The tables: the catalogue (what exists) and the journal (what was asked and answered).

Times are seconds since the epoch, UTC.
"""

from __future__ import annotations

from sqlalchemy import (
    DDL,
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.event import listen

SCHEMA_VERSION = 3
metadata = MetaData()

properties = Table(
    "properties",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", Text, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("session_id", String, primary_key=True),
    Column("owner", String, nullable=False, index=True),
    Column("created_at", Float, nullable=False),
    Column("last_seen_at", Float, nullable=False),
    Column("status", String, nullable=False),  # active | client_finished | cancelled
    Column("status_detail", JSON),
    Column("tags", JSON, nullable=False),
    Column("user_metadata", JSON, nullable=False),
    Column("project_id", String),
    Column("display_name", String),
    Column("sdk_version", String),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("session_id", String, nullable=False, index=True),
    Column("owner", String, nullable=False, index=True),
    Column("base_model", String, nullable=False),
    Column("lora", JSON, nullable=False),
    Column("user_metadata", JSON),
    Column("created_at", Float, nullable=False),
    Column("last_request_at", Float, nullable=False),
    Column("live", Boolean, nullable=False),
    Column("failure", Text),
)

samplers = Table(
    "samplers",
    metadata,
    Column("sampler_id", String, primary_key=True),
    Column("session_id", String, nullable=False, index=True),
    Column("owner", String, nullable=False),
    Column("base_model", String, nullable=False),
    Column("model_path", String),
    Column("blob", String),  # None: the bare base model
    Column("size_bytes", BigInteger, nullable=False),  # of what only this sampler keeps; 0 once it is freed
    Column("created_at", Float, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("tinker_path", String, primary_key=True),
    Column("run_id", String, nullable=False, index=True),
    Column("owner", String, nullable=False, index=True),
    Column("checkpoint_type", String, nullable=False),
    Column("checkpoint_id", String, nullable=False),
    Column("base_model", String, nullable=False),
    Column("lora", JSON, nullable=False),
    Column("has_optimizer", Boolean, nullable=False),
    Column("blob", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("public", Boolean, nullable=False),
    Column("user_metadata", JSON),
    Column("request_id", String, nullable=False),  # the operation that wrote it
)

# What was asked. What it holds lies beside it in `payloads`, for as long as it may be needed again.
operations = Table(
    "operations",
    metadata,
    Column("request_id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("stream_id", String, nullable=False),  # the run or the sampler
    Column("seq_id", BigInteger, nullable=False),
    Column("kind", String, nullable=False),
    Column("accepted_at", Float, nullable=False),
    Index("operations_by_stream", "stream_id", "seq_id"),
)

# What was answered. The answer itself lies beside it in `answers`, until it expires or is acknowledged.
results = Table(
    "results",
    metadata,
    Column("request_id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("started_at", Float),  # None: it was answered without being begun
    Column("finished_at", Float, nullable=False, index=True),
    Column("error", Text),
    Column("category", String),
    Column("size", BigInteger, nullable=False),  # of the answer, uncompressed
)

# Compressed (`packing`), so that scans of the tables above read none of it.
payloads = Table(
    "payloads",
    metadata,
    Column("request_id", String, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

answers = Table(
    "answers",
    metadata,
    Column("request_id", String, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

# States of live runs that a restart begins from; ``seq_id`` is the last operation in it.
snapshots = Table(
    "snapshots",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("seq_id", BigInteger, primary_key=True, autoincrement=False),
    Column("blob", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", Float, nullable=False),
)

# How many clients share a sampler besides its first one: each numbers its samples in a range of its own.
sampler_clients = Table(
    "sampler_clients",
    metadata,
    Column("sampler_id", String, primary_key=True),
    Column("joined", BigInteger, nullable=False),
)

# Who did what, when. Rows are only ever added.
audit = Table(
    "audit",
    metadata,
    Column("entry_id", Integer, primary_key=True, autoincrement=True),
    Column("owner", String, nullable=False),  # whose thing it was
    Column("at", Float, nullable=False),
    Column("event", String, nullable=False),
    Column("subject", String, nullable=False),  # the kind of thing: what event_type filters by
    Column("details", JSON, nullable=False),
    Index("audit_by_owner", "owner", "at"),
)

_ONLY_ADDED = (
    "CREATE TRIGGER audit_no_{0} BEFORE {0} ON audit "
    "BEGIN SELECT RAISE(ABORT, 'the audit log is only ever added to'); END"
)
for _change in ("update", "delete"):
    _refusal = DDL(_ONLY_ADDED.format(_change))  # type: ignore[no-untyped-call]
    listen(audit, "after_create", _refusal.execute_if(dialect="sqlite"))

# Tokens, summed per hour.
usage = Table(
    "usage",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),  # seconds since the epoch
    Column("owner", String, primary_key=True),
    Column("session_id", String, primary_key=True),
    Column("base_model", String, primary_key=True),
    Column("kind", String, primary_key=True),  # training | prefill | prefill_cached | sample
    Column("tokens", BigInteger, nullable=False),
)

# How long each checkpoint was kept: what storage used in any hour follows from it.
storage = Table(
    "storage",
    metadata,
    Column("entry_id", Integer, primary_key=True, autoincrement=True),
    Column("tinker_path", String, nullable=False, index=True),
    Column("owner", String, nullable=False, index=True),
    Column("session_id", String, nullable=False),
    Column("base_model", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("since", Float, nullable=False),
    Column("until", Float),  # None: it is there
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Integer, primary_key=True, autoincrement=True),
    Column("key_hash", String, nullable=False, unique=True),  # SHA-256; the key itself is kept nowhere
    Column("owner", String, nullable=False),
    Column("role", String, nullable=False),  # owner | admin
    Column("limits", JSON, nullable=False),  # those that differ from the service's settings
    Column("name", String, nullable=False),
    Column("note", String, nullable=False),
    Column("email", String),
    Column("created_at", Float, nullable=False),
    Column("revoked_at", Float),
)
