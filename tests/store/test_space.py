"""Room on the disk: pages come back to the file system, files that nothing knows of go."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from sqlalchemy import Connection

from tinsmith import failpoints
from tinsmith.store import DATABASE_FILE, Blobs, Database, Space
from tinsmith.store.schema import payloads
from tinsmith.types import OutOfSpace


def test_pages_that_are_free_go_back_to_the_file_system_but_for_some(tmp_path: Path) -> None:
    def pages(connection: Connection) -> int:
        return connection.exec_driver_sql("PRAGMA page_count").scalar_one()

    async def main() -> list[int]:
        database = Database.in_folder(tmp_path)
        rows = [{"request_id": str(at), "body": os.urandom(2**20)} for at in range(48)]
        await database.write(lambda connection: connection.execute(payloads.insert(), rows))
        await database.write(lambda connection: connection.execute(payloads.delete()))
        sizes = []
        for _ in range(4):
            await database.reclaim()
            sizes.append(4096 * await database.read(pages))
        database.close()  # what was in the write-ahead log is in the file now
        return [*sizes, (tmp_path / DATABASE_FILE).stat().st_size]

    first, second, third, *rest = asyncio.run(main())
    assert 48 * 2**20 > first > second > third  # some at a time
    assert 16 * 2**20 < third < 17 * 2**20  # so much stays for what comes next
    assert rest == [third] * 2


def test_a_sweep_takes_what_nothing_knows_of_and_nothing_else(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    for key in ("a/known", "a/stray", "stray"):
        staged = blobs.stage()
        (staged / "file").write_text(key)
        blobs.publish(staged, key)
    under_way = blobs.stage()
    (under_way / "file").write_text("not yet")
    blobs.sweep({"a/known"})
    assert blobs.path("a/known").exists()
    assert not blobs.path("a/stray").exists()
    assert not blobs.path("stray").exists()
    assert (under_way / "file").exists()


@pytest.mark.parametrize("point", ["blob.publish", "blob.replacing", "blob.published"])
def test_what_could_not_be_replaced_is_still_there(tmp_path: Path, point: str) -> None:
    blobs = Blobs(tmp_path)

    def publish(what: str) -> None:
        staged = blobs.stage()
        (staged / "file").write_text(what)
        blobs.publish(staged, "key")

    publish("old")
    with failpoints.armed(f"{point}=enospc"), pytest.raises(OSError, match=point):
        publish("new")
    assert (blobs.path("key") / "file").read_text() == "old"
    assert not any((tmp_path / ".staging").iterdir())
    publish("new")
    assert (blobs.path("key") / "file").read_text() == "new"


def test_a_budget_counts_what_is_there_and_what_comes_in(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(bytes(900))
    space = Space(tmp_path, budget=1000, reserve=0)
    space.measure()
    space.claim(60)
    space.claim(40)
    with pytest.raises(OutOfSpace, match="data_budget: the data directory holds 1000 bytes and 1000 may be"):
        space.claim(1)
    (tmp_path / "folder" / "file").unlink()
    space.measure()
    space.claim(1000)


def test_the_last_of_a_disk_is_kept_for_what_is_under_way(tmp_path: Path) -> None:
    Space(tmp_path, budget=None, reserve=0).claim(1)
    with pytest.raises(OutOfSpace, match=r"disk_reserve: \d+ bytes are free"):
        Space(tmp_path, budget=None, reserve=2**62).claim(1)
