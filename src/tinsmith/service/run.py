"""One live training run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tinsmith.types import LoraConfig

from .futures import Ticket
from .journal import Operation
from .sequence import SequencedQueue


@dataclass(slots=True)
class Unsaved:
    """What would have to be done again if the run were lost now."""

    operations: int = 0
    bytes: int = 0  # of their payloads
    seconds: float = 0.0  # they took

    def add(self, size: int, seconds: float) -> None:
        """One more operation."""
        self.operations += 1
        self.bytes += size
        self.seconds += seconds


@dataclass(slots=True, eq=False)
class Run:
    """One live run: its queue, and where its adapter is."""

    run_id: str
    session_id: str
    owner: str
    base_model: str
    lora: LoraConfig
    user_metadata: dict[str, Any] | None
    created_at: float
    queue: SequencedQueue[tuple[Operation, Ticket]]
    last_request_at: float = 0.0
    failure: str | None = None  # why its creation failed; then nothing else can run
    closing: bool = False
    unload_seq: int | None = None  # of the operation that ends it, once somebody asked for that
    current: Ticket | None = None  # what is being carried out
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)  # who holds it may use the adapter
    generation: int | None = None  # of the engine that holds the adapter; None: no engine does
    applied: int = -1  # the last operation that is in the adapter
    memory: int = 0  # bytes the adapter takes
    unsaved: Unsaved = field(default_factory=Unsaved)
    saving: asyncio.Task[None] | None = field(default=None, repr=False)  # a snapshot being written

    def row(self) -> dict[str, Any]:
        """The catalogue's row."""
        return {
            "run_id": self.run_id,
            "session_id": self.session_id,
            "owner": self.owner,
            "base_model": self.base_model,
            "lora": self.lora.model_dump(),
            "user_metadata": self.user_metadata,
            "created_at": self.created_at,
            "last_request_at": self.created_at,
            "live": True,
        }
