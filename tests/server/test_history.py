"""What was asked and answered is remembered for a time, and not for ever."""

from __future__ import annotations

import asyncio
from collections import Counter

import sqlalchemy as sa
from server_support import Api, Serve, batch, sampler_of
from sqlalchemy import Connection

from tinsmith.store import schema

SAMPLE = {"prompt": {"chunks": [{"tokens": [10, 20]}]}, "sampling_params": {"max_tokens": 3}}


def test_what_a_session_did_is_forgotten_long_after_it_ended(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            kept, ended = await api.session(), await api.session()
            runs = [await api.run(session) for session in (kept, ended)]
            for run in runs:
                await api.loss(run, 1)
            path = (await api.do("save_weights", model_id=runs[1], path="kept", seq_id=2))["path"]
            sampler = await sampler_of(api, kept)
            sample = (await api.post("asample", **SAMPLE, sampling_session_id=sampler, seq_id=1))[
                "request_id"
            ]
            await api.result(sample)
            await api.post(f"sessions/{ended}/finish", reason={"type": "success"})
            assert (await _asked(api)).keys() == {*runs, sampler}
        async with serve(history_ttl=0.01, result_ttl=0.01, housekeeping_interval=0.02) as api:
            while (await _asked(api)).keys() != {runs[0]}:
                await asyncio.sleep(0.02)
        async with serve() as api:
            assert (await api.http.post("retrieve_future", json={"request_id": sample})).status_code == 404
            assert (await api.post("weights_info", tinker_path=path))["lora_rank"] == 4
            assert (await _asked(api))[runs[0]] == 2  # a live run keeps its own
            late = await api.http.post("forward_backward", json=batch(runs[1], 3))
            assert late.status_code == 404
            again = (await api.post("forward_backward", **batch(runs[0], 1)))["request_id"]  # not done twice
            assert (await api.http.post("retrieve_future", json={"request_id": again})).status_code == 410
            assert (await api.loss(runs[0], 2))["metrics"]

    asyncio.run(main())


async def _asked(api: Api) -> Counter[str]:
    """How many operations of each stream are remembered; of all that is answered, that it is consistent."""
    operations, results = schema.operations, schema.results

    def query(connection: Connection) -> Counter[str]:
        asked = connection.execute(sa.select(operations.c.request_id, operations.c.stream_id)).all()
        assert {row.request_id for row in asked} >= set(connection.scalars(sa.select(results.c.request_id)))
        return Counter(row.stream_id for row in asked)

    return await api.service._database.read(query)
