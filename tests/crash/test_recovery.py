"""Runs come back from what the disk still has: from the older snapshot, from a gap, from being idle."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crash_support import OWNER, Client, answer, batch, service_over

from tinsmith import failpoints
from tinsmith.engine.child import ChildEngine
from tinsmith.service import Service
from tinsmith.types import AdamParams, CreateModelRequest, OptimStepRequest, OutOfSpace
from tinsmith.types.requests import UnloadModelRequest
from tinsmith.wire.protobuf import ForwardBackwardCall

Harm = Callable[[Path], object]


def _truncate(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def _flip(folder: Path) -> None:
    file = folder / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def _flip_gradient(folder: Path) -> None:
    file = folder / "gradients.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 128
    file.write_bytes(content)


HARMS: dict[str, Harm] = {
    "truncated": _truncate,
    "a flipped bit": _flip,
    "a flipped bit in the gradient": _flip_gradient,
    "a file missing": lambda folder: (folder / "adapter_config.json").unlink(),
    "a seal missing": lambda folder: (folder / "seal.json").unlink(),
    "an empty seal": lambda folder: (folder / "seal.json").write_text(""),
    "another file": lambda folder: (folder / "more").write_text("x"),
    "all files missing": lambda folder: [file.unlink() for file in folder.iterdir()],
}


async def _train(data_dir: Path) -> Client:
    """Snapshots as it goes, and one with a gradient at the end."""
    async with service_over(data_dir, snapshot_operations=2) as service:
        client = Client(service, lambda _: None)
        await client.open()
        await client.create()
        for seed in range(3):
            await client.step(seed)
            await client.train(seed)
        return client


async def _go_on(data_dir: Path, session_id: str, upto: int) -> list[Any]:
    """A later service: the same session's run goes on."""
    async with service_over(data_dir) as service:
        client = Client(service, lambda _: None, session_id)
        client.run_id, client.number = f"{session_id}:train:0", upto
        await client.step(7)
        await client.save("end")
        return [*client.results, await client.files("end")]


def _snapshots(data_dir: Path) -> list[Path]:
    folders = (data_dir / "blobs" / "snapshots").glob("*/*")
    return sorted(folders, key=lambda folder: int(folder.name))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Client, list[Any]]:
    """A data directory with a run in it, and how that run goes on."""
    folder = tmp_path_factory.mktemp("trained")
    client = asyncio.run(_train(folder / "data"))
    whole = folder / "whole"
    shutil.copytree(folder / "data", whole)
    return folder / "data", client, asyncio.run(_go_on(whole, client.session_id, client.number))


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_snapshot_falls_back_to_the_one_before(
    tmp_path: Path, trained: tuple[Path, Client, list[Any]], harm: str
) -> None:
    data_dir, client, expected = trained
    shutil.copytree(data_dir, tmp_path / "data")
    _, newest = _snapshots(tmp_path / "data")
    HARMS[harm](newest)
    assert asyncio.run(_go_on(tmp_path / "data", client.session_id, client.number)) == expected
    assert newest not in _snapshots(tmp_path / "data")


def test_a_run_whose_snapshots_are_all_damaged_says_so_and_others_live(
    tmp_path: Path, trained: tuple[Path, Client, list[Any]]
) -> None:
    data_dir, before, _ = trained
    shutil.copytree(data_dir, tmp_path / "data")
    for folder in _snapshots(tmp_path / "data"):
        _truncate(folder)

    async def main() -> None:
        async with service_over(tmp_path / "data") as service:
            call = ForwardBackwardCall(f"{before.session_id}:train:0", None, batch(1))
            request_id = await service.runs.submit(
                OWNER, call.model_id, before.number + 1, "forward_backward", call
            )
            outcome = await answer(service, request_id)
            assert outcome.category == "server"
            assert "cannot be brought back" in (outcome.error or "")
            other = Client(service, lambda _: None, before.session_id)
            await other.create(1)
            await other.step(1)

    asyncio.run(main())


def test_an_operation_that_was_overtaken_is_still_accepted_after_a_restart(tmp_path: Path) -> None:
    """The later one was on disk when the service died, the earlier one was still on its way."""

    async def submit(service: Service, client: Client, seq: int, kind: str, payload: Any) -> str:
        return await service.runs.submit(OWNER, client.run_id, seq, kind, payload)

    async def main() -> None:
        async with service_over(tmp_path / "data") as service:
            client = Client(service, lambda _: None)
            await client.open()
            await client.create()
            step = OptimStepRequest(model_id=client.run_id, adam_params=AdamParams(learning_rate=0.01))
            overtaker = await submit(service, client, 2, "optim_step", step)
        async with service_over(tmp_path / "data") as service:
            call = ForwardBackwardCall(client.run_id, None, batch(1))
            overtaken = await submit(service, client, 1, "forward_backward", call)
            assert (await answer(service, overtaken)).error is None
            outcome = await answer(service, overtaker)
            assert outcome.error is None
            assert b'"unclipped_grad_l2:mean":0.0' not in outcome.body  # there was a gradient by then

    asyncio.run(main())


def test_an_answer_the_disk_refused_keeps_what_it_takes_to_give_it_again(tmp_path: Path) -> None:
    """Later snapshots cover the operation, yet it is done again: from a state before it."""

    async def first(refused: str) -> Client:
        async with service_over(
            tmp_path / f"data{refused}", snapshot_operations=2, housekeeping_interval=3600
        ) as service:
            client = Client(service, lambda _: None)
            await client.open()
            await client.create()
            await client.step(1)
            await service.futures.settle()
            with failpoints.armed(f"journal.commit={refused}" if refused else ""):
                await client.train(2)  # the first commit accepts, the second keeps the answer
                await service.futures.settle()
            for seed in range(5):
                await client.step(seed)
            return client

    expected, client = asyncio.run(first("")), asyncio.run(first("eio@2"))
    assert client.results == expected.results

    async def again() -> None:
        async with service_over(tmp_path / "dataeio@2") as service:
            refused = await answer(service, f"{client.run_id}:3")
            assert refused.error is None

    asyncio.run(again())
    histories = [
        asyncio.run(_go_on(tmp_path / folder, each.session_id, each.number))
        for folder, each in (("data", expected), ("dataeio@2", client))
    ]
    assert histories[0] == histories[1]


def test_an_answer_the_disk_refused_is_written_once_there_is_room(
    tmp_path: Path, until: Callable[..., Any]
) -> None:
    async def main() -> None:
        async with service_over(tmp_path / "data", housekeeping_interval=0.02) as service:
            client = Client(service, lambda _: None)
            await client.open()
            await client.create()
            await service.futures.settle()
            with failpoints.armed("journal.commit=enospc@2+"):  # the first commit accepts
                await client.train(1)
                await until(lambda: failpoints.reached["journal.commit"] > 4)  # housekeeping has tried, too
                assert service.futures.unwritten_of(client.run_id)
            await until(lambda: not service.futures.unwritten_of(client.run_id))

    asyncio.run(main())


def test_idle_runs_are_written_out_and_come_back_as_they_were(tmp_path: Path) -> None:
    async def three_runs(data_dir: Path, **settings: Any) -> list[Any]:
        async with service_over(data_dir, **settings) as service:
            clients = [Client(service, lambda _: None) for _ in range(3)]
            for number, client in enumerate(clients):
                await client.open()
                await client.create(number)
            for seed in range(3):
                for client in clients:
                    await client.train(seed)  # a gradient waits while the others have their turn
                for client in clients:
                    await client.step(seed + 3)
            resident = service.runs.resident_count
            await clients[0].save("end")
            return [[client.results for client in clients], await clients[0].files("end"), resident]

    *roomy, all_three = asyncio.run(three_runs(tmp_path / "roomy"))
    *narrow, one = asyncio.run(three_runs(tmp_path / "narrow", adapter_memory=1))
    assert narrow == roomy
    assert (all_three, one) == (3, 1)


def test_two_services_cannot_open_one_data_directory(tmp_path: Path) -> None:
    async def main() -> None:
        async with service_over(tmp_path / "data"):
            with pytest.raises(RuntimeError, match="is in use by another Tinsmith service"):
                async with service_over(tmp_path / "data"):
                    pass

    asyncio.run(main())


def test_a_budget_that_is_spent_refuses_new_work_until_there_is_room(tmp_path: Path) -> None:
    async def ask_until_refused(client: Client) -> None:
        call = ForwardBackwardCall(client.run_id, None, batch(1))
        async with asyncio.timeout(60):
            while True:
                number = client.number + 1
                await client.service.runs.submit(OWNER, client.run_id, number, "forward_backward", call)
                client.number = number
                await asyncio.sleep(0.01)

    async def main() -> None:
        settings = {"data_budget": 3 * 2**20, "housekeeping_interval": 0.05}
        async with service_over(tmp_path / "data", **settings) as service:
            client = Client(service, lambda _: None)
            await client.open()
            await client.create()
            ballast = tmp_path / "data" / "ballast"
            ballast.write_bytes(bytes(4 * 2**20))
            with pytest.raises(OutOfSpace, match=r"data_budget: the data directory holds \d+ bytes"):
                await ask_until_refused(client)
            ballast.unlink()
            await client.step(1)
            unload = UnloadModelRequest(model_id=client.run_id)
            ballast.write_bytes(bytes(4 * 2**20))
            done = await service.runs.submit(OWNER, client.run_id, None, "unload_model", unload)
            assert (await answer(service, done)).error is None

    asyncio.run(main())


def test_a_disk_that_is_nearly_full_is_left_to_what_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with service_over(tmp_path / "data", disk_reserve=2**62) as service:
            client = Client(service, lambda _: None)
            await client.open()
            session = service.sessions.active(OWNER, client.session_id)
            request = CreateModelRequest(
                session_id=client.session_id, model_seq_id=0, base_model="tiny-llama"
            )
            with pytest.raises(OutOfSpace, match=r"disk_reserve: \d+ bytes are free"):
                await service.runs.create(session, request)

    asyncio.run(main())


def test_what_kills_the_engine_twice_fails_and_its_neighbour_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINSMITH_FAILPOINTS", "adapter.synced=crash")  # a save is the death of this engine

    async def main() -> None:
        async with service_over(tmp_path / "data", ChildEngine) as service:
            deadly, neighbour = Client(service, lambda _: None), Client(service, lambda _: None)
            for client in (deadly, neighbour):
                await client.open()
                await client.create()
            saving = asyncio.create_task(deadly.save("a", once=True))
            for seed in range(3):
                await neighbour.step(seed)
            await saving
            assert deadly.failures == ["the engine died of this operation, twice"]
            assert neighbour.failures == []
            await deadly.step(0)
            assert deadly.results == neighbour.results[:2]

    asyncio.run(main())
