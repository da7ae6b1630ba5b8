"""Every loss, value and gradient, against formulas written a second time in numpy."""

import numpy as np
import pytest
import torch

from tinsmith.engine.losses import LOSS_FNS, loss_metrics
from tinsmith.types.losses import LOSSES
from tinsmith.types.validation import loss_config

# Ratios below, between and above every pair of bounds, with advantages of both signs, and the same the other
# way round; the first two positions are a masked prompt (q = 0, A = 0).
LP = np.array([-9.0, -2.0, -1.0, -1.0, -1.0, -1.0, -2.5, -2.5, -0.3, -0.3])
Q = np.array([0.0, 0.0, -1.1, -1.1, -2.0, -2.0, -1.0, -1.0, -4.0, -4.0])
A = np.array([0.0, 0.0, 1.5, -0.5, 2.0, -2.0, 1.0, -1.0, 0.7, -0.7])
MASK = (A != 0).astype(float)
TOKENS = {"": (LP, Q), "the other way round": (np.where(MASK, Q, LP), np.where(MASK, LP, Q))}


def computed(loss_fn, inputs, config=None, lp=LP):
    tensors = {key: torch.tensor(value, dtype=torch.float32) for key, value in inputs.items()}
    leaf = torch.tensor(lp, dtype=torch.float32, requires_grad=True)
    terms = LOSS_FNS[loss_fn](leaf, tensors, loss_config(loss_fn, config))
    (gradient,) = torch.autograd.grad(terms.elementwise.sum(), leaf)
    return terms, terms.elementwise.detach().numpy(), gradient.numpy()


def columns(loss_fn, q):
    """What the loss needs, but for the targets."""
    mask = {"sequence_ratio_mask": MASK} if loss_fn == "gspo" else {}
    return {"logprobs": q, "advantages": A} | mask


def ratios(loss_fn, lp, q):
    """r token by token, or the sequence's; 1 where a position takes no part."""
    if loss_fn == "gspo":
        return np.full_like(lp, np.exp(np.sum(MASK * (lp - q)) / np.sum(MASK)))
    return np.exp(np.where(A != 0, lp - q, 0))


def expected(loss_fn, lp, q, low=None, high=None, beta=0.05):
    """The loss of each token and its derivative by lp."""
    ratio = ratios(loss_fn, lp, q)
    match loss_fn:
        case "importance_sampling":
            return -ratio * A, -ratio * A
        case "ppo" | "gspo":  # r' = r, but where the clipped branch is the smaller: 0
            loss = -np.minimum(ratio * A, np.clip(ratio, low, high) * A)
            clipped = np.clip(ratio, low, high) * A < ratio * A
            return loss, np.where(clipped, 0.0, -ratio * A)
        case "cispo":
            weight = np.clip(ratio, low, high)
            return -weight * lp * A, -weight * A
        case "dro":
            return -(lp * A - 0.5 * beta * (lp - q) ** 2), -A + beta * (lp - q)


LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
# The loss, its configuration, and what the formulas above are to use.
CASES = [
    ("importance_sampling", None, {}),
    ("ppo", None, {"low": 0.8, "high": 1.2}),
    ("ppo", {LOW: 0.3}, {"low": 0.3, "high": 1.2}),
    ("ppo", {HIGH: 3.0}, {"low": 0.8, "high": 3.0}),
    ("ppo", {LOW: 0.5, HIGH: 2.0}, {"low": 0.5, "high": 2.0}),
    ("cispo", None, {"low": 0.0, "high": 4.0}),
    ("cispo", {LOW: 0.5}, {"low": 0.5, "high": 4.0}),
    ("cispo", {HIGH: 2.0}, {"low": 0.0, "high": 2.0}),
    ("cispo", {LOW: 0.9, HIGH: 1.0}, {"low": 0.9, "high": 1.0}),
    ("dro", None, {}),
    ("dro", {"beta": 0.7}, {"beta": 0.7}),
    ("gspo", None, {"low": 1 - 3e-4, "high": 1 + 4e-4}),
    ("gspo", {LOW: 0.3}, {"low": 0.3, "high": 1 + 4e-4}),
    ("gspo", {HIGH: 10.0}, {"low": 1 - 3e-4, "high": 10.0}),
    ("gspo", {LOW: 0.1, HIGH: 10.0}, {"low": 0.1, "high": 10.0}),
]
CLIPPING = ("cispo", "gspo", "ppo")


def check(loss_fn, inputs, config, lp, **by):
    _, loss, gradient = computed(loss_fn, inputs, config, lp)
    expected_loss, expected_gradient = expected(loss_fn, lp, inputs["logprobs"], **by)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("loss_fn", "config", "by"), CASES)
def test_value_and_gradient(loss_fn, config, by, tokens) -> None:
    lp, q = TOKENS[tokens]
    check(loss_fn, columns(loss_fn, q), config, lp, **by)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("loss_fn", CLIPPING)
def test_a_bound_for_each_token_wins_over_the_scalar(loss_fn, tokens) -> None:
    lp, q = TOKENS[tokens]
    rng = np.random.default_rng(0)
    low, high = rng.uniform(0.2, 0.9, LP.size), rng.uniform(1.1, 3.0, LP.size)
    inputs = columns(loss_fn, q) | {LOW: low, HIGH: high}
    check(loss_fn, inputs, {LOW: 0.99, HIGH: 1.01}, lp, low=low, high=high)


def test_every_loss_and_every_key_is_in_the_table() -> None:
    """With its default, and with another value that makes a difference; cross_entropy has its own test."""
    defaults = {loss_fn: by for loss_fn, config, by in CASES if config is None}
    assert defaults.keys() == LOSSES.keys() - {"cross_entropy"}
    for loss_fn, spec in LOSSES.items():
        alone = {
            next(iter(config)) for name, config, _ in CASES if name == loss_fn and len(config or ()) == 1
        }
        assert alone == set(spec.config), loss_fn
        assert set(spec.optional) == ({LOW, HIGH} if loss_fn in CLIPPING else set()), loss_fn
        given = {"weights"} if loss_fn == "cross_entropy" else columns(loss_fn, Q).keys()
        assert set(spec.required) == {"target_tokens", *given}, loss_fn
    for loss_fn, config, by in CASES:
        changes = (
            not np.allclose(expected(loss_fn, *tokens, **by), expected(loss_fn, *tokens, **defaults[loss_fn]))
            for tokens in TOKENS.values()
        )
        assert any(changes) == (config is not None), (loss_fn, config)


@pytest.mark.parametrize("loss_fn", CLIPPING)
def test_both_clipped_and_unclipped_tokens_occur(loss_fn) -> None:
    """So that the tests above have met every branch."""
    sides = {
        (sign, side)
        for name, _, by in CASES
        if name == loss_fn
        for tokens in TOKENS.values()
        for sign, side in zip(
            np.sign(A), np.digitize(ratios(loss_fn, *tokens), [by["low"], by["high"]]), strict=True
        )
        if sign
    }
    assert sides == {(sign, side) for sign in (-1, 1) for side in (0, 1, 2)}


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
