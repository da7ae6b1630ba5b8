"""Prompts read lately, kept for whoever begins alike; the least recently used are the first to go."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
S = TypeVar("S")


@dataclass(eq=False, slots=True)
class _Entry(Generic[S]):
    owner: object  # whose weights have read the prompt
    tokens: Tokens
    stretch: S


class Prefixes(Generic[S]):
    """What was computed for prompts (an `S`), by owner and tokens."""

    def __init__(self, budget: int) -> None:
        self._budget, self._held = budget, 0
        self._entries: OrderedDict[int, _Entry[S]] = OrderedDict()
        self._next = 0

    def longest(self, owner: object, tokens: Tokens) -> tuple[int, S | None]:
        """How many tokens a kept prompt of this owner has in common with these, at best; and that prompt."""
        best, found = 0, None
        for key, entry in self._entries.items():
            if entry.owner is owner and (common := _common(entry.tokens, tokens)) > best:
                best, found = common, key
        if found is None:
            return 0, None
        self._entries.move_to_end(found)
        return best, self._entries[found].stretch

    def keep(self, owner: object, tokens: Tokens, stretch: S) -> None:
        """Keep a prompt. Those it continues are not needed beside it."""
        if len(tokens) > self._budget:
            return
        for key, entry in list(self._entries.items()):
            if entry.owner is owner:
                common = _common(entry.tokens, tokens)
                if common == len(tokens):
                    return  # a kept prompt holds this one; `longest` has touched it
                if common == len(entry.tokens):
                    self._drop(key)
        self._entries[self._next] = _Entry(owner, tokens, stretch)
        self._next += 1
        self._held += len(tokens)
        while self._held > self._budget:
            self._drop(next(iter(self._entries)))

    def forget(self, owner: object) -> None:
        """Drop whatever an owner has."""
        for key, entry in list(self._entries.items()):
            if entry.owner is owner:
                self._drop(key)

    def _drop(self, key: int) -> None:
        self._held -= len(self._entries.pop(key).tokens)


def _common(one: Tokens, other: Tokens) -> int:
    """The length of the common prefix."""
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length
