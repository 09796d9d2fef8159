from __future__ import annotations

import asyncio
import contextlib

import pytest
from raftmq.client.producer.byte_budget import ByteBudget


async def test_waiters_are_served_in_order():
    budget = ByteBudget(10)
    await budget.acquire(10)
    order: list[int] = []

    async def take(size: int) -> None:
        await budget.acquire(size)
        order.append(size)

    tasks = [asyncio.create_task(take(size)) for size in (8, 1, 2)]
    await asyncio.sleep(0)
    assert not budget.try_acquire(1), "no overtaking"
    budget.release(9)
    await asyncio.sleep(0)
    assert order == [8, 1]
    budget.release(8)
    await asyncio.gather(*tasks)
    assert order == [8, 1, 2]
    assert budget.used_bytes == 4


async def test_a_request_larger_than_the_budget_gets_all_of_it():
    budget = ByteBudget(10)
    assert budget.try_acquire(50)
    assert not budget.try_acquire(1)
    budget.release(50)
    assert budget.try_acquire(1)
    assert not budget.try_acquire(50)


@pytest.mark.parametrize("is_granted_first", [True, False])
async def test_a_cancelled_waiter_acquires_nothing_and_blocks_no_other(is_granted_first: bool):
    budget = ByteBudget(10)
    await budget.acquire(10)
    first = asyncio.create_task(budget.acquire(9))
    second = asyncio.create_task(budget.acquire(3))
    await asyncio.sleep(0)
    if is_granted_first:
        budget.release(10)  # the grant and the cancellation meet in one pass of the loop
        first.cancel()
    else:
        first.cancel()
        await asyncio.sleep(0)
        budget.release(10)
    with contextlib.suppress(asyncio.CancelledError):
        await first
    await second
    assert first.cancelled()
    assert budget.used_bytes == 3


async def test_failing_the_waiters_wakes_them_all():
    budget = ByteBudget(1)
    await budget.acquire(1)
    tasks = [asyncio.create_task(budget.acquire(1)) for _ in range(3)]
    await asyncio.sleep(0)
    budget.fail_waiters(RuntimeError("gone"))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(result) for result in results] == ["gone"] * 3
