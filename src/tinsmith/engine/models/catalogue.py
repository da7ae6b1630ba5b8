"""Maps the names of models to folders: the built-in ones, those pulled from the hub, and local folders."""

import difflib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from . import smollm2, tiny
from .cache import ModelUnavailable, OnProgress, build_once, default_cache_dir, silent
from .folder import check_folder, context_length, size_bytes
from .hub import download_snapshot, folder_name, is_repository, repository_name


@dataclass(frozen=True)
class ModelEntry:
    """One model: what it is called and where it lies."""

    name: str
    folder: Path
    kind: Literal["built-in", "pulled", "local"]
    on_disk: bool
    size_bytes: int
    """On disk, or about what it will take there."""
    context_length: int | None


@dataclass(frozen=True)
class Alias:
    """`name` as clients say it stands for the model `target`: a name or a folder."""

    name: str
    target: str


@dataclass(frozen=True)
class _BuiltIn:
    short: str
    build: Callable[[Path, OnProgress], None]
    context_length: int
    size_bytes: int
    needs_bytes: int = 0  # free space while it is built
    # Part of the folder's name: raise it when the built files change, or an old cache is taken for a new one.
    edition: int = 1


_BUILT_IN = {
    smollm2.NAME: _BuiltIn(
        short="SmolLM2-135M-Instruct",
        build=smollm2.build,
        context_length=smollm2.CONTEXT_LENGTH,
        size_bytes=smollm2.SIZE_BYTES,
        needs_bytes=smollm2.NEEDS_BYTES,
    ),
    "tiny-llama": _BuiltIn("tiny-llama", tiny.build_llama, tiny.CONTEXT_LENGTH, tiny.SIZE_BYTES),
    "tiny-qwen3": _BuiltIn("tiny-qwen3", tiny.build_qwen3, tiny.CONTEXT_LENGTH, tiny.SIZE_BYTES),
}


def parse_alias(text: str) -> Alias:
    """Read `public-name=model`, as in `meta-llama/Llama-3.2-1B=SmolLM2-135M-Instruct`."""
    name, equals, target = (part.strip() for part in text.partition("="))
    if not (name and equals and target):
        raise ValueError(f"the alias {text!r} is not of the form public-name=model-name-or-folder")
    return Alias(name, target)


class Catalogue:
    """The models this machine has or can make: lookups are cheap, a built-in model is made on first use."""

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        aliases: Iterable[Alias] = (),
        on_progress: OnProgress = silent,
    ) -> None:
        cache = Path(cache_dir).expanduser() if cache_dir is not None else default_cache_dir()
        self._models = cache.absolute() / "models"
        self._aliases = {alias.name: alias.target for alias in aliases}
        self._on_progress = on_progress

    def resolve(self, name_or_folder: str | os.PathLike[str], *, name: str | None = None) -> ModelEntry:
        """The model on disk, made or downloaded first if it is built in.

        `name` is what the model shall be called, in place of its own name. This reads paths, so it is for the
        person who runs the service: never hand it a string that came from a client.
        """
        asked = os.fspath(name_or_folder)
        if asked in self._aliases:
            return replace(self._find(self._aliases[asked]), name=name or asked)
        entry = self._find(asked)
        return replace(entry, name=name) if name is not None else entry

    def pull(self, name: str) -> ModelEntry:
        """Download `org/name` from the hub (a built-in model from its own source) and return it."""
        if _canonical(name) in _BUILT_IN:
            return self._find(name)
        if not is_repository(name):
            raise ModelUnavailable(f"{name!r} is not the name of a hub model: expected the form org/name")
        folder = self._models / folder_name(name)
        build_once(folder, lambda partial: download_snapshot(name, partial, self._on_progress))
        return _on_disk(name, folder, "pulled")

    def entries(self) -> list[ModelEntry]:
        """Every built-in model, on disk or not, and every pulled one."""
        entries = [
            _on_disk(name, folder, "built-in")
            if (folder := self._built_in_folder(name)).is_dir()
            else ModelEntry(name, folder, "built-in", False, model.size_bytes, model.context_length)
            for name, model in _BUILT_IN.items()
        ]
        for folder in sorted(self._models.glob("*--*")):
            pulled = repository_name(folder.name)
            if pulled is not None and folder.is_dir():
                entries.append(_on_disk(pulled, folder, "pulled"))
        return entries

    def _find(self, asked: str) -> ModelEntry:
        built_in = _canonical(asked)
        if built_in in _BUILT_IN:
            return self._make(built_in)
        local = Path(asked).expanduser()
        if asked and local.is_dir():  # Path("") would be the current folder
            check_folder(local)
            return _on_disk(local.absolute().name, local.absolute(), "local")
        pulled = self._models / folder_name(asked)
        if is_repository(asked) and pulled.is_dir():
            return _on_disk(asked, pulled, "pulled")
        raise ModelUnavailable(self._unknown(asked))

    def _make(self, name: str) -> ModelEntry:
        model, folder = _BUILT_IN[name], self._built_in_folder(name)
        build_once(folder, lambda part: model.build(part, self._on_progress), needs_bytes=model.needs_bytes)
        return _on_disk(name, folder, "built-in")

    def _built_in_folder(self, name: str) -> Path:
        return self._models / f"{_BUILT_IN[name].short}@{_BUILT_IN[name].edition}"

    def _unknown(self, asked: str) -> str:
        known = [*(entry.name for entry in self.entries()), *self._aliases]
        spellings = [*known, *(model.short for model in _BUILT_IN.values())]
        close = difflib.get_close_matches(asked, spellings, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        pull = f"tinsmith models pull {asked if is_repository(asked) else 'org/name'}"
        return (
            f"there is no model or folder {asked!r}.{hint} Known models: {', '.join(known)}. "
            f"Fetch another from the Hugging Face hub with `{pull}`, or give the path of a model folder."
        )


def _canonical(name: str) -> str:
    return next((full for full, model in _BUILT_IN.items() if name == model.short), name)


def _on_disk(name: str, folder: Path, kind: Literal["built-in", "pulled", "local"]) -> ModelEntry:
    return ModelEntry(name, folder, kind, True, size_bytes(folder), context_length(folder))
