"""Completions for OpenAI's clients: the service's own samples, and no to what cannot be honoured."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server_support import TOKENS, Api, Serve, make_key
from transformers import AutoTokenizer

from tinsmith.engine.models import Catalogue

URL = "http://test/oai/api/v1/"
MESSAGES = [{"role": "user", "content": "what is a pot?"}]


async def ask(api: Api, path: str, **fields: Any) -> Any:
    response = await api.http.post(URL + path, json={"model": "tiny-llama"} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(Catalogue().resolve("tiny-llama").folder, local_files_only=True)


async def sampled(api: Api, prompt: list[int], **params: Any) -> Any:
    """The same through the service's own protocol."""
    body = {"prompt": {"chunks": [{"tokens": prompt}]}, "sampling_params": params, "base_model": "tiny-llama"}
    return (await api.do("asample", **body))["sequences"]


def test_a_completion_is_the_sample_of_the_same_seed(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            own = await sampled(api, TOKENS, max_tokens=5, seed=3, temperature=0.7, top_p=0.9)
            reply = await ask(
                api,
                "completions",
                prompt=TOKENS,
                max_tokens=5,
                seed=3,
                temperature=0.7,
                top_p=0.9,
                logprobs=2,
            )
            (choice,) = reply["choices"]
            assert choice["text"] == tokenizer().decode(own[0]["tokens"], skip_special_tokens=True)
            assert choice["logprobs"]["token_logprobs"] == own[0]["logprobs"]
            assert "".join(choice["logprobs"]["tokens"]) == tokenizer().decode(own[0]["tokens"])
            assert all(1 <= len(top) <= 2 for top in choice["logprobs"]["top_logprobs"])
            assert choice["finish_reason"] == own[0]["stop_reason"]
            written = len(own[0]["tokens"])
            assert reply["usage"] == {
                "prompt_tokens": 6, "completion_tokens": written, "total_tokens": 6 + written,
            }  # fmt: skip

    asyncio.run(main())


def test_several_prompts_and_several_answers_stand_in_order(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            texts = ["a pot", "a kettle"]
            both = await ask(api, "completions", prompt=texts, n=2, seed=1, max_tokens=4)
            alone = [await ask(api, "completions", prompt=text, n=2, seed=1, max_tokens=4) for text in texts]
            assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
            said = [choice["text"] for reply in alone for choice in reply["choices"]]
            assert [choice["text"] for choice in both["choices"]] == said

    asyncio.run(main())


def test_a_conversation_is_answered_in_the_models_own_format(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            prompt = tokenizer().apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
            own = await sampled(api, prompt, max_tokens=6, temperature=0.0)
            fields = {"max_completion_tokens": 6, "temperature": 0.0, "logprobs": True, "top_logprobs": 1}
            for content in (MESSAGES[0]["content"], [{"type": "text", "text": MESSAGES[0]["content"]}]):
                messages = [{"role": "user", "content": content}]
                (choice,) = (await ask(api, "chat/completions", messages=messages, **fields))["choices"]
                said = tokenizer().decode(own[0]["tokens"], skip_special_tokens=True)
                assert choice["message"] == {"role": "assistant", "content": said}
                tokens = choice["logprobs"]["content"]
                assert [token["logprob"] for token in tokens] == own[0]["logprobs"]
                assert all(token["top_logprobs"][0]["token"] == token["token"] for token in tokens)

    asyncio.run(main())


def test_the_text_ends_before_the_stop(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            fields = {"prompt": TOKENS, "max_tokens": 8, "temperature": 0.0}
            whole = (await ask(api, "completions", **fields))["choices"][0]["text"]
            stop = next(letter for letter in whole[1:] if letter != whole[0])
            (choice,) = (await ask(api, "completions", **fields, stop=stop))["choices"]
            assert choice["text"] == whole[: whole.index(stop)]
            assert choice["finish_reason"] == "stop"

    asyncio.run(main())


def test_saved_weights_are_sampled_and_new_ones_of_the_same_name_too(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
            said, seq = [], 1
            for rate in (0.05, 0.2):
                await api.loss(run, seq)
                await api.do("optim_step", adam_params={"learning_rate": rate}, model_id=run, seq_id=seq + 1)
                saved = await api.do(
                    "save_weights", model_id=run, path="mine", overwrite=True, seq_id=seq + 2
                )
                seq += 3
                greedy = {"prompt": TOKENS[:2], "temperature": 0.0, "max_tokens": 6, "logprobs": 0}
                reply = await ask(api, "completions", **greedy, model=saved["path"])
                assert reply["model"] == saved["path"]
                said.append(reply["choices"][0]["logprobs"]["token_logprobs"])
            said.append((await ask(api, "completions", **greedy))["choices"][0]["logprobs"]["token_logprobs"])
            assert said[0] != said[1] != said[2] != said[0]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "fields", "status", "names"),
    [
        ("completions", {"prompt": "a", "stream": True}, 422, "stream"),
        ("completions", {"prompt": "a", "echo": True}, 422, "echo"),
        ("completions", {"prompt": "a", "best_of": 3}, 422, "best_of"),
        ("completions", {"prompt": "a", "presence_penalty": 0.5}, 422, "presence_penalty"),
        ("completions", {"prompt": "a", "logit_bias": {"5": 1}}, 422, "logit_bias"),
        ("completions", {"prompt": "a", "min_p": 0.1}, 422, "min_p"),
        ("completions", {"prompt": []}, 400, "prompt"),
        ("completions", {"prompt": ["a"] * 65}, 400, "prompt"),
        ("completions", {"prompt": [10**6]}, 400, "prompt"),
        ("completions", {"prompt": "a", "temperature": -1}, 400, "temperature"),
        ("completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ("completions", {"prompt": "a", "model": "gpt-9"}, 400, "tiny-llama"),
        ("completions", {"prompt": "a", "model": "tinker://no/weights/x"}, 404, "tinker://no/weights/x"),
        ("chat/completions", {"messages": []}, 422, "messages"),
        ("chat/completions", {"messages": MESSAGES, "tools": [{"type": "function"}]}, 422, "tools"),
        (
            "chat/completions",
            {"messages": MESSAGES, "response_format": {"type": "json"}},
            422,
            "response_format",
        ),
        ("chat/completions", {"messages": MESSAGES, "top_logprobs": 2}, 400, "top_logprobs"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            422,
            "messages.0.content: part 0 is 'image_url'",
        ),
        (
            "chat/completions",
            {"messages": MESSAGES, "max_tokens": 1, "max_completion_tokens": 1},
            400,
            "max_completion_tokens",
        ),
    ],
    ids=lambda value: "" if isinstance(value, int) else str(value)[:40],
)
def test_what_cannot_be_honoured_is_refused(serve: Serve, path: str, fields, status: int, names: str) -> None:
    async def main() -> None:
        async with serve() as api:
            response = await api.http.post(URL + path, json={"model": "tiny-llama"} | fields)
            assert response.status_code == status, response.text
            assert names in response.json()["detail"], response.text

    asyncio.run(main())


def test_what_is_at_the_value_that_changes_nothing_is_accepted(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            neutral = {"stream": False, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}}
            neutral |= {"user": "somebody", "stop": None, "logprobs": None, "seed": 1}
            plain = await ask(api, "completions", prompt="a", seed=1)
            same = await ask(api, "completions", prompt="a", **neutral, echo=False, best_of=1, suffix=None)
            assert same["choices"] == plain["choices"]

    asyncio.run(main())


def test_keys_and_owners_are_those_of_the_service(serve: Serve, tmp_path: Any) -> None:
    keys = [make_key(tmp_path / "data", name) for name in ("alice", "bob")]

    async def main() -> None:
        async with serve() as api:
            api.http.headers["X-API-Key"] = keys[0]
            run = await api.run(await api.session())
            path = (await api.do("save_weights", model_id=run, path="mine", seq_id=1))["path"]
            body = {"model": path, "prompt": "a", "max_tokens": 1}
            del api.http.headers["X-API-Key"]
            for key, status in ((keys[0], 200), (keys[1], 404), ("tml-wrong", 401)):
                headers = {"Authorization": f"Bearer {key}"}  # as those clients send it
                response = await api.http.post(URL + "completions", json=body, headers=headers)
                assert response.status_code == status, response.text
                assert (await api.http.get(URL + "models", headers=headers)).status_code == min(
                    status, 200 if status == 404 else status
                )

    asyncio.run(main())
