"""Session events for the operator of the service: in batches, in the background, without secrets."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from .api import Api
from .clock import CLOCK, Clock
from .errors import TinkerError
from .retry import is_user_error

_log = logging.getLogger("tinsmith")

FLUSH_EVERY = 10.0
BATCH = 100
QUEUE = 10_000
DRAIN_SECONDS = 1.0  # the most a close waits for the last events


class Telemetry:
    """The reporter of one session. Nothing here ever delays or hides an error of the user's program.

    Events of a session that is not open yet are kept until it is.
    """

    def __init__(self, enabled: bool, clock: Clock = CLOCK) -> None:
        self._api: Api | None = None
        self._session_id = ""
        self._enabled = enabled
        self._clock = clock
        self._queue: deque[dict[str, Any]] = deque(maxlen=QUEUE)
        self._index = 0
        self._lock = threading.Lock()

    def open(self, api: Api, session_id: str) -> None:
        """From now on there is somewhere to send events."""
        self._api, self._session_id = api, session_id

    def log(self, event_name: str, event_data: dict[str, Any] | None = None, severity: str = "INFO") -> bool:
        """Note an event of your own; False if telemetry is switched off. No secrets are taken out of it."""
        self.emit("GENERIC_EVENT", severity, event_name=event_name, event_data=event_data or {})
        return self._enabled

    def emit(self, event: str, severity: str = "INFO", **fields: Any) -> None:
        """Note one event; ids and numbers only."""
        if not self._enabled:
            return
        with self._lock:
            self._queue.append(
                {
                    "event": event,
                    "event_id": str(uuid.uuid4()),
                    "event_session_index": self._index,
                    "severity": severity,
                    "timestamp": datetime.now(UTC).isoformat(),
                    **fields,
                }
            )
            self._index += 1

    def error(self, error: BaseException) -> None:
        """Note the kind of an error that reached the user, but not its words, which may tell secrets."""
        status = getattr(error, "status_code", None)
        data = {"error_type": type(error).__name__, "status_code": status}
        if is_user_error(error):
            self.emit("GENERIC_EVENT", "WARNING", event_name="user_error", event_data=data)
        else:
            what = {"error_type": type(error).__name__, "error_message": f"status {status}"}
            self.emit("UNHANDLED_EXCEPTION", "ERROR", **what)

    @contextmanager
    def noting_errors(self) -> Iterator[None]:
        """Note the errors that leave this block, and let them go on at once."""
        try:
            yield
        except Exception as error:
            self.error(error)
            raise

    async def run(self) -> None:
        """Send what gathers, until cancelled."""
        while self._enabled:
            await self._clock.sleep(FLUSH_EVERY)
            await self.flush()

    async def flush(self) -> None:
        """Send what there is, once; a batch that is not accepted is dropped."""
        while self._queue and self._api is not None:
            with self._lock:
                batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            try:
                await self._api.telemetry(self._session_id, batch)
            except TinkerError as error:
                _log.debug("%d telemetry events were dropped: %s", len(batch), error)
                return

    async def drain(self) -> None:
        """Send the last events, for at most a second."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.flush()
        except TimeoutError:
            _log.debug("telemetry was not taken within %.0f s", DRAIN_SECONDS)
