"""Every loss, value and gradient, against formulas written a second time in numpy."""

import numpy as np
import pytest
import torch

from tinsmith.engine.losses import LOSS_FNS, loss_metrics
from tinsmith.types.losses import LOSSES
from tinsmith.types.validation import loss_config

# Ratios well inside, just outside and far outside every clip interval, with advantages of both signs;
# the first two positions are a masked prompt (q = 0, A = 0).
LP = np.array([-9.0, -2.0, -1.0, -1.0, -1.0, -1.0, -2.5, -2.5, -0.3, -0.3])
Q = np.array([0.0, 0.0, -1.1, -1.1, -2.0, -2.0, -1.0, -1.0, -4.0, -4.0])
A = np.array([0.0, 0.0, 1.5, -0.5, 2.0, -2.0, 1.0, -1.0, 0.7, -0.7])
MASK = (A != 0).astype(float)


def computed(loss_fn, inputs, config=None):
    tensors = {key: torch.tensor(value, dtype=torch.float32) for key, value in inputs.items()}
    lp = torch.tensor(LP, dtype=torch.float32, requires_grad=True)
    terms = LOSS_FNS[loss_fn](lp, tensors, loss_config(loss_fn, config))
    (gradient,) = torch.autograd.grad(terms.elementwise.sum(), lp)
    return terms, terms.elementwise.detach().numpy(), gradient.numpy()


def ppo_like(ratio, low, high):
    """-min(r A, clip(r) A), and d/d lp of it where r' = r: zero where the clipped branch is the smaller."""
    loss = -np.minimum(ratio * A, np.clip(ratio, low, high) * A)
    clipped = np.clip(ratio, low, high) * A < ratio * A
    return loss, np.where(clipped, 0.0, -ratio * A)


def expected(loss_fn, low=None, high=None, beta=0.05):
    ratio = np.exp(np.where(A != 0, LP - Q, 0))
    match loss_fn:
        case "importance_sampling":
            return -ratio * A, -ratio * A
        case "ppo":
            return ppo_like(ratio, low, high)
        case "cispo":
            weight = np.clip(ratio, low, high)
            return -weight * LP * A, -weight * A
        case "dro":
            return -(LP * A - 0.5 * beta * (LP - Q) ** 2), -A + beta * (LP - Q)
        case "gspo":
            sequence = np.exp(np.sum(MASK * (LP - Q)) / np.sum(MASK))
            return ppo_like(np.full_like(LP, sequence), low, high)


@pytest.mark.parametrize(
    ("loss_fn", "config", "bounds"),
    [
        ("importance_sampling", None, {}),
        ("ppo", None, {"low": 0.8, "high": 1.2}),
        ("ppo", {"clip_high_threshold": 3.0}, {"low": 0.8, "high": 3.0}),
        ("cispo", None, {"low": 0.0, "high": 4.0}),
        ("cispo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.0}, {"low": 0.9, "high": 1.0}),
        ("dro", None, {}),
        ("dro", {"beta": 0.7}, {"beta": 0.7}),
        ("gspo", None, {"low": 1 - 3e-4, "high": 1 + 4e-4}),
        ("gspo", {"clip_low_threshold": 0.1, "clip_high_threshold": 10.0}, {"low": 0.1, "high": 10.0}),
    ],
)
def test_value_and_gradient(loss_fn, config, bounds) -> None:
    inputs = {"logprobs": Q, "advantages": A}
    if loss_fn == "gspo":
        inputs["sequence_ratio_mask"] = MASK
    _, loss, gradient = computed(loss_fn, inputs, config)
    expected_loss, expected_gradient = expected(loss_fn, **bounds)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


def test_both_clipped_and_unclipped_tokens_occur() -> None:
    """So that the test above has met every branch."""
    _, gradient = expected("ppo", low=0.8, high=1.2)
    assert {tuple(pair) for pair in zip(np.sign(A[2:]), gradient[2:] != 0, strict=True)} == {
        (1, True), (1, False), (-1, True), (-1, False),
    }  # fmt: skip


@pytest.mark.parametrize("loss_fn", ["ppo", "cispo", "gspo"])
def test_a_bound_for_each_token_wins_over_the_scalar(loss_fn) -> None:
    rng = np.random.default_rng(0)
    low, high = rng.uniform(0.2, 0.9, LP.size), rng.uniform(1.1, 3.0, LP.size)
    inputs = {"logprobs": Q, "advantages": A, "clip_low_threshold": low, "clip_high_threshold": high}
    if loss_fn == "gspo":
        inputs["sequence_ratio_mask"] = MASK
    _, loss, gradient = computed(loss_fn, inputs, {"clip_low_threshold": 0.99, "clip_high_threshold": 1.01})
    expected_loss, expected_gradient = expected(loss_fn, low=low, high=high)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


def test_cross_entropy_value_and_gradient() -> None:
    weights = np.linspace(-1, 2, LP.size)
    _, loss, gradient = computed("cross_entropy", {"weights": weights})
    np.testing.assert_allclose(loss, -weights * LP, rtol=1e-6)
    np.testing.assert_allclose(gradient, -weights, rtol=1e-6)


@pytest.mark.parametrize("loss_fn", sorted(LOSSES))
def test_masked_positions_are_finite_whatever_q_is(loss_fn) -> None:
    zeros = np.zeros_like(LP)
    inputs = {"logprobs": zeros - 1e4, "advantages": zeros, "weights": zeros, "sequence_ratio_mask": zeros}
    terms, loss, gradient = computed(loss_fn, inputs)
    assert np.isfinite(loss).all() and np.isfinite(gradient).all()
    assert all(np.isfinite(value) for value in loss_metrics([terms]).values())


def test_metrics_count_active_and_clipped_tokens() -> None:
    terms, _, gradient = computed("ppo", {"logprobs": Q, "advantages": A})
    metrics = loss_metrics([terms, terms])
    ratio = np.exp(LP - Q)[2:]
    assert metrics["loss:sum"] == pytest.approx(2 * float(terms.elementwise.detach().sum()))
    assert metrics["active_tokens:sum"] == 16
    assert metrics["clipped_tokens:sum"] == 2 * np.sum((gradient == 0)[2:])
    assert metrics["ratio:min"] == pytest.approx(ratio.min(), rel=1e-5)
    assert metrics["ratio:max"] == pytest.approx(ratio.max(), rel=1e-5)
