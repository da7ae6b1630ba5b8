"""Places where a test can make the program fail. The environment arms them; otherwise they are nothing.

TINSMITH_FAILPOINTS="snapshot.entered=crash@2, journal.commit=eio@1+" kills the process when it is at
`snapshot.entered` for the second time, and fails every commit as a broken disk does. Without `@`: the
first time.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter

# Where they are: after each write on the way of an operation, a checkpoint and a snapshot.
POINTS = frozenset(
    {
        "journal.commit",  # all is written, the commit is not made
        "journal.committed",  # it is on the disk, nobody has been told
        "adapter.config",
        "adapter.weights",
        "adapter.optimizer",
        "adapter.gradients",
        "adapter.synced",
        "blob.publish",  # written aside, not in its place
        "blob.replacing",  # what was there is away, what shall be there is not yet
        "blob.published",
        "blob.deleted",
        "snapshot.written",  # the engine is done
        "snapshot.sealed",
        "snapshot.entered",  # in the catalogue; what it makes superfluous is still there
    }
)
_ERRORS = {"enospc": errno.ENOSPC, "eio": errno.EIO}
_ACTIONS = {"crash", *_ERRORS}


def _parse(text: str) -> dict[str, tuple[str, range]]:
    armed = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, what = entry.partition("=")
        action, _, at = what.partition("@")
        if name not in POINTS or action not in _ACTIONS:
            raise ValueError(f"TINSMITH_FAILPOINTS: {entry!r} is not POINT=ACTION[@N[+]]")
        first = int(at.rstrip("+") or 1)
        armed[name] = (action, range(first, 2**62 if at.endswith("+") else first + 1))
    return armed


_ARMED = _parse(os.environ.get("TINSMITH_FAILPOINTS", ""))
_reached: Counter[str] = Counter()


def _reach(name: str) -> None:
    _reached[name] += 1
    action, when = _ARMED.get(name, ("", range(0)))
    if _reached[name] not in when:
        return
    if action == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(_ERRORS[action], f"failpoint {name}")


def _pass(name: str) -> None:
    """Nothing is armed."""


reach = _reach if _ARMED else _pass
