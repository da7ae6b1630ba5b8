"""Terms for a loss of your own: differentiable torch functions of the target tokens' log-probabilities.

They go into the function given to ``forward_backward_custom``::

    def loss(data, logprobs):
        nll = -sum(lp.sum() for lp in logprobs)
        drift = sum(kl_to_reference(lp, ref) for lp, ref in zip(logprobs, reference, strict=True))
        return nll + 0.1 * drift, {"kl:sum": drift.item()}

A log-probability of a *sampled* token is one draw from the policy, so ``kl_to_reference`` and ``entropy`` are
estimates: of the value without bias, and (what matters for training) of the gradient without bias, when the
tokens were sampled from the policy being trained. The gradient of the naive estimate (the mean of lp, say)
would be wrong: it leaves out that the policy decides which tokens are drawn. Its expectation is

    d/dθ E[f(lp)] = E[f(lp) · d lp/dθ]  for f with E[f'(lp) · d lp/dθ] = 0,

which is what these functions give. All are sums over tokens; ``weights`` (1 for a token that counts) masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["entropy", "kl_to_reference", "l2", "topk_entropy", "topk_kl"]


def kl_to_reference(logprobs: Tensor, reference: Tensor, weights: Tensor | None = None) -> Tensor:
    """KL(policy ‖ reference), estimated from sampled tokens.

    Value: exp(r - lp) - 1 - (r - lp) per token, never negative, of low variance. Gradient: (lp - r) · d lp.

    >>> import torch
    >>> lp = torch.tensor([-1.0, -2.0], requires_grad=True)
    >>> loss = kl_to_reference(lp, torch.tensor([-1.0, -2.5]))
    >>> loss.backward()
    >>> round(loss.item(), 4), lp.grad.tolist()
    (0.1065, [0.0, 0.5])
    """
    log_ratio = (logprobs - reference).detach()
    value = (-log_ratio).exp() - 1 + log_ratio
    return _sum(_with_gradient(value, log_ratio * logprobs), weights)


def entropy(logprobs: Tensor, weights: Tensor | None = None) -> Tensor:
    """The policy's entropy, estimated from sampled tokens; subtract it from a loss to keep the policy broad.

    Value: -lp per token. Gradient: -lp · d lp.

    >>> import torch
    >>> lp = torch.tensor([-1.0, -3.0], requires_grad=True)
    >>> entropy(lp).backward()
    >>> lp.grad.tolist()
    [1.0, 3.0]
    """
    value = -logprobs.detach()
    return _sum(_with_gradient(value, value * logprobs), weights)


def l2(logprobs: Tensor, anchor: Tensor, weights: Tensor | None = None) -> Tensor:
    """The squared distance of log-probabilities from those of an earlier policy. Exact, on any tokens.

    >>> import torch
    >>> l2(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -4.0])).item()
    4.0
    """
    return _sum((logprobs - anchor) ** 2, weights)


def topk_entropy(logprobs: Tensor, weights: Tensor | None = None) -> Tensor:
    """-Σ p·log p over the K candidates of each position, [N, K]: exact when they hold all of the probability.

    Where they do not, this is their share of the entropy. ``weights`` is per position, [N].

    >>> import torch
    >>> round(topk_entropy(torch.tensor([[0.5, 0.5]]).log()).item(), 4)
    0.6931
    """
    return _sum(-(logprobs.exp() * logprobs).sum(-1), weights)


def topk_kl(logprobs: Tensor, reference: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ p·(log p - log q) over the K candidates of each position, [N, K], as `topk_entropy`.

    >>> import torch
    >>> even = torch.tensor([[0.5, 0.5]]).log()
    >>> topk_kl(even, even).item()
    0.0
    """
    return _sum((logprobs.exp() * (logprobs - reference)).sum(-1), weights)


def _with_gradient(value: Tensor, surrogate: Tensor) -> Tensor:
    """This value, with the gradient of the other."""
    return value + surrogate - surrogate.detach()


def _sum(terms: Tensor, weights: Tensor | None) -> Tensor:
    return terms.sum() if weights is None else (terms * weights).sum()
