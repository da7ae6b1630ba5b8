"""When a sequence ends: stop tokens, and stop strings found while decoding, across token borders."""

from __future__ import annotations

from typing import Any

from tinsmith.types import SamplingParams
from tinsmith.types.sampling import as_stop_list

from .base import LoadedBase

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # how a decoder shows bytes that are not yet a character


class StopRule:
    """What ends the sequences of one job.

    No ``stop``: the model's end tokens. Some: those as well. An empty list: nothing, up to max_tokens.
    """

    def __init__(self, base: LoadedBase, params: SamplingParams) -> None:
        stops = as_stop_list(params.stop)
        self._tokens = frozenset(stop for stop in stops or [] if isinstance(stop, int))
        if stops != []:
            self._tokens |= base.eos_ids
        self._strings = tuple(stop for stop in stops or [] if isinstance(stop, str))
        self._tokenizer = base.tokenizer if self._strings else None

    def watcher(self) -> StopWatcher:
        """A watcher for one sequence."""
        return StopWatcher(self._tokens, self._strings, self._tokenizer)


class StopWatcher:
    """Sees one sequence's tokens as they come.

    Text is decoded from a short window: tokens from ``_start`` on, of which those before ``_read`` have
    been turned into text already (they give the decoder its context).
    """

    def __init__(self, tokens: frozenset[int], strings: tuple[str, ...], tokenizer: Any) -> None:
        self._stop_tokens, self._strings, self._tokenizer = tokens, strings, tokenizer
        self._longest = max((len(text) for text in strings), default=0)
        self._ids: list[int] = []
        self._start = self._read = 0
        self._tail = ""

    def ends_with(self, token: int) -> bool:
        """True when this token completes a stop."""
        if token in self._stop_tokens:
            return True
        return bool(self._strings) and self._completes_string(token)

    def _completes_string(self, token: int) -> bool:
        self._ids.append(token)
        known = self._decode(self._ids[self._start : self._read])
        window = self._decode(self._ids[self._start :])
        fresh = window[len(known) :]
        if any(stop in self._tail + fresh for stop in self._strings):
            return True
        if fresh and not window.endswith(_INCOMPLETE):
            self._tail = (self._tail + fresh)[-self._longest :]
            self._start, self._read = self._read, len(self._ids)
        return False

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text
