"""A sample may be asked of a session's sampler, of a base model or of saved weights."""

from __future__ import annotations

import asyncio
from typing import Any

from server_support import TOKENS, Serve


def test_the_three_ways_to_say_what_is_sampled(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            run = await api.run(session)
            saved = await api.do("save_weights_for_sampler", model_id=run, path="s", seq_id=1)
            made = await api.post(
                "create_sampling_session",
                session_id=session,
                sampling_session_seq_id=0,
                base_model="tiny-llama",
            )
            asked: dict[str, Any] = {
                "prompt": {"chunks": [{"tokens": TOKENS}]},
                "sampling_params": {"max_tokens": 3, "seed": 1, "stop": []},
            }
            ways = [
                {"sampling_session_id": made["sampling_session_id"], "seq_id": 0},
                {"base_model": "tiny-llama"},
                {"model_path": saved["path"]},
            ]
            answers = [await api.do("asample", **asked, **way) for way in ways]
            base = answers[0]["sequences"][0]["tokens"]
            assert all(len(answer["sequences"][0]["tokens"]) == 3 for answer in answers)
            assert answers[1]["sequences"][0]["tokens"] == base
            refused = await api.http.post("asample", json=asked)
            assert refused.status_code == 400
            assert "sampling_session_id, base_model or model_path" in refused.json()["detail"]

    asyncio.run(main())
