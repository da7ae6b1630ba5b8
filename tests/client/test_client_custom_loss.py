"""forward_backward_custom: the gradient arrives, the order holds, and a failure leaves the run usable."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from client_stub import Answer, Stub, serve

import tinsmith
from tinsmith import AdamParams, Datum, ModelInput, TensorData
from tinsmith.client.custom_loss import surrogate
from tinsmith.types import ForwardBackwardOutput

torch = pytest.importorskip("torch")


def datum(*targets: int, **extra) -> Datum:
    return Datum(ModelInput.from_ints([1] * len(targets)), {"target_tokens": list(targets), **extra})


def output(*logprobs) -> ForwardBackwardOutput:
    outputs = [{"logprobs": TensorData.from_numpy(np.asarray(lp, np.float32))} for lp in logprobs]
    return ForwardBackwardOutput("T", outputs, {})


def squares(data, logprobs):
    loss = sum((lp**2).sum() for lp in logprobs)
    return loss, {"mine:sum": loss.detach()}


def test_weights_are_minus_the_gradient():
    done = surrogate([datum(1, 2), datum(3)], output([-1.0, -2.0], [-3.0]), squares)
    assert [d.loss_fn_inputs["weights"].tolist() for d in done.data] == [[2.0, 4.0], [6.0]]
    assert done.loss == 14.0
    assert done.metrics == {"mine:sum": 14.0}


def test_two_dimensional_targets_keep_their_shape():
    grid = Datum(ModelInput.from_ints([1, 1]), {"target_tokens": [[1, 2], [3, 4]]})
    done = surrogate([grid], output([-1.0, -2.0, -3.0, -4.0]), squares)
    assert done.data[0].loss_fn_inputs["weights"].tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_a_datum_the_loss_does_not_use_gets_zero():
    done = surrogate([datum(1), datum(2)], output([-1.0], [-2.0]), lambda d, lp: (lp[0].sum(), {}))
    assert [d.loss_fn_inputs["weights"].tolist() for d in done.data] == [[-1.0], [0.0]]


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda d, lp: (torch.zeros(2), {}), "one number"),
        (lambda d, lp: (3.0, {}), "one number"),
        (lambda d, lp: (torch.zeros(()), {}), "does not depend"),
        (lambda d, lp: (torch.ones((), requires_grad=True) * 2, {}), "does not depend"),
        (lambda d, lp: ((lp[0] * float("nan")).sum(), {}), "not finite"),
    ],
)
def test_a_loss_that_cannot_be_one(loss, words):
    with pytest.raises(ValueError, match=words):
        surrogate([datum(1)], output([-1.0]), loss)


@pytest.fixture(params=[{}, {"fwdbwd_max_chunk_len": 1}], ids=["one request", "chunks"])
def running(request):
    app = Stub(request.param)
    with serve(app) as url, tinsmith.ServiceClient(base_url=url) as client:
        yield app, client.create_lora_training_client("m").result(30)


def calls(stub: Stub):
    return {r.call.seq_id: r.call for r in stub.to("forward_backward")}


def test_forward_then_backward_then_what_was_called_after(running):
    stub, training = running
    threads = []

    def loss(data, logprobs):
        threads.append(threading.current_thread().name)
        assert [d.loss_fn_inputs["extra"].tolist() for d in data] == [[5.0], [5.0]]
        return squares(data, logprobs)

    extra = {"extra": np.array([5.0], np.float32)}
    future = training.forward_backward_custom([datum(1, **extra), datum(2, **extra)], loss)
    step = training.optim_step(AdamParams())
    result = future.result(30)
    step.result(30)
    n = len(calls(stub)) // 2
    sent = calls(stub)
    assert [sent[i].forward_only for i in sorted(sent)] == [True] * n + [False] * n
    assert all(
        set(d.loss_fn_inputs) == {"target_tokens", "weights"} for c in sent.values() for d in c.batch.data
    )
    assert stub.to("optim_step")[0].json["seq_id"] == 2 * n + 1
    backward = [d for i in sorted(sent)[n:] for d in sent[i].batch.data]
    assert [d.loss_fn_inputs["weights"].tolist() for d in backward] == [[2.0], [2.0]]
    assert result.metrics["loss:sum"] == 2.0
    assert result.metrics["surrogate_loss:sum"] == 4.0
    assert result.metrics["mine:sum"] == 2.0
    assert threads != [threading.main_thread().name]
    assert "tinsmith-client" not in threads


def test_a_loss_that_raises_leaves_the_run_usable(running):
    stub, training = running

    def loss(data, logprobs):
        raise ZeroDivisionError("in my loss")

    future = training.forward_backward_custom([datum(1), datum(2)], loss)
    step = training.optim_step(AdamParams())
    with pytest.raises(ZeroDivisionError, match="in my loss"):
        future.result(30)
    assert step.result(30)
    sent = calls(stub)
    assert sorted(sent) == list(range(1, len(sent) + 1))
    assert all(call.forward_only for call in sent.values())
    assert training.forward_backward_custom([datum(1), datum(2)], squares).result(30).loss == 2.0


def test_a_forward_that_is_refused_leaves_the_run_usable(running):
    stub, training = running
    stub.script["forward_backward"].append(Answer(400, {"detail": "bad"}))
    with pytest.raises(tinsmith.BadRequestError):
        training.forward_backward_custom([datum(1)], squares).result(30)
    training.optim_step(AdamParams()).result(30)
    assert stub.to("optim_step")[0].json["seq_id"] == 3
    assert [r.call.forward_only for r in stub.to("forward_backward")] == [True, True]
