"""AdamW against torch.optim.AdamW, and what a step does to a run."""

import pytest
import torch
from engine_support import cross_entropy, gradients_of, same, sft_datum, trained_run, weights_of, with_engine

from tinsmith.engine.adamw import AdamState, adamw_step
from tinsmith.engine.local import LocalEngine
from tinsmith.types import AdamParams, UserError

STEPS = [
    AdamParams(learning_rate=1e-2),
    AdamParams(learning_rate=3e-3, beta1=0.5, beta2=0.99, eps=1e-6),
    AdamParams(learning_rate=0.1, weight_decay=0.3, grad_clip_norm=0.5),
    AdamParams(learning_rate=0.0, weight_decay=0.3),
    AdamParams(learning_rate=1e-4, beta1=0.0, beta2=0.0, eps=1e-3, grad_clip_norm=1e9),
    AdamParams(learning_rate=2e-2, weight_decay=0.01, grad_clip_norm=2.0),
]


def test_equals_torch_over_steps_with_changing_parameters() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = {name: torch.randn(5, 7, generator=generator) for name in "ab"}
    theirs = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in ours.items()}
    optimizer = torch.optim.AdamW(theirs.values(), foreach=False)
    state = AdamState()
    for params in STEPS:
        gradients = {name: torch.randn(5, 7, generator=generator) for name in ours}
        for name, parameter in theirs.items():
            parameter.grad = gradients[name].clone()
        expected_norm = torch.nn.utils.clip_grad_norm_(theirs.values(), params.grad_clip_norm or float("inf"))
        optimizer.param_groups[0].update(
            lr=params.learning_rate, betas=(params.beta1, params.beta2), eps=params.eps,
            weight_decay=params.weight_decay,
        )  # fmt: skip
        optimizer.step()
        norm = adamw_step(ours, gradients, state, params)
        assert norm == pytest.approx(float(expected_norm), rel=1e-6)
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[name].detach(), rtol=1e-6, atol=1e-7)


def test_a_step_clears_the_gradient_and_reports_its_norm(models) -> None:
    async def body(engine: LocalEngine):
        await trained_run(engine, "run", "tiny-llama")
        await engine.forward_backward("run", cross_entropy(sft_datum(10, 1)), True)
        gradients = gradients_of(engine, "run")
        assert gradients is not None
        norm = float(torch.cat([g.flatten() for g in gradients.values()]).norm())
        metrics = await engine.optim_step("run", AdamParams(learning_rate=0.5, grad_clip_norm=0.1))
        assert metrics["unclipped_grad_l2:mean"] == pytest.approx(norm, rel=1e-5)
        assert metrics["learning_rate:mean"] == 0.5
        assert gradients_of(engine, "run") is None

    with_engine(models, body)


def test_without_a_gradient_nothing_moves(models) -> None:
    async def body(engine: LocalEngine):
        await trained_run(engine, "run", "tiny-llama")
        before, step = weights_of(engine, "run"), engine._adapters["run"].optimizer.step
        metrics = await engine.optim_step("run", AdamParams(learning_rate=1.0, weight_decay=0.5))
        assert same(before, weights_of(engine, "run"))
        assert engine._adapters["run"].optimizer.step == step
        assert metrics["unclipped_grad_l2:mean"] == 0

    with_engine(models, body)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", -1e-9),
        ("beta1", 1.0),
        ("beta1", -0.1),
        ("beta2", 1.5),
        ("eps", 0.0),
        ("weight_decay", -0.1),
        ("grad_clip_norm", -1.0),
    ],
)
def test_a_refused_step_leaves_everything_as_it_was(models, field, value) -> None:
    async def body(engine: LocalEngine):
        await trained_run(engine, "run", "tiny-llama", train_mlp=False)
        await engine.forward_backward("run", cross_entropy(sft_datum(10, 1)), True)
        gradients, weights = gradients_of(engine, "run"), weights_of(engine, "run")
        with pytest.raises(UserError) as caught:
            await engine.optim_step("run", AdamParams(**{field: value}))
        assert caught.value.field == f"adam_params.{field}"
        assert gradients_of(engine, "run") is gradients
        assert same(weights, weights_of(engine, "run"))

    with_engine(models, body)
