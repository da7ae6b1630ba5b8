"""RestClient: what it asks, and that a conflict is an answer."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from client_stub import Answer

import tinsmith

PATH = "tinker://S:train:0/sampler_weights/one"
RUN = {
    "training_run_id": "S:train:0",
    "base_model": "m",
    "model_owner": "o",
    "is_lora": True,
    "last_request_time": "2026-01-01T00:00:00Z",
    "a_field_of_the_future": 1,
}


@pytest.fixture
def rest(stub):
    return tinsmith.RestClient(base_url=stub.url, api_key="tml-x")


@pytest.mark.parametrize(
    ("call", "asked", "answer"),
    [
        (
            lambda r: r.list_training_runs(5, 10),
            "GET training_runs?limit=5&offset=10&access_scope=owned",
            None,
        ),
        (lambda r: r.get_training_run("S:train:0"), "GET training_runs/S:train:0?access_scope=owned", RUN),
        (
            lambda r: r.get_training_run_by_tinker_path(PATH, "accessible"),
            "GET training_runs/S:train:0?access_scope=accessible",
            RUN,
        ),
        (
            lambda r: r.list_checkpoints("S:train:0"),
            "GET training_runs/S:train:0/checkpoints",
            {"checkpoints": []},
        ),
        (lambda r: r.list_user_checkpoints(), "GET checkpoints?limit=100&offset=0", None),
        (
            lambda r: r.delete_checkpoint("S:train:0", "weights/a"),
            "DELETE training_runs/S:train:0/checkpoints/weights/a",
            b"",
        ),
        (
            lambda r: r.delete_checkpoint_from_tinker_path(PATH),
            "DELETE training_runs/S:train:0/checkpoints/sampler_weights/one",
            {},
        ),
        (
            lambda r: r.publish_checkpoint_from_tinker_path(PATH),
            "POST training_runs/S:train:0/checkpoints/sampler_weights/one/publish",
            {},
        ),
        (
            lambda r: r.unpublish_checkpoint_from_tinker_path(PATH),
            "DELETE training_runs/S:train:0/checkpoints/sampler_weights/one/publish",
            {},
        ),
        (
            lambda r: r.set_checkpoint_ttl_from_tinker_path(PATH, None),
            "PUT training_runs/S:train:0/checkpoints/sampler_weights/one/ttl",
            {},
        ),
        (lambda r: r.get_weights_info_by_tinker_path(PATH), "POST weights_info", None),
        (
            lambda r: r.list_sessions(),
            "GET sessions?limit=20&offset=0&access_scope=owned",
            {"sessions": ["S"]},
        ),
        (
            lambda r: r.get_session("S"),
            "GET sessions/S?access_scope=owned",
            {"training_run_ids": [], "sampler_ids": []},
        ),
        (lambda r: r.get_sampler("S:sample:0"), "GET samplers/S:sample:0", None),
        (lambda r: r.get_server_capabilities(), "GET get_server_capabilities", None),
    ],
)
def test_request(stub, rest, call, asked, answer):
    method, _, where = asked.partition(" ")
    path, _, query = where.partition("?")
    if answer is not None:
        stub.script[path].append(Answer(200, answer))
    call(rest).result(30)
    (request,) = stub.requests
    assert (request.method, request.path, request.query) == (method, path, query)
    assert request.headers["x-api-key"] == "tml-x"


def test_null_is_kept_where_it_means_something(stub, rest):
    path = "training_runs/S:train:0/checkpoints/sampler_weights/one/ttl"
    stub.script[path].append(Answer())
    rest.set_checkpoint_ttl_from_tinker_path(PATH, None).result(30)
    assert stub.requests[0].json == {"ttl_seconds": None}


def test_a_conflict_is_an_answer_and_trouble_is_not(stub, rest):
    path = "training_runs/S:train:0/checkpoints/sampler_weights/one/publish"
    stub.script[path].append(Answer(409, {"detail": "is public already"}))
    with pytest.raises(tinsmith.ConflictError, match="already"):
        rest.publish_checkpoint_from_tinker_path(PATH).result(30)
    stub.script[path].extend([Answer(500, {}, {"retry-after-ms": "1"}), Answer()])
    rest.publish_checkpoint_from_tinker_path(PATH).result(30)
    assert len(stub.requests) == 3


def test_it_shares_its_service_client_s_connection_and_opens_no_session(stub, service):
    assert service.create_rest_client()._connection is service._session.connection
    service.get_server_capabilities()
    assert [request.path for request in stub.requests] == ["get_server_capabilities"]


def test_every_method_that_gives_a_future_has_a_twin_with_the_same_arguments():
    for cls in (
        tinsmith.AdminClient,
        tinsmith.RestClient,
        tinsmith.TrainingClient,
        tinsmith.SamplingClient,
        tinsmith.ServiceClient,
    ):
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            gives = str(method.__annotations__.get("return", ""))
            if name.startswith("_") or not gives.startswith(("APIFuture", "Backcompat")):
                continue
            if name.endswith("_async") or name in ("close", "create", *OLD_NAMES):
                continue
            twin = getattr(cls, f"{name}_async")
            assert inspect.iscoroutinefunction(twin), name
            assert inspect.signature(twin).parameters == inspect.signature(method).parameters, name


OLD_NAMES = ("save_weights_and_get_sampling_client_submit",)


def test_async_twin(rest):
    async def main():
        return await rest.list_user_checkpoints_async(), await rest.list_user_checkpoints()

    assert [page.checkpoints for page in asyncio.run(main())] == [[], []]


def test_an_answer_that_makes_no_sense(stub, rest):
    stub.script["checkpoints"].append(Answer(200, b"<html>"))
    with pytest.raises(tinsmith.APIResponseValidationError, match="CheckpointsListResponse"):
        rest.list_user_checkpoints().result(30)


def test_a_path_that_is_none_is_refused_at_once(stub, rest):
    with pytest.raises(ValueError, match="tinker://"):
        rest.delete_checkpoint_from_tinker_path("weights/one")
    assert stub.requests == []
