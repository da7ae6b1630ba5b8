"""What a program sees of its own operations: events, figures, spans."""

from __future__ import annotations

import logging

import pytest
from client_stub import Answer
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import tinsmith
from tinsmith import ModelInput, OperationEvent, SamplingParams
from tinsmith.client.observe import percentile

PROMPT = ModelInput.from_ints([1, 2])


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


def test_listeners_hear_the_beginning_the_end_and_the_error(stub, service, caplog) -> None:
    heard: list[OperationEvent] = []

    def broken(event: OperationEvent) -> None:
        raise RuntimeError("a dashboard is down")

    service.add_listener(broken)
    service.add_listener(heard.append)
    sampler = service.create_sampling_client(base_model="m").result(30)
    sampler.sample(PROMPT, 1, SamplingParams()).result(30)
    stub.script["asample"].append(Answer(403, {"detail": "no"}))
    with caplog.at_level(logging.ERROR, "tinsmith"), pytest.raises(tinsmith.PermissionDeniedError):
        sampler.sample(PROMPT, 1, SamplingParams()).result(30)
    assert "a listener failed" in caplog.text
    events = [event for event in heard if event.operation == "sample"]
    assert [event.phase for event in events] == ["start", "stop", "start", "exception"]
    assert [event.error is None for event in events] == [True, True, True, False]
    assert events[1].attributes == {"sampler": sampler.sampling_session_id, "num_samples": 1}
    stats = service.metrics()["sample"]
    assert (stats.count, stats.errors, stats.in_flight) == (2, 1, 0)
    assert 0 < stats.p50 <= stats.p95 <= stats.p99


def test_every_operation_is_a_span_and_requests_carry_the_callers(stub, service, spans) -> None:
    training = service.create_lora_training_client("m").result(30)
    sampler = service.create_sampling_client(base_model="m").result(30)
    spans.clear()
    with trace.get_tracer("test").start_as_current_span("mine") as mine:
        training.optim_step(tinsmith.AdamParams()).result(30)
        sampler.sample(PROMPT, 1, SamplingParams()).result(30)
    finished = {span.name: span for span in spans.get_finished_spans()}
    assert set(finished) == {"tinsmith.OptimStep", "tinsmith.sample", "mine"}
    assert finished["tinsmith.OptimStep"].attributes["tinsmith.model_id"] == training.model_id
    trace_id = format(mine.get_span_context().trace_id, "032x")
    assert {format(span.context.trace_id, "032x") for span in finished.values()} == {trace_id}
    for path in ("optim_step", "asample", "retrieve_future"):
        assert trace_id in stub.to(path)[-1].headers["traceparent"]


@pytest.mark.parametrize(("percent", "expected"), [(50, 2.0), (95, 4.0), (1, 1.0)])
def test_percentiles_are_of_the_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == expected
    assert percentile([], percent) == 0.0
