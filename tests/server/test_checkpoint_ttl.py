"""Checkpoints that are kept for a time only, and pages of them."""

from __future__ import annotations

import asyncio

from server_support import Api, Serve


async def _kept(api: Api, run: str) -> dict[str, bool]:
    """The checkpoints that are there, and whether each is for ever."""
    listed = (await api.http.get(f"training_runs/{run}/checkpoints")).json()["checkpoints"]
    return {one["checkpoint_id"]: one.get("expires_at") is None for one in listed}


def test_after_its_time_a_checkpoint_is_gone_with_its_files(serve: Serve) -> None:
    async def main() -> None:
        async with serve(housekeeping_interval=0.02) as api:
            run = await api.run(await api.session())
            for seq, (name, ttl) in enumerate({"short": 1, "longer": 60, "kept": None}.items(), start=1):
                await api.do("save_weights", model_id=run, path=name, ttl_seconds=ttl, seq_id=seq)
            longer = f"training_runs/{run}/checkpoints/weights/longer/ttl"
            assert not (await _kept(api, run))["weights/longer"]
            assert (await api.http.put(longer, json={"ttl_seconds": None})).status_code == 200
            blobs = api.service.settings.data_dir / "blobs"
            while len(list(blobs.rglob("adapter_model.safetensors"))) > 2:
                await asyncio.sleep(0.02)
            assert await _kept(api, run) == {"weights/kept": True, "weights/longer": True}
            path = f"tinker://{run}/weights/short"
            load = await api.do("load_weights", model_id=run, path=path, seq_id=4)
            assert load["category"] == "user"
            assert path in load["error"]
            for call in (
                api.http.post("weights_info", json={"tinker_path": path}),
                api.http.get(f"training_runs/{run}/checkpoints/weights/short/archive"),
            ):
                assert (await call).status_code == 404
            # Its name is free again.
            again = await api.do("save_weights", model_id=run, path="short", seq_id=5)
            assert again["path"] == path

    asyncio.run(main())


def test_pages_hold_every_checkpoint_once_and_the_cursor_says_how_many(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
            for seq in range(1, 6):
                await api.do("save_weights", model_id=run, path=f"c{seq}", seq_id=seq)
            found: list[str] = []
            for offset in range(0, 7, 2):
                page = (await api.http.get("checkpoints", params={"limit": 2, "offset": offset})).json()
                assert page["cursor"] == {"offset": offset, "limit": 2, "total_count": 5}
                found += [one["checkpoint_id"] for one in page["checkpoints"]]
            assert sorted(found) == [f"weights/c{seq}" for seq in range(1, 6)]

    asyncio.run(main())
