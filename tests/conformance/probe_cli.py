"""Probes of the commands about runs, checkpoints and models."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from probing import RANK, World, parts, probe, settled

Call = Callable[..., Any]


def _json(world: World, *arguments: str) -> Any:
    return json.loads(world.cli("-f", "json", *arguments))


@probe("tinker version", checks="the SDK's version")
def version(world: World, it: Any, call: Call) -> None:
    assert world.version in world.cli("version")
    assert world.version in world.cli_process("version")


@probe("tinker run list", checks="the newest run first; --limit 0 lists all")
def run_list(world: World, it: Any, call: Call) -> None:
    made = [world.training().model_id for _ in range(2)]
    assert _ids(_json(world, "run", "list", "--limit", "2")["runs"]) == made[::-1]
    every = _ids(_json(world, "run", "list", "--limit", "0")["runs"])
    assert len(every) == len(set(every)) and set(made) <= set(every)


def _ids(runs: list[dict[str, Any]]) -> list[str]:
    return [run["training_run_id"] for run in runs]


@probe("tinker run info", checks="base model and rank; an unknown id is refused")
def run_info(world: World, it: Any, call: Call) -> None:
    shown = _json(world, "run", "info", world.training().model_id)
    assert world.model in json.dumps(shown) and shown["lora_rank"] == RANK
    assert "not found" in world.cli("run", "info", "no-such-run", ok=False)


@probe("tinker checkpoint list", checks="of one run, of all runs, and all of them with --limit 0")
def checkpoint_list(world: World, it: Any, call: Call) -> None:
    path = world.saved()
    assert _paths(_json(world, "checkpoint", "list", "--run-id", parts(path)[0])) == [path]
    assert _paths(_json(world, "checkpoint", "list", "--limit", "1")) == [path]
    assert path in _paths(_json(world, "checkpoint", "list", "--limit", "0"))


def _paths(shown: dict[str, Any]) -> list[str]:
    return [checkpoint["tinker_path"] for checkpoint in shown["checkpoints"]]


@probe("tinker checkpoint info", checks="its kind, size and run")
def checkpoint_info(world: World, it: Any, call: Call) -> None:
    path = world.saved()
    shown = json.dumps(_json(world, "checkpoint", "info", path))
    assert path in shown and "training" in shown


@probe("tinker checkpoint publish", "tinker checkpoint unpublish", checks="public, then private again")
def checkpoint_publish(world: World, it: Any, call: Call) -> None:
    path = world.saved()
    for command, public in (("publish", True), ("unpublish", False)):
        world.cli("checkpoint", command, path)
        (saved,) = settled(world.rest.list_checkpoints(parts(path)[0])).checkpoints
        assert saved.public is public


@probe("tinker checkpoint delete", checks="by path, and (0.38) all of a run's of one kind")
def checkpoint_delete(world: World, it: Any, call: Call) -> None:
    training = world.training()
    path, other = world.saved(training), settled(training.save_weights_for_sampler(world.name())).path
    world.cli("checkpoint", "delete", path, "--yes")
    assert _left(world, path) == [other]
    if not world.old:
        shown = _json(
            world,
            "checkpoint",
            "delete",
            "--run-id",
            training.model_id,
            "--type",
            "sampler_weights",
            "--yes",
        )
        assert shown == {"deleted_count": 1, "failed": []}
        assert _left(world, path) == []


def _left(world: World, path: str) -> list[str]:
    return [c.tinker_path for c in settled(world.rest.list_checkpoints(parts(path)[0])).checkpoints]


@probe("tinker checkpoint set-ttl", checks="sets the expiry and removes it")
def checkpoint_set_ttl(world: World, it: Any, call: Call) -> None:
    path = world.saved()
    for options, expires in ((("--ttl", "7200"), True), (("--remove",), False)):
        world.cli("checkpoint", "set-ttl", path, *options)
        (saved,) = settled(world.rest.list_checkpoints(parts(path)[0])).checkpoints
        assert (saved.expires_at is not None) is expires


@probe("tinker checkpoint download", checks="the PEFT files; the temporary export is deleted")
def checkpoint_download(world: World, it: Any, call: Call) -> None:
    training = world.trained()
    path, folder = world.saved(training), world.folder_of_its_own()
    external = settled(training.save_weights_external(world.name())).path
    for source in (path, external):
        world.cli("checkpoint", "download", source, "-o", str(folder))
        (target,) = folder.glob(f"*{parts(source)[1].replace('/', '_')}")
        assert {"adapter_config.json", "adapter_model.safetensors"} <= {f.name for f in target.iterdir()}
    adapters = {file.read_bytes() for file in folder.rglob("adapter_model.safetensors")}
    assert len(adapters) == 1
    exports = settled(world.rest.list_user_checkpoints(limit=1000)).checkpoints
    assert [c.tinker_path for c in exports if c.checkpoint_id == "external_weights/download"] == []


@probe("tinker checkpoint push-hf", checks="the PEFT files and a model card reach a (local) hub")
def checkpoint_push_hf(world: World, it: Any, call: Call) -> None:
    path = world.saved(world.trained())
    with hub() as (url, files):
        environment = {"HF_ENDPOINT": url, "HF_TOKEN": "hf_probe", "HF_HOME": str(world.folder_of_its_own())}
        world.cli_process("checkpoint", "push-hf", path, "-r", "me/adapter", **environment)
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} <= set(files)
    assert path in files["README.md"]


@contextmanager
def hub() -> Iterator[tuple[str, dict[str, str]]]:
    """As much of a model hub as an upload needs; gives its URL and what was committed to it."""
    import base64

    files: dict[str, str] = {}

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answers = {"/api/whoami-v2": {"name": "me", "type": "user", "orgs": []}}
            path = self.path.partition("?")[0]
            if path.startswith("/api/models/me/adapter"):
                self._send({"id": "me/adapter", "sha": "0" * 40, "siblings": []})
            else:
                self._send(answers.get(path, {"error": "nothing"}), 200 if path in answers else 404)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if "/preupload/" in self.path:
                asked = json.loads(body)["files"]
                self._send(
                    {
                        "files": [
                            {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked
                        ]
                    }
                )
            elif "/commit/" in self.path:
                for line in body.splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        content = base64.b64decode(entry["value"]["content"])
                        files[entry["value"]["path"]] = content.decode("utf-8", "replace")
                self._send(
                    {
                        "commitUrl": f"http://{self.headers['Host']}/me/adapter/commit/{'0' * 40}",
                        "commitOid": "0" * 40,
                        "pullRequestUrl": None,
                    }
                )
            elif "/validate-yaml" in self.path:
                self._send({"errors": [], "warnings": []})
            else:
                self._send({"url": f"http://{self.headers['Host']}/me/adapter", "id": "me/adapter"})

        def _send(self, value: Any, status: int = 200) -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Quietly."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", files
    finally:
        server.shutdown()
        server.server_close()


@probe("tinker model list", checks="the models on offer, those that match")
def model_list(world: World, it: Any, call: Call) -> None:
    assert world.model in world.cli("model", "list")
    assert world.model in world.cli("-f", "json", "model", "list", world.model[:4])
    assert world.model not in world.cli("model", "list", "no-such-model", ok=False)
