"""The general training pass, for any model transformers can load: padded rows, its own modules, autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .base import LoadedBase
from .fast.layout import Tokens
from .head import backward_logprobs, target_logprobs
from .lora import LoraWeights
from .scheduler import Pause, Work

Gradients = dict[str, Tensor]


def padded_batches(tokens: Sequence[Tokens], tokens_at_once: int) -> list[list[int]]:
    """Rows of like length together, each group's padded size within the budget (a longer row goes alone)."""
    groups: list[list[int]] = []
    for row in sorted(range(len(tokens)), key=lambda at: len(tokens[at])):  # the newest is always the longest
        if groups and (len(groups[-1]) + 1) * len(tokens[row]) <= tokens_at_once:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def padded_pass(
    base: LoadedBase,
    weights: LoraWeights,
    tokens: Sequence[Tokens],
    targets: Sequence[Tensor],
    rows: Sequence[int],
    loss: Callable[[int, Tensor], Tensor],
    *,
    backward: bool,
) -> Work[Gradients]:
    """The gradients of some rows, after ``loss`` was told the log-probabilities [length, K] of each."""
    leaves = weights.leaves() if backward else weights
    inner = {  # what the decoder's gradient flows to; the unembedding has its own
        name: leaf
        for name, leaf in leaves.tensors().items()
        if not name.startswith(f"{base.unembedding}.lora_")
    }
    graph = backward and bool(inner)
    lengths = [len(tokens[row]) for row in rows]
    longest = max(lengths)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64, device=base.device)
    for at, row in enumerate(rows):
        ids[at, : lengths[at]] = torch.from_numpy(tokens[row])
    real = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    kept = real.flatten().nonzero()[:, 0].to(base.device)
    with torch.set_grad_enabled(graph):
        hidden = base.hidden(ids, leaves)
    flat = hidden.detach().flatten(0, 1)[kept]
    yield Pause.KEEP_TURN

    widest = max(targets[row].shape[1] for row in rows)
    columns = torch.cat([_widened(targets[row], widest) for row in rows])
    logprobs = target_logprobs(base, leaves, flat, columns).split_with_sizes(lengths)
    upstream = [
        _widened(loss(row, mine[:, : targets[row].shape[1]]), widest)
        for row, mine in zip(rows, logprobs, strict=True)
    ]
    if not backward:
        return {}
    yield Pause.KEEP_TURN

    grad_flat, gradients = backward_logprobs(base, leaves, flat, columns, torch.cat(upstream))
    if graph:
        grad_hidden = torch.zeros_like(hidden)
        grad_hidden.view(-1, grad_hidden.shape[-1])[kept] = grad_flat
        grads = torch.autograd.grad(
            hidden, list(inner.values()), grad_hidden, allow_unused=True, materialize_grads=True
        )
        gradients.update(zip(inner, grads, strict=True))
    return gradients


def _widened(tensor: Tensor, columns: int) -> Tensor:
    """Zeros on the right: a target nobody asked for, a gradient that is none."""
    return torch.nn.functional.pad(tensor, (0, columns - tensor.shape[1]))
