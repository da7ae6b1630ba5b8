"""APIFuture: awaited anywhere and often, bounded waits that destroy nothing, cancelling, and no noise."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import threading

import pytest

from tinsmith.client.futures import APIFuture, spawn
from tinsmith.client.loop import background, in_thread


def gated():
    """A future that finishes when the returned function is called."""
    opened = threading.Event()

    async def work():
        await in_thread(opened.wait)
        return "done"

    return spawn(work(), "gated"), opened.set


async def fail():
    raise KeyError("inside")


async def value(result):
    return result


def test_result_and_exception():
    future = spawn(value(3), "value")
    assert future.result(30) == 3
    assert future.done()
    assert future.exception() is None
    failed = spawn(fail(), "fail")
    with pytest.raises(KeyError, match="inside"):
        failed.result(30)
    assert isinstance(failed.exception(), KeyError)


def test_it_can_be_awaited_many_times_on_many_loops():
    future = spawn(value([1]), "value")

    async def twice():
        return await asyncio.gather(future, future, future.result_async(30), future.coroutine())

    first = asyncio.run(twice())
    second = asyncio.run(twice())
    assert all(item is first[0] for item in first + second)


def test_a_timeout_bounds_the_wait_and_nothing_else():
    future, finish = gated()
    with pytest.raises(TimeoutError):
        future.result(0.001)

    async def wait():
        with pytest.raises(TimeoutError):
            await future.result_async(0.001)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.001)
        assert not future.done()
        finish()
        return await future

    assert asyncio.run(wait()) == "done"
    assert future.result() == "done"


def test_a_cancelled_waiter_leaves_the_others_waiting():
    future, finish = gated()

    async def wait():
        tasks = [asyncio.create_task(future.coroutine()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        finish()
        return await asyncio.gather(*tasks[1:])

    assert asyncio.run(wait()) == ["done", "done"]
    assert not future._wakers


def test_cancel_stops_the_work_and_says_so():
    stopped = threading.Event()

    async def work():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            stopped.set()

    future = spawn(work(), "endless")
    started = threading.Event()
    background().call(started.set)  # after the work's first step
    assert started.wait(30)
    assert future.cancel()
    assert future.cancelled()
    assert future.cancel()  # again: nothing more happens
    assert stopped.wait(30)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()

    async def wait():
        await future

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(wait())


def test_a_finished_future_cannot_be_cancelled():
    future = spawn(value(1), "value")
    future.result(30)
    assert not future.cancel()
    assert future.result() == 1


def test_it_works_with_concurrent_futures_and_asyncio():
    futures = [spawn(value(n), "value") for n in range(5)]
    assert {future.result() for future in concurrent.futures.as_completed(futures, timeout=30)} == set(
        range(5)
    )
    assert futures[0].future() is futures[0]
    assert isinstance(futures[0], concurrent.futures.Future)

    async def wrapped():
        return await asyncio.wrap_future(futures[2])

    assert asyncio.run(wrapped()) == 2
    called = threading.Event()
    futures[1].add_done_callback(lambda _: called.set())
    assert called.is_set()


def test_blocking_inside_a_running_loop_is_told_once_per_wait(caplog):
    future, finish = gated()

    async def block():
        with pytest.raises(TimeoutError):
            future.result(0.001)

    with caplog.at_level(logging.WARNING, "tinsmith"):
        asyncio.run(block())
        finish()
        assert future.result(30) == "done"  # no loop runs here
        assert asyncio.run(value(future.result())) == "done"
    assert [record.message for record in caplog.records if "blocks" in record.message] == [
        "result() blocks the running event loop; use `await future` instead"
    ]


def test_blocking_on_the_client_s_own_loop_is_refused():
    never, finish = gated()

    async def block():
        return never.result()

    with pytest.raises(RuntimeError, match="await"):
        spawn(block(), "block").result(30)
    finish()
    never.result(30)


def test_an_unread_failure_makes_no_noise(caplog):
    with caplog.at_level(logging.DEBUG):
        future = spawn(fail(), "fail")
        concurrent.futures.wait([future], 30)
        del future
        gc.collect()
        spawn(value(0), "flush").result(30)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_even_a_system_exit_inside_reaches_the_waiter_and_the_loop_lives_on():
    async def leave():
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        spawn(leave(), "leave").result(30)
    assert spawn(value(1), "value").result(30) == 1


def test_a_waiter_whose_loop_is_gone_does_not_hurt():
    future, finish = gated()

    async def wait_briefly():
        task = asyncio.ensure_future(future.coroutine())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(wait_briefly())
    finish()
    assert future.result(30) == "done"


def test_a_stop_iteration_in_a_thread_is_an_error_like_any_other():
    def stop():
        raise StopIteration("x")

    with pytest.raises(RuntimeError, match="StopIteration"):
        spawn(in_thread(stop), "stop").result(30)


def test_one_type_for_all():
    assert type(spawn(value(1), "value")) is APIFuture
