"""What a sample request wants to know about its prompt, gathered while the prompt is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinsmith.types import (
    PromptAltTokens,
    SampledSequence,
    SampleJob,
    SampleResponse,
    TensorData,
    TopkLogprobs,
)
from tinsmith.types.sampling import TOPK_EMPTY_LOGPROB

from .base import LoadedBase
from .draw import draw_alternatives
from .head import row_chunks


class PromptReport:
    """Log-probabilities of the prompt at temperature 1. Position i's hidden state tells of token i + 1."""

    def __init__(self, base: LoadedBase, job: SampleJob, prompt: Tensor) -> None:
        self._base, self._job, self._prompt = base, job, prompt
        length = len(prompt)
        self._k = job.topk_prompt_logprobs
        self._logprobs = np.full(length, np.nan, dtype=np.float32)
        self._top_ids = np.zeros((length, self._k), dtype=np.int32)
        self._top = np.full((length, self._k), TOPK_EMPTY_LOGPROB, dtype=np.float32)
        targets = job.target_prompt_logprobs
        self._targets = None if targets is None else torch.from_numpy(targets.to_numpy(pad_value=-1).copy())
        self._target_rows: list[npt.NDArray[np.float32]] = []
        self._alternatives: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]] = []
        # The first position whose own logprobs are wanted.
        self._scored = max(1, length - (job.prompt_logprobs_last_n or length))
        self.first = self._first_position()

    def read(self, start: int, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Take in hidden states [n, size] of positions from ``start`` on; ``logits`` makes logits of some."""
        begin, end = max(start, self.first), min(start + len(hidden), len(self._prompt) - 1)
        for at in row_chunks(self._base, end - begin):
            rows = hidden[begin - start :][at]
            self._record(begin + at.start, torch.log_softmax(logits(rows), dim=1))

    def answer(self, sequences: list[SampledSequence], cache_hit: int = 0) -> SampleResponse:
        """The whole answer to the request."""
        return SampleResponse(
            sequences=sequences,
            prompt_logprobs_np=self.prompt_logprobs(),
            topk_prompt_logprobs_np=self.topk(),
            target_prompt_logprobs=self.target_logprobs(),
            prompt_alt_tokens=self.alt_tokens(),
            prompt_cache_hit_tokens=cache_hit,
        )

    def prompt_logprobs(self) -> npt.NDArray[np.float32] | None:
        """NaN at the first position, and before the last n asked for."""
        return self._logprobs if self._job.prompt_logprobs else None

    def topk(self) -> TopkLogprobs | None:
        """The k most likely tokens at each position; empty where `prompt_logprobs` is NaN."""
        return TopkLogprobs(self._top_ids, self._top) if self._k else None

    def alt_tokens(self) -> PromptAltTokens | None:
        """Tokens drawn at each position after the first."""
        k = self._job.prompt_alt_tokens_k
        if not k:
            return None
        ids = np.concatenate([np.zeros((0, k), dtype=np.int64), *(ids for ids, _ in self._alternatives)])
        logprobs = np.concatenate([np.zeros((0, k), dtype=np.float32), *(p for _, p in self._alternatives)])
        return PromptAltTokens(TensorData.from_numpy(ids), TensorData.from_numpy(logprobs))

    def target_logprobs(self) -> TensorData | None:
        """Log-probabilities of the tokens asked for, in the layout they were asked in; 0.0 where -1."""
        asked = self._job.target_prompt_logprobs
        if asked is None:
            return None
        assert asked.shape is not None
        dense = np.concatenate([np.zeros((0, asked.shape[1]), dtype=np.float32), *self._target_rows])
        if not asked.is_sparse:
            return TensorData(dense, "float32", asked.shape)
        crow, columns = asked.sparse_crow_indices, asked.sparse_col_indices
        assert crow is not None and columns is not None
        rows = np.repeat(np.arange(asked.shape[0]), np.diff(crow))
        return TensorData(dense[rows, columns], "float32", asked.shape, crow, columns)

    def _first_position(self) -> int:
        """The first hidden state anybody asks about."""
        job = self._job
        if job.prompt_alt_tokens_k or self._targets is not None:
            return 0
        return self._scored - 1 if job.prompt_logprobs or self._k else len(self._prompt)

    def _record(self, position: int, logprobs: Tensor) -> None:
        """Rows of log-probabilities of what follows position, position + 1, ..."""
        self._score(position + 1, logprobs)
        if self._job.prompt_alt_tokens_k:
            ids = draw_alternatives(logprobs, self._job, position, self._job.prompt_alt_tokens_k)
            self._alternatives.append((ids.cpu().numpy(), logprobs.gather(1, ids).cpu().numpy()))
        if self._targets is not None:
            asked = self._targets[position : position + len(logprobs)].to(logprobs.device)
            found = logprobs.gather(1, asked.clamp(min=0)).masked_fill(asked < 0, 0.0)
            self._target_rows.append(found.cpu().numpy())

    def _score(self, position: int, logprobs: Tensor) -> None:
        """The prompt's own tokens from this position on, as far as they are wanted."""
        skipped = max(0, self._scored - position)
        logprobs = logprobs[skipped:]
        after = slice(position + skipped, position + skipped + len(logprobs))
        self._logprobs[after] = logprobs.gather(1, self._prompt[after, None])[:, 0].cpu().numpy()
        if self._k:
            values, ids = torch.topk(logprobs, self._k, dim=1)
            self._top[after], self._top_ids[after] = values.cpu().numpy(), ids.cpu().numpy()
