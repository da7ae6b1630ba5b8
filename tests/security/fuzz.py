"""Coverage-guided fuzzing of everything that reads bytes of strangers, then of a live service.

    python tests/security/fuzz.py [--minutes 5] [--runs N]

Half of the time goes to the decoders (atheris), half to a service on a port (hypothesis).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent


def fuzz_decoders(corpus: str, *options: str) -> None:
    """In this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["tinsmith.wire", "tinsmith.types"]):
        import decoders
    for number, seed in enumerate(decoders.seeds()):
        (Path(corpus) / f"seed-{number}").write_bytes(seed)
    atheris.Setup(
        [sys.argv[0], corpus, "-timeout=10", "-rss_limit_mb=4096", "-max_len=65536", *options],
        decoders.decode,
    )
    atheris.Fuzz()


def run(minutes: float, runs: int) -> int:
    """Both parts; not zero if either found something."""
    how_long = [f"-runs={runs}", "-seed=1"] if runs else [f"-max_total_time={minutes * 30:.0f}"]
    with tempfile.TemporaryDirectory() as corpus:
        command = [
            sys.executable,
            __file__,
            "--decoders",
            corpus,
            *how_long,
            f"-artifact_prefix={os.getcwd()}/",
        ]
        found = subprocess.run(command).returncode
    if runs or found:
        return found
    until = time.monotonic() + minutes * 30
    while not found and time.monotonic() < until:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-q",
            "-p",
            "no:cacheprovider",
            str(HERE / "test_fuzz.py"),
        ]
        seed = f"--hypothesis-seed={time.time_ns() % 10**9}"
        environment = os.environ | {"TINSMITH_FUZZ_EXAMPLES": "500"}
        found = subprocess.run([*command, "-k", "live", seed], env=environment).returncode
    return found


def main() -> None:
    if sys.argv[1:2] == ["--decoders"]:
        fuzz_decoders(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--runs", type=int, default=0, help="a fixed number of inputs, the same each time")
    options = parser.parse_args()
    sys.exit(run(options.minutes, options.runs))


if __name__ == "__main__":
    main()
