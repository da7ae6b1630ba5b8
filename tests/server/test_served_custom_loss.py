"""Custom losses on the service: their numbers, their bounds, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch
from server_support import TOKENS, Api, Serve
from tracing import traced

import tinsmith.engine.custom_loss as engine_side
from tinsmith.types.custom_loss_operations import FUNCTIONS, METHODS

N = len(TOKENS) - 1
F32 = torch.float32


def weighted(logprobs, weights):
    loss = torch.sum(-logprobs * weights)
    return loss, {"custom/tokens:sum": weights.sum(), "custom/lp:mean": logprobs.mean()}


def clipped_ratio(logprobs, old, advantages):
    ratio = torch.exp(logprobs - old)
    ratio = torch.clamp(ratio, max=float("inf"))
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return -surrogate.sum(), {"custom/ratio:mean": ratio.detach().mean()}


def pairwise(logprobs, preferred, scale):
    difference = logprobs[..., 1:] - logprobs[:-1]
    hinge = torch.nn.functional.softplus(-difference * scale)
    total = torch.where(preferred[1:] > 0, hinge, torch.zeros_like(hinge)).to(torch.float64).sum()
    return (total / logprobs.shape[0]).float(), {"custom/pairs:sum": (preferred > 0).float().sum()}


def many(logprobs, weights):
    top, _ = torch.topk(logprobs, 2, dim=1)
    chosen = torch.gather(logprobs, 1, torch.argmax(weights, dim=1, keepdim=True))
    return -(torch.logsumexp(top, dim=-1).sum() + chosen.mean()), {}


# loss, ranks of its inputs, and their values for one datum
CASES: list[tuple[Callable[..., Any], dict[str, int], dict[str, torch.Tensor]]] = [
    (weighted, {"logprobs": 1, "weights": 1}, {"weights": torch.tensor([0.0, 1, 2, 0.5, 1])}),
    (
        clipped_ratio,
        {"logprobs": 1, "old": 1, "advantages": 1},
        {"old": torch.full((N,), -7.5), "advantages": torch.tensor([1.0, -1, 2, 0, 0.5])},
    ),
    (
        pairwise,
        {"logprobs": 1, "preferred": 1, "scale": 0},
        {"preferred": torch.tensor([1, 0, 1, 1, 0]), "scale": torch.tensor(0.5)},
    ),
    (many, {"logprobs": 2, "weights": 2}, {"weights": torch.arange(N * 3.0).reshape(N, 3) % 4}),
]


def _tensor(value: torch.Tensor) -> dict[str, Any]:
    dtype = "float32" if value.dtype.is_floating_point else "int64"
    return {"data": value.flatten().tolist(), "dtype": dtype, "shape": list(value.shape)}


def _batch(
    run: str, seq: int, loss_fn: str, config: Any, inputs: dict[str, torch.Tensor], copies: int = 2
) -> dict[str, Any]:
    datum = {
        "model_input": {"chunks": [{"tokens": TOKENS[:-1]}]},
        "loss_fn_inputs": {key: _tensor(value) for key, value in inputs.items()},
    }
    body = {"data": [datum] * copies, "loss_fn": loss_fn, "loss_fn_config": config}
    return {"forward_backward_input": body, "model_id": run, "seq_id": seq}


def _targets(rank: int) -> torch.Tensor:
    one = torch.tensor(TOKENS[1:])
    return one if rank == 1 else torch.stack([one, one + 1, one + 2], dim=1)


async def _create(api: Api, session: str, number: int, request: dict[str, Any]) -> Any:
    return await api.do("create_custom_loss", session_id=session, custom_loss_seq_id=number, **request)


async def _logprobs(api: Api, run: str, seq: int, targets: torch.Tensor) -> torch.Tensor:
    inputs = {"target_tokens": targets, "weights": torch.zeros(targets.shape)}
    body = _batch(run, seq, "cross_entropy", None, inputs)
    body["forward_input"] = body.pop("forward_backward_input")
    output = (await api.do("forward", **body))["loss_fn_outputs"][0]["logprobs"]
    return torch.tensor(output["data"]).reshape(targets.shape).requires_grad_()


@pytest.mark.parametrize(("loss", "ranks", "values"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_a_loss_has_the_value_and_the_gradient_torch_gives_it(
    serve: Serve, loss: Callable[..., Any], ranks: dict[str, int], values: dict[str, torch.Tensor]
) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            mine, other = await api.run(session, 0), await api.run(session, 1)
            made = await _create(api, session, 0, traced(loss, ranks))
            loss_id = made["loss_id"]
            targets = _targets(ranks["logprobs"])
            logprobs = await _logprobs(api, other, 1, targets)
            expected, metrics = loss(logprobs, *values.values())
            expected.backward()

            inputs = {"target_tokens": targets} | values
            body = _batch(mine, 1, "custom", {"loss_id": loss_id}, inputs)
            result = await api.do("forward_backward", **body)
            said = result["metrics"]
            assert said.pop("loss:sum") == pytest.approx(2 * expected.item(), rel=1e-5)
            reduced = {k: v.item() * (2 if k.endswith(":sum") else 1) for k, v in metrics.items()}
            assert said == pytest.approx(reduced, rel=1e-5)
            assert set(result["loss_fn_outputs"][0]) == {"logprobs"}

            # The same gradient, given to a cross-entropy as its weights.
            assert logprobs.grad is not None
            inputs = {"target_tokens": targets, "weights": -logprobs.grad}
            await api.do("forward_backward", **_batch(other, 2, "cross_entropy", None, inputs))
            norms = []
            for run, seq in ((mine, 2), (other, 3)):
                step = await api.do("optim_step", adam_params={}, model_id=run, seq_id=seq)
                norms.append(step["metrics"]["unclipped_grad_l2:mean"])
            assert norms[0] == pytest.approx(norms[1], rel=1e-5) and norms[0] > 0

    asyncio.run(main())


def test_a_loss_is_made_once_belongs_to_its_session_and_survives_a_restart(serve: Serve) -> None:
    request = traced(weighted, {"logprobs": 1, "weights": 1})
    inputs = {"target_tokens": _targets(1), "weights": torch.ones(N)}

    async def main() -> None:
        async with serve() as api:
            session, other = await api.session(), await api.session()
            run, foreign = await api.run(session), await api.run(other)
            untouched = await api.run(session, 1)
            made = [await _create(api, session, 3, request) for _ in range(2)]
            assert made[0] == made[1]
            config = {"loss_id": made[0]["loss_id"]}
            refused = await api.do("forward_backward", **_batch(foreign, 1, "custom", config, inputs))
            assert "session" in refused["error"] and refused["category"] == "user"
            for wrong in (
                None,
                {},
                {"loss_id": 3.0},
                config | {"beta": 1.0},
                {"loss_id": f"{session}:loss:9"},
            ):
                seq = 1 + [None, {}].index(wrong) if wrong in (None, {}) else None
                body = _batch(run, seq, "custom", wrong, inputs)
                refused = await api.do("forward_backward", **{k: v for k, v in body.items() if v is not None})
                assert "loss_id" in refused["error"], wrong
            for each, seq in ((run, None), (untouched, 1)):
                body = _batch(each, seq, "custom", config, inputs)
                await api.do("forward_backward", **{k: v for k, v in body.items() if v is not None})
            expected = await api.do("optim_step", adam_params={"learning_rate": 0.1}, model_id=run)
        async with serve() as api:
            step = await api.do(
                "optim_step", adam_params={"learning_rate": 0.1}, model_id=untouched, seq_id=2
            )
            assert step == expected
            losses = [(await api.loss(each, 50, "forward"))["metrics"] for each in (run, untouched)]
            assert losses[0] == losses[1]

    asyncio.run(main())


def _node(op: str, name: str, target: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"op": op, "name": name, "target": target, "args": list(args), "kwargs": kwargs}


def _graph(*middle: dict[str, Any], result: str = "loss", metrics: Any = None) -> dict[str, Any]:
    """A loss of the log-probabilities alone."""
    given = {"tuple": [{"ref": result}, {"dict": metrics or {}}]}
    nodes = [
        _node("placeholder", "logprobs", "logprobs"),
        *middle,
        _node("output", "output", "output", given),
    ]
    return {"name": "evil", "inputs": [{"name": "logprobs", "rank": 1}], "graph": {"nodes": nodes}}


LP, LOSS = {"ref": "logprobs"}, {"ref": "loss"}
SUM = _node("call_function", "loss", "torch.sum", LP)

# Refused when the loss is made: what, and what the error says.
MALFORMED = [
    (_graph(_node("call_function", "loss", "os.system", "true")), "os.system"),
    (_graph(_node("call_function", "loss", "torch.load", "x")), "torch.load"),
    (_graph(_node("call_function", "loss", "builtins.eval", "1")), "eval"),
    (_graph(_node("call_function", "loss", "getattr", LP, "__class__")), "attribute|asked for"),
    (_graph(_node("call_method", "loss", "__reduce__", LP)), "__reduce__"),
    (_graph(_node("call_method", "loss", "add_", LP, 1)), "add_"),
    (_graph(_node("call_method", "loss", "item", LP)), "item"),
    (_graph(_node("call_module", "loss", "layer", LP)), "call_module"),
    (_graph(_node("get_attr", "loss", "weight")), "get_attr"),
    (_graph(_node("call_function", "loss", "torch.sum", {"ref": "later"})), "later"),
    (_graph(_node("call_function", "loss", "torch.sum", {"code": "x"})), "code"),
    (_graph(_node("call_function", "loss", "torch.sum", {"device": "cuda"})), "device"),
    (_graph(_node("call_function", "loss", "torch.sum", LP, out=LP)), "out"),
    (_graph(_node("call_function", "loss", "torch.sum", [[[[[[[[[1]]]]]]]]])), "deep"),
    (_graph(_node("call_function", "loss", "torch.sum", [0] * 500)), "256"),
    (_graph(_node("call_function", "logprobs", "torch.sum", LP), result="logprobs"), "taken"),
    (_graph(SUM, metrics={"mine": LOSS}), "custom/"),
    (_graph(SUM, metrics={"custom/a:sum": 3}), "tensor"),
    (_graph(SUM, _node("placeholder", "x", "x")), "placeholder"),
]


@pytest.mark.parametrize(("request_", "says"), MALFORMED, ids=[says for _, says in MALFORMED])
def test_what_a_loss_may_not_do_is_refused_when_it_is_made(
    serve: Serve, request_: dict[str, Any], says: str
) -> None:
    async def main() -> None:
        async with serve() as api:
            answer = await _create(api, await api.session(), 0, request_)
            assert answer["category"] == "user"
            assert any(word in answer["error"] for word in says.split("|")), answer["error"]

    asyncio.run(main())


# Refused when the loss is carried out, naming the node.
FAILING = [
    (_graph(_node("call_function", "loss", "torch.exp", LP)), "one number"),
    (_graph(_node("call_method", "cut", "detach", LP),
            _node("call_function", "loss", "torch.sum", {"ref": "cut"})), "does not depend"),
    (_graph(_node("call_function", "loss", "operator.getitem", LP, 10**6)), "node 'loss'"),
    (_graph(_node("call_function", "big", "torch.arange", 10**12), SUM), "node 'big'"),
    (_graph(_node("call_method", "big", "repeat", LP, 10**9), SUM), "node 'big'"),
    (_graph(_node("call_method", "big", "expand", LP, 10**9, -1), SUM), "node 'big'"),
    (_graph(_node("call_function", "big", "operator.pow", 10, 10**9), SUM), "node 'big'"),
    (_graph(_node("call_function", "big", "operator.mul", "x", 10**9), SUM), "node 'big'"),
    (_graph(_node("call_function", "big", "operator.mul", [1], 10**9), SUM), "node 'big'"),
    (_graph(_node("call_function", "zero", "operator.truediv", 1, 0), SUM), "node 'zero'"),
    (_graph(_node("call_function", "bad", "torch.log", LP),
            _node("call_function", "loss", "torch.sum", {"ref": "bad"})), "not finite"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "says"), FAILING, ids=range(len(FAILING)))
def test_a_loss_that_cannot_be_computed_names_its_node_and_leaves_no_gradient(
    serve: Serve, request_: dict[str, Any], says: str
) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            run = await api.run(session)
            config = {"loss_id": (await _create(api, session, 0, request_))["loss_id"]}
            inputs = {"target_tokens": _targets(1)}
            answer = await api.do("forward_backward", **_batch(run, 1, "custom", config, inputs))
            assert says in answer["error"] and answer["category"] == "user"
            step = await api.do("optim_step", adam_params={}, model_id=run, seq_id=2)
            assert step["metrics"]["unclipped_grad_l2:mean"] == 0.0

    asyncio.run(main())


def test_inputs_must_be_there_in_their_ranks(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            run = await api.run(session)
            made = await _create(api, session, 0, traced(weighted, {"logprobs": 1, "weights": 1}))
            wrong = {
                "'weights'": {"target_tokens": _targets(1)},
                "'target_tokens'": {"target_tokens": _targets(2), "weights": torch.ones(N)},
                "rank 1": {"target_tokens": _targets(1), "weights": torch.ones(N, 2)},
            }
            for seq, (says, inputs) in enumerate(wrong.items(), 1):
                answer = await api.do(
                    "forward_backward", **_batch(run, seq, "custom", made_config(made), inputs)
                )
                assert says in answer["error"] and "data[0]" in answer["error"]

    def made_config(made: dict[str, Any]) -> dict[str, Any]:
        return {"loss_id": made["loss_id"]}

    asyncio.run(main())


def test_every_name_a_graph_may_use_has_a_function() -> None:
    assert engine_side.FUNCTIONS.keys() == FUNCTIONS
    assert engine_side.METHODS.keys() == METHODS
    assert not [name for name in METHODS if name.endswith("_") and name not in ("and_", "or_")]
