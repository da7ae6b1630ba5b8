"""What a few bytes may cost: tensors made dense, custom losses, answers, and who waits when many come."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from security_support import live, make_keys, sample

from tinsmith.engine.custom_loss import TracedLoss
from tinsmith.server.pace import Paced
from tinsmith.service.limits import Quota
from tinsmith.types import Datum, ForwardBackwardInput, ModelInput, TensorData, UserError
from tinsmith.types.custom_loss import CustomLoss, CustomLossInput, CustomLossNode, custom_loss_budget
from tinsmith.types.validation import MAX_CELLS, check_batch

LENGTH, WIDTH = 64, 4096


def _empty_csr(rows: int, columns: int, dtype: Any = "int64") -> TensorData:
    """A tensor of many cells that takes hardly a byte."""
    crow = np.zeros(rows + 1, dtype=np.int64)
    return TensorData([], dtype, [rows, columns], sparse_crow_indices=crow, sparse_col_indices=[])


def _check(data: list[Datum], loss: CustomLoss | None = None) -> None:
    batch = ForwardBackwardInput(data, "cross_entropy" if loss is None else "custom", None, loss)
    check_batch(batch, vocab_size=512, max_context_length=256)


def test_sparse_tensors_are_counted_as_they_will_be() -> None:
    inputs = {"target_tokens": _empty_csr(LENGTH, WIDTH), "weights": _empty_csr(LENGTH, WIDTH, "float32")}
    datum = Datum(ModelInput.from_ints([1] * LENGTH), inputs)
    fitting = MAX_CELLS // (2 * LENGTH * WIDTH)
    _check([datum] * fitting)
    with pytest.raises(UserError, match=r"^data: .* cells in all tensors"):
        _check([datum] * (fitting + 1))


INPUTS = (CustomLossInput(name="logprobs", rank=1), CustomLossInput(name="extra", rank=2))


def _loss(*nodes: tuple[str, str, list[Any]]) -> CustomLoss:
    begin = [CustomLossNode(op="placeholder", name=each.name, target=each.name) for each in INPUTS]
    middle = [
        CustomLossNode(op="call_function", name=name, target=target, args=args)
        for name, target, args in nodes
    ]
    end = CustomLossNode(
        op="output", name="output", target="output", args=[[{"ref": nodes[-1][0]}, {"dict": {}}]]
    )
    return CustomLoss("costly", INPUTS, (*begin, *middle, end))


SUM = ("sum", "torch.sum", [{"ref": "logprobs"}])


def test_inputs_of_a_custom_loss_are_bounded_by_its_datum() -> None:
    def datum(rows: int, columns: int) -> Datum:
        inputs = {"target_tokens": TensorData([1] * 4, "int64", [4]), "extra": _empty_csr(rows, columns)}
        return Datum(ModelInput.from_ints([1] * 4), inputs)

    loss = _loss(SUM)
    _check([datum(4, custom_loss_budget(4) // 4)], loss)
    with pytest.raises(UserError, match=r"data\[0\]\.loss_fn_inputs\['extra'\]"):
        _check([datum(4, custom_loss_budget(4) // 4 + 1)], loss)


def test_a_custom_loss_costs_no_more_than_its_positions_allow() -> None:
    """Many short datums go into one step, so each may compute less than a long one."""
    for positions in (1, 64):
        inputs = {"extra": torch.zeros(1, 1)}
        logprobs = torch.zeros(positions, requires_grad=True)
        most = custom_loss_budget(positions)
        for elements, fits in ((most // 2, True), (most + 1, False)):
            grow = ("range", "torch.arange", [elements])
            traced = TracedLoss(_loss(grow, SUM))
            if fits:
                assert float(traced(logprobs, inputs, {}).elementwise.detach()) == 0
            else:
                with pytest.raises(UserError, match=r"'range' .* datum of this length"):
                    traced(logprobs, inputs, {})
    assert custom_loss_budget(10**6) == custom_loss_budget(10**9) == 2**24


def test_alternatives_count_as_tokens(tmp_path: Path) -> None:
    """A sample that asks for alternatives fills the quota like as many that do not."""
    (key,) = make_keys(tmp_path / "data", "alice")
    with live(tmp_path / "data", quota=Quota(queued_tokens=4200)) as service:
        alice = service.tenant(key)
        sampler = alice.sampler(alice.session())
        long = {"sampling_params": {"max_tokens": 240, "stop": []}, "num_samples": 16}
        first = alice.post("asample", **sample(sampler, 0, **long))
        refused = alice.http.post("asample", json=sample(sampler, 1, topk_sample_logprobs=99))
        assert refused.status_code == 429
        assert "with this request it would be 4252" in refused.json()["detail"]
        second = alice.post("asample", **sample(sampler, 2))
        for sent in (first, second):
            assert alice.result(sent["request_id"])["sequences"]


def test_a_burst_is_let_in_little_by_little_and_in_order() -> None:
    """Others are served between any two turns of it, and one who goes away holds nobody up."""
    log: list[str] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        log.append(scope["name"])

    async def main() -> None:
        paced = Paced(app, {"/bulk"})

        def ask(path: str, name: str, key: bytes = b"") -> asyncio.Task[None]:
            headers = [(b"x-api-key", key)]
            scope = {"type": "http", "path": path, "name": name, "headers": headers}
            return asyncio.get_running_loop().create_task(paced(scope, None, None))  # type: ignore[arg-type]

        burst = [ask("/bulk", f"bulk {at}") for at in range(100)]
        await asyncio.sleep(0)
        burst[50].cancel()
        beat = ask("/beat", "beat")
        modest = ask("/bulk", "modest", b"another")
        await asyncio.gather(*burst, beat, modest, return_exceptions=True)
        again = ask("/bulk", "later")
        await again

    asyncio.run(main())
    assert log.index("beat") < 20
    assert log.index("modest") < 40, "a queue of his own"
    assert [each for each in log if each.startswith("bulk")] == [
        f"bulk {at}" for at in range(100) if at != 50
    ]
    assert log[-1] == "later"
