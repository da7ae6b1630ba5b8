"""The unmodified official SDK trains and samples while service and engine are killed at random moments."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from official import environment, interpreter
from safetensors.numpy import load_file

from tinsmith.store import DATABASE_FILE
from tinsmith.testing import ServiceProcess

SCRIPT = Path(__file__).with_name("sixty_operations.py")
STEPS = 30
KILLS = int(os.environ.get("TINSMITH_CRASH_KILLS", "3"))  # `make crash` sets more
SEED = int(os.environ.get("TINSMITH_CRASH_SEED", "1"))
LIMIT = 240 + 60 * KILLS
OFTEN = {"TINSMITH_SNAPSHOT_OPERATIONS": "7"}
# Of each kind: operations, those answered, those answered with an error.
_COUNTS = """
    select o.kind, count(*), count(r.request_id), count(r.error)
    from operations o left join results r using (request_id) where o.stream_id = ? group by o.kind
"""


@dataclass(frozen=True)
class Kill:
    """Whom, and when: so many seconds after the client heard of so many steps."""

    victim: str
    after_step: int
    delay: float


def plan(count: int, seed: int) -> list[Kill]:
    """Kills spread over the run; of both kinds, and some in pairs so close that recovery is what dies."""
    draw = random.Random(seed)
    steps = sorted(draw.randrange(STEPS - 1) for _ in range(count))
    victims = [("service", "engine")[at % 2] for at in range(count)]
    draw.shuffle(victims)
    return [Kill(victim, step, draw.uniform(0, 0.4)) for victim, step in zip(victims, steps, strict=True)]


class Client:
    """The SDK in a process of its own; it tells how far it is."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [str(interpreter("0.38.0")), str(SCRIPT), "tiny-llama"],
            env=environment(url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._timer = threading.Timer(LIMIT, self._process.kill)
        self._timer.start()
        self._steps = 0
        self._errors: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.report: dict[str, Any] = {}

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr:
            self._errors += self._process.stderr

    def reach(self, step: int) -> None:
        """Read on until it has done so many steps, or to its end."""
        assert self._process.stdout is not None
        while self._steps < step and (line := self._process.stdout.readline()):
            if line.startswith("step "):
                self._steps = int(line.split()[1])
            else:
                self.report = json.loads(line)

    def finish(self) -> dict[str, Any]:
        """What it was told in all."""
        self.reach(STEPS + 1)
        self._timer.cancel()
        code = self._process.wait()
        self._listener.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert code == 0, "".join(self._errors)[-6000:]
        return self.report


def strike(service: ServiceProcess, kill: Kill) -> None:
    """Do it, and bring the service back if it was the victim; the engine comes back by itself."""
    time.sleep(kill.delay)  # not for luck: any moment must do
    if kill.victim == "service":
        service.kill()
        service.start()
    else:
        os.kill(service.engine_process_id, signal.SIGKILL)


def state(data_dir: Path, report: dict[str, Any]) -> dict[str, str]:
    """The files of the final checkpoint, and how many steps its optimizer has taken."""
    run_id = report["path"].removeprefix("tinker://").partition("/")[0]
    (folder,) = (data_dir / "blobs" / "checkpoints" / run_id / "weights" / "final").iterdir()
    assert load_file(folder / "optimizer.safetensors")["step"] == STEPS
    database = sqlite3.connect(data_dir / DATABASE_FILE)
    counts = {kind: rest for kind, *rest in database.execute(_COUNTS, (run_id,))}
    database.close()
    assert counts["optim_step"] == counts["forward_backward"] == [STEPS, STEPS, 0]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


@pytest.mark.timeout(LIMIT + 60)
def test_kills_at_random_moments_change_nothing(tmp_path: Path, tinsmith_service: ServiceProcess) -> None:
    undisturbed = Client(tinsmith_service.url).finish()
    expected = state(tinsmith_service.data_dir, undisturbed)
    with ServiceProcess(tmp_path / "data", environment=OFTEN) as service:
        client = Client(service.url)
        for kill in plan(KILLS, SEED):
            client.reach(kill.after_step)
            strike(service, kill)
        report = client.finish()
    assert report["steps"] == undisturbed["steps"]
    assert report["samples"] == undisturbed["samples"]
    assert state(tmp_path / "data", report) == expected
