"""Death and disk errors at each write: what was acknowledged is there, and the numbers are the same."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from crash_support import Client, Diary, comes_back, dies, service_over, undisturbed

from tinsmith import failpoints

SOURCE = Path(failpoints.__file__).parent
OFTEN = {"snapshot_operations": 2}
AFTER_LOADS_ONLY = {"snapshot_operations": 1000}
EVERY_TIME = "TINSMITH_CRASH_EVERY" in os.environ  # `make crash`: not some times of a point but all


@dataclass(frozen=True)
class Case:
    """How a point is reached: which time of it counts, in which settings, after which earlier deaths."""

    times: tuple[int, ...] = (1,)
    settings: dict[str, Any] = field(default_factory=lambda: OFTEN)
    earlier: tuple[str, ...] = ()
    errors: bool = True  # a disk can fail there, too


CASES = {
    "journal.commit": Case(times=(1, 2, 6, 12)),
    "journal.committed": Case(times=(1, 2, 6, 12), errors=False),  # nothing is written there
    "adapter.config": Case(),
    "adapter.weights": Case(),
    "adapter.optimizer": Case(),
    "adapter.gradients": Case(),
    "adapter.synced": Case(times=(1, 3)),
    "blob.stage": Case(),
    "blob.publish": Case(),
    # The load is done again, and saves the state that it had saved before it could be answered.
    "blob.replacing": Case((1,), AFTER_LOADS_ONLY, earlier=("snapshot.entered=crash@1",)),
    "blob.published": Case(),
    "blob.deleted": Case(),
    "snapshot.written": Case(),
    "snapshot.sealed": Case(),
    "snapshot.entered": Case(),
}
DEATHS = [(point, at) for point, case in CASES.items() for at in case.times]
ERRORS = [(point, how) for point, case in CASES.items() if case.errors for how in ("enospc", "eio")]


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return undisturbed(tmp_path_factory.mktemp("undisturbed"))


def test_every_point_has_its_cases_and_its_place() -> None:
    reached = set[str]()
    for file in SOURCE.rglob("*.py"):
        reached.update(re.findall(r'failpoints\.reach\("([^"]+)"\)', file.read_text()))
    assert reached == failpoints.POINTS == CASES.keys()


@pytest.mark.parametrize(("point", "at"), DEATHS)
def test_death_at_a_point(tmp_path: Path, expected: list[Any], point: str, at: int) -> None:
    case, diary = CASES[point], Diary(tmp_path / "diary")
    for death in (*case.earlier, f"{point}=crash@{at}"):
        assert dies(tmp_path / "data", diary, death, case.settings), f"{death} was not reached"
    assert comes_back(tmp_path / "data", diary, case.settings) == expected


@pytest.mark.skipif(not EVERY_TIME, reason="the long form: `make crash`")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("point", CASES)
def test_death_at_every_time_of_a_point(tmp_path: Path, expected: list[Any], point: str) -> None:
    case = CASES[point]
    for at in itertools.count(1):
        folder = tmp_path / str(at)
        folder.mkdir()
        diary = Diary(folder / "diary")
        for death in case.earlier:
            assert dies(folder / "data", diary, death, case.settings)
        if not dies(folder / "data", diary, f"{point}=crash@{at}", case.settings):
            break
        assert comes_back(folder / "data", diary, case.settings) == expected
    assert at > 1


@pytest.mark.parametrize(
    "deaths",
    [
        ("snapshot.sealed@2", "journal.commit@1", "journal.committed@3"),
        ("journal.committed@9", "adapter.weights@1", "blob.published@1", "snapshot.entered@1"),
        ("blob.published@2", "blob.published@1", "blob.publish@1", "journal.commit@2"),
    ],
)
def test_deaths_one_after_the_other(tmp_path: Path, expected: list[Any], deaths: tuple[str, ...]) -> None:
    diary = Diary(tmp_path / "diary")
    for death in deaths:
        assert dies(tmp_path / "data", diary, death.replace("@", "=crash@"), OFTEN), death
    assert comes_back(tmp_path / "data", diary, OFTEN) == expected


@pytest.mark.parametrize(("point", "how"), ERRORS)
def test_a_disk_error_at_a_point(tmp_path: Path, expected: list[Any], point: str, how: str) -> None:
    case, diary = CASES[point], Diary(tmp_path / "diary")
    for death in case.earlier:
        assert dies(tmp_path / "data", diary, death, case.settings)

    async def main() -> Client:
        async with service_over(tmp_path / "data", **case.settings) as service:
            client = Client(service, diary.tell, diary.session_id)
            with failpoints.armed(f"{point}={how}@{case.times[-1]}"):
                assert await client.work() == expected
                assert failpoints.reached[point] >= case.times[-1]
        return client

    client = asyncio.run(main())
    why = {"enospc": r"disk is full|No space left on device", "eio": "Input/output error"}[how]
    for told in (*client.refusals, *client.failures):
        assert re.search(why, told), told
    again = Diary(tmp_path / "again")  # those that failed are answered with that; all others are as they were
    again.tell(f"session {diary.session_id}")
    assert comes_back(tmp_path / "data", again, case.settings) == expected


def test_a_disk_that_stays_full_refuses_what_is_new_and_finishes_what_runs(
    tmp_path: Path, expected: list[Any], until: Callable[..., Any]
) -> None:
    diary = Diary(tmp_path / "diary")

    async def main() -> None:
        async with service_over(tmp_path / "data", housekeeping_interval=0.05, **OFTEN) as service:
            with contextlib.ExitStack() as full:

                def tell(what: str) -> None:
                    diary.tell(what)
                    if what.endswith(":train:0:5"):  # a batch: carrying it out writes nothing
                        full.enter_context(failpoints.armed("journal.commit=enospc@1+"))

                client = Client(service, tell)
                working = asyncio.create_task(client.work())
                await until(lambda: len(client.refusals) > 3)
                assert await_answers(client)
                assert not working.done()
            assert await working == expected  # there is room again, and it goes on by itself
        assert all("the disk is full" in told for told in client.refusals)

    def await_answers(client: Client) -> bool:
        """Whatever was acknowledged before the disk filled has its answer, in memory if need be."""
        return client.service.futures.pending == 0

    asyncio.run(main())
    assert comes_back(tmp_path / "data", diary, OFTEN) == expected
