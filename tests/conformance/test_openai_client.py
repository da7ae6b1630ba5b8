"""OpenAI's own client, unmodified, completes text and answers a conversation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from official import make_environment

from tinsmith.testing import ServiceProcess

VERSION = "3.51.0"
LIBRARIES = ("distro", "jiter", "sniffio", "tqdm")


def test_completions(tinsmith_service: ServiceProcess) -> None:
    python = make_environment(f"openai-{VERSION}", (f"openai=={VERSION}",), LIBRARIES)
    script = Path(__file__).with_name("openai_client.py")
    command = [str(python), str(script), "tiny-llama", f"{tinsmith_service.url}/oai/api/v1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout)
    assert said["models"] == ["tiny-llama"]
    assert said["text"]
    assert 1 <= len(said["token_logprobs"]) == said["written"] <= 4
    assert all(logprob <= 0 for logprob in said["token_logprobs"])
    assert len(set(said["answers"])) == 2
    assert all(1 <= count <= 4 for count in said["logprobs"])
    assert "frequency_penalty" in said["refusal"]
