"""One packed pass: the rows of several runs, each through its own adapter, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinsmith.engine.lora import LoraWeights
from tinsmith.engine.scheduler import Pause, Work

from .adapters import Adapters, Gradients, Span
from .block import BlockPass, Saved, rms_norm, rms_norm_backward
from .grouped_adapters import GroupedAdapters, available
from .head import HeadPass, Targets
from .layout import Group, Tokens, lay_out
from .model import Decoder


@dataclass(frozen=True, slots=True, eq=False)
class RunRows:
    """What one run puts into a pass: rows of tokens in groups, their targets [length, K], its adapter."""

    weights: LoraWeights
    tokens: Sequence[Tokens]
    targets: Sequence[Tensor]
    groups: Sequence[Group]


# Given the numbers of a run and of its row, and the row's logprobs [length, K]: d loss / d logprobs.
RowLoss = Callable[[int, int, Tensor], Tensor]


def packed_pass(
    decoder: Decoder, runs: Sequence[RunRows], loss: RowLoss, *, backward: bool, bytes_to_keep: int
) -> Work[list[Gradients]]:
    """Every run's gradients, after ``loss`` was told the log-probabilities of every row.

    Pauses between steps of some milliseconds. Activations beyond ``bytes_to_keep`` are computed twice.
    """
    layout = lay_out([(run.tokens, run.groups) for run in runs], decoder.embedding.device)
    spans = [Span(slots, run.weights, {}) for slots, run in zip(layout.runs, runs, strict=True)]
    make = GroupedAdapters if len(spans) > 1 and available(decoder.embedding) else Adapters
    blocks = BlockPass(decoder, layout, make(decoder.kernel, spans, decoder.embedding.dtype))
    deep = backward and any(name not in decoder.head.names for run in runs for name in run.weights.pairs)
    kept = (
        min(len(decoder.blocks), bytes_to_keep // decoder.bytes_per_block(len(layout.tokens))) if deep else 0
    )
    inputs: list[Tensor] = []
    saved: list[Saved] = []
    x = decoder.embedding[layout.tokens]
    for at, block in enumerate(decoder.blocks):
        inputs.append(x if deep else x[:0])
        x, of_block = blocks.forward(block, x)
        if at >= len(decoder.blocks) - kept:
            saved.append(of_block)
        del of_block
        yield Pause.KEEP_TURN

    data = [(run, row) for run, rows in enumerate(layout.rows) for row in rows]
    targets = [Targets(layout.rows[run][row], runs[run].targets[row]) for run, row in data]

    def upstream(at: int, logprobs: Tensor) -> Tensor:
        gradient = loss(*data[at], logprobs)
        return gradient if backward else torch.zeros_like(gradient)

    head = HeadPass(decoder, layout.segments, spans, targets)
    grad_normed = yield from head.run(rms_norm(x, decoder.final_norm, decoder.eps), upstream)
    if deep:
        grad = rms_norm_backward(x, decoder.final_norm, decoder.eps, grad_normed)
        for block in reversed(decoder.blocks):
            x = inputs.pop()
            of_block = saved.pop() if saved else blocks.forward(block, x)[1]
            grad = blocks.backward(block, of_block, grad)
            del of_block
            yield Pause.KEEP_TURN
    for run, span in zip(runs, spans, strict=True):
        for name, tensor in run.weights.tensors().items() if backward else ():
            if name not in span.gradients:
                span.gradients[name] = torch.zeros_like(tensor)
    return [span.gradients for span in spans]
