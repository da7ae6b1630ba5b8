"""Requests, parameters and replies: what null, missing, unknown and impossible values mean in each of them.

The matrices walk over the classes themselves, so that a new class or field is covered without a word here;
only a new *required* field needs a value in ``REQUIRED``.
"""

import json
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from tinsmith import types as nouns
from tinsmith.types import AdamParams, LoraConfig, Params, Reply, Request, SamplingParams, requests
from tinsmith.types.training import DimuonParams

# The least each class takes.
REQUIRED: dict[str, dict[str, Any]] = {
    "ClientConfigRequest": {},
    "AuthTokenRequest": {},
    "CreateSessionRequest": {},
    "SessionHeartbeatRequest": {"session_id": "s"},
    "FinishReason": {"type": "success"},
    "FinishSessionRequest": {"reason": {"type": "errored"}},
    "CreateModelRequest": {"session_id": "s", "model_seq_id": 0, "base_model": "m"},
    "GetInfoRequest": {"model_id": "r"},
    "UnloadModelRequest": {"model_id": "r"},
    "OptimStepRequest": {"model_id": "r", "adam_params": {}},
    "SaveWeightsRequest": {"model_id": "r", "path": "n"},
    "LoadWeightsRequest": {"model_id": "r", "path": "p"},
    "SaveWeightsForSamplerRequest": {"model_id": "r", "path": "n"},
    "CreateSamplingSessionRequest": {"session_id": "s", "sampling_session_seq_id": 0, "base_model": "m"},
    "SampleRequest": {"prompt": {"chunks": []}, "sampling_params": {}},
    "RetrieveFutureRequest": {"request_id": "q"},
    "WeightsInfoRequest": {"tinker_path": "p"},
    "TelemetryRequest": {"events": []},
    "CancelFutureRequest": {"request_id": "q"},
    "SetTtlRequest": {},
}


def classes(base: type[BaseModel], *modules: Any) -> list[type[Any]]:
    found = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    }
    return sorted(found, key=lambda one: one.__name__)


REQUESTS = classes(Request, requests)
PARAMS: list[type[BaseModel]] = [AdamParams, SamplingParams, DimuonParams]


def fields_not_needed() -> Iterator[Any]:
    for model in REQUESTS:
        for name in model.model_fields:
            if name not in REQUIRED[model.__name__]:
                yield pytest.param(model, name, id=f"{model.__name__}.{name}")


def test_every_request_is_in_the_table() -> None:
    assert {model.__name__ for model in REQUESTS} == set(REQUIRED)


@pytest.mark.parametrize(("model", "name"), list(fields_not_needed()))
def test_null_missing_and_default_are_the_same(model: type[Request], name: str) -> None:
    least = REQUIRED[model.__name__]
    missing = model.model_validate(least)
    assert model.model_validate(least | {name: None}) == missing
    default = missing.model_dump()[name]
    assert default == model.model_fields[name].get_default(call_default_factory=True)
    assert model.model_validate(least | {name: default}) == missing


@pytest.mark.parametrize("model", REQUESTS)
def test_a_missing_or_null_required_field_is_named(model: type[Request]) -> None:
    least = REQUIRED[model.__name__]
    for name in [name for name, field in model.model_fields.items() if field.is_required()]:
        others = {key: value for key, value in least.items() if key != name}
        for fields in (others, others | {name: None}):
            with pytest.raises(ValidationError) as refusal:
                model.model_validate(fields)
            assert (name,) in [error["loc"] for error in refusal.value.errors()]


@pytest.mark.parametrize("model", REQUESTS)
def test_an_unknown_field_is_refused_unless_it_says_nothing(model: type[Request]) -> None:
    least = REQUIRED[model.__name__]
    assert model.model_validate(least | {"temprature": None}) == model.model_validate(least)
    for value in (0, False, "", [], {}):
        with pytest.raises(ValidationError, match="temprature"):
            model.model_validate(least | {"temprature": value})


@pytest.mark.parametrize("model", REQUESTS)
def test_the_journal_gives_back_what_was_accepted(model: type[Request]) -> None:
    request = model.model_validate(REQUIRED[model.__name__])
    assert model.model_validate_json(request.model_dump_json()) == request
    assert model.model_validate_json(request.model_dump_json(exclude_none=True)) == request


@pytest.mark.parametrize("model", REQUESTS)
@pytest.mark.parametrize("value", [None, [], "text", 5])
def test_a_request_is_an_object(model: type[Request], value: Any) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(value)


@pytest.mark.parametrize("model", REQUESTS)
def test_requests_are_frozen(model: type[Request]) -> None:
    request = model.model_validate(REQUIRED[model.__name__])
    for name in model.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(request, name, None)


@pytest.mark.parametrize("model", [model for model in REQUESTS if "type" in model.model_fields])
def test_a_request_of_another_type_is_refused(model: type[Request]) -> None:
    with pytest.raises(ValidationError) as refusal:
        model.model_validate(REQUIRED[model.__name__] | {"type": "another"})
    assert refusal.value.errors()[0]["loc"] == ("type",)


def parts(annotation: Any) -> Iterator[Any]:
    """The types an annotation is made of, the arguments of containers left out."""
    if get_origin(annotation) is Annotated:
        yield from parts(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from parts(part)
    else:
        yield annotation


def free_fields() -> Iterator[Any]:
    for model in REQUESTS:
        for name, field in model.model_fields.items():
            if any(get_origin(part) is dict for part in parts(field.annotation)):
                yield pytest.param(model, name, id=f"{model.__name__}.{name}")


@pytest.mark.parametrize(("model", "name"), list(free_fields()))
@pytest.mark.parametrize("inner", [{}, []], ids=["objects", "lists"])
def test_what_nobody_could_write_down_again_is_refused(model: type[Request], name: str, inner: Any) -> None:
    least = REQUIRED[model.__name__]
    if name == "optimizer_params":
        least = {"model_id": "r"}
    deep: Any = inner
    for _ in range(300):
        deep = {"a": deep} if inner == {} else [deep]
    with pytest.raises(ValidationError, match="levels deep") as refusal:
        model.model_validate(least | {name: {"k": deep}})
    assert refusal.value.errors()[0]["loc"] == (name,)
    kept = {"k": {"list": [1, {"x": None}], "text": "ü"}}
    request = model.model_validate(least | {name: kept})
    assert json.loads(request.model_dump_json(exclude_none=True))[name] == kept


def test_prompt_logprobs_has_three_states() -> None:
    for state in (None, True, False):
        request = requests.SampleRequest(prompt={}, sampling_params=SamplingParams(), prompt_logprobs=state)
        again = requests.SampleRequest.model_validate_json(request.model_dump_json(exclude_none=True))
        assert again.prompt_logprobs is state


# -- numbers -------------------------------------------------------------------------------------------


def numeric_fields() -> Iterator[Any]:
    for model in PARAMS:
        for name, field in model.model_fields.items():
            if float in set(parts(field.annotation)):
                yield pytest.param(model, name, id=f"{model.__name__}.{name}")


@pytest.mark.parametrize(("model", "name"), list(numeric_fields()))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None, "much", []])
def test_a_number_is_a_finite_number_and_null_is_none(model: type[BaseModel], name: str, value: Any) -> None:
    least = {"learning_rate": 0.1} if model is DimuonParams else {}
    with pytest.raises(ValidationError) as refusal:
        model.model_validate(least | {name: value})
    assert refusal.value.errors()[0]["loc"] == (name,)


def test_defaults_of_parameters() -> None:
    assert AdamParams().model_dump() == {
        "learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0,
        "grad_clip_norm": 0.0,
    }  # fmt: skip
    assert SamplingParams().model_dump() == {
        "max_tokens": None, "seed": None, "stop": None, "temperature": 1.0, "top_k": -1, "top_p": 1.0,
    }  # fmt: skip
    assert LoraConfig(rank=8).model_dump() == {
        "rank": 8, "seed": None, "train_unembed": True, "train_mlp": True, "train_attn": True,
    }  # fmt: skip


@pytest.mark.parametrize("model", [AdamParams, SamplingParams, LoraConfig])
def test_a_misspelt_parameter_is_refused_even_when_null(model: type[Params]) -> None:
    for value in (None, 0.1):
        with pytest.raises(ValidationError, match="min_p"):
            model.model_validate({"rank": 8, "min_p": value} if model is LoraConfig else {"min_p": value})


@pytest.mark.parametrize("stop", [None, "x", ["x", "y"], [1, 2], []])
def test_stop_keeps_its_form(stop: Any) -> None:
    params = SamplingParams(stop=stop)
    assert params.stop == stop
    assert SamplingParams.model_validate_json(params.model_dump_json(exclude_none=True)).stop == stop


@pytest.mark.parametrize("stop", [["x", 1], [1.5], [None], 5, {"a": 1}])
def test_stop_is_text_or_token_ids(stop: Any) -> None:
    with pytest.raises(ValidationError, match="stop"):
        SamplingParams.model_validate({"stop": stop})


def test_something_must_train() -> None:
    with pytest.raises(ValidationError, match="at least one must be true"):
        LoraConfig(rank=8, train_unembed=False, train_mlp=False, train_attn=False)


@pytest.mark.parametrize(
    ("name", "most"),
    [("OptimStepRequest", 2**31 - 1), ("SaveWeightsRequest", 2**31 - 1), ("SampleRequest", 2**63 - 1)],
)
def test_a_seq_id_is_a_number_a_store_can_hold(name: str, most: int) -> None:
    model, least = getattr(requests, name), REQUIRED[name]
    for seq_id in (0, most):
        assert model.model_validate(least | {"seq_id": seq_id}).seq_id == seq_id
    for seq_id in (-1, most + 1, 1e30, 0.5, "x"):
        with pytest.raises(ValidationError) as refusal:
            model.model_validate(least | {"seq_id": seq_id})
        assert refusal.value.errors()[0]["loc"] == ("seq_id",)


# -- fields that belong together -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fields", "right"),
    [
        ("OptimStepRequest", {"model_id": "r"}, False),
        ("OptimStepRequest", {"model_id": "r", "adam_params": {}, "optimizer_params": {"type": "x"}}, False),
        ("OptimStepRequest", {"model_id": "r", "optimizer_params": {"type": "dimuon"}}, True),
        ("LoadWeightsRequest", {"path": "p"}, False),
        ("LoadWeightsRequest", {"path": "p", "session_id": "s"}, False),
        ("LoadWeightsRequest", {"path": "p", "model_seq_id": 0}, False),
        ("LoadWeightsRequest", {"path": "p", "session_id": "s", "model_seq_id": 0}, True),
        ("LoadWeightsRequest", {"path": "p", "model_id": "r"}, True),
        ("LoadWeightsRequest", {"path": "p", "model_id": "r", "session_id": "s"}, False),
        ("LoadWeightsRequest", {"path": "p", "model_id": "r", "model_seq_id": 0}, False),
        ("LoadWeightsRequest", {"path": "p", "model_id": "r", "session_id": "s", "model_seq_id": 0}, False),
        ("SaveWeightsForSamplerRequest", {"model_id": "r"}, False),
        ("SaveWeightsForSamplerRequest", {"model_id": "r", "sampling_session_seq_id": 0}, True),
        ("SaveWeightsForSamplerRequest", {"model_id": "r", "path": "n", "sampling_session_seq_id": 0}, False),
        ("CreateSamplingSessionRequest", {"session_id": "s", "sampling_session_seq_id": 0}, False),
    ],
)
def test_one_address_and_only_one(name: str, fields: dict[str, Any], right: bool) -> None:
    model = getattr(requests, name)
    if right:
        model.model_validate(fields)
    else:
        with pytest.raises(ValidationError, match="give "):
            model.model_validate(fields)


# -- replies -------------------------------------------------------------------------------------------


REPLIES = classes(Reply, nouns)


@pytest.mark.parametrize("model", REPLIES)
def test_a_newer_service_may_say_more(model: type[Reply]) -> None:
    assert model.model_config["extra"] == "ignore"
    assert model.model_config["frozen"]


def test_an_unknown_field_of_a_reply_is_ignored() -> None:
    reply = nouns.SaveWeightsResponse.model_validate({"path": "p", "size_bytes": 5})
    assert reply.model_dump() == {"path": "p", "type": "save_weights"}


@pytest.mark.parametrize("word", ["unknown", "server", "user"])
def test_error_categories_are_lower_case_on_the_wire(word: str) -> None:
    assert json.dumps(nouns.RequestErrorCategory(word)) == f'"{word}"'


# -- checkpoint paths ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "meaning"),
    [("weights", "training"), ("sampler_weights", "sampler"), ("external_weights", "external")],
)
def test_a_checkpoint_path_in_its_parts(kind: str, meaning: str) -> None:
    parsed = nouns.ParsedCheckpointTinkerPath.from_tinker_path(f"tinker://S1:train:0/{kind}/step-10")
    assert (parsed.training_run_id, parsed.checkpoint_type) == ("S1:train:0", meaning)
    assert parsed.checkpoint_id == f"{kind}/step-10"


@pytest.mark.parametrize(
    "path",
    ["", "tinker://", "r/weights/n", "http://r/weights/n", "tinker://r/weights", "tinker://r/weights/", "tinker:///weights/n",
     "tinker://r/weights/a/b", "tinker://r/other/n", "tinker://r/weights/..", "tinker://r/weights/é", "tinker://r/weights/a\n",
     "tinker://r/weights/" + "a" * 256],
)  # fmt: skip
def test_anything_else_is_no_checkpoint_path(path: str) -> None:
    with pytest.raises(ValueError, match=r"path|name"):
        nouns.ParsedCheckpointTinkerPath.from_tinker_path(path)
