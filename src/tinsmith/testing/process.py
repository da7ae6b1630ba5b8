"""A real `tinsmith serve`, started, killed and started again at will."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

_LISTENING = re.compile(r" at (http://\S+)$")


class ServiceProcess:
    """A service on a free port of this machine, over one data directory.

    >>> with ServiceProcess(data_dir, models=["tiny-llama"]) as service:  # doctest: +SKIP
    ...     client = tinsmith.ServiceClient(base_url=service.url, api_key="tml-test")
    """

    def __init__(
        self,
        data_dir: Path,
        models: Sequence[str] = ("tiny-llama",),
        options: Sequence[str] = (),
        start_within: float = 120.0,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.data_dir, self._models, self._options = data_dir, tuple(models), tuple(options)
        self._environment = {"PYTHONUNBUFFERED": "1", **environment}
        self._start_within = start_within
        self._process: subprocess.Popen[str] | None = None
        self._output: deque[str] = deque(maxlen=200)
        self._listening = threading.Event()
        self._port = 0
        self.url = ""

    def start(self) -> ServiceProcess:
        """Start, or start again on the same port over the same data; returns once it listens."""
        command = [sys.executable, "-m", "tinsmith", "serve", "--data-dir", str(self.data_dir)]
        command += ["--port", str(self._port), *self._options]
        for model in self._models:
            command += ["--model", model]
        self._listening.clear()
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | self._environment,
        )
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        if not self._listening.wait(self._start_within) or self._process.poll() is not None:
            self.kill()
            raise RuntimeError(f"the service did not start:\n{self.output}")
        self._port = int(self.url.rpartition(":")[2])
        return self

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._output.append(line)
                if match := _LISTENING.search(line.rstrip()):
                    self.url = match[1]
                    self._listening.set()
        self._listening.set()  # it ended: nobody need wait any longer

    @property
    def output(self) -> str:
        """The last lines it printed."""
        return "".join(self._output)

    @property
    def process_id(self) -> int:
        """Of the service."""
        assert self._process is not None, "the service is not running"
        return self._process.pid

    @property
    def engine_process_id(self) -> int:
        """Of its engine, which is the service's one child; after a death there is none for a moment."""
        children = Path(f"/proc/{self.process_id}/task/{self.process_id}/children")
        while not (found := children.read_text().split()):
            time.sleep(0.01)
        return int(found[0])

    def kill(self) -> None:
        """As the power cut does it."""
        self._end(signal.SIGKILL)

    def interrupt(self) -> None:
        """Press Ctrl-C, and do not wait for what it does."""
        os.kill(self.process_id, signal.SIGINT)

    def stop(self) -> None:
        """As Ctrl-C does it."""
        self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(how)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise RuntimeError(f"the service did not stop:\n{self.output}") from None
        self._process = None

    def __enter__(self) -> ServiceProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
