"""Pages of messages and statistics, over real files."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from raftmq.broker.base.metric_catalog import SECTIONS
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue import views
from raftmq.broker.partitions.queue.views import HOLDERS_MAX
from raftmq.broker.services.queue import browse as browse_module
from raftmq.client.codec.queue_batch import decode_messages, encode_messages
from raftmq.fsm.queue.commands import Change, ChangeItem, ChangeOperation, Operation, PauseTenant, PurgeAll
from raftmq.fsm.queue.limits import MemoryBounds
from raftmq.fsm.queue.results import Changed, Done, Purged
from raftmq.message_block import unpack_block
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import append_request
from tests.support.broker.queue_node import Queue, queue_node
from tests.support.fsm.queue.host import COLD

STATES = (pb.DELAYED, pb.BLOCKED, pb.READY, pb.LEASED, pb.DEAD)


@pytest.fixture(params=[None, COLD], ids=["in memory", "windows of one"])
async def queue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Queue]:
    async with queue_node(tmp_path, request.param) as node:
        yield await node.queue(ordered_by_key="true")


async def page(queue: Queue, **fields: object) -> pb.BrowseResponse:
    request = pb.BrowseRequest(topic_id=queue.topic.topic_id, **fields)
    return await queue.node.queue_browse.browse(request, queue.node.call())


async def browse(queue: Queue, **fields: object) -> list[tuple[int, int]]:
    """Return the sequences and states of all pages."""
    found: list[tuple[int, int]] = []
    cursor = b""
    while True:
        answer = await page(queue, cursor=cursor, **fields)
        if answer.block:
            block = unpack_block(answer.block)
            found += zip(block.sequences, [status.state for status in answer.statuses], strict=True)
        cursor = answer.cursor
        if not cursor:
            return found


async def fill(queue: Queue) -> None:
    """Bring messages into all states: 0-1 leased, 2 dead, 3-4 ready, 5 holds a line, 6 waits in it, 7-8 delayed."""
    await queue.put(3, priority=-1)
    tokens = await queue.lease(3)
    await queue.put(2, tenant=["a", "a.x"])
    await queue.put(2, key="k", tenant="b")
    await queue.put(2, delay=60_000, tenant=["a", "b"])
    await queue.settle(Operation.REJECT, tokens[2], error="broken")


EXPECTED = {
    pb.DELAYED: [7, 8],
    pb.BLOCKED: [6],
    pb.READY: [3, 4, 5],
    pb.LEASED: [0, 1],
    pb.DEAD: [2],
}


@pytest.mark.parametrize("limit", [1, 2, 1_000])
@pytest.mark.parametrize("is_written", [False, True])
async def test_pages_have_each_message_once_by_state(queue: Queue, limit: int, is_written: bool) -> None:
    await fill(queue)
    if is_written:
        await queue.restart()
    every = await browse(queue, limit=limit)
    assert [state for _, state in every] == sorted((state for _, state in every), key=STATES.index)
    for state, sequences in EXPECTED.items():
        assert [one for one, found in every if found == state] == sequences
        assert await browse(queue, limit=limit, state=state) == [(one, state) for one in sequences]


async def test_a_page_on_the_boundary_of_what_was_read_goes_on(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "ROWS_READ_MAX", 2)
    monkeypatch.setattr(views, "SECTIONS_READ_MAX", 2)
    await fill(queue)
    await queue.put(5, tenant=["a", "c", "d", "e", "e"])
    await queue.write_back()
    await queue.put(2, tenant=["e", "f"])
    every = await browse(queue)
    assert sorted(sequence for sequence, _ in every) == list(range(16))
    assert sorted(await browse(queue, tenant="a")) == [(3, pb.READY), (4, pb.READY), (7, pb.DELAYED), (9, pb.READY)]
    assert await browse(queue, tenant="e", state=pb.READY) == [(12, pb.READY), (13, pb.READY), (14, pb.READY)]


async def test_a_page_is_returned_after_a_bounded_search(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "ROWS_READ_MAX", 1)
    monkeypatch.setattr(views, "READS_MAX", 3)
    await queue.put(20, delay=60_000, tenant=["a"] * 19 + ["b"])
    await queue.restart()
    answer = await page(queue, tenant="b")
    assert not answer.block
    assert answer.cursor
    assert await browse(queue, tenant="b") == [(19, pb.DELAYED)]


async def test_filters_are_tenants_and_times(queue: Queue) -> None:
    await fill(queue)
    await asyncio.sleep(0.005)
    before_ms = queue.now_ms
    await asyncio.sleep(0.005)
    await queue.put(1, tenant="a.x")
    await queue.write_back()
    assert {sequence for sequence, _ in await browse(queue, tenant="a")} == {3, 4, 7, 9}
    assert {sequence for sequence, _ in await browse(queue, tenant="a.x")} == {4, 9}
    assert await browse(queue, tenant="a.x", enqueued_before_ms=before_ms) == [(4, pb.READY)]
    assert await browse(queue, tenant="nobody") == []


async def test_a_message_is_found_by_its_id_or_its_sequence(queue: Queue) -> None:
    await queue.put(2, id=["a", "b"], delay=60_000)
    await queue.restart()
    for sequence, name in ((0, "a"), (1, "b")):
        assert await browse(queue, id=name) == [(sequence, pb.DELAYED)]
        assert await browse(queue, sequence=sequence, is_single=True) == [(sequence, pb.DELAYED)]
    assert await browse(queue, id="a", state=pb.READY) == []
    assert await browse(queue, id="a", tenant="x") == []
    assert await browse(queue, sequence=7, is_single=True) == []
    cancel = Change((ChangeItem(ChangeOperation.CANCEL, 0),))
    await queue.partition.commands.execute(cancel, Changed, queue.node.loop.time() + 5)
    for _ in range(2):
        assert await browse(queue, id="a") == []
        assert await browse(queue, sequence=0, is_single=True) == []
        await queue.write_back()
    await queue.partition.commands.execute(PurgeAll(), Purged, queue.node.loop.time() + 5)
    assert await browse(queue, id="b") == await browse(queue, sequence=1, is_single=True) == []


async def test_a_purged_queue_is_empty_although_its_rows_are_still_there(queue: Queue) -> None:
    await fill(queue)
    await queue.restart()
    cursor = (await page(queue, limit=2)).cursor
    assert cursor
    await queue.partition.commands.execute(PurgeAll(), Purged, queue.node.loop.time() + 5)
    assert await browse(queue) == []
    await queue.write_back()
    assert not (await page(queue, cursor=cursor)).block


async def test_a_purge_during_a_read_leaves_nothing_to_show(queue: Queue) -> None:
    await fill(queue)
    await queue.restart()
    async with queue.held_reads() as held:
        browsing = (browse(queue), browse(queue, sequence=2, is_single=True))
        reading = [asyncio.ensure_future(one) for one in browsing]
        while len(held) < 2:
            await asyncio.sleep(0.001)
    await queue.partition.commands.execute(PurgeAll(), Purged, queue.node.loop.time() + 5)
    for hand_over in held:
        hand_over()
    assert await asyncio.gather(*reading) == [[], []]


async def test_what_happens_during_a_read_is_part_of_its_page(queue: Queue) -> None:
    await queue.put(3, priority=[0, 1, 2])
    await queue.restart()
    async with queue.held_reads() as held:
        reading = asyncio.ensure_future(browse(queue))
        while not held:
            await asyncio.sleep(0.001)
    tokens = await queue.lease(2)
    await queue.settle(Operation.ACCEPT, tokens[0])
    await queue.put(1)
    held[0]()
    assert await reading == [(3, pb.READY), (2, pb.READY), (1, pb.LEASED)]


async def test_a_read_ends_when_its_replica_is_closed(queue: Queue) -> None:
    """It waited until its deadline. Upkeep had all partitions of the broker wait with it."""
    await queue.put(1)
    await queue.restart()
    async with queue.held_reads() as held:
        reading = asyncio.ensure_future(page(queue))
        measuring = asyncio.ensure_future(queue.partition.upkeep_views.oldest_unread())
        while len(held) < 2:
            await asyncio.sleep(0.001)
    queue.partition.replica.close()
    for one in (reading, measuring):
        with pytest.raises(RequestError) as raised:
            await one
        assert raised.value.code in (pb.NOT_LEADER, pb.NO_LEADER)


async def test_the_status_says_what_a_consumer_does_not_see(queue: Queue) -> None:
    await queue.put(1, ttl=90_000)
    (token,) = await queue.lease(1, 60_000)
    await queue.settle(Operation.RENEW, token, lease_ms=30_000, progress="half")
    answer = await page(queue)
    (status,) = answer.statuses
    assert (status.state, status.version, status.progress) == (pb.LEASED, 2, "half")
    assert 20_000 < status.lease_left_ms <= 30_000
    assert 80_000 < status.expires_in_ms <= 90_000
    await queue.settle(Operation.REJECT, token, error="broken")
    await queue.write_back()
    (status,) = (await page(queue)).statuses
    assert (status.state, status.error, status.dead_reason, status.lease_left_ms) == (pb.DEAD, "broken", "rejected", 0)
    assert 0 < status.dead_since_ms <= queue.now_ms
    block = unpack_block((await page(queue)).block)
    assert (block.attempts, block.lease_numbers, block.lease_remaining_ms) == ((1,), (1,), None)


async def put_values(queue: Queue, *values: bytes, headers: tuple[tuple[str, bytes], ...] = ()) -> None:
    batch = encode_messages(values, headers=[headers] * len(values)).seal()
    deadline = queue.node.loop.time() + 5
    ticket = queue.partition.appends.begin(append_request(queue.topic, batch).partitions[0].batches, deadline)
    await queue.partition.appends.finish(ticket, deadline)
    assert not ticket.result(0).HasField("error")


async def test_bodies_and_headers_come_from_the_log_and_from_the_state_file(queue: Queue) -> None:
    values = [b"value %d" % number * 200 for number in range(12)]
    for value in values:
        await put_values(queue, value, headers=(("name", b"x"),))
    await queue.restart()
    answer = await page(queue, with_bodies=True)
    received = decode_messages(unpack_block(answer.block), range(12))
    assert [message.value for message in received] == values
    assert {message.headers for message in received} == {(("name", b"x"),)}
    bare = unpack_block((await page(queue)).block)
    assert [len(body) for body in bare.bodies] == [0] * 12
    assert bare.headers is None


async def test_a_page_with_bodies_is_bounded_in_bytes(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse_module, "PAGE_BYTES_MAX", 5_000)
    for number in range(6):
        await put_values(queue, random.Random(number).randbytes(10_000 if number == 2 else 1_500))
    await queue.restart()
    sizes, cursor = [], b""
    while not sizes or cursor:
        answer = await page(queue, with_bodies=True, cursor=cursor)
        cursor = answer.cursor
        sizes.append([len(body) for body in unpack_block(answer.block).bodies] if answer.block else [])
    assert [size for part in sizes for size in part] == [1_500, 1_500, 10_000, 1_500, 1_500, 1_500]
    assert all(len(part) == 1 or sum(part) < 5_000 for part in sizes)


async def test_a_page_without_bodies_is_bounded_in_bytes(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse_module, "PAGE_BYTES_MAX", 8_000)
    await queue.put(20)
    await queue.settle(Operation.REJECT, *await queue.lease(20), error="e" * 1_000)
    answer = await page(queue)
    assert 2 <= len(answer.statuses) <= 5
    assert answer.ByteSize() <= 8_000
    assert [sequence for sequence, _ in await browse(queue)] == list(range(20))


@pytest.mark.parametrize(
    "fields",
    [
        {"state": 9},
        {"tenant": "a..b"},
        {"id": "i" * 250},
        {"id": "i", "is_single": True},
        {"limit": 1_001},
        {"cursor": b"\xff"},
        {"cursor": b"\x10" * 65},
    ],
    ids=repr,
)
async def test_a_wrong_request_is_refused(queue: Queue, fields: dict[str, object]) -> None:
    with pytest.raises(RequestError) as refused:
        await page(queue, **fields)
    assert refused.value.code == pb.INVALID_ARGUMENT


async def test_any_cursor_of_a_page_s_form_is_survived(queue: Queue) -> None:
    await fill(queue)
    rng = random.Random(1)
    for _ in range(50):
        cursor = bytes([rng.choice([0x10, 0x11, 0x12, 0x13, 0x14])]) + rng.randbytes(rng.randint(0, 30))
        answer = await page(queue, cursor=cursor)
        assert len(answer.statuses) <= 9


async def test_a_listing_during_work_shows_what_stays(tmp_path: Path) -> None:
    """Messages that nobody touches are listed once each, whatever happens to the others and wherever the rows are."""
    rng = random.Random(5)
    async with queue_node(tmp_path, MemoryBounds(window_messages_max=4, clean_messages_max=8, read_rows=4)) as node:
        queue = await node.queue()
        await queue.put(60, tenant="quiet")
        await queue.write_back()
        is_over = False

        async def work() -> None:
            while not is_over:
                await queue.put(5, tenant="busy")
                tokens = await queue.lease(5, 60_000, "busy")
                await queue.settle(rng.choice([Operation.ACCEPT, Operation.REJECT]), *tokens)
                if rng.random() < 0.3:
                    node.write_backs.start(queue.partition.replica)

        working = asyncio.ensure_future(work())
        for limit in (7, 13, 60, 1_000):
            assert [one for one, _ in await browse(queue, tenant="quiet", limit=limit)] == list(range(60))
            every = [one for one, _ in await browse(queue, state=pb.READY, limit=limit)]
            assert [one for one in every if one < 60] == list(range(60))
        is_over = True
        await working


async def test_browsers_that_hold_up_entries_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page for which entries must wait is short, and no number of browsers holds the queue's work up without a bound."""
    async with queue_node(tmp_path) as node:
        queue = await node.queue()
        await queue.put(3)
        await queue.restart()
        applier = queue.partition.replica.applier
        async with queue.held_reads() as held:
            reading = [asyncio.ensure_future(browse(queue)) for _ in range(HOLDERS_MAX + 2)]
            while len(held) < HOLDERS_MAX + 2:
                await asyncio.sleep(0.001)
            with monkeypatch.context() as patch:
                patch.setattr(applier, "_is_suspended", True)  # as while an entry waits for rows
                for hand_over in held:
                    hand_over()
                for one in reading[HOLDERS_MAX:]:
                    with pytest.raises(RequestError, match="try again") as refusal:
                        await one
                    assert (refusal.value.code, refusal.value.detail.retry_after_ms) == (pb.THROTTLED, 100)
            held.clear()
            applier._grant()  # as at the end of that entry
            while not held:
                await asyncio.sleep(0.001)
            putting = asyncio.ensure_future(queue.put(1))
            await asyncio.sleep(0.01)
            assert not putting.done(), "it waits for the page"
            assert len(held) == 1, "one page is read at a time"
            held[0]()
        assert await putting == 3
        assert await reading[0] == [(0, pb.READY), (1, pb.READY), (2, pb.READY)]
        for one in reading[1:HOLDERS_MAX]:
            one.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        assert await browse(queue, sequence=3, is_single=True) == [(3, pb.READY)], "nobody holds it any more"


# ------------------------------------------------------------------------------------------------------------- statistics


async def stats(queue: Queue, **fields: object) -> pb.PartitionQueueStats:
    request = pb.QueueStatsRequest(topic_id=queue.topic.topic_id, **fields)
    (found,) = (await queue.node.queue_browse.queue_stats(request, queue.node.call())).partitions
    return found


def metric(queue: Queue, name: str) -> float:
    value = dict(queue.partition.samples())[name]
    assert isinstance(value, float | int)
    return value


async def test_statistics_count_by_state_and_tenant(queue: Queue) -> None:
    await fill(queue)
    found = await stats(queue, tenants_max=2)
    counts = pb.StateCounts(ready=3, delayed=2, leased=2, dead=1, blocked=1)
    assert found.counts == counts
    assert found.waiting_bytes == 9 * 4
    assert [(one.tenant, one.counts) for one in found.tenants] == [
        ("", pb.StateCounts(leased=2, dead=1)),
        ("b", pb.StateCounts(ready=1, blocked=1, delayed=1)),
    ]
    assert abs(found.clock_difference_ms) < 1_000
    await queue.restart()
    assert (await stats(queue)).counts == counts


async def test_totals_begin_with_the_leadership(queue: Queue) -> None:
    await queue.put(4)
    tokens = await queue.lease(4)
    await queue.settle(Operation.ACCEPT, tokens[0])
    await queue.settle(Operation.RELEASE, tokens[1])
    await queue.settle(Operation.REJECT, tokens[2])
    await queue.lease(1)
    found = await stats(queue)
    totals = (found.enqueued_total, found.leased_total, found.accepted_total, found.released_total, found.dead_total)
    assert totals == (4, 5, 1, 1, 1)
    assert sum(found.dwell.counts) == queue.partition.statistics.dwell().count > 0
    assert len(found.dwell.counts) == len(found.dwell.bounds_seconds) + 1
    assert queue.partition.statistics.totals.redelivered == 1
    assert queue.partition.statistics.dwell_seconds.count == 2, "the first message of each run of leases"
    await queue.restart()
    found = await stats(queue)
    assert (found.enqueued_total, found.leased_total, found.accepted_total, found.dead_total) == (0, 0, 0, 0)
    assert found.counts == pb.StateCounts(leased=2, dead=1)


async def test_leases_that_end_by_time_are_counted(queue: Queue) -> None:
    await queue.put(2)
    await queue.lease(2, 1_000)
    queue.node.pass_time(20_000)
    await queue.progress_until(lambda: queue.partition.statistics.counts().leased == 0)
    assert (await stats(queue)).expired_leases_total == 2


async def test_the_age_of_the_oldest_ready_message_is_shown(queue: Queue) -> None:
    assert (await stats(queue)).oldest_ready_age_ms == 0
    await queue.put(2, tenant=["a", "b"])
    queue.node.pass_time(5_000)
    await queue.put(1, tenant="b")
    assert 5_000 <= (await stats(queue)).oldest_ready_age_ms < 20_000
    await queue.restart()
    assert 5_000 <= (await stats(queue)).oldest_ready_age_ms < 20_000
    await queue.lease(3)
    assert (await stats(queue)).oldest_ready_age_ms == 0


async def give_back(queue: Queue, token: tuple[int, int], how: str) -> None:
    """End a lease of 60 s without a pause before the next attempt."""
    if how == "release":
        await queue.settle(Operation.RELEASE, token, delay_ms=0)
    elif how == "release uncounted":
        await queue.settle(Operation.RELEASE, token, is_counted=False)
    else:
        queue.node.pass_time(70_000)
        await queue.progress_until(lambda: not queue.machine.leased_count)


@pytest.mark.parametrize("how", ["release", "release uncounted", "expiry"])
async def test_a_message_that_comes_back_is_ready_since_then(tmp_path: Path, how: str) -> None:
    async with queue_node(tmp_path) as node:
        queue = await node.queue(backoff_base_ms="0")
        await queue.put(1)
        node.pass_time(600_000)
        (token,) = await queue.lease(1)
        waited = queue.partition.statistics.dwell_seconds.total
        assert 600 <= waited < 620
        await give_back(queue, token, how)
        assert 0 < (await stats(queue)).oldest_ready_age_ms < 20_000
        node.pass_time(30_000)
        assert 30_000 <= (await stats(queue)).oldest_ready_age_ms < 50_000
        await queue.restart()
        assert 30_000 <= (await stats(queue)).oldest_ready_age_ms < 50_000
        await queue.lease(1)
        assert 30 <= queue.partition.statistics.dwell_seconds.total < 50, "since the restart"


async def test_a_message_is_not_ready_while_it_waits_for_its_key(queue: Queue) -> None:
    await queue.put(2, key="k")
    (token,) = await queue.lease(1)
    queue.node.pass_time(50_000)
    await queue.settle(Operation.ACCEPT, token)
    assert 0 < (await stats(queue)).oldest_ready_age_ms < 20_000
    queue.node.pass_time(20_000)
    assert 20_000 <= (await stats(queue)).oldest_ready_age_ms < 40_000
    await queue.lease(1)
    assert queue.partition.statistics.dwell_seconds.total < 40


async def test_a_message_that_was_dead_is_ready_since_its_redrive(queue: Queue) -> None:
    await queue.put(1)
    (token,) = await queue.lease(1)
    await queue.settle(Operation.REJECT, token)
    queue.node.pass_time(50_000)
    redrive = Change((ChangeItem(ChangeOperation.REDRIVE, sequence=0),))
    await queue.partition.commands.execute(redrive, Changed, queue.node.loop.time() + 5)
    queue.node.pass_time(20_000)
    assert 20_000 <= (await stats(queue)).oldest_ready_age_ms < 40_000


async def test_a_message_that_comes_back_hides_none_that_waits(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        queue = await node.queue(backoff_base_ms="0")
        await queue.put(200)
        node.pass_time(600_000)
        await queue.settle(Operation.RELEASE, *await queue.lease(100), is_counted=False)
        assert 600_000 <= (await stats(queue)).oldest_ready_age_ms < 620_000


async def test_the_metric_of_the_age_knows_messages_on_disk_after_a_round_of_upkeep(queue: Queue) -> None:
    await queue.put(1)
    await queue.restart()
    await queue.partition.maintain()
    age = dict(queue.partition.samples())["raftmq_queue_oldest_ready_seconds"]
    assert isinstance(age, float)
    assert 0 < age < 20


async def test_messages_whose_time_to_live_has_passed_are_counted(queue: Queue) -> None:
    await queue.put(2, ttl=1_000)
    await queue.put(1)
    queue.node.pass_time(1_500)
    await queue.progress_until(lambda: queue.machine.message_count == 1)
    samples = dict(queue.partition.samples())
    assert (samples["raftmq_queue_expired_total"], samples["raftmq_queue_dead_total"]) == (2, 0)


async def test_messages_that_are_kept_after_their_time_to_live_are_dead_and_not_removed(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        queue = await node.queue(expired_keep="true")
        await queue.put(2, ttl=1_000)
        queue.node.pass_time(1_500)
        await queue.progress_until(lambda: queue.machine.ready_count == 0)
        samples = dict(queue.partition.samples())
        assert (samples["raftmq_queue_expired_total"], samples["raftmq_queue_dead_total"]) == (0, 2)


async def test_the_step_of_the_clock_after_a_start_is_shown(queue: Queue) -> None:
    await queue.put(1)
    assert metric(queue, "raftmq_queue_clock_stepped_seconds_total") == 0, "a new partition has no time to step from"
    queue.node.offset_ms += 7_200_000  # nothing is stamped from now on until the start
    await queue.restart()
    assert 7_200 <= metric(queue, "raftmq_queue_clock_stepped_seconds_total") < 7_260


async def test_pauses_are_shown_with_the_time_that_is_left(queue: Queue) -> None:
    for tenant, pause_ms in (("a", 60_000), ("b", -1), ("c", 10)):
        await queue.partition.commands.execute(PauseTenant(tenant, pause_ms), Done, queue.node.loop.time() + 5)
    queue.node.pass_time(20)
    await queue.put(1)
    left = {one.tenant: one.left_ms for one in (await stats(queue)).paused}
    assert left.keys() == {"a", "b"}
    assert left["b"] == -1
    assert 0 < left["a"] <= 60_000


async def test_a_partition_that_cannot_answer_says_why(queue: Queue) -> None:
    request = pb.QueueStatsRequest(topic_id=queue.topic.topic_id, partitions=[0, 7, 0])
    answer = await queue.node.queue_browse.queue_stats(request, queue.node.call())
    assert [(one.partition, one.error.code) for one in answer.partitions] == [(0, pb.OK), (7, pb.UNKNOWN_PARTITION)]


async def test_the_metrics_of_the_catalog_are_those_of_a_led_partition(queue: Queue) -> None:
    await fill(queue)
    samples = dict(queue.partition.samples())
    assert samples.keys() == {metric.name for metric in SECTIONS["Queues led by the broker"]}
    assert samples["raftmq_queue_ready_messages"] == 3
    queue.node.lose_leadership(queue.partition.replica.group_id)
    assert not list(queue.partition.samples())
