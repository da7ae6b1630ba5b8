"""A real service on a thread of this process, with a table of faults before it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .exchange import DROP
from .fault_table import Faults, Misbehaving

START_SECONDS = STOP_SECONDS = 60.0


class _Droppable(HttpToolsProtocol):
    """Gives each request the means to cut its own connection."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[DROP] = self.transport.abort  # type: ignore[literal-required]


class ThreadServer:
    """An ASGI app on a free port of this machine, served by a thread of its own."""

    def __init__(self, app: ASGIApp, protocol: type[HttpToolsProtocol] = _Droppable) -> None:
        config = uvicorn.Config(
            app,
            port=0,
            http=protocol,
            lifespan="on",
            log_level="critical",
            access_log=False,
            backlog=4096,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="tinsmith-faulty-service", daemon=True)
        self._listening = threading.Event()
        self._error: BaseException | None = None
        self.url = ""

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # told to whoever starts or stops it
            self._error = error
        finally:
            self._listening.set()

    async def _serve(self) -> None:
        serving = asyncio.create_task(self._server.serve())
        while not (self._server.started or serving.done()):
            await asyncio.sleep(0.01)
        if self._server.started:
            port = self._server.servers[0].sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            self._listening.set()
        await serving

    def start(self) -> None:
        """Return once it listens."""
        self._thread.start()
        if not self._listening.wait(START_SECONDS) or not self.url:
            raise RuntimeError("the service did not start") from self._error

    def stop(self) -> None:
        """Return once it has ended."""
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            raise RuntimeError(f"the service did not stop in {STOP_SECONDS:.0f} s")
        if self._error is not None:
            raise self._error


class FaultyService:
    """A real service with real models that misbehaves when its ``faults`` say so.

    >>> with FaultyService(data_dir) as service:  # doctest: +SKIP
    ...     service.faults.on("optim_step", Drop("after"))
    ...     client = tinsmith.ServiceClient(base_url=service.url, api_key="tml-test")
    """

    def __init__(
        self,
        data_dir: Path,
        models: Sequence[str] = ("tiny-llama",),
        faults: Faults | None = None,
        **settings: Any,
    ) -> None:
        from tinsmith.engine.host import offer, open_engine
        from tinsmith.engine.models import Catalogue
        from tinsmith.server import create_app
        from tinsmith.server.auth import Authenticator
        from tinsmith.service import Service, Settings

        self.faults = faults if faults is not None else Faults()
        chosen = Settings(data_dir=data_dir, **settings)
        engine = open_engine(offer(Catalogue(), models), chosen.engine_options())
        self.service = Service(engine, chosen)
        auth = Authenticator(None, self.service.keys, self.service.tokens)
        app = create_app(self.service, auth, own_service=True)
        self._server = ThreadServer(Misbehaving(app, self.faults))

    @property
    def url(self) -> str:
        """What clients need to know."""
        return self._server.url

    def __enter__(self) -> FaultyService:
        self._server.start()
        self.faults.url = self.url
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
