"""A session's timeline: asked for, and waited for until it is written."""

from __future__ import annotations

from .api import Api
from .clock import Clock
from .errors import TinkerError
from .retry import Delay

_PACE = Delay(0.5, 5.0)
_LONGEST = 600.0


async def export(api: Api, session_id: str, clock: Clock) -> str:
    """The signed address of the trace."""
    began, asked = clock.now(), 0
    while True:
        trace = await api.trace_export(session_id)
        if trace.status == "failed":
            raise TinkerError(f"the trace of {session_id} failed: {trace.error or 'no reason given'}")
        if trace.status == "ready" and trace.url is not None:
            return trace.url
        if clock.now() - began > _LONGEST:
            raise TinkerError(f"the trace of {session_id} was not ready after {_LONGEST:.0f} s")
        await clock.sleep(_PACE.after(asked, clock.chance()))
        asked += 1
