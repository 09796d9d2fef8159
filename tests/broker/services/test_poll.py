"""Long polls are woken by new records, end in time, and leave no callbacks."""

from __future__ import annotations

import asyncio

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.log import PartitionLog
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId, NodeId, Term

from tests.support.broker.harness import batch, poll_request, running


async def _parked(node, count=1):
    while node.log.parked_polls < count:
        await asyncio.sleep(0)


async def test_available_records_are_answered_immediately():
    async with running() as node:
        topic = await node.topic()
        data = batch(3, sequence=0)
        await node.append(topic, data)
        answer = await node.log.poll(poll_request(topic, 0, max_wait_ms=60_000), node.call())
        (result,) = answer.partitions
        assert list(result.batches) == [data]
        assert list(result.base_offsets) == [0]
        assert (result.log_start_offset, result.high_watermark) == (0, 3)
        assert result.append_times_ms == [node.clock_ms]
        assert result.leader_epoch == node.partition(topic).replica.term


async def test_a_poll_at_the_end_waits_and_the_next_record_wakes_it():
    async with running() as node:
        topic = await node.topic()
        poll = asyncio.create_task(node.log.poll(poll_request(topic, 0, max_wait_ms=60_000), node.call(60)))
        await _parked(node)
        await node.append(topic, batch(1, sequence=0))
        answer = await asyncio.wait_for(poll, 10)
        assert list(answer.partitions[0].base_offsets) == [0]
        assert node.log.parked_polls == 0


async def test_an_uncommitted_record_wakes_no_poll():
    async with running() as node:
        topic = await node.topic()
        poll = asyncio.create_task(node.log.poll(poll_request(topic, 0, max_wait_ms=60_000), node.call(60)))
        await _parked(node)
        node.hold_commits = True
        pending = asyncio.create_task(node.append(topic, batch(1, sequence=0)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not poll.done()
        node.release_commits()
        await pending
        assert list((await poll).partitions[0].base_offsets) == [0]


async def test_an_empty_poll_ends_with_an_empty_answer():
    async with running() as node:
        topic = await node.topic()
        answer = await node.log.poll(poll_request(topic, 0, max_wait_ms=5), node.call())
        assert not answer.partitions
        assert not (await node.log.poll(poll_request(topic, 0, max_wait_ms=0), node.call())).partitions


async def test_a_poll_ends_before_its_calls_deadline():
    async with running() as node:
        topic = await node.topic()
        answer = await node.log.poll(poll_request(topic, 0, max_wait_ms=60_000), node.call(0.06))
        assert not answer.partitions


async def test_a_poll_waits_for_as_many_bytes_as_it_asks_for():
    async with running() as node:
        topic = await node.topic()
        size = len(batch(1, body=b"x" * 100))
        request = poll_request(topic, 0, max_wait_ms=60_000, min_bytes=2 * size)
        poll = asyncio.create_task(node.log.poll(request, node.call(60)))
        await node.append(topic, batch(1, sequence=0, body=b"x" * 100))
        await _parked(node)
        assert not poll.done()
        await node.append(topic, batch(1, sequence=1, body=b"x" * 100))
        assert list((await asyncio.wait_for(poll, 10)).partitions[0].base_offsets) == [0, 1]


async def test_one_partition_of_many_wakes_the_poll_and_the_others_keep_no_callback():
    async with running() as node:
        topic = await node.topic(partitions=3)
        request = pb.PollRequest(max_wait_ms=60_000, max_bytes=1 << 20)
        for number in range(3):
            request.partitions.add(topic_id=topic.topic_id, partition=number)
        idle = node.partition(topic, 2).replica.wait_progress()
        for round_number in range(5):
            for part in request.partitions:
                part.offset = node.partition(topic, part.partition).high_watermark
            poll = asyncio.create_task(node.log.poll(request, node.call(60)))
            await _parked(node)
            appended = pb.PartitionAppend(
                topic_id=topic.topic_id, partition=1, batches=[batch(1, sequence=round_number)]
            )
            await node.log.append(pb.AppendRequest(partitions=[appended]), node.call())
            answer = await asyncio.wait_for(poll, 10)
            assert [p.partition for p in answer.partitions] == [1]
        assert not idle.done()
        assert not idle._callbacks  # the ended polls removed theirs
        assert not node.log.parked_polls


async def test_each_full_answer_begins_with_another_partition():
    async with running() as node:
        topic = await node.topic(partitions=2)
        request = pb.PollRequest(max_bytes=1)
        for number in range(2):
            part = pb.PartitionAppend(topic_id=topic.topic_id, partition=number, batches=[batch(1, sequence=0)])
            await node.log.append(pb.AppendRequest(partitions=[part]), node.call())
            request.partitions.add(topic_id=topic.topic_id, partition=number)
        seen = set()
        for _ in range(2):
            answer = await node.log.poll(request, node.call())
            assert len(answer.partitions) == 1
            assert len(answer.partitions[0].batches) == 1
            seen.add(answer.partitions[0].partition)
        assert seen == {0, 1}


async def test_more_polls_than_may_wait_are_throttled():
    async with running(Limits(parked_polls_max=1)) as node:
        topic = await node.topic()
        first = asyncio.create_task(node.log.poll(poll_request(topic, 0, max_wait_ms=60_000), node.call(60)))
        await _parked(node)
        with pytest.raises(RequestError) as raised:
            await node.log.poll(poll_request(topic, 0, max_wait_ms=60_000), node.call(60))
        assert raised.value.code == pb.THROTTLED
        assert raised.value.detail.retry_after_ms > 0
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert node.log.parked_polls == 0


async def test_a_leader_that_steps_down_refers_waiting_polls_to_its_successor():
    async with running() as node:
        topic = await node.topic()
        poll = asyncio.create_task(node.log.poll(poll_request(topic, 0, max_wait_ms=60_000), node.call(60)))
        await _parked(node)
        node.leadership.claim(GroupId(topic.partitions[0].group_id), Term(9), NodeId(2))
        node.lose_leadership(GroupId(topic.partitions[0].group_id), NodeId(2))
        answer = await asyncio.wait_for(poll, 10)
        assert answer.partitions[0].error.code == pb.NOT_LEADER
        assert answer.partitions[0].error.leader.address == "node-2:9400"


async def test_a_follower_serves_records_that_it_knows_to_be_committed():
    async with running() as node:
        topic = await node.topic()
        await node.append(topic, batch(1, sequence=0))
        node.lose_leadership(GroupId(topic.partitions[0].group_id))
        answer = await node.log.poll(poll_request(topic, 0), node.call())
        assert list(answer.partitions[0].base_offsets) == [0]


async def test_above_the_end_a_confirmed_leader_answers_out_of_range_and_others_wait():
    async with running() as node:
        topic = await node.topic()
        await node.append(topic, batch(1, sequence=0))
        answer = await node.log.poll(poll_request(topic, 5, max_wait_ms=60_000), node.call())
        error = answer.partitions[0].error
        assert error.code == pb.OFFSET_OUT_OF_RANGE
        assert error.high_watermark == 1
        node.lose_leadership(GroupId(topic.partitions[0].group_id))
        answer = await node.log.poll(poll_request(topic, 5, max_wait_ms=5), node.call())
        assert answer.partitions[0].error.code == pb.OFFSET_NOT_AVAILABLE
        assert answer.partitions[0].error.retriable


async def test_a_leader_that_cannot_confirm_its_end_reports_no_offset_out_of_range(monkeypatch):
    """It may have a successor with a longer log, and its reader's position must not be reset."""
    async with running() as node:
        topic = await node.topic()
        replica = node.partition(topic).replica

        async def deposed():
            raise RequestError(pb.NOT_LEADER, "a quorum did not confirm")

        monkeypatch.setattr(replica, "read_index", deposed)
        answer = await node.log.poll(poll_request(topic, 5, max_wait_ms=60_000), node.call())
        assert answer.partitions[0].error.code == pb.NOT_LEADER


async def test_below_the_start_every_replica_returns_the_log_start():
    async with running() as node:
        topic = await node.topic()
        await node.append(topic, batch(4, sequence=0))
        await node.partition(topic).delete_records(2, node.loop.time() + 5)
        node.lose_leadership(GroupId(topic.partitions[0].group_id))
        answer = await node.log.poll(poll_request(topic, 1, max_wait_ms=60_000), node.call())
        assert answer.partitions[0].error.code == pb.OFFSET_OUT_OF_RANGE
        assert answer.partitions[0].error.log_start_offset == 2


async def test_a_deleted_topic_ends_its_polls_as_unknown():
    async with running() as node:
        topic = await node.topic()
        poll = asyncio.create_task(node.log.poll(poll_request(topic, 0, max_wait_ms=60_000), node.call(60)))
        await _parked(node)
        await node.admin.delete_topic(pb.DeleteTopicRequest(name="flights"), node.call())
        answer = await asyncio.wait_for(poll, 10)
        assert answer.partitions[0].error.code == pb.UNKNOWN_TOPIC


async def test_shutdown_answers_waiting_polls_immediately():
    async with running() as node:
        topic = await node.topic()
        poll = asyncio.create_task(node.log.poll(poll_request(topic, 0, max_wait_ms=60_000), node.call(60)))
        await _parked(node)
        node.log.begin_shutdown()
        assert not (await asyncio.wait_for(poll, 10)).partitions


async def test_a_batch_larger_than_asked_for_comes_alone():
    async with running() as node:
        topic = await node.topic()
        await node.append(topic, batch(1, sequence=0, body=b"x" * 5000), batch(1, sequence=1))
        request = poll_request(topic, 0)
        request.max_bytes = request.partitions[0].max_bytes = 10
        answer = await node.log.poll(request, node.call())
        assert list(answer.partitions[0].base_offsets) == [0]


async def test_a_poll_waits_for_its_metadata_revision_until_its_deadline():
    async with running() as node:
        topic = await node.topic()
        request = poll_request(topic, 0)
        request.metadata_revision = 1 << 40
        with pytest.raises(RequestError) as raised:
            await node.log.poll(request, node.call(0.01))
        assert raised.value.code == pb.NOT_READY


async def test_few_polls_at_once_wait_for_the_disk(monkeypatch):
    """Each may hold megabytes of its answer in that time, and thousands of polls can wait for old records."""
    reading, most = 0, 0
    read_cold = PartitionLog._read_cold

    async def counted(self, offset, bytes_max):
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        try:
            return await read_cold(self, offset, bytes_max)
        finally:
            reading -= 1

    monkeypatch.setattr(PartitionLog, "_read_cold", counted)
    async with running(Limits(cold_polls_max=2), recent_bytes_max=1) as node:
        topic = await node.topic()
        data = batch(1, sequence=0)
        for one in (data, batch(1, sequence=1), batch(1, sequence=2)):  # memory keeps the last one
            await node.append(topic, one)
        polls = [asyncio.create_task(node.log.poll(poll_request(topic, 0), node.call())) for _ in range(20)]
        polls[3].cancel()
        answers = await asyncio.gather(*polls, return_exceptions=True)
        assert [type(answer) for answer in answers].count(asyncio.CancelledError) == 1
        assert all(answer.partitions[0].batches[0] == data for answer in answers if isinstance(answer, pb.PollResponse))
        assert most == 2


async def test_a_poll_that_waited_for_the_disk_is_told_of_a_recovery_meanwhile(monkeypatch):
    """It read the records after the lost ones, and so its reader skipped these silently."""
    async with running(Limits(cold_polls_max=1), recent_bytes_max=1) as node:
        topic = await node.topic()
        for sequence in range(3):  # memory keeps the last one
            await node.append(topic, batch(1, sequence=sequence))
        slots = node.log._poll._cold_slots
        await slots.acquire()
        poll = asyncio.create_task(node.log.poll(poll_request(topic, 0), node.call()))
        await asyncio.sleep(0.01)
        assert not poll.done()

        def recovered(_self: PartitionLog, _offset: int, _group_id: int) -> None:
            raise RequestError(pb.OFFSET_OUT_OF_RANGE, "records from offset 0 on were lost")

        monkeypatch.setattr(PartitionLog, "check_reader", recovered)
        slots.release()
        assert [part.error.code for part in (await poll).partitions] == [pb.OFFSET_OUT_OF_RANGE]


async def test_an_answer_from_disk_has_the_refusals_of_other_partitions_once():
    async with running(recent_bytes_max=1) as node:
        topic = await node.topic()
        data = batch(1, sequence=0)
        for one in (data, batch(1, sequence=1), batch(1, sequence=2)):  # memory keeps the last one
            await node.append(topic, one)
        request = poll_request(topic, 0)
        for number in (7, 8):
            request.partitions.add(topic_id=topic.topic_id, partition=number, max_bytes=100)
        answer = await node.log.poll(request, node.call())
        found = {part.partition: part.error.code for part in answer.partitions}
        assert found == {0: pb.OK, 7: pb.UNKNOWN_PARTITION, 8: pb.UNKNOWN_PARTITION}
        assert len(answer.partitions) == 3
        assert node.log._metrics.refusals["Poll", "UNKNOWN_PARTITION"] == 2


async def test_a_poll_that_waits_for_records_has_no_task():
    async with running() as node:
        topic = await node.topic()
        outcomes: list[pb.PollResponse | Exception] = []
        request = poll_request(topic, 0, max_wait_ms=60_000)
        tasks = asyncio.all_tasks()
        poll = node.log.begin_poll(request, node.call(60), outcomes.append)
        assert asyncio.all_tasks() == tasks
        await node.append(topic, batch(1, sequence=0))
        (answer,) = outcomes
        assert isinstance(answer, pb.PollResponse)
        assert list(answer.partitions[0].base_offsets) == [0]
        assert poll.is_over
        assert node.log.parked_polls == 0


async def test_a_cancelled_poll_has_no_outcome():
    async with running() as node:
        topic = await node.topic()
        outcomes: list[pb.PollResponse | Exception] = []
        parked = node.log.begin_poll(poll_request(topic, 0, max_wait_ms=60_000), node.call(60), outcomes.append)
        request = poll_request(topic, 0)
        request.metadata_revision = 1 << 40
        in_task = node.log.begin_poll(request, node.call(60), outcomes.append)
        parked.cancel()
        in_task.cancel()
        assert node.log.parked_polls == 0
        await node.append(topic, batch(1, sequence=0))
        node.log.begin_shutdown()
        assert outcomes == []


async def test_a_defect_is_the_outcome_of_its_poll(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise KeyError("planted")

    async with running() as node:
        topic = await node.topic()
        outcomes: list[pb.PollResponse | Exception] = []
        node.log.begin_poll(poll_request(topic, 0, max_wait_ms=60_000), node.call(60), outcomes.append)
        monkeypatch.setattr(PartitionLog, "read_recent", fail)
        await node.append(topic, batch(1, sequence=0))
        assert [type(outcome) for outcome in outcomes] == [KeyError]


async def test_a_poll_that_reads_from_disk_when_the_broker_stops_does_not_wait_afterwards():
    async with running() as node:
        topic = await node.topic()
        await node.append(topic, batch(1, sequence=0))
        node.partition(topic).replica.log.recent.clear()
        request = poll_request(topic, 0, max_wait_ms=60_000)
        request.min_bytes = 100_000
        poll = asyncio.create_task(node.log.poll(request, node.call(60)))
        await asyncio.sleep(0)  # it has begun to read
        assert node.log.parked_polls == 0
        assert not poll.done()
        node.log.begin_shutdown()
        answer = await asyncio.wait_for(poll, 2)
        assert len(answer.partitions) == 1
