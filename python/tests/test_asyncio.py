"""Operations in coroutines."""

from __future__ import annotations

import asyncio
import threading

import pytest
from conftest import PATIENCE, pattern

import weft


def test_many_operations_are_awaited_at_once(pair):
    a, b = pair
    written = pattern(500 * 100)
    here, there = a.reg_mr(bytearray(written)), b.alloc(500 * 100)

    async def write(index: int) -> None:
        part = index * 100
        await a.submit_single_write(
            (here, part), (there.descriptor, part), 100, immediate=index % 10, deadline=PATIENCE
        )

    async def main() -> None:
        expected = [b.expect_imm_count(immediate, 50, deadline=PATIENCE) for immediate in range(10)]
        await asyncio.gather(*expected, *(write(index) for index in range(500)))

    asyncio.run(main())
    assert bytes(there.memory) == written


def test_the_loop_runs_while_a_coroutine_awaits(pair):
    a, b = pair

    async def main() -> None:
        waits = b.expect_imm_count(1, 1, deadline=PATIENCE)

        async def send() -> None:
            group = a.add_peer_group([b.main_address])
            await a.submit_barrier(group, 1, deadline=PATIENCE)

        _, sent = await asyncio.gather(waits, send())
        assert sent is None
        # One that has ended can be awaited again.
        await waits

    asyncio.run(main())


def test_a_failure_is_raised_where_it_is_awaited(pair):
    a, b = pair
    address = b.main_address
    b.close()

    async def main() -> None:
        with pytest.raises(weft.Reusable):
            await a.expect_imm_count(1, 1, deadline=0.01)
        with pytest.raises(weft.TransferFailed, match="stage Connect"):
            await a.connect(address, deadline=PATIENCE)

    asyncio.run(main())


def test_a_cancelled_task_leaves_the_operation_going(engine):
    a = engine()

    async def main() -> None:
        operation = a.expect_imm_count(1, 1, deadline=PATIENCE)
        task = asyncio.ensure_future(operation)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(task, 0.01)
        assert not operation.done()
        operation.cancel()
        with pytest.raises(weft.Reusable):
            await operation

    asyncio.run(main())


def test_an_operation_of_another_thread_is_awaited_in_several_loops(engine):
    a = engine()
    operation = a.expect_imm_count(1, 1, deadline=PATIENCE)
    awaiting, ended = threading.Barrier(3), []

    async def awaits() -> None:
        task = asyncio.ensure_future(operation)
        await asyncio.sleep(0)
        awaiting.wait()
        try:
            await task
        except weft.Reusable:
            ended.append(threading.get_ident())

    threads = [threading.Thread(target=asyncio.run, args=(awaits(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    awaiting.wait()
    operation.cancel()
    for thread in threads:
        thread.join()
    assert len(set(ended)) == 2


def test_a_loop_that_is_closed_before_the_end_is_no_harm(engine, monkeypatch):
    import sys

    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    a = engine()
    operation = a.expect_imm_count(1, 1, deadline=PATIENCE)

    async def main() -> None:
        asyncio.ensure_future(operation)
        await asyncio.sleep(0)

    asyncio.run(main())
    last = threading.Event()
    operation.cancel()
    a.expect_imm_count(1, 0, on_done=lambda error: last.set())
    assert last.wait(PATIENCE)
    assert shown == []
