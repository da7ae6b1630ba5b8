"""Model folders and saved adapters from strangers: data, whatever they claim to be."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tinsmith.client.download import unpack
from tinsmith.engine.base import LoadedBase
from tinsmith.engine.models import Catalogue, ModelUnavailable
from tinsmith.engine.models.folder import check_folder
from tinsmith.engine.peft_files import read_adapter
from tinsmith.types import UserError


class _Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._canary,)


def _model(folder: Path) -> Path:
    """A copy of a real one, to be spoilt."""
    real = Catalogue().resolve("tiny-llama").folder
    folder.mkdir()
    for file in real.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def _pickled(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Bomb(canary)))


def _index_of(shard: Any) -> Callable[[Path, Path], None]:
    def spoil(folder: Path, canary: Path) -> None:
        name = str(shard)
        if name.endswith(".bin"):
            (folder / name).write_bytes(pickle.dumps(_Bomb(canary)))
        index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": shard}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return spoil


def _pickle_called_safetensors(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(_Bomb(canary)))


def _header(header: bytes, length: int | None = None) -> Callable[[Path, Path], None]:
    def spoil(folder: Path, _canary: Path) -> None:
        size = struct.pack("<Q", len(header) if length is None else length)
        (folder / "model.safetensors").write_bytes(size + header)

    return spoil


def _config(text: str) -> Callable[[Path, Path], None]:
    return lambda folder, _canary: (folder / "config.json").write_text(text) and None


SPOILT: dict[str, Callable[[Path, Path], None]] = {
    "pickled weights": _pickled,
    "a pickle called safetensors": _pickle_called_safetensors,
    "an index that names a pickle": _index_of("pytorch_model-00001.bin"),
    "an index that leads out": _index_of("../../outside.safetensors"),
    "an index that leads to the root": _index_of("/etc/passwd"),
    "an index of numbers": _index_of(7),
    "an index of lists": _index_of(["model.safetensors"]),
    "a header of 2**63 bytes": _header(b"{}", 2**63),
    "a header nested without end": _header(b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"),
    "a header of offsets without end": _header(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,99999999999]}}'
    ),
    "a header that is a list": _header(b"[]"),
    "a config nested without end": _config("[" * 10**5 + "]" * 10**5),
    "a config that is a list": _config("[]"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_model_is_refused_and_nothing_of_it_runs(how: str, tmp_path: Path) -> None:
    folder, canary = _model(tmp_path / "model"), tmp_path / "canary"
    SPOILT[how](folder, canary)
    with pytest.raises(ModelUnavailable, match="not a model that can be loaded"):
        check_folder(folder)
    assert not canary.exists()


def test_code_beside_a_model_is_not_run(tmp_path: Path) -> None:
    """`auto_map` names Python to run in its place; the built-in class is used, or nothing."""
    folder, canary = _model(tmp_path / "model"), tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w').close()\n"
    for name in ("modeling_evil.py", "configuration_evil.py", "tokenization_evil.py"):
        (folder / name).write_text(code)
    for file, auto in [
        ("config.json", {"AutoConfig": "configuration_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["tokenization_evil.T", None]}),
    ]:
        said = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(said | {"auto_map": auto}))
    base = LoadedBase(folder, torch.float32, torch.device("cpu"))
    assert base.vocab_size > 0
    assert base.tokenizer is not None
    assert not canary.exists()


ADAPTER = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


def _adapter(folder: Path, config: Any = ADAPTER, **tensors: torch.Tensor) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    pair = {KEY.format("A"): torch.zeros(2, 4), KEY.format("B"): torch.zeros(4, 2)}
    save_file(pair | tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("[" * 10**5, "JSON"),
        ("[]", "LoRA"),
        (ADAPTER | {"peft_type": "PROMPT_TUNING"}, "LoRA"),
        (ADAPTER | {"r": 10**30, "lora_alpha": "x"}, "lora_alpha"),
        (ADAPTER | {"r": -1}, "r >= 1"),
        (ADAPTER | {"use_dora": True}, "use_dora"),
        (ADAPTER | {"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ],
)
def test_a_strange_adapter_is_refused(config: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        read_adapter(_adapter(tmp_path / "adapter", config), optimizer=False)


def test_a_pickled_adapter_is_not_read(tmp_path: Path) -> None:
    folder, canary = _adapter(tmp_path / "adapter"), tmp_path / "canary"
    (folder / "adapter_model.safetensors").write_bytes(pickle.dumps(_Bomb(canary)))
    with pytest.raises(UserError, match="damaged"):
        read_adapter(folder, optimizer=False)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(UserError, match="missing"):
        read_adapter(folder, optimizer=False)
    assert not canary.exists()


def test_an_archive_lands_in_its_folder_or_not_at_all(tmp_path: Path) -> None:
    import io
    import tarfile

    for name, kind in [("../out", tarfile.REGTYPE), ("/out", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)]:
        archive = tmp_path / "archive.tar"
        with tarfile.open(archive, "w") as tar:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = (
                kind,
                3 * (kind == tarfile.REGTYPE),
                "../../etc/passwd",
            )
            tar.addfile(member, io.BytesIO(b"out"))
        (tmp_path / "into").mkdir(exist_ok=True)
        if name == "/out":  # taken as a name within the folder
            assert unpack(archive, tmp_path / "into") and (tmp_path / "into" / "out").exists()
        else:
            with pytest.raises(tarfile.FilterError):
                unpack(archive, tmp_path / "into")
    assert not (tmp_path / "out").exists()
