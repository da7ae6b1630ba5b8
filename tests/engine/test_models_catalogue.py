"""Names to folders: what resolves, what is refused, and what the refusal says."""

import hashlib
import json
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tinsmith.engine.models import Alias, Catalogue, ModelUnavailable, default_cache_dir, parse_alias


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Catalogue(tmp_path_factory.mktemp("cache")).resolve("tiny-llama").folder


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "my-model"))


def test_looking_up_names_loads_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import sys; from tinsmith.engine.models import Catalogue; Catalogue(sys.argv[1]).entries()\n"
        "print({'torch', 'transformers', 'numpy', 'tokenizers', 'huggingface_hub'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_entries_of_an_empty_cache(tmp_path: Path) -> None:
    entries = {entry.name: entry for entry in Catalogue(tmp_path).entries()}
    assert list(entries) == ["HuggingFaceTB/SmolLM2-135M-Instruct", "tiny-llama", "tiny-qwen3"]
    assert not any(entry.on_disk for entry in entries.values())
    assert entries["HuggingFaceTB/SmolLM2-135M-Instruct"].context_length == 8192
    assert list(tmp_path.iterdir()) == []  # looking changes nothing


def test_entries_know_what_is_on_disk(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path)
    promised = {entry.name: entry for entry in catalogue.entries()}["tiny-llama"]
    made = catalogue.resolve("tiny-llama")
    assert made in catalogue.entries() and made.on_disk
    assert (made.folder, made.context_length) == (promised.folder, promised.context_length)
    assert abs(made.size_bytes - promised.size_bytes) < 0.2 * promised.size_bytes


def test_a_model_is_made_once(tmp_path: Path) -> None:
    said: list[str] = []
    catalogue = Catalogue(tmp_path, on_progress=said.append)
    assert catalogue.resolve("tiny-llama") == catalogue.resolve("tiny-llama") == catalogue.pull("tiny-llama")
    assert said == ["making tiny-llama"]


def test_a_local_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = Catalogue(tmp_path / "cache")
    entry = catalogue.resolve(folder)
    assert (entry.name, entry.folder, entry.kind) == ("my-model", folder, "local")
    assert entry.context_length == 4096
    assert catalogue.resolve(folder, name="org/other").name == "org/other"
    monkeypatch.chdir(tmp_path)
    assert catalogue.resolve("my-model").folder == folder


def test_a_pulled_model(tiny: Path, tmp_path: Path) -> None:
    pulled = Path(shutil.copytree(tiny, tmp_path / "models" / "org--some-model"))
    catalogue = Catalogue(tmp_path)
    entry = catalogue.resolve("org/some-model")
    assert (entry.name, entry.folder, entry.kind) == ("org/some-model", pulled, "pulled")
    assert entry in catalogue.entries() and catalogue.pull("org/some-model") == entry


def _edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json is not a JSON object"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is not a JSON object"),
        (lambda f: _edit_config(f, architectures=["BertModel"]), "the architecture BertModel"),
        (lambda f: _edit_config(f, architectures=None), "names no architectures"),
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda f: (f / "model.safetensors").unlink(), "no weights"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "pickled"),
        (lambda f: _cut(f / "model.safetensors"), "the copy is not complete"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "not a safetensors file"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "two.safetensors"}}'
            ),
            "no two.safetensors",
        ),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "no readable weight_map"),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_refused(folder: Path, spoil, complaint: str) -> None:
    spoil(folder)
    with pytest.raises(ModelUnavailable, match=complaint) as refusal:
        Catalogue(folder.parent / "cache").resolve(folder)
    assert str(folder) in str(refusal.value)


def test_a_refusal_names_all_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"no config\.json; no weights .*; no tokenizer"):
        Catalogue(tmp_path / "cache").resolve(tmp_path)


@pytest.mark.parametrize(
    "name", ["meta-llama/Llama-3.2-1B", "nothing", "", "../models", "./nowhere", "a/b/c"]
)
def test_an_unknown_name_is_refused_with_advice(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelUnavailable) as refusal:
        Catalogue(tmp_path).resolve(name)
    said = str(refusal.value)
    assert repr(name) in said and "tiny-qwen3" in said and "tinsmith models pull " in said


def test_a_slip_is_corrected(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"Did you mean SmolLM2-135M-Instruct\?"):
        Catalogue(tmp_path).resolve("SmolLM2-135M-instruct")


def test_aliases(tmp_path: Path, folder: Path) -> None:
    aliases = [
        parse_alias("meta-llama/Llama-3.2-1B=tiny-llama"),
        parse_alias(f"mine={folder}"),
        parse_alias("tiny-qwen3=tiny-llama"),
    ]
    catalogue = Catalogue(tmp_path / "cache", aliases=aliases)
    entry = catalogue.resolve("meta-llama/Llama-3.2-1B")
    assert entry.name == "meta-llama/Llama-3.2-1B"
    assert entry.folder == catalogue.resolve("tiny-llama").folder
    assert catalogue.resolve("mine").folder == folder
    assert catalogue.resolve("tiny-qwen3").folder == entry.folder  # what the operator says goes first


def test_parse_alias() -> None:
    expected = Alias("meta-llama/Llama-3.2-1B", "SmolLM2-135M-Instruct")
    assert parse_alias("meta-llama/Llama-3.2-1B=SmolLM2-135M-Instruct") == expected
    assert parse_alias(" a = /models/x=y ") == Alias("a", "/models/x=y")


@pytest.mark.parametrize("text", ["", "=", "a=", "=b", "a"])
def test_a_malformed_alias_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not of the form public-name=model-name-or-folder"):
        parse_alias(text)


@pytest.mark.parametrize("name", ["nothing", "../x", "a/../b", "a/b/c", "/etc/x", "org--x/y", "org/", "a/.b"])
def test_only_hub_names_are_pulled(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelUnavailable, match="expected the form org/name"):
        Catalogue(tmp_path).pull(name)
    assert list(tmp_path.iterdir()) == []


def test_a_pull_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    """In a subprocess: the hub client reads its settings when it is imported. Nothing listens on port 9."""
    script = (
        "import sys; from tinsmith.engine.models import Catalogue, ModelUnavailable\n"
        "try: Catalogue(sys.argv[1]).pull('org/some-model')\n"
        "except ModelUnavailable as error: print(error)"
    )
    environment = {"PATH": "", "HOME": str(tmp_path / "home"), "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "cache"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert "org/some-model could not be downloaded from the hub. Check the network" in done.stdout
    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []


class _Hub(BaseHTTPRequestHandler):
    """As much of the hub as a snapshot download asks for; `files` are what its one model holds."""

    files: ClassVar[dict[str, bytes]] = {}
    commit = "0123456789abcdef0123456789abcdef01234567"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self.wfile.write(self._answer())

    def _answer(self) -> bytes:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/some-model/tree/"):
            body = json.dumps(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in self.files.items()
                ]
            ).encode()
        elif path.startswith("/api/models/org/some-model"):
            siblings = [{"rfilename": name} for name in self.files]
            body = json.dumps({"id": "org/some-model", "sha": self.commit, "siblings": siblings}).encode()
        else:
            body = self.files.get(path.rpartition(f"/org/some-model/resolve/{self.commit}/")[2])
        if body is None:  # the hub client also asks for things that have nothing to do with models
            self.send_error(404)
            return b""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.commit)
        self.end_headers()
        return body

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _pull_from(files: dict[str, bytes], tmp_path: Path) -> str:
    """What a pull in a fresh process prints, with a hub of our own behind it."""
    script = (
        "import sys; from tinsmith.engine.models import Catalogue, ModelUnavailable\n"
        "try: print(Catalogue(sys.argv[1]).pull('org/some-model').kind)\n"
        "except ModelUnavailable as error: print(error)"
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (_Hub,), {"files": files}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path / "cache"],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": "", "HOME": str(tmp_path), "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"},
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    return done.stdout


def test_a_pull_fetches_weights_and_tokenizer_only(tiny: Path, tmp_path: Path) -> None:
    wanted = {path.name: path.read_bytes() for path in tiny.iterdir()}
    unwanted = {"pytorch_model.bin": b"pickle", "modeling.py": b"code", "onnx/model.safetensors": b"other"}
    assert _pull_from(wanted | unwanted, tmp_path) == "pulled\n"
    entry = Catalogue(tmp_path / "cache").resolve("org/some-model")
    assert {path.name: path.read_bytes() for path in entry.folder.iterdir()} == wanted


def test_a_hub_model_with_pickled_weights_only_is_refused(tiny: Path, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in tiny.iterdir()}
    files["pytorch_model.bin"] = files.pop("model.safetensors")
    assert "no weights (model.safetensors" in _pull_from(files, tmp_path)
    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []


def test_the_default_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path / "chosen"))
    assert default_cache_dir() == tmp_path / "chosen"
    monkeypatch.delenv("TINSMITH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "tinsmith"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "tinsmith"
