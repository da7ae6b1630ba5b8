"""Looks at a local folder and says whether it holds a causal language model that can be loaded."""

import json
import re
from pathlib import Path
from typing import Any

from .cache import ModelUnavailable

TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"[\w.-]+\.safetensors", re.ASCII)


def check_folder(folder: Path) -> None:
    """Raise `ModelUnavailable` naming everything that is missing or wrong."""
    if not folder.is_dir():
        raise ModelUnavailable(f"{folder} is not a folder")
    wrong = [*_config_problems(folder), *_weight_problems(folder)]
    if not any(all((folder / name).is_file() for name in names) for names in TOKENIZERS):
        wrong.append("no tokenizer (tokenizer.json, tokenizer.model, or vocab.json with merges.txt)")
    if wrong:
        raise ModelUnavailable(f"{folder} is not a model that can be loaded: {'; '.join(wrong)}")


def context_length(folder: Path) -> int | None:
    """The longest sequence the model was made for, where config.json says so."""
    config = _read_object(folder / "config.json")
    for scope in (config, config.get("text_config")):
        if isinstance(scope, dict):
            for key in ("max_position_embeddings", "n_positions", "n_ctx"):
                if isinstance(scope.get(key), int):
                    return int(scope[key])
    return None


def size_bytes(folder: Path) -> int:
    """What the folder takes on disk."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _config_problems(folder: Path) -> list[str]:
    path = folder / "config.json"
    if not path.is_file():
        return ["no config.json"]
    try:
        config = _read_object(path)
    except ValueError as error:
        return [f"config.json is not a JSON object ({error})"]
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        return ["config.json names no architectures, expected one such as LlamaForCausalLM"]
    if not any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in architectures):
        return [f"config.json names the architecture {architectures[0]}, expected a causal language model's"]
    return []


def _weight_problems(folder: Path) -> list[str]:
    if (folder / INDEX).is_file():
        try:
            shards = sorted(set(_read_object(folder / INDEX)["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            return [f"{INDEX} has no readable weight_map ({error!r})"]
    elif (folder / "model.safetensors").is_file():
        shards = ["model.safetensors"]
    elif any((folder / name).is_file() for name in PICKLED):
        return ["its weights are pickled, and reading those can run code: convert them to safetensors"]
    else:
        return [f"no weights (model.safetensors, or {INDEX} with its shards)"]
    if strange := [shard for shard in shards if not _SHARD.fullmatch(str(shard))]:
        return [f"{INDEX} names {strange[0]!r}, which is no safetensors file of this folder"]
    return [problem for shard in shards if (problem := _shard_problem(folder / shard))]


def _shard_problem(path: Path) -> str | None:
    """A safetensors file says in its header how long it is, so a copy that was cut short is found cheaply."""
    if not path.is_file():
        return f"no {path.name}"
    actual = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length) if length < actual else b"")
        ends = [value["data_offsets"][1] for key, value in header.items() if key != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return f"{path.name} is not a safetensors file"
    if actual != expected:
        return f"{path.name} has {actual} bytes, its header says {expected}: the copy is not complete"
    return None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}")
    return value
