"""The writer groups commits, keeps neighbours apart, and is durable when it says so."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from tinsmith.store import Blobs, Database, DataDirLock
from tinsmith.store.schema import properties


def insert(name: str):
    return lambda connection: connection.execute(properties.insert().values(name=name, value="x"))


def test_a_failed_change_leaves_its_neighbours_in_the_same_commit_alone(tmp_path: Path) -> None:
    async def main() -> list[object]:
        database = Database.in_folder(tmp_path)
        await database.write(insert("taken"))
        outcomes = await asyncio.gather(
            *(database.write(insert(name)) for name in ("a", "taken", "b")), return_exceptions=True
        )
        count = await database.read(
            lambda connection: connection.scalar(sa.select(sa.func.count()).select_from(properties))
        )
        database.close()
        return [*outcomes, count]

    first, second, third, count = asyncio.run(main())
    assert not isinstance(first, Exception)
    assert isinstance(second, IntegrityError)
    assert not isinstance(third, Exception)
    assert count == 4  # schema_version, taken, a, b


def test_what_was_written_is_in_the_file_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        database = Database.in_folder(tmp_path)
        await database.write(insert("seen"))
        with sqlite3.connect(tmp_path / "tinsmith.sqlite") as other:
            assert other.execute("select value from properties where name = 'seen'").fetchone() == ("x",)
        other.close()
        database.close()

    asyncio.run(main())


def test_close_finishes_the_writes_that_wait(tmp_path: Path) -> None:
    async def main() -> None:
        database = Database.in_folder(tmp_path)
        writes = [asyncio.ensure_future(database.write(insert(f"n{at}"))) for at in range(500)]
        await asyncio.sleep(0)
        database.close()
        await asyncio.gather(*writes)

    asyncio.run(main())


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    Database.in_folder(tmp_path).close()
    with sqlite3.connect(tmp_path / "tinsmith.sqlite") as raw:
        raw.execute("update properties set value = '999' where name = 'schema_version'")
    raw.close()
    with pytest.raises(RuntimeError, match="schema version 999"):
        Database.in_folder(tmp_path)


def test_two_services_cannot_share_a_data_directory(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path)
    with pytest.raises(RuntimeError, match="in use by another Tinsmith"):
        DataDirLock(tmp_path)
    lock.release()
    DataDirLock(tmp_path).release()


def test_a_blob_appears_whole_is_replaced_whole_and_goes(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    for content in ("first", "second"):
        staged = blobs.stage()
        (staged / "file").write_text(content)
        assert blobs.publish(staged, "runs/a:b/weights/x") == len(content)
        assert (blobs.path("runs/a:b/weights/x") / "file").read_text() == content
    blobs.delete("runs/a:b/weights/x")
    assert not blobs.path("runs/a:b/weights/x").exists()
    assert list((tmp_path / "blobs" / ".staging").iterdir()) == []


@pytest.mark.parametrize("key", ["../outside", "/etc", "a/../../b", "", "."])
def test_a_key_cannot_leave_the_root(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="leaves the data directory"):
        Blobs(tmp_path / "blobs").path(key)
