"""This SDK beside the official tinker==0.38.0: both from a bare install, against one local stub service.

    python bench/sdk.py [--rounds 3] [--only import]

Each side gets a virtual environment of its own with nothing else in it (.cache/bench-sdk, made on first use),
and runs the same program (`sdk_client.py`), word for word. The stub (`sdk_stub.py`) is a process of its own
that answers at once. The sides take turns; of each the best round counts: noise only slows down.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
OFFICIAL = "tinker==0.38.0"
NAMES = "AdamParams, Datum, ModelInput, SamplingParams, ServiceClient, TensorData"
SAMPLES = [(1, 500), (64, 3000), (1000, 4000)]  # in flight, in all


@dataclass(frozen=True)
class Side:
    """One of the two SDKs."""

    package: str
    python: Path

    def run(self, *arguments: str) -> str:
        """What a program under its interpreter prints."""
        quiet = {key: value for key, value in os.environ.items() if not key.startswith(("TINKER", "PYTHON"))}
        command = [str(self.python), "-W", "ignore", *arguments]
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, timeout=200)
        if done.returncode:
            raise RuntimeError(f"{self.package} ended with {done.returncode}: {done.stderr[-3000:]}")
        return done.stdout

    def measure(self, url: str, *what: object) -> dict[str, float]:
        """One measurement of `sdk_client.py`."""
        printed = self.run(str(HERE / "sdk_client.py"), self.package, url, *map(str, what))
        measured: dict[str, float] = json.loads(printed.splitlines()[-1])
        return measured

    def size(self) -> float:
        """Bytes of everything that was installed, in MiB; what imports left behind does not count."""
        files = (self.python.parents[1] / "lib").rglob("*")
        kept = (file for file in files if file.is_file() and file.suffix != ".pyc")
        return sum(file.stat().st_size for file in kept) / 2**20

    def seconds_to(self, code: str) -> float:
        """How long a fresh interpreter takes for this."""
        timed = f"import time; began = time.perf_counter(); {code}; print(time.perf_counter() - began)"
        return float(self.run("-c", timed))


def install(name: str, package: str, what: str) -> Side:
    """A bare environment with one SDK; ours is installed anew each time, for it may have changed."""
    folder = ROOT / ".cache" / "bench-sdk" / name
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "-qqq", f"--python={python}"]
    constraint = ["--constraint", str(ROOT / "constraints.txt")]
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=False)
        subprocess.run([*pip, "install", *constraint, what], check=True)
        (folder / "ready").touch()
    elif what == str(ROOT):
        again = ["--force-reinstall", "--no-deps"]
        subprocess.run([*pip, "install", *constraint, *again, what], check=True)
    return Side(package, python)


@contextmanager
def stub() -> Iterator[str]:
    """The service, as a base URL."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(HERE / "sdk_stub.py")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@dataclass(frozen=True)
class Row:
    """One line of the table; ``goal`` is how many times better ours is to be."""

    what: str
    unit: str
    more_is_better: bool
    goal: float


Measure = Callable[[Side], dict[str, float]]


def plan(url: str) -> list[tuple[Measure, dict[str, Row]]]:
    """What is measured, and the rows its figures belong in."""

    def samples(in_flight: int, count: int) -> tuple[Measure, dict[str, Row]]:
        return lambda side: side.measure(url, "samples", in_flight, count), {
            "samples_per_second": Row(f"samples/s, {in_flight:,} in flight", "/s", True, 1),
            "cpu_per_1000": Row(f"CPU time per 1,000 samples, {in_flight:,} in flight", "s", False, 2),
        }

    return [
        *(samples(*each) for each in SAMPLES),
        (
            lambda side: side.measure(url, "submit"),
            {
                "seconds": Row("submit 256 datums × 4,096 tokens", "s", False, 2),
                "peak_mib": Row("the same, memory on top", "MiB", False, 1),
            },
        ),
        (
            lambda side: {
                "import": side.seconds_to(f"import {side.package}"),
                "use": side.seconds_to(
                    f"import {side.package} as t; t.ServiceClient, t.Datum, t.SamplingParams"
                ),
            },
            {
                "import": Row("import", "s", False, 5),
                "use": Row("import, and the names a program uses", "s", False, 1),
            },
        ),
        (lambda side: {"size": side.size()}, {"size": Row("installed size", "MiB", False, 5)}),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="rows that say this")
    arguments = parser.parse_args()
    sides = [install("official", "tinker", OFFICIAL), install("ours", "tinsmith", str(ROOT))]
    print(f"| | {OFFICIAL} | tinsmith | times better | goal |\n|---|---|---|---|---|")
    with stub() as url:
        for measure, rows in plan(url):
            if not any(arguments.only in row.what for row in rows.values()):
                continue
            found = [[measure(side) for side in sides] for _ in range(arguments.rounds)]
            for key, row in rows.items():
                best = max if row.more_is_better else min
                theirs, ours = (best(each[at][key] for each in found) for at in (0, 1))
                ratio = ours / theirs if row.more_is_better else theirs / ours
                goal = f"{row.goal:g}×" if row.goal > 1 else "ahead"
                shown = " | ".join(_figure(value, row.unit) for value in (theirs, ours))
                print(f"| {row.what} | {shown} | {ratio:.1f}× | {goal} |", flush=True)


def _figure(value: float, unit: str) -> str:
    if unit == "s":
        return f"{1000 * value:,.0f} ms" if value >= 0.01 else f"{1000 * value:.1f} ms"
    return f"{value:,.0f}{unit}" if unit == "/s" else f"{value:,.0f} {unit}"


if __name__ == "__main__":
    main()
