"""One sample while it grows, and as it is handed out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tinsmith.types import SampledSequence, SampleJob, StopReason, TopkLogprobs
from tinsmith.types.sampling import TOPK_EMPTY_LOGPROB

from .draw import Taken
from .stops import StopWatcher

TopRow = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


@dataclass(eq=False)
class Sequence:
    """Sample number ``index`` of a job."""

    index: int
    watcher: StopWatcher
    limit: int  # tokens it may have
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    topk: list[TopRow] = field(default_factory=list)
    stop_reason: StopReason | None = None

    def take(self, taken: Taken) -> None:
        """The next token; it may be the last."""
        self.tokens.append(taken.token)
        self.logprobs.append(taken.logprob)
        if taken.top is not None:
            self.topk.append(taken.top)
        if self.watcher.ends_with(taken.token):
            self.stop_reason = "stop"
        elif len(self.tokens) == self.limit:
            self.stop_reason = "length"

    def finished(self, job: SampleJob) -> SampledSequence:
        """As an answer's part."""
        assert self.stop_reason is not None
        return SampledSequence(
            stop_reason=self.stop_reason,
            tokens_np=np.array(self.tokens, dtype=np.int32),
            logprobs_np=np.array(self.logprobs, dtype=np.float32),
            topk_logprobs_np=self._topk() if job.topk_sample_logprobs else None,
            sequence_id=job.sequence_ids[self.index] if job.sequence_ids else None,
        )

    def _topk(self) -> TopkLogprobs:
        ids = np.stack([ids for ids, _ in self.topk]).astype(np.int32)
        logprobs = np.stack([logprobs for _, logprobs in self.topk])
        # At a tiny temperature all but one token may have probability 0, and -inf does not travel.
        impossible = np.isneginf(logprobs)
        return TopkLogprobs(
            np.where(impossible, 0, ids).astype(np.int32),
            np.where(impossible, TOPK_EMPTY_LOGPROB, logprobs).astype(np.float32),
        )
