"""The work loop with a consumer that the test controls step by step. Members of real groups are tested in tests/e2e/test_worker.py."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from raftmq.client.base import settings
from raftmq.client.worker.back_pressure import WorkLimits
from raftmq.client.worker.dead_letters import DeadLetters
from raftmq.client.worker.handlers import FIRST, Attempt, Handlers
from raftmq.client.worker.loop_executor import LoopExecutor
from raftmq.client.worker.loop_thread_executor import LoopThreadExecutor
from raftmq.client.worker.outcome import Failure, RetryPolicy
from raftmq.client.worker.schedule import Ordering
from raftmq.client.worker.work_loop import WorkLoop
from raftmq.errors import DrainTimeoutError, FencedError, PoisonRecordError, UnknownTopicError
from raftmq.offset_ranges import encode_ranges
from raftmq.types import Record

from tests.support.client.fake_group import FakeConsumer, partition

LIMITS = WorkLimits(
    concurrency=4,
    records_max=100,
    partition_records_max=20,
    bytes_max=settings.WORKER_BYTES_MAX,
    drain_seconds=30.0,
    revocation_seconds=30.0,
    commit_interval_seconds=0.01,
)
WAIT_SECONDS = 30.0


class Desk:
    """An async handler whose calls wait until the test releases them."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.is_open = is_open
        self.begun: list[tuple[int, int]] = []
        """Partition and offset, in the order of the starts."""
        self.running: dict[tuple[int, int], asyncio.Future[None]] = {}
        self.most_running = 0
        self._changed = asyncio.Event()

    async def __call__(self, record: Record) -> None:
        place = (record.partition, record.offset)
        assert place not in self.running, "one record twice at once"
        self.begun.append(place)
        if self.is_open:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        self.running[place] = future
        self.most_running = max(self.most_running, len(self.running))
        self._changed.set()
        try:
            await future
        finally:
            del self.running[place]
            self._changed.set()

    async def wait_running(self, *places: tuple[int, int]) -> None:
        """Return when exactly these records run."""
        while set(self.running) != set(places):
            self._changed.clear()
            await self._changed.wait()

    def let_go(self, *places: tuple[int, int], error: Exception | None = None) -> None:
        for place in places or tuple(self.running):
            if error is None:
                self.running[place].set_result(None)
            else:
                self.running[place].set_exception(error)


class Letters(DeadLetters):
    """Keeps the letters, when the gate is open."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, int, int, str]] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()

    async def put(self, record: Record, attempts: int, failure: Failure) -> None:
        self.arrived.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.kept.append((record.partition, record.offset, attempts, failure.error))


@asynccontextmanager
async def working(
    handler: Callable[[Record], Awaitable[object]],
    *,
    ordering: Ordering = "key",
    retries: RetryPolicy = RetryPolicy(0, 0.0, 0.0),  # noqa: B008 - frozen
    limits: WorkLimits = LIMITS,
    letters: DeadLetters | None = None,
    timeout_seconds: float | None = None,
    executor_class: type[LoopExecutor | LoopThreadExecutor] = LoopExecutor,
) -> AsyncIterator[tuple[FakeConsumer, WorkLoop, asyncio.Task[None]]]:
    consumer = FakeConsumer()
    executor = executor_class(Handlers(handler), timeout_seconds)
    loop = WorkLoop(lambda _: consumer, executor, ordering, retries, limits, letters, random.Random(1))
    consumer.listener = loop
    running = asyncio.ensure_future(loop.run())
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            yield consumer, loop, running
    finally:
        loop.stop(at_once=True)
        with contextlib.suppress(DrainTimeoutError, PoisonRecordError, asyncio.CancelledError, UnknownTopicError):
            await running


async def test_the_finished_prefix_and_the_ranges_beyond_it_are_committed() -> None:
    desk = Desk()
    async with working(desk) as (consumer, _, _):
        consumer.write(0, b"a", b"b", b"c", b"d")
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 1), (0, 2), (0, 3))
        desk.let_go((0, 0), (0, 2), (0, 3))
        await consumer.wait_committed(0, 1)
        assert consumer.finished(partition(0)) == ((2, 4),)
        desk.let_go((0, 1))
        await consumer.wait_committed(0, 4)
        assert consumer.finished(partition(0)) == ()
        assert [commit[partition(0)] for commit in consumer.commits] == [1, 4]


async def test_a_partition_that_lost_its_last_records_begins_again_at_its_new_end() -> None:
    """An operator recovered it from one replica, so the consumer's position goes back to where the kept records end."""
    desk = Desk()
    async with working(desk) as (consumer, loop, _):
        consumer.write(0, b"a", b"b", b"c", b"d")
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 1), (0, 2), (0, 3))
        desk.let_go((0, 0), (0, 2))
        await consumer.wait_committed(0, 1)
        consumer.lose_records(0, 2)
        consumer.write(0, b"e")
        await desk.wait_running((0, 1), (0, 2))
        desk.let_go((0, 2))
        await consumer.wait_committed(0, 1)
        desk.let_go((0, 1))
        await consumer.wait_committed(0, 3)
        assert sorted(desk.begun[4:]) == [(0, 1), (0, 2)], "the record before the lost ones was not done"
        assert loop.metrics().records_in_work == 0


async def test_a_key_is_in_order_while_others_run() -> None:
    desk = Desk()
    async with working(desk) as (consumer, _, _):
        consumer.write(0, b"a", b"a", b"b", None, None)
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 2), (0, 3), (0, 4))
        desk.let_go((0, 2))
        await desk.wait_running((0, 0), (0, 3), (0, 4))
        assert (0, 1) not in desk.begun
        desk.let_go((0, 0))
        await desk.wait_running((0, 1), (0, 3), (0, 4))


async def test_a_partition_lost_before_its_handlers_first_step_is_processed_when_assigned_again() -> None:
    """A task that is cancelled before it ran ends its record's work: its bytes are released, and its key is free."""
    desk = Desk()
    async with working(desk, limits=replace(LIMITS, concurrency=1)) as (consumer, loop, _):
        consumer.write(0, b"a", b"b")
        await consumer.assign(0)
        await desk.wait_running((0, 0))
        desk.let_go()
        while loop.metrics().records_queued:
            await asyncio.sleep(0)
        assert desk.begun == [(0, 0)], "the second has a task, which has not begun"
        await consumer.lose(0)
        desk.is_open = True
        await consumer.assign(0)
        await consumer.wait_committed(0, 2)
        assert loop.metrics().bytes_in_work == 0


async def test_the_same_key_in_two_partitions_is_two_keys() -> None:
    desk = Desk()
    async with working(desk) as (consumer, _, _):
        consumer.write(0, b"a")
        consumer.write(1, b"a")
        await consumer.assign(0, 1)
        await desk.wait_running((0, 0), (1, 0))


async def test_no_more_handlers_run_than_allowed() -> None:
    desk = Desk()
    async with working(desk, ordering="none") as (consumer, loop, _):
        consumer.write(0, *[b"k"] * 10)
        await consumer.assign(0)
        for first in (0, 4):
            await desk.wait_running(*((0, offset) for offset in range(first, first + 4)))
            assert loop.metrics().handlers_running == 4
            desk.let_go()
        await desk.wait_running((0, 8), (0, 9))
        assert desk.most_running == 4


@pytest.mark.parametrize(("ordering", "goes_on"), [("key", [(0, 2)]), ("partition", []), ("none", [(0, 1), (0, 2)])])
async def test_a_retry_blocks_the_lane_of_its_ordering(ordering: Ordering, goes_on: list[tuple[int, int]]) -> None:
    """Offset 0 waits for its retry. Offset 1 has the same key and 2 another one. Partition 1 is never affected."""
    desk = Desk()
    one_at_a_time = replace(LIMITS, concurrency=1)
    async with working(desk, ordering=ordering, retries=RetryPolicy(None, 3600.0, 3600.0), limits=one_at_a_time) as (
        consumer,
        loop,
        _,
    ):
        consumer.write(0, b"a", b"a", b"b")
        await consumer.assign(0)
        await desk.wait_running((0, 0))
        desk.let_go(error=ValueError("no"))
        desk.is_open = True
        consumer.write(1, b"a")
        await consumer.assign(1)
        await consumer.wait_committed(1, 1)
        await consumer.wait_idle_poll()
        assert desk.begun == [(0, 0), *goes_on, (1, 0)]
        assert loop.metrics().records_waiting == 1
        assert consumer.committed.get(partition(0), 0) == 0


async def test_a_record_is_dead_lettered_after_its_last_attempt_before_its_key_continues() -> None:
    desk, letters = Desk(), Letters()
    letters.gate.clear()
    async with working(desk, retries=RetryPolicy(2, 0.001, 0.001), letters=letters) as (consumer, loop, _):
        consumer.write(0, b"a", b"a")
        await consumer.assign(0)
        for _ in range(3):
            await desk.wait_running((0, 0))
            desk.let_go(error=ValueError("no"))
            await desk.wait_running()
        await letters.arrived.wait()
        assert desk.begun == [(0, 0)] * 3
        letters.gate.set()
        await desk.wait_running((0, 1))
        assert letters.kept == [(0, 0, 3, "ValueError")]
        await consumer.wait_committed(0, 1)
        counted = loop.metrics()
        assert (counted.failures_total, counted.retries_total, counted.dead_letters_total) == (3, 2, 1)


async def test_without_a_dead_letter_topic_the_worker_stops_before_the_record() -> None:
    desk = Desk()
    async with working(desk) as (consumer, _, running):
        consumer.write(0, b"a", b"b", b"b", b"c")
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 1), (0, 3))
        desk.let_go((0, 0))
        await desk.wait_running((0, 1), (0, 3))
        desk.let_go((0, 1), error=ValueError("no good"))
        await desk.wait_running((0, 3))
        desk.let_go((0, 3))
        with pytest.raises(
            PoisonRecordError, match=r"t/0 offset 1 failed 1 times, last with ValueError: no good"
        ) as told:
            await running
        assert (told.value.topic, told.value.partition, told.value.offset, told.value.attempts) == ("t", 0, 1, 1)
        assert consumer.committed == {partition(0): 1}
        assert (0, 2) not in desk.begun, "the next of its key is not begun"
        assert consumer.is_closed


async def test_a_dead_letter_topic_that_cannot_be_written_stops_the_worker_and_commits_nothing_of_it() -> None:
    desk, letters = Desk(), Letters()
    letters.error = UnknownTopicError("t.dead")
    async with working(desk, letters=letters) as (consumer, _, running):
        consumer.write(0, b"a")
        await consumer.assign(0)
        await desk.wait_running((0, 0))
        desk.let_go(error=ValueError("no"))
        with pytest.raises(UnknownTopicError):
            await running
        assert consumer.commits == []


# ---------------------------------------------------------------------------------------------------------- memory


async def test_a_slow_record_pauses_only_its_partition() -> None:
    desk = Desk()
    async with working(desk) as (consumer, loop, _):
        consumer.write(0, b"slow", *[b"k%d" % number for number in range(60)])
        consumer.write(1, *[b"k%d" % number for number in range(60)])
        await consumer.assign(0, 1)
        await desk.wait_running((0, 0), (0, 1), (0, 2), (0, 3))
        desk.is_open = True
        desk.let_go((0, 1), (0, 2), (0, 3))
        await consumer.wait_committed(1, 60)
        await consumer.wait_idle_poll()
        assert partition(0) in consumer.paused
        assert consumer.position(0) == LIMITS.partition_records_max
        assert loop.metrics().records_in_work == LIMITS.partition_records_max
        desk.let_go()
        await consumer.wait_committed(0, 61)
        assert loop.metrics().records_in_work == 0
        assert loop.metrics().bytes_in_work == 0
        assert consumer.paused == set()


async def test_the_total_of_records_is_bounded() -> None:
    desk = Desk()
    limits = replace(LIMITS, records_max=45)
    async with working(desk, limits=limits) as (consumer, loop, _):
        for number in range(10):
            consumer.write(number, *[b"k%d" % key for key in range(30)])
        await consumer.assign(*range(10))
        await desk.wait_running(*((0, offset) for offset in range(4)))
        await consumer.wait_idle_poll()
        assert loop.metrics().records_in_work <= 45
        assert loop.metrics().partitions_paused == 10
        desk.is_open = True
        desk.let_go()
        for number in range(10):
            await consumer.wait_committed(number, 30)
        assert loop.metrics().records_in_work == 0


async def test_the_bytes_are_bounded() -> None:
    desk = Desk()
    limits = replace(LIMITS, bytes_max=1000)
    async with working(desk, limits=limits) as (consumer, loop, _):
        consumer.write(0, *[b"k%d" % key for key in range(100)], value=b"x" * 500)
        await consumer.assign(0)
        await desk.wait_running(*((0, offset) for offset in range(4)))
        await consumer.wait_idle_poll()
        assert consumer.position(0) == limits.poll_records, "one poll, and no other"
        desk.is_open = True
        desk.let_go()
        await consumer.wait_committed(0, 100)
        assert loop.metrics().bytes_in_work == 0


async def test_partitions_assigned_while_the_worker_is_full_are_paused() -> None:
    desk = Desk()
    limits = replace(LIMITS, records_max=20)
    async with working(desk, limits=limits) as (consumer, loop, _):
        consumer.write(0, *[b"k%d" % key for key in range(20)])
        consumer.write(1, b"a")
        await consumer.assign(0)
        await desk.wait_running(*((0, offset) for offset in range(4)))
        await consumer.wait_idle_poll()
        await consumer.assign(1)
        await consumer.wait_idle_poll()
        assert consumer.position(1) == 0
        desk.is_open = True
        desk.let_go()
        await consumer.wait_committed(1, 1)
        await consumer.wait_committed(0, 20)
        assert loop.metrics().partitions_paused == 0
        consumer.write(2, b"a")
        await consumer.assign(2)  # the worker is not full any more
        await consumer.wait_committed(2, 1)


async def test_a_handler_of_a_lost_partition_frees_its_bytes_when_it_ends() -> None:
    desk = Desk()

    class Unstoppable(LoopExecutor):
        can_cancel = False

    consumer = FakeConsumer()
    limits = replace(LIMITS, bytes_max=1000)
    retries = RetryPolicy(0, 0.0, 0.0)
    loop = WorkLoop(
        lambda _: consumer, Unstoppable(Handlers(desk), None), "key", retries, limits, None, random.Random(1)
    )
    consumer.listener = loop
    running = asyncio.ensure_future(loop.run())
    async with asyncio.timeout(WAIT_SECONDS):
        consumer.write(0, b"a", value=b"x" * 2000)
        consumer.write(1, b"a")
        await consumer.assign(0)
        await desk.wait_running((0, 0))
        await consumer.lose(0)
        await consumer.assign(1)
        await consumer.wait_idle_poll()
        assert consumer.position(1) == 0
        desk.is_open = True
        desk.let_go()
        await consumer.wait_committed(1, 1)
        loop.stop()
        await running


# ------------------------------------------------------------------------------------------------------- rebalance


async def test_a_revoked_partition_is_drained_and_committed_before_its_release() -> None:
    desk = Desk()
    async with working(desk) as (consumer, loop, _):
        consumer.write(0, b"a", b"a", b"b")
        consumer.write(1, b"a")
        await consumer.assign(0, 1)
        await desk.wait_running((0, 0), (0, 2), (1, 0))
        going = asyncio.ensure_future(consumer.revoke(0))
        await consumer.wait_idle_poll()
        assert not going.done()
        desk.let_go((0, 0), (0, 2))
        await going
        assert consumer.committed == {partition(0): 1}
        assert consumer.finished(partition(0)) == ((2, 3),)
        assert (0, 1) not in desk.begun, "nothing above it was finished when the partition was to go"
        assert loop.metrics().partitions == 1
        assert set(desk.running) == {(1, 0)}


async def test_a_revocation_obeys_its_time_limit_and_late_outcomes_do_not_count() -> None:
    desk = Desk()
    limits = replace(LIMITS, revocation_seconds=0.0)
    async with working(desk, limits=limits) as (consumer, loop, _):
        consumer.write(0, b"a")
        await consumer.assign(0)
        await desk.wait_running((0, 0))
        await consumer.revoke(0)
        while loop.metrics().handlers_running:
            await asyncio.sleep(0)
        assert consumer.commits == []
        assert loop.metrics().records_total == 0
        assert loop.metrics().bytes_in_work == 0


@pytest.mark.parametrize("is_mended", [False, True])
async def test_a_waiting_retry_runs_when_its_partition_is_released_and_is_left_if_it_fails_again(
    is_mended: bool,
) -> None:
    desk = Desk()
    async with working(desk, retries=RetryPolicy(None, 3600.0, 3600.0)) as (consumer, loop, _):
        consumer.write(0, b"a", b"a", b"b")
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 2))
        desk.let_go((0, 0), error=ValueError("no"))
        desk.let_go((0, 2))
        await desk.wait_running()
        going = asyncio.ensure_future(consumer.revoke(0))
        await desk.wait_running((0, 0))
        desk.let_go(error=None if is_mended else ValueError("no"))
        if is_mended:
            await desk.wait_running((0, 1))
            desk.let_go()
        await going
        assert loop.metrics().records_waiting == 0
        assert loop.metrics().bytes_in_work == 0
        assert consumer.committed == {partition(0): 3 if is_mended else 0}
        assert (0, 1) in desk.begun or not is_mended, "never before the one before it of its key"
        await consumer.assign(0)
        if not is_mended:
            await desk.wait_running((0, 0))
            assert loop.metrics().skipped_total == 1


async def test_a_record_that_fails_while_its_partition_is_released_is_retried() -> None:
    desk = Desk()
    async with working(desk, retries=RetryPolicy(None, 0.001, 0.001)) as (consumer, _, _):
        consumer.write(0, b"a", b"b")
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 1))
        going = asyncio.ensure_future(consumer.revoke(0))
        await consumer.wait_idle_poll()
        desk.let_go((0, 0), error=ValueError("once"))
        desk.let_go((0, 1))
        await desk.wait_running()
        await desk.wait_running((0, 0))
        desk.let_go()
        await going
        assert consumer.committed == {partition(0): 2}


async def test_records_finished_by_an_earlier_owner_are_skipped_and_stay_finished() -> None:
    """This includes records that the current owner has not read yet: its own commits continue to contain them."""
    desk = Desk()
    async with working(desk) as (consumer, loop, _):
        consumer.write(0, *[b"k%d" % number for number in range(40)])
        consumer.committed[partition(0)] = 1
        consumer.store.finished[partition(0)] = encode_ranges(1, [(2, 3), (4, 6), (9, 10), (30, 38)])
        await consumer.assign(0)
        await desk.wait_running((0, 1), (0, 3), (0, 6), (0, 7))
        desk.let_go((0, 3), (0, 7))
        await desk.wait_running((0, 1), (0, 6), (0, 8), (0, 10))
        while consumer.finished(partition(0)) != ((2, 6), (7, 8), (9, 10), (30, 38)):
            await asyncio.sleep(0)
        assert consumer.committed == {partition(0): 1}
        desk.is_open = True
        desk.let_go()
        await consumer.wait_committed(0, 40)
        assert len(desk.begun) == len(set(desk.begun)) == 39 - 12
        assert loop.metrics().skipped_total == 12
        assert loop.metrics().records_in_work == 0


async def test_a_failure_while_its_partition_is_released_is_not_retried_after_a_long_wait() -> None:
    desk = Desk()
    seconds = 2 * settings.WORKER_DRAIN_RETRY_SECONDS + 0.1
    async with working(desk, retries=RetryPolicy(None, seconds, seconds)) as (consumer, _, _):
        consumer.write(0, b"a")
        await consumer.assign(0)
        await desk.wait_running((0, 0))
        going = asyncio.ensure_future(consumer.revoke(0))
        await consumer.wait_idle_poll()
        desk.let_go(error=ValueError("no"))
        await going
        assert desk.begun == [(0, 0)]
        assert consumer.commits == []


async def test_a_lost_partition_drops_its_results_and_its_handlers() -> None:
    desk = Desk()
    async with working(desk) as (consumer, loop, _):
        consumer.write(0, b"a", b"a", b"b")
        consumer.write(1, b"a")
        await consumer.assign(0, 1)
        await desk.wait_running((0, 0), (0, 2), (1, 0))
        await consumer.lose(0)
        await desk.wait_running((1, 0))
        assert loop.metrics().partitions_lost_total == 1
        desk.let_go()
        await consumer.wait_committed(1, 1)
        assert consumer.committed == {partition(1): 1}


async def test_the_loss_of_another_partition_does_not_interrupt_what_a_cancelled_handler_does_at_its_end() -> None:
    may_end, ended = asyncio.Event(), asyncio.Event()
    begun = asyncio.Semaphore(0)

    async def handle(record: Record) -> None:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            if record.partition == 0:
                begun.release()
                await may_end.wait()
                ended.set()

    async with working(handle) as (consumer, _, _):
        consumer.write(0, b"a")
        consumer.write(1, b"a")
        await consumer.assign(0, 1)
        for _ in range(2):
            await begun.acquire()
        await consumer.lose(0)
        await begun.acquire()
        await consumer.lose(1)
        may_end.set()
        await ended.wait()


async def test_no_other_attempt_starts_while_a_handler_outlives_its_lost_partition() -> None:
    """A thread cannot be stopped: the partition is lost and assigned again while it runs. `Desk` fails if a record runs twice simultaneously."""
    desk = Desk()

    class Unstoppable(LoopExecutor):
        can_cancel = False

    consumer = FakeConsumer()
    loop = WorkLoop(
        lambda _: consumer,
        Unstoppable(Handlers(desk), None),
        "key",
        RetryPolicy(0, 0.0, 0.0),
        LIMITS,
        None,
        random.Random(1),
    )
    consumer.listener = loop
    running = asyncio.ensure_future(loop.run())
    async with asyncio.timeout(WAIT_SECONDS):
        consumer.write(0, b"a", b"a", b"b")
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 2))
        desk.let_go((0, 2))
        await desk.wait_running((0, 0))
        await consumer.lose(0)
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 2))
        desk.let_go((0, 2))
        await desk.wait_running((0, 0))
        assert desk.begun == [(0, 0), (0, 2), (0, 2)]
        desk.let_go()
        await desk.wait_running()
        await desk.wait_running((0, 0))
        assert loop.metrics().dropped_total == 1
        desk.is_open = True
        desk.let_go()
        await consumer.wait_committed(0, 3)
        loop.stop()
        await running


async def test_a_fenced_commit_does_not_end_the_worker() -> None:
    """The consumer notices on its own that another member owns the partition, and tells its listener. Other partitions continue."""
    desk = Desk(is_open=True)
    async with working(desk) as (consumer, loop, running):
        consumer.commit_error = FencedError("t/0")
        consumer.write(0, b"a")
        consumer.write(1, b"a")
        await consumer.assign(0, 1)
        while loop.metrics().commit_failures_total < 2:
            await asyncio.sleep(0)
        assert not running.done()
        await consumer.lose(0)
        consumer.commit_error = None
        await consumer.wait_committed(1, 1)
        assert partition(0) not in consumer.committed


# ------------------------------------------------------------------------------------------------------------- the end


async def test_stop_lets_running_handlers_end_commits_them_and_starts_nothing() -> None:
    desk = Desk()
    async with working(desk) as (consumer, loop, running):
        consumer.write(0, b"a", b"a", b"b")
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 2))
        loop.stop()
        await consumer.wait_idle_poll()
        assert not running.done()
        desk.let_go()
        await running
        assert consumer.committed == {partition(0): 1}
        assert desk.begun == [(0, 0), (0, 2)]
        assert consumer.is_closed
        left = loop.metrics()
        assert (left.records_queued, left.records_in_work, left.bytes_in_work, left.partitions) == (0, 0, 0, 0)


async def test_draining_finishes_records_below_the_highest_finished_one_only() -> None:
    desk = Desk()
    async with working(desk, limits=replace(LIMITS, concurrency=2)) as (consumer, loop, running):
        consumer.write(0, b"a", b"b", b"a", b"c", b"d", b"e", b"a")
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 1))
        desk.let_go((0, 1))
        await desk.wait_running((0, 0), (0, 3))
        desk.let_go((0, 3))
        await desk.wait_running((0, 0), (0, 4))
        loop.stop()
        desk.let_go((0, 4))
        desk.let_go((0, 0))
        await desk.wait_running((0, 2))
        desk.let_go()
        await running
        assert (0, 2) in desk.begun
        assert not {(0, 5), (0, 6)} & set(desk.begun)
        assert consumer.committed == {partition(0): 5}


async def test_no_record_is_started_in_the_second_half_of_the_drain_timeout() -> None:
    desk = Desk()
    async with working(desk, limits=replace(LIMITS, drain_seconds=0.5)) as (consumer, loop, running):
        consumer.write(0, b"a", b"a", b"b")
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 2))
        desk.let_go((0, 2))
        await desk.wait_running((0, 0))
        loop.stop()
        assert loop.metrics().records_queued == 1
        while loop.metrics().records_queued:
            await asyncio.sleep(0.001)
        desk.let_go()
        await running
        assert (0, 1) not in desk.begun
        assert consumer.committed == {partition(0): 1}
        assert consumer.finished(partition(0)) == ((2, 3),)


async def test_a_failed_worker_starts_no_more_records() -> None:
    desk = Desk()
    async with working(desk) as (consumer, _, running):
        consumer.write(0, b"a", b"b", b"a", b"c")
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 1), (0, 3))
        desk.let_go((0, 3))
        await desk.wait_running((0, 0), (0, 1))
        desk.let_go((0, 1), error=ValueError("no"))
        await desk.wait_running((0, 0))
        desk.let_go()
        with pytest.raises(PoisonRecordError):
            await running
        assert (0, 2) not in desk.begun
        assert consumer.committed == {partition(0): 1}
        assert consumer.finished(partition(0)) == ((3, 4),)


async def test_a_draining_worker_continues_to_poll() -> None:
    """A member that does not poll is removed, and other members would process its records simultaneously."""
    desk = Desk()
    async with working(desk) as (consumer, loop, running):
        consumer.write(0, b"a")
        await consumer.assign(0)
        await desk.wait_running((0, 0))
        loop.stop()
        before = consumer.polls
        while consumer.polls < before + 2:
            await consumer.wait_idle_poll()
            await asyncio.sleep(settings.WORKER_POLL_MS / 4000)
        assert consumer.paused == {partition(0)}
        consumer.write(1, b"a")
        await consumer.assign(1)  # none of its records is started
        await consumer.wait_idle_poll()
        desk.let_go()
        await running
        assert desk.begun == [(0, 0)]


async def test_draining_ends_after_its_time_limit_and_reports_running_handlers() -> None:
    desk = Desk()
    async with working(desk, limits=replace(LIMITS, drain_seconds=0.0)) as (consumer, loop, running):
        consumer.write(0, b"a", b"b")
        await consumer.assign(0)
        await desk.wait_running((0, 0), (0, 1))
        desk.let_go((0, 0))
        await desk.wait_running((0, 1))
        loop.stop()
        with pytest.raises(DrainTimeoutError, match="1 handlers were still running") as told:
            await running
        assert told.value.handlers_running == 1
        assert consumer.committed == {partition(0): 1}
        assert desk.running == {}, "async handlers are cancelled"
        assert consumer.is_closed


async def test_a_second_stop_does_not_wait() -> None:
    desk = Desk()
    async with working(desk) as (consumer, loop, running):
        consumer.write(0, b"a")
        await consumer.assign(0)
        await desk.wait_running((0, 0))
        loop.stop()
        await consumer.wait_idle_poll()
        loop.stop(at_once=True)
        with pytest.raises(DrainTimeoutError):
            await running


async def test_a_cluster_that_does_not_answer_does_not_keep_a_worker_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "CLOSE_COMMIT_SECONDS", 0.01)
    desk = Desk(is_open=True)
    async with working(desk) as (consumer, loop, running):
        consumer.may_commit.clear()
        consumer.write(0, b"a")
        await consumer.assign(0)
        await consumer.wait_idle_poll()
        assert desk.begun == [(0, 0)]
        loop.stop()
        await running
        assert consumer.is_closed
        assert consumer.committed == {}


async def test_an_error_of_the_consumer_ends_the_worker_after_draining() -> None:
    desk = Desk()
    async with working(desk) as (consumer, _, running):
        consumer.write(0, b"a")
        await consumer.assign(0)
        await desk.wait_running((0, 0))
        consumer.read_error = UnknownTopicError("t")
        consumer.write(0, b"b")
        await consumer.has_failed.wait()
        desk.let_go()
        with pytest.raises(UnknownTopicError):
            await running
        assert consumer.committed == {partition(0): 1}


async def test_a_cancelled_worker_ends_immediately_and_leaves_no_task() -> None:
    desk = Desk()
    async with working(desk) as (consumer, _, running):
        consumer.write(0, b"a")
        await consumer.assign(0)
        await desk.wait_running((0, 0))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert desk.running == {}
        assert consumer.is_closed
        assert {task for task in asyncio.all_tasks() if "raftmq" in task.get_name()} == set()


async def test_a_failing_executor_ends_the_worker_without_failing_a_record() -> None:
    class Homeless(LoopExecutor):
        async def run(self, record: Record, attempt: Attempt = FIRST) -> None:
            raise OSError("no more processes")

    consumer, letters = FakeConsumer(), Letters()
    retries = RetryPolicy(0, 0.0, 0.0)
    loop = WorkLoop(
        lambda _: consumer, Homeless(Handlers(Desk()), None), "key", retries, LIMITS, letters, random.Random(1)
    )
    consumer.listener = loop
    running = asyncio.ensure_future(loop.run())
    consumer.write(0, b"a", b"b")
    await consumer.assign(0)
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(OSError, match="no more processes"):
            await running
    assert consumer.commits == []
    assert letters.kept == []


async def test_a_handler_that_exceeds_its_time_limit_has_failed() -> None:
    desk, letters = Desk(), Letters()
    async with working(desk, letters=letters, timeout_seconds=0.01) as (consumer, loop, _):
        consumer.write(0, b"a")
        await consumer.assign(0)
        await consumer.wait_committed(0, 1)
        assert letters.kept == [(0, 0, 1, "TimeoutError")]
        assert loop.metrics().timeouts_total == 1


@pytest.mark.parametrize("executor_class", [LoopExecutor, LoopThreadExecutor])
async def test_a_handler_that_the_program_cancels_has_failed(
    executor_class: type[LoopExecutor | LoopThreadExecutor],
) -> None:
    """Its record was neither tried again nor finished, so that its partition never went on, or the worker ended."""
    tries: list[int] = []

    async def handle(record: Record) -> None:
        tries.append(record.offset)
        if tries.count(0) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    retries = RetryPolicy(1, 0.0, 0.0)
    async with working(handle, retries=retries, executor_class=executor_class) as (consumer, loop, _):
        consumer.write(0, b"a", b"a")
        await consumer.assign(0)
        await consumer.wait_committed(0, 2)
        assert loop.metrics().failures_total == 1
    assert tries == [0, 0, 1]


async def test_the_end_of_a_program_which_cancels_all_tasks_fails_no_record() -> None:
    """As ``asyncio.run`` does: a cancelled handler may see it before the worker."""
    desk, letters = Desk(), Letters()
    async with working(desk, letters=letters) as (consumer, _, running):
        consumer.write(0, b"a")
        await consumer.assign(0)
        await desk.wait_running((0, 0))
        for task in (*(task for task in asyncio.all_tasks() if task.get_name() == "raftmq-worker-handler"), running):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert letters.kept == []
    assert consumer.commits == []
