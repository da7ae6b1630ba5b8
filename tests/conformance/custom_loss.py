"""Run by an official SDK's own interpreter: custom losses by handle, each followed by a step.

Prints one JSON object: what was reported, where the losses ran, and the gradient norm of each step.
"""

from __future__ import annotations

import json
import os
import sys

import tinker
import torch
from tinker import types

TOKENS = [10, 20, 30, 40, 50, 60, 70, 80]
N = len(TOKENS) - 1


def weighted(logprobs, weights):
    """A weighted likelihood."""
    return -(logprobs * weights).sum(), {"custom/weight:sum": weights.sum()}


def clipped(logprobs, old, advantages):
    """A clipped surrogate, whose ratio is reported as a mean."""
    ratio = torch.exp(logprobs - old)
    surrogate = torch.minimum(ratio * advantages, torch.clamp(ratio, 0.8, 1.2) * advantages)
    return -surrogate.sum(), {"custom/ratio:mean": ratio.detach().mean()}


def smooth(logprobs, mask):
    """Neighbours should be alike, where the mask says so."""
    difference = (logprobs[1:] - logprobs[:-1]) * mask[1:]
    penalty = torch.nn.functional.softplus(difference).mean() + difference.pow(2).sum() / logprobs.shape[0]
    return penalty, {"custom/largest:mean": difference.detach().abs().max()}


CASES = [
    (weighted, {"weights": torch.linspace(0, 1, N)}),
    (clipped, {"old": torch.full((N,), -7.5), "advantages": torch.linspace(-1, 2, N)}),
    (smooth, {"mask": torch.ones(N)}),
]


def main() -> None:
    """Every case on a run of its own, two datums each."""
    service = tinker.ServiceClient()
    report = {}
    for loss, inputs in CASES:
        training = service.create_lora_training_client(sys.argv[1], rank=4, seed=1).result()
        handle = service.create_custom_loss(loss, {"logprobs": 1} | dict.fromkeys(inputs, 1)).result()
        data = [
            types.Datum(
                model_input=types.ModelInput.from_ints(tokens[:-1]),
                loss_fn_inputs={"target_tokens": torch.tensor(tokens[1:])} | inputs,
            )
            for tokens in (TOKENS, TOKENS[::-1])
        ]
        metrics = training.forward_backward_custom(data, handle).result().metrics
        step = training.optim_step(types.AdamParams()).result().metrics
        report[loss.__name__] = {
            "on_the_service": handle.loss_id is not None,
            "metrics": {key: metrics[key] for key in metrics if key.startswith(("loss:", "custom/"))},
            "norm": step["unclipped_grad_l2:mean"],
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
    # All is done. The newest SDK's native threads now and then abort an interpreter that shuts down.
    sys.stdout.flush()
    os._exit(0)
