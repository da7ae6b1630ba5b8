"""The base models on offer."""

from __future__ import annotations

import asyncio
from typing import Protocol

from tinsmith.engine.interface import BaseModel, Engine
from tinsmith.types import GetServerCapabilitiesResponse, SupportedModel, UserError


class Finder(Protocol):
    """Where more base models come from."""

    def find(self, name: str) -> BaseModel:
        """Bring a model in, or refuse with what would be right."""
        ...

    def known(self) -> dict[str, int | None]:
        """Names it can bring in, each with its context length where that is known."""
        ...


class BaseModels:
    """What the engine offers, plus what ``finder`` can bring in when a name is first asked for.

    A finder may read folders and download, so only a service that works for one user in his own
    process has one; a served one offers what its operator named.
    """

    def __init__(self, engine: Engine, finder: Finder | None = None) -> None:
        self._engine = engine
        self._finder = finder
        self._finding = asyncio.Lock()
        self._loaded: set[str] = set()

    def is_loaded(self, name: str) -> bool:
        """Whether the engine has used this model before, so that its weights are in memory."""
        return name in self._loaded

    def context_length(self, name: str) -> int:
        """The longest sequence of a model on offer; 0 if it is not."""
        model = self._engine.base_models().get(name)
        return 0 if model is None else model.max_context_length

    def mark_loaded(self, name: str) -> None:
        """The engine has used this model."""
        self._loaded.add(name)

    async def get(self, name: str) -> BaseModel:
        """A base model by its public name, or an error that lists the names there are."""
        offered = self._engine.base_models()
        if name in offered:
            return offered[name]
        if self._finder is None:
            raise UserError(
                f"{name!r} is not offered here; use one of {', '.join(offered)}", field="base_model"
            )
        async with self._finding:
            if name not in self._engine.base_models():
                self._engine.add_base_model(await asyncio.to_thread(self._finder.find, name))
        return self._engine.base_models()[name]

    def capabilities(self) -> GetServerCapabilitiesResponse:
        """The list clients see."""
        lengths = {} if self._finder is None else self._finder.known()
        lengths |= {name: model.max_context_length for name, model in self._engine.base_models().items()}
        return GetServerCapabilitiesResponse(
            supported_models=[
                SupportedModel(model_name=name, max_context_length=length, trainable=True, sampleable=True)
                for name, length in lengths.items()
            ]
        )
