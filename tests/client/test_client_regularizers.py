"""The estimates are of the true gradients: exactly so in the mean over all tokens."""

from __future__ import annotations

import pytest
import torch

from tinsmith import regularizers

SIZE = 7


def _policy() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(SIZE, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.randn(SIZE, generator=generator, dtype=torch.float64), -1)
    return logits, reference


def _entropy(logprobs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return -(logprobs.exp() * logprobs).sum()


def _kl(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return (logprobs.exp() * (logprobs - reference)).sum()


@pytest.mark.parametrize(
    ("exact", "estimate"),
    [
        (_entropy, lambda logprobs, reference: regularizers.entropy(logprobs)),
        (_kl, lambda logprobs, reference: regularizers.kl_to_reference(logprobs, reference)),
    ],
)
def test_value_and_gradient_are_unbiased(exact, estimate) -> None:
    logits, reference = _policy()
    logprobs = torch.log_softmax(logits, -1)
    true = exact(logprobs, reference)
    (gradient,) = torch.autograd.grad(true, logits, retain_graph=True)
    chances = logprobs.exp().detach()
    estimates = [estimate(logprobs[at : at + 1], reference[at : at + 1]) for at in range(SIZE)]
    mean = sum(chance * one for chance, one in zip(chances, estimates, strict=True))
    (estimated,) = torch.autograd.grad(mean, logits)
    torch.testing.assert_close(mean.detach(), true.detach())
    torch.testing.assert_close(estimated, gradient)


def test_masked_tokens_do_not_count() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    regularizers.entropy(logprobs, torch.tensor([1.0, 0.0])).backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [1.0, 0.0]
