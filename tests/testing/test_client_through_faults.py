"""What our client makes of every fault: it gets through where it should, and says so where it cannot."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from faults_support import Hurry

import tinsmith
from tinsmith.testing import (
    Drop,
    Failed,
    Fault,
    Faults,
    Garbled,
    Late,
    Pending,
    RetryAfter,
    Slow,
    Status,
    Truncate,
)

PROMPT = tinsmith.ModelInput.from_ints([10, 20, 30, 40])
EMPTY_400 = Status(400, body=b"")
BROKEN = [
    Status(408),
    Status(409),
    Status(500),
    Status(502, body=b"<html>bad gateway</html>", content_type="text/html"),
    Status(503),
    Status(504, body=b""),
    EMPTY_400,
    Drop(),
    Drop("after"),
    Truncate(),
    Truncate(0.0),
]
STATES = [None, "active", "paused_capacity", "paused_rate_limit"]
WAITING = [Pending(form, state, "so busy") for form in ("408", "try_again") for state in STATES]  # type: ignore[arg-type]


def named(fault: Fault) -> str:
    return repr(fault)


def draw(sampler: tinsmith.SamplingClient, seed: int = 5) -> tinsmith.APIFuture[tinsmith.SampleResponse]:
    return sampler.sample(PROMPT, 1, tinsmith.SamplingParams(max_tokens=6, seed=seed, stop=[]))


def datum() -> tinsmith.Datum:
    inputs = {"target_tokens": [20, 30, 40], "weights": [1.0, 1.0, 1.0]}
    return tinsmith.Datum(tinsmith.ModelInput.from_ints([10, 20, 30]), inputs)


def train(training: tinsmith.TrainingClient, steps: int = 2) -> list[float]:
    """The losses of a few steps; each depends on all before it."""
    futures = []
    for _ in range(steps):
        futures.append(training.forward_backward([datum()], "cross_entropy"))
        training.optim_step(tinsmith.AdamParams(learning_rate=1e-2))
    return [future.result(60).metrics["loss:sum"] for future in futures]


# ---- what passes by itself ----------------------------------------------------------------------


@pytest.mark.parametrize("fault", BROKEN, ids=named)
def test_a_broken_submit_or_poll_of_a_sample_is_repeated(
    sampler: tinsmith.SamplingClient, tinsmith_faults: Faults, fault: Fault
) -> None:
    expected = draw(sampler).result(60).sequences[0].tokens
    tinsmith_faults.on("asample", fault, fault)
    if fault != Status(409):  # a conflict is no answer to a poll
        tinsmith_faults.on("retrieve_future", fault, fault)
    assert draw(sampler).result(60).sequences[0].tokens == expected
    assert tinsmith_faults.left == 0


@pytest.mark.parametrize("fault", WAITING, ids=named)
def test_a_poll_goes_on_while_the_service_says_wait(
    sampler: tinsmith.SamplingClient,
    tinsmith_faults: Faults,
    hurry: Hurry,
    fault: Pending,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tinsmith_faults.on("retrieve_future", *[fault] * 4)
    draw(sampler).result(60)
    assert tinsmith_faults.left == 0
    assert hurry.slept[-4:] == [0.05, 0.1, 0.2, 0.4], "a service that answers at once meets a growing pause"
    told = [record.message for record in caplog.records if "so busy" in record.message]
    assert len(told) == (fault.queue_state not in (None, "active")), "a pause is told about, once"


def test_training_comes_out_the_same_through_every_fault(
    client: tinsmith.ServiceClient, tinsmith_faults: Faults
) -> None:
    def run() -> list[float]:
        return train(client.create_lora_training_client("tiny-llama", rank=4, seed=1).result(60), 3)

    expected = run()
    for route in ("forward_backward", "optim_step", "retrieve_future", "create_model"):
        tinsmith_faults.on(route, *(fault for fault in BROKEN if fault != Status(409)), *[Slow(0, 3)])
    assert run() == expected, "each operation was executed once"
    assert len(tinsmith_faults.played) > 20


def test_results_that_come_out_of_order_reach_those_who_asked(
    sampler: tinsmith.SamplingClient, tinsmith_faults: Faults
) -> None:
    expected = [draw(sampler, seed).result(60).sequences[0].tokens for seed in range(4)]
    late = Late(others=3)
    tinsmith_faults.on("retrieve_future", late, late, late, late)
    futures = [draw(sampler, seed) for seed in range(4)]
    assert [future.result(60).sequences[0].tokens for future in futures] == expected
    assert tinsmith_faults.left == 0


# ---- how long it waits --------------------------------------------------------------------------

HINTS = [
    (RetryAfter("ms", 250), 0.25, 0.25),
    (RetryAfter("seconds", 1.5), 1.5, 1.5),
    (RetryAfter("date", 5), 3.0, 5.0),
    (RetryAfter("date", -60), 0.5, 0.5),  # past: not used
    (RetryAfter("seconds", 90), 0.5, 0.5),  # too long to be meant
    (None, 0.5, 0.5),
]


@pytest.mark.parametrize(("hint", "least", "most"), HINTS, ids=lambda value: repr(value))
def test_a_hint_decides_when_to_try_again(
    training: tinsmith.TrainingClient,
    tinsmith_faults: Faults,
    hurry: Hurry,
    hint: RetryAfter | None,
    least: float,
    most: float,
) -> None:
    hurry.slept.clear()
    tinsmith_faults.on("optim_step", Status(503, retry_after=hint))
    training.optim_step(tinsmith.AdamParams()).result(60)
    assert least <= hurry.slept[0] <= most


@pytest.mark.parametrize(
    ("hint", "least", "most"), [(hint, max(1.0, least), max(1.0, most)) for hint, least, most in HINTS]
)
def test_a_429_on_a_sample_pauses_all_samples_of_that_service(
    client: tinsmith.ServiceClient,
    sampler: tinsmith.SamplingClient,
    tinsmith_faults: Faults,
    hurry: Hurry,
    hint: RetryAfter | None,
    least: float,
    most: float,
) -> None:
    draw(sampler).result(60)
    hurry.slept.clear()
    tinsmith_faults.on("asample", Status(429, retry_after=hint))
    draw(sampler).result(60)
    assert least <= max(hurry.slept) <= most
    assert tinsmith_faults.left == 0


# ---- what is final ------------------------------------------------------------------------------

FINAL = [
    (Status(400), tinsmith.BadRequestError),
    (Status(401), tinsmith.AuthenticationError),
    (Status(402), tinsmith.BillingError),
    (Status(403), tinsmith.PermissionDeniedError),
    (Status(404), tinsmith.NotFoundError),
    (Status(410), tinsmith.APIStatusError),
    (Status(413), tinsmith.APIStatusError),
    (Status(418), tinsmith.APIStatusError),
    (Status(422), tinsmith.UnprocessableEntityError),
    (Status(503, headers={"x-should-retry": "false"}), tinsmith.InternalServerError),
    (Garbled(), tinsmith.APIResponseValidationError),
    (Garbled(b"", "application/json"), tinsmith.APIResponseValidationError),
    (Garbled(b'{"request_id": ', "application/json"), tinsmith.APIResponseValidationError),
    (Garbled(b"[1, 2]", "application/json"), tinsmith.APIResponseValidationError),
]


@pytest.mark.parametrize(("fault", "error"), FINAL, ids=named)
@pytest.mark.parametrize("route", ["asample", "optim_step"])
def test_a_submit_that_is_refused_fails_at_once_and_says_why(
    sampler: tinsmith.SamplingClient,
    training: tinsmith.TrainingClient,
    tinsmith_faults: Faults,
    route: str,
    fault: Fault,
    error: type[tinsmith.TinkerError],
) -> None:
    sampler.get_base_model()
    tinsmith_faults.on(route, fault)
    future = draw(sampler) if route == "asample" else training.optim_step(tinsmith.AdamParams())
    with pytest.raises(error):
        future.result(60)
    assert tinsmith_faults.requests[route] == 1
    tinsmith_faults.clear()
    draw(sampler).result(60)


@pytest.mark.parametrize("category", ["user", "server", "unknown", "Server", "no such word", ""])
def test_a_failed_operation_says_whose_fault_it_was(
    sampler: tinsmith.SamplingClient, tinsmith_faults: Faults, category: str
) -> None:
    tinsmith_faults.on("retrieve_future", Failed(category, "out of tin"))
    with pytest.raises(tinsmith.RequestFailedError, match="out of tin") as failed:
        draw(sampler).result(60)
    known = category.lower() if category.lower() in ("user", "server") else "unknown"
    assert failed.value.category.value == known
    assert tinsmith_faults.requests["asample"] == 1, (
        "a failed sample is not asked for again unless one says so"
    )


UNREADABLE = [
    Garbled(),
    Garbled(b"", "application/json"),
    Garbled(b"\xff" * 9, "application/x-protobuf"),
    Status(404),
    Status(403),
]


@pytest.mark.parametrize("fault", UNREADABLE, ids=named)
def test_a_result_that_cannot_be_read_is_an_error_with_its_request_id(
    sampler: tinsmith.SamplingClient, tinsmith_faults: Faults, fault: Fault
) -> None:
    tinsmith_faults.on("retrieve_future", fault)
    with pytest.raises(tinsmith.RetrieveError, match=r"\[request .+\]"):
        draw(sampler).result(60)


def test_a_lost_sample_is_asked_for_anew_but_a_lost_training_result_is_an_error(
    sampler: tinsmith.SamplingClient, training: tinsmith.TrainingClient, tinsmith_faults: Faults
) -> None:
    expected = draw(sampler).result(60).sequences[0].tokens
    tinsmith_faults.on("retrieve_future", Status(410))
    assert draw(sampler).result(60).sequences[0].tokens == expected
    tinsmith_faults.on("retrieve_future", Status(410))
    with pytest.raises(tinsmith.ResultExpiredError):
        training.optim_step(tinsmith.AdamParams()).result(60)
    training.optim_step(tinsmith.AdamParams()).result(60)


# ---- nobody hangs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [Status(500), Status(429), Status(408), EMPTY_400, Drop(), Drop("after"), Truncate()], ids=named
)
@pytest.mark.parametrize("route", ["optim_step", "create_sampling_session", "forward_backward"])
def test_a_call_that_never_gets_through_ends_in_an_error(
    client: tinsmith.ServiceClient,
    training: tinsmith.TrainingClient,
    tinsmith_faults: Faults,
    hurry: Hurry,
    route: str,
    fault: Fault,
) -> None:
    tinsmith_faults.on(route, fault, rate=1.0)
    calls = {
        "optim_step": lambda: training.optim_step(tinsmith.AdamParams()),
        "create_sampling_session": lambda: client.create_sampling_client(base_model="tiny-llama"),
        "forward_backward": lambda: training.forward_backward([datum()], "cross_entropy"),
    }
    with pytest.raises(tinsmith.APIError) as gave_up:
        tinsmith.APIFuture.result(calls[route](), 60)
    assert "gave up on" in "".join(gave_up.value.__notes__)
    assert 30 < tinsmith_faults.requests[route] < 60, "10 s apart at most, for 300 s"


def test_a_client_closes_whatever_goes_wrong(hurry: Hurry, tinsmith_faults: Faults) -> None:
    service = tinsmith.ServiceClient(base_url=tinsmith_faults.url, api_key="tml-test")
    sampler = service.create_sampling_client(base_model="tiny-llama").result(60)
    tinsmith_faults.on("*", Drop(), rate=1.0)
    pending = draw(sampler)
    closing = threading.Thread(target=service.close)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    with pytest.raises(tinsmith.TinkerError):
        pending.result(60)


def test_bulk_results_survive_slow_and_broken_bodies(
    training: tinsmith.TrainingClient, tinsmith_faults: Faults
) -> None:
    many = [datum() for _ in range(50)]
    expected = training.forward(many, "cross_entropy").result(60).loss_fn_outputs
    tinsmith_faults.on("retrieve_future", Slow(pieces=7, between=0.001), Truncate(0.9), Slow(before=0.05))
    for _ in range(2):
        outputs = training.forward(many, "cross_entropy").result(60).loss_fn_outputs
        for ours, theirs in zip(outputs, expected, strict=True):
            assert np.array_equal(ours["logprobs"].to_numpy(), theirs["logprobs"].to_numpy())
