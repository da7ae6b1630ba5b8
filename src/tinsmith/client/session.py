"""A session on the service: opened on first use, kept alive for as long as a client holds it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from dataclasses import dataclass
from typing import Any, Literal

from tinsmith.types import CreateSessionRequest

from .api import Api
from .clock import CLOCK, Clock
from .config import PROTOCOL_VERSION, ClientConfig
from .connection import Connection
from .errors import APIStatusError, TinkerError
from .futures import APIFuture, spawn
from .gate import BytesBudget, SampleGate, gate_for
from .loop import background
from .observe import Observer
from .polling import Poller
from .replies import CreateSessionReply, ServerConfig
from .telemetry import Telemetry

_log = logging.getLogger("tinsmith")

HEARTBEAT_EVERY = 10.0
SILENCE_WARNED = 120.0

Status = Literal["success", "errored", "interrupted"]


@dataclass(frozen=True, slots=True)
class Live:
    """An open session and the tools its clients share."""

    api: Api
    session_id: str
    server: ServerConfig
    poller: Poller
    gate: SampleGate
    training_bytes: BytesBudget
    sample_bytes: BytesBudget
    telemetry: Telemetry
    observer: Observer


class Session:
    """What a ServiceClient and everything made from it share. Dropping them all ends the heartbeats."""

    def __init__(
        self,
        config: ClientConfig,
        user_metadata: dict[str, Any] | None = None,
        display_name: str | None = None,
        clock: Clock = CLOCK,
        joins: str | None = None,
    ) -> None:
        self._joins = joins  # somebody else's session, to share in
        self.observer = Observer(clock)
        self.telemetry = Telemetry(config.telemetry, clock)
        self.connection = Connection(config, clock)
        self.config = config
        self.clock = clock
        self._request = CreateSessionRequest(
            tags=list(config.tags),
            user_metadata=user_metadata or {},
            sdk_version=PROTOCOL_VERSION,
            project_id=config.project_id,
            display_name=display_name,
        )
        self._live: Live | None = None
        self._starting = asyncio.Lock()
        # next() on a count is atomic: ids may be taken from any thread.
        self.model_seq_ids = itertools.count()
        self.sampling_seq_ids = itertools.count()
        self.loss_seq_ids = itertools.count()

    def check(self) -> None:
        """Refuse to be used when closed, or in a forked child."""
        self.connection.check()

    async def live(self) -> Live:
        """The open session. A start that failed is tried anew by the next caller."""
        self.check()
        if self._live is not None:
            return self._live
        async with self._starting:
            if self._live is None:
                self._live = await self._start()
            return self._live

    def get_session_id(self) -> str:
        """The session's id; opens it if need be (blocks)."""
        return self.opened().result()

    def opened(self) -> APIFuture[str]:
        """The session's id, once it is open."""

        async def session_id() -> str:
            return (await self.live()).session_id

        return spawn(session_id(), "open the session")

    async def _start(self) -> Live:
        api = await self.connection.api()
        server = await api.server_config()
        session_id = self._joins or await self._create(api)
        self.telemetry.open(api, session_id)
        self._keep(self.telemetry.run(), "telemetry")
        self._keep(_heartbeat(weakref.ref(self), api, session_id, self.clock), "heartbeat")
        return Live(
            api=api,
            session_id=session_id,
            server=server,
            poller=Poller(api, server, self.clock, self.config.deadline),
            gate=gate_for(self.config),
            training_bytes=BytesBudget(server.fwdbwd_dispatch_bytes_semaphore_size),
            sample_bytes=BytesBudget(server.sample_dispatch_bytes_semaphore_size),
            telemetry=self.telemetry,
            observer=self.observer,
        )

    async def _create(self, api: Api) -> str:
        reply = await api.create_session(self._request)
        _tell(reply)
        self.telemetry.emit("SESSION_START")
        return reply.session_id

    def _keep(self, work: Any, name: str) -> None:
        """Work that runs until the connection closes. It must not hold this session."""
        task = background().start(work, name)
        self.connection.closing.callback(task.cancel)

    async def close(self, status: Status = "success", detail: str | None = None) -> None:
        """Tell the service how it ended, and let go of everything."""
        live, self._live = self._live, None

        async def finish() -> None:
            if live is None:
                return
            if self._joins is None:  # a shared session is ended by whoever opened it
                live.telemetry.emit("SESSION_END")
                await _finish(live, status, detail)
            await live.telemetry.drain()

        await self.connection.close(finish)


async def _finish(live: Live, status: Status, detail: str | None) -> None:
    try:
        await live.api.finish_session(live.session_id, status, detail)
    except TinkerError as error:  # the service will see the heartbeats stop
        _log.info("session %s ended without the service hearing of it: %s", live.session_id, error)


async def _heartbeat(session: weakref.ref[Session], api: Api, session_id: str, clock: Clock) -> None:
    """One beat every ten seconds until the session is dropped or the service says that it is over."""
    last = clock.now()
    warned = False
    while True:
        await clock.sleep(HEARTBEAT_EVERY)
        if session() is None:
            return
        try:
            await api.heartbeat(session_id)
        except APIStatusError as error:
            if error.status_code in (404, 410):
                _log.error("session %s has ended on the service: %s", session_id, error)
                return
            failure: TinkerError = error
        except TinkerError as error:
            failure = error
        else:
            last, warned = clock.now(), False
            continue
        silent = clock.now() - last
        if silent > SILENCE_WARNED and not warned:
            warned = True
            _log.warning("session %s: no heartbeat got through for %.0f s: %s", session_id, silent, failure)


def _tell(reply: CreateSessionReply) -> None:
    for level, message in (
        (logging.INFO, reply.info_message),
        (logging.WARNING, reply.warning_message),
        (logging.ERROR, reply.error_message),
    ):
        if message:
            _log.log(level, "%s", message)
