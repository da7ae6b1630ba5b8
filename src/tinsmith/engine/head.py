"""From hidden states to log-probabilities, a few rows at a time: logits are never held for a whole batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .base import LoadedBase
from .lora import LoraWeights

LOGITS_AT_ONCE = 2**24  # floats: 64 MiB


def row_chunks(base: LoadedBase, rows: int) -> Iterator[slice]:
    """Slices of rows whose logits fit the bound."""
    size = max(1, LOGITS_AT_ONCE // base.vocab_size)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


@torch.no_grad()
def target_logprobs(base: LoadedBase, weights: LoraWeights | None, hidden: Tensor, targets: Tensor) -> Tensor:
    """log p(targets[i, k] | hidden[i]) for hidden [N, H] and targets [N, K]."""
    chunks = [_logprobs(base, weights, hidden[at], targets[at]) for at in row_chunks(base, len(hidden))]
    return torch.cat(chunks)


def backward_logprobs(
    base: LoadedBase, leaves: LoraWeights, hidden: Tensor, targets: Tensor, upstream: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Given d loss / d logprobs [N, K]: the gradient of hidden [N, H], and that of the unembedding's adapter.

    Logits are computed a second time rather than kept, and only for rows that carry a gradient
    (a masked prompt does not).
    """
    pair = leaves.pairs.get(base.unembedding)
    own = (
        {f"{base.unembedding}.lora_A": pair.a, f"{base.unembedding}.lora_B": pair.b}
        if pair is not None
        else {}
    )
    total = {name: torch.zeros_like(leaf) for name, leaf in own.items()}
    grad_hidden = torch.zeros_like(hidden)
    active = upstream.ne(0).any(dim=1).nonzero()[:, 0]
    for at in row_chunks(base, len(active)):
        rows = active[at]
        part = hidden[rows].detach().requires_grad_()
        logprobs = _logprobs(base, leaves, part, targets[rows])
        grads = torch.autograd.grad(logprobs, [part, *own.values()], upstream[rows])
        grad_hidden[rows] = grads[0]
        for name, grad in zip(own, grads[1:], strict=True):
            total[name] += grad
    return grad_hidden, total


def _logprobs(base: LoadedBase, weights: LoraWeights | None, hidden: Tensor, targets: Tensor) -> Tensor:
    """log softmax(logits)[target] = logit[target] - log sum exp(logits), in float32."""
    logits = base.logits(hidden, weights)
    return logits.gather(1, targets) - torch.logsumexp(logits, dim=1, keepdim=True)
