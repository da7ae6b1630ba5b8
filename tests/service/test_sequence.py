"""Operations of a run come out in seq order, whatever order they go in."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinsmith.service.sequence import SequencedQueue


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_any_arrival_order_comes_out_in_seq_order(order: list[int], refused: set[int]) -> None:
    async def main() -> list[int]:
        queue: SequencedQueue[int] = SequencedQueue(0, gap_timeout=60)
        for seq in order:
            if seq in refused:
                queue.consume(seq)
            else:
                queue.put(seq, seq)
        return [await queue.next() for _ in range(12 - len(refused))]

    assert asyncio.run(main()) == sorted(set(range(12)) - refused)


@given(st.permutations(range(8)))
def test_a_waiting_reader_gets_them_in_order_too(order: list[int]) -> None:
    async def main() -> list[int]:
        queue: SequencedQueue[int] = SequencedQueue(0, gap_timeout=60)

        async def read() -> list[int]:
            return [await queue.next() for _ in range(8)]

        reader = asyncio.create_task(read())
        for seq in order:
            await asyncio.sleep(0)
            queue.put(seq, seq)
        return await reader

    assert asyncio.run(main()) == list(range(8))


def test_a_gap_is_closed_after_its_time_and_its_seq_id_refused_from_then_on() -> None:
    async def main() -> None:
        queue: SequencedQueue[str] = SequencedQueue(1, gap_timeout=0.01)
        queue.put(3, "three")
        assert await queue.next() == "three"
        assert queue.is_closed(1)
        assert queue.is_closed(2)
        with pytest.raises(ValueError, match="closed"):
            queue.put(2, "late")

    asyncio.run(main())


def test_a_gap_filled_in_time_keeps_the_order() -> None:
    async def main() -> None:
        queue: SequencedQueue[str] = SequencedQueue(1, gap_timeout=60)
        queue.put(2, "two")
        reader = asyncio.create_task(queue.next())
        await asyncio.sleep(0)
        queue.put(1, "one")
        assert await reader == "one"
        assert await queue.next() == "two"

    asyncio.run(main())


def test_numbers_given_out_follow_the_highest_seen() -> None:
    async def main() -> None:
        queue: SequencedQueue[str] = SequencedQueue(1, gap_timeout=60)
        assert queue.assign() == 1
        queue.put(5, "five")
        assert queue.assign() == 6

    asyncio.run(main())
