"""Sessions: lazily opened, heartbeats that do not keep anything alive, closing, telemetry without secrets."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref

import pytest
from client_stub import Answer, Stub, serve

import tinsmith
from tinsmith import ModelInput, SamplingParams
from tinsmith.client import session as session_module
from tinsmith.client import telemetry as telemetry_module
from tinsmith.client.api import Api
from tinsmith.client.config import ClientConfig
from tinsmith.client.connection import Connection
from tinsmith.client.futures import spawn
from tinsmith.client.session import _heartbeat
from tinsmith.client.telemetry import Telemetry
from tinsmith.client.transport import Response


def test_nothing_is_sent_until_something_is_asked_for(stub):
    with tinsmith.ServiceClient(base_url=stub.url):
        pass
    assert stub.requests == []


def test_one_session_for_everything_even_when_asked_at_once(stub, monkeypatch):
    monkeypatch.setenv("TINKER_TAGS", "a,b")
    with tinsmith.ServiceClient({"k": "v"}, "P", display_name="D", base_url=stub.url) as service:
        futures = [service.create_lora_training_client("m") for _ in range(8)]
        assert {future.result(30).model_id for future in futures} == {f"S:train:{n}" for n in range(8)}
    (created,) = stub.to("create_session")
    assert created.json == {
        "tags": ["a", "b"],
        "user_metadata": {"k": "v"},
        "sdk_version": "0.38.0",
        "project_id": "P",
        "display_name": "D",
        "type": "create_session",
    }
    assert len(stub.to("client/config")) == 1


def test_a_start_that_failed_is_tried_anew(stub, service):
    stub.script["create_session"].append(Answer(401, {"detail": "who?"}))
    with pytest.raises(tinsmith.AuthenticationError, match="TINKER_API_KEY"):
        service.create_lora_training_client("m").result(30)
    assert service.create_lora_training_client("m").result(30).model_id == "S:train:1"


def test_what_the_service_wants_to_be_read_is_logged(stub, service, caplog):
    words = {"session_id": "S", "info_message": "i", "warning_message": "w", "error_message": "e"}
    stub.script["create_session"].append(Answer(200, words))
    with caplog.at_level(logging.INFO, "tinsmith"):
        service.create_sampling_client(base_model="m").result(30)
    levels = {record.message: record.levelname for record in caplog.records}
    assert (levels["i"], levels["w"], levels["e"]) == ("INFO", "WARNING", "ERROR")
    assert f"tinsmith uses {stub.url} (the base_url argument)" in levels


def test_a_path_prefix_is_kept(stub):
    stub.prefix = "/services/x"
    with tinsmith.ServiceClient(base_url=stub.url + "/services/x/") as service:
        assert service.create_lora_training_client("m").result(30).model_id


def test_headers_of_the_caller_win_and_cloudflare_s_are_sent(stub, monkeypatch):
    monkeypatch.setenv("CLOUDFLARE_ACCESS_CLIENT_ID", "cf")
    with tinsmith.ServiceClient(
        base_url=stub.url, api_key="tml-a", default_headers={"X-API-Key": "mine", "x-extra": "1"}
    ) as service:
        service.get_server_capabilities()
    headers = stub.requests[0].headers
    assert (headers["x-api-key"], headers["x-extra"], headers["cf-access-client-id"]) == ("mine", "1", "cf")


@pytest.mark.parametrize(
    ("error", "ending"),
    [(None, "success"), (KeyError("secret"), "errored"), (KeyboardInterrupt(), "interrupted")],
)
def test_the_ending_is_told(stub, error, ending):
    def work():
        with tinsmith.ServiceClient(base_url=stub.url) as service:
            service.create_sampling_client(base_model="m").result(30)
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(type(error)):
            work()
    finish = stub.to("sessions/S/finish")[0].json
    assert finish["reason"] == {"type": ending}
    assert "secret" not in str(finish)


def test_a_closed_client_says_so(stub):
    service = tinsmith.ServiceClient(base_url=stub.url)
    training = service.create_lora_training_client("m").result(30)
    sampling = service.create_sampling_client(base_model="m").result(30)
    service.close().result(30)
    service.close().result(30)
    for use in (
        lambda: service.create_lora_training_client("m"),
        lambda: service.create_sampling_client(base_model="m"),
        lambda: training.optim_step(tinsmith.AdamParams()),
        lambda: sampling.sample(ModelInput.from_ints([1]), 1, SamplingParams()),
        lambda: service.get_server_capabilities(),
    ):
        with pytest.raises(tinsmith.ClientClosedError, match="new ServiceClient"):
            use()


def test_closing_ends_what_waits(stub):
    polled = threading.Event()

    async def hold(request):
        polled.set()
        await asyncio.sleep(0.2)
        return Answer(408)

    service = tinsmith.ServiceClient(base_url=stub.url)
    training = service.create_lora_training_client("m").result(30)
    stub.script["retrieve_future"].extend([hold] * 1000)
    future = training.optim_step(tinsmith.AdamParams())
    assert polled.wait(30)
    service.close().result(30)
    with pytest.raises(tinsmith.TinkerError):
        future.result(30)


def test_async_context_manager(stub):
    async def main():
        async with tinsmith.ServiceClient(base_url=stub.url) as service:
            return (await service.get_server_capabilities_async()).supported_models[0].model_name

    assert asyncio.run(main()) == "m"


# ---- heartbeats -----------------------------------------------------------------------------------


class Beats:
    """A transport that answers heartbeats."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.count = 0

    async def request(self, method, path, **how):
        self.count += 1
        return Response(self.answers.pop(0) if self.answers else 200, {}, b"{}")

    async def aclose(self):
        pass


class Holder:
    """Something to hold."""


def beat(clock, beats, stop_after=100):
    holder = Holder()
    held = [holder]
    reference = weakref.ref(holder)
    del holder

    def tick(_):
        if len(clock.slept) == stop_after:
            held.clear()
            gc.collect()

    clock.on_sleep = tick
    asyncio.run(_heartbeat(reference, Api(beats, ClientConfig(base_url="http://x"), clock), "S", clock))


def test_heartbeats_every_ten_seconds_until_the_session_is_dropped(clock):
    beats = Beats()
    beat(clock, beats, stop_after=5)
    assert clock.slept == [10.0] * 5
    assert beats.count == 4


@pytest.mark.parametrize("status", [404, 410])
def test_heartbeats_stop_when_the_service_ended_the_session(clock, caplog, status):
    beats = Beats(200, status)
    beat(clock, beats)
    assert beats.count == 2
    assert "has ended" in caplog.text


def test_silence_is_warned_of_once(clock, caplog):
    with caplog.at_level(logging.WARNING, "tinsmith"):
        beat(clock, Beats(*[500] * 20, 200, *[500] * 5), stop_after=30)
    assert [r.message for r in caplog.records if "no heartbeat" in r.message] == [
        "session S: no heartbeat got through for 130 s: " + caplog.records[0].message.split("130 s: ")[1]
    ]


def test_dropping_every_client_ends_the_session_and_closes_the_connection(stub, monkeypatch):
    monkeypatch.setattr(session_module, "HEARTBEAT_EVERY", 0.01)
    service = tinsmith.ServiceClient(base_url=stub.url)
    training = service.create_lora_training_client("m").result(30)
    stub.wait_for("session_heartbeat", 2)
    session = weakref.ref(service._session)
    transport = training._live.api.transport
    del service
    gc.collect()
    assert session() is not None  # the training client still needs it
    stub.wait_for("session_heartbeat", len(stub.to("session_heartbeat")) + 2)
    del training
    spawn(asyncio.sleep(0), "let the loop forget its tasks").result(30)
    gc.collect()
    assert session() is None

    async def closed():
        while not transport._closed:
            await asyncio.sleep(0.001)

    spawn(closed(), "wait").result(30)


def test_heartbeats_are_not_starved_by_samples(stub, service, monkeypatch):
    monkeypatch.setattr(session_module, "HEARTBEAT_EVERY", 0.01)
    release = threading.Event()

    async def hold(request):
        while not release.is_set():
            await asyncio.sleep(0.005)
        return stub.default(request)

    sampling = service.create_sampling_client(base_model="m").result(30)
    stub.script["asample"].extend([hold] * 400)
    futures = [sampling.sample(ModelInput.from_ints([1]), 1, SamplingParams()) for _ in range(450)]
    stub.wait_for("asample", 400)
    before = len(stub.to("session_heartbeat"))
    stub.wait_for("session_heartbeat", before + 3)
    release.set()
    for future in futures:
        future.result(120)


# ---- telemetry ------------------------------------------------------------------------------------


def test_session_start_and_end_are_reported_without_secrets(stub, monkeypatch):
    monkeypatch.setenv("TINKER_TELEMETRY", "1")
    with tinsmith.ServiceClient(base_url=stub.url, api_key="tml-secret") as service:
        training = service.create_lora_training_client("m").result(30)
        stub.script["optim_step"].append(Answer(400, {"detail": "tml-secret in the text"}))
        with pytest.raises(tinsmith.BadRequestError):
            training.optim_step(tinsmith.AdamParams()).result(30)
    sent = stub.to("telemetry")
    events = [event for request in sent for event in request.json["events"]]
    assert [event["event"] for event in events] == ["SESSION_START", "GENERIC_EVENT", "SESSION_END"]
    assert [event["event_session_index"] for event in events] == [0, 1, 2]
    assert all(b"tml-secret" not in request.raw for request in sent)
    assert sent[0].json["session_id"] == "S"


def test_it_can_be_switched_off(stub, monkeypatch):
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    with tinsmith.ServiceClient(base_url=stub.url) as service:
        service.create_sampling_client(base_model="m").result(30)
    assert stub.to("telemetry") == []


def test_a_dead_telemetry_endpoint_delays_nothing(monkeypatch):
    app = Stub()
    monkeypatch.setenv("TINKER_TELEMETRY", "1")
    monkeypatch.setattr(telemetry_module, "DRAIN_SECONDS", 0.01)

    async def never(request):
        await asyncio.sleep(60)
        return Answer()

    app.script["telemetry"].extend([never] * 100)
    app.script["optim_step"].append(Answer(400, {"detail": "no"}))
    with serve(app) as url, tinsmith.ServiceClient(base_url=url) as service:
        training = service.create_lora_training_client("m").result(30)
        with pytest.raises(tinsmith.BadRequestError):
            training.optim_step(tinsmith.AdamParams()).result(30)
        assert app.to("telemetry") == []  # the error did not wait for it


def test_batches_and_the_end_of_the_queue(clock):
    batches = []

    class Sink(Beats):
        async def request(self, method, path, *, body, **how):
            batches.append(body.count(b'"event_id"'))
            return await super().request(method, path)

    telemetry = Telemetry(True, clock)
    telemetry.open(Api(Sink(), ClientConfig(base_url="http://x"), clock), "S")
    for _ in range(250):
        telemetry.emit("GENERIC_EVENT")
    asyncio.run(telemetry.flush())
    assert batches == [100, 100, 50]
    for _ in range(20_000):
        telemetry.emit("GENERIC_EVENT")
    asyncio.run(telemetry.flush())
    assert sum(batches[3:]) == 10_000


def test_a_connection_that_never_opened_closes_quietly():
    connection = Connection(ClientConfig(base_url="http://x"))
    spawn(connection.close(), "close").result(30)
    with pytest.raises(tinsmith.ClientClosedError):
        connection.check()
