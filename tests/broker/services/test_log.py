"""The Log service handles streams, unknown topics, positions and producer ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.append import BATCHES_PER_PARTITION_MAX
from raftmq.broker.services.locator import PARTITIONS_PER_REQUEST_MAX
from raftmq.broker.services.log import EARLIEST, LATEST
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.log_store import TimeSearch
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId, Term

from tests.support.broker.harness import append_request, batch, poll_request, running


class Requests:
    """An append stream's requests, as a client sends them."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[pb.AppendRequest | None] = asyncio.Queue()

    def send(self, request: pb.AppendRequest | None) -> None:
        self._queue.put_nowait(request)

    async def __aiter__(self) -> AsyncIterator[pb.AppendRequest]:
        while (request := await self._queue.get()) is not None:
            yield request


async def test_a_stream_answers_every_request_by_its_correlation_id():
    async with running() as node:
        topic = await node.topic()
        requests = Requests()
        for number in range(10):
            requests.send(append_request(topic, batch(1, sequence=number), correlation_id=100 + number))
        requests.send(None)
        answers = {a.correlation_id: a async for a in node.log.append_stream(requests.__aiter__(), node.call())}
        assert {i: list(a.partitions[0].base_offsets) for i, a in answers.items()} == {100 + n: [n] for n in range(10)}


async def test_requests_of_a_stream_take_effect_in_order_before_any_commit():
    async with running() as node:
        topic = await node.topic()
        node.hold_commits = True
        requests = Requests()
        answers = node.log.append_stream(requests.__aiter__(), node.call())
        for number in range(5):
            requests.send(append_request(topic, batch(2, sequence=2 * number), correlation_id=number))
        requests.send(append_request(topic, batch(2, sequence=100), correlation_id=9))
        first = asyncio.ensure_future(anext(answers))
        for _ in range(20):
            await asyncio.sleep(0)
        # five batches are in the log and wait for their commit, so only the gap can be answered
        assert node.partition(topic).replica.core.last_index - node.partition(topic).replica.core.commit_index == 5
        node.release_commits()
        requests.send(None)
        found = [await first] + [answer async for answer in answers]
        by_id = {answer.correlation_id: answer.partitions[0] for answer in found}
        assert [list(by_id[n].base_offsets) for n in range(5)] == [[0], [2], [4], [6], [8]]
        assert by_id[9].error.code == pb.OUT_OF_ORDER_SEQUENCE


async def test_a_bad_request_does_not_end_a_stream():
    async with running() as node:
        topic = await node.topic()
        requests = Requests()
        requests.send(pb.AppendRequest(correlation_id=1))
        requests.send(append_request(topic, batch(1), correlation_id=2))
        requests.send(None)
        answers = {a.correlation_id: a async for a in node.log.append_stream(requests.__aiter__(), node.call())}
        assert answers[1].error.code == pb.INVALID_ARGUMENT
        assert list(answers[2].partitions[0].base_offsets) == [0]


async def test_shutdown_ends_a_stream_after_requests_in_flight_are_answered():
    async with running() as node:
        topic = await node.topic()
        node.hold_commits = True
        requests = Requests()
        requests.send(append_request(topic, batch(1), correlation_id=1))
        answers = node.log.append_stream(requests.__aiter__(), node.call())
        first = asyncio.ensure_future(anext(answers))
        for _ in range(10):
            await asyncio.sleep(0)
        node.log.begin_shutdown()
        node.release_commits()
        assert (await first).partitions[0].base_offsets == [0]
        assert [answer async for answer in answers] == []


async def test_a_stream_that_its_client_leaves_leaves_no_task():
    async with running() as node:
        await node.topic()
        before = asyncio.all_tasks()
        requests = Requests()
        answers = node.log.append_stream(requests.__aiter__(), node.call())
        waiting = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == before


async def test_unknown_topics_and_partitions_have_their_own_errors_and_spare_the_others():
    async with running() as node:
        topic = await node.topic()
        request = append_request(topic, batch(1))
        request.partitions.add(topic_id=999, partition=0, batches=[batch(1)])
        request.partitions.add(topic_id=topic.topic_id, partition=7, batches=[batch(1)])
        results = (await node.log.append(request, node.call())).partitions
        assert [r.error.code for r in results] == [pb.OK, pb.UNKNOWN_TOPIC, pb.UNKNOWN_PARTITION]
        assert list(results[0].base_offsets) == [0]


async def test_a_request_that_names_too_much_is_refused_before_anything_is_looked_up():
    async with running() as node:
        topic = await node.topic()
        crowd = [pb.PartitionAppend(topic_id=1) for _ in range(PARTITIONS_PER_REQUEST_MAX + 1)]
        for coroutine in (
            node.log.append(pb.AppendRequest(partitions=crowd), node.call()),
            node.log.append(pb.AppendRequest(), node.call()),
            node.log.poll(pb.PollRequest(), node.call()),
            node.log.list_offsets(pb.ListOffsetsRequest(), node.call()),
            node.log.delete_records(pb.DeleteRecordsRequest(), node.call()),
        ):
            with pytest.raises(RequestError) as raised:
                await coroutine
            assert raised.value.code == pb.INVALID_ARGUMENT
        result = await node.append(topic, *[batch(1, producer=0)] * (BATCHES_PER_PARTITION_MAX + 1))
        assert result.error.code == pb.INVALID_ARGUMENT
        assert node.partition(topic).high_watermark == 0


async def test_extreme_numbers_are_ordinary_positions():
    async with running() as node:
        topic = await node.topic()
        await node.append(topic, batch(1))
        answer = await node.log.poll(poll_request(topic, (1 << 64) - 1, max_wait_ms=4_000_000_000), node.call())
        assert answer.partitions[0].error.code == pb.OFFSET_OUT_OF_RANGE
        assert (await _offset(node, topic, (1 << 63) - 1)).offset == -1
        request = pb.DeleteRecordsRequest()
        request.partitions.add(topic_id=topic.topic_id, partition=0, before_offset=(1 << 63) - 1)
        request.partitions.add(topic_id=topic.topic_id, partition=0, before_offset=-(1 << 63))
        request.partitions.add(topic_id=(1 << 64) - 1, partition=(1 << 32) - 1)
        refused = await node.log.delete_records(request, node.call())
        assert [r.error.code for r in refused.partitions] == [
            pb.OFFSET_OUT_OF_RANGE, pb.OFFSET_OUT_OF_RANGE, pb.UNKNOWN_TOPIC,
        ]  # fmt: skip


async def test_an_unknown_topic_is_denied_only_when_metadata_can_be_confirmed():
    async with running() as node:
        node.lose_leadership(METADATA_GROUP_ID)
        request = pb.AppendRequest(partitions=[pb.PartitionAppend(topic_id=999, batches=[batch(1)])])
        (result,) = (await node.log.append(request, node.call())).partitions
        assert result.error.code in (pb.NO_LEADER, pb.NOT_LEADER)
        assert result.error.retriable


async def test_a_request_for_a_partition_hosted_elsewhere_names_its_leader():
    async with running() as node:
        topic = await node.topic()
        group_id = GroupId(topic.partitions[0].group_id)
        del node.partitions[group_id]
        node.leadership.claim(group_id, Term(8), NodeId(3))
        error = (await node.append(topic, batch(1))).error
        assert (error.code, error.leader.broker_id, error.leader.leader_epoch) == (pb.NOT_LEADER, 3, 8)
        node.leadership.forget(group_id)
        assert (await node.append(topic, batch(1))).error.code == pb.NO_LEADER


async def test_a_request_waits_for_the_metadata_revision_it_names():
    async with running() as node:
        topic = await node.topic()
        request = append_request(topic, batch(1))
        request.metadata_revision = node.metadata.state_machine.applied_index + 1
        pending = asyncio.create_task(node.log.append(request, node.call()))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not pending.done()
        await node.admin.alter_topic(pb.AlterTopicRequest(name="flights", set={"retention.ms": "5000"}), node.call())
        assert (await pending).partitions[0].base_offsets == [0]


async def _offset(node, topic, time_ms, **options):
    request = pb.ListOffsetsRequest()
    request.partitions.add(topic_id=topic.topic_id, partition=0, time_ms=time_ms, **options)
    return (await node.log.list_offsets(request, node.call())).partitions[0]


async def test_positions_are_found_by_name_and_by_append_time():
    async with running() as node:
        topic = await node.topic()
        start_ms = node.clock_ms
        for number in range(3):
            await node.append(topic, batch(2, sequence=2 * number))
            node.clock_ms += 1000
        assert (await _offset(node, topic, EARLIEST)).offset == 0
        assert (await _offset(node, topic, LATEST)).offset == 6
        found = await _offset(node, topic, start_ms + 1)
        assert (found.offset, found.append_time_ms) == (2, start_ms + 1000)
        assert (await _offset(node, topic, start_ms)).offset == 0
        assert (await _offset(node, topic, start_ms + 2001)).offset == -1
        assert (await _offset(node, topic, -3)).error.code == pb.INVALID_ARGUMENT
        request = pb.DeleteRecordsRequest()
        request.partitions.add(topic_id=topic.topic_id, partition=0, before_offset=3)
        (trimmed,) = (await node.log.delete_records(request, node.call())).partitions
        assert trimmed.log_start_offset == 3
        assert (await _offset(node, topic, EARLIEST)).offset == 3
        assert (await _offset(node, topic, 0)).offset == 3


async def test_batches_are_found_by_the_timestamps_of_their_records():
    """Append times are in order, and timestamps are not."""
    async with running() as node:
        topic = await node.topic()
        for number, latest_ms in enumerate((300, 100, 500, 400)):
            await node.append(topic, batch(2, sequence=2 * number, latest_ms=latest_ms))
            node.clock_ms += 1000
        stamped = {"time_kind": pb.TIMESTAMP}
        found = [(await _offset(node, topic, time_ms, **stamped)).offset for time_ms in (0, 300, 301, 500, 501)]
        assert found == [0, 0, 4, 4, -1]
        answer = await _offset(node, topic, 400, **stamped)
        assert (answer.time_kind, answer.append_time_ms) == (pb.TIMESTAMP, node.clock_ms - 2000)
        assert (await _offset(node, topic, 400, **stamped, from_offset=5)).offset == 5
        assert (await _offset(node, topic, 400, **stamped, from_offset=6)).offset == 6
        assert (await _offset(node, topic, 401, **stamped, from_offset=6)).offset == -1
        assert (await _offset(node, topic, 0, **stamped, from_offset=(1 << 64) - 1)).offset == -1
        assert (await _offset(node, topic, EARLIEST, **stamped)).time_kind == pb.APPEND_TIME


async def test_trimmed_batches_are_not_found_by_timestamp():
    async with running() as node:
        topic = await node.topic()
        for number, latest_ms in enumerate((900, 100, 200)):
            await node.append(topic, batch(2, sequence=2 * number, latest_ms=latest_ms))
        request = pb.DeleteRecordsRequest()
        request.partitions.add(topic_id=topic.topic_id, partition=0, before_offset=3)
        await node.log.delete_records(request, node.call())
        assert (await _offset(node, topic, 900, time_kind=pb.TIMESTAMP)).offset == -1
        assert (await _offset(node, topic, 100, time_kind=pb.TIMESTAMP)).offset == 3
        assert (await _offset(node, topic, 101, time_kind=pb.TIMESTAMP)).offset == 4


async def test_a_search_that_must_read_much_is_refused_until_it_has_read(monkeypatch):
    """The client then knows that the leader is alive, and asks again. Nothing is read twice."""
    async with running() as node:
        topic = await node.topic()
        await node.append(topic, batch(1, latest_ms=7))
        partition = node.partition(topic)
        find, steps = partition._store.find_timestamp, 3

        def find_slowly(*arguments):
            nonlocal steps
            steps -= 1
            return find(*arguments) if steps < 0 else TimeSearch(None, is_complete=False)

        monkeypatch.setattr(partition._store, "find_timestamp", find_slowly)
        monkeypatch.setattr("raftmq.broker.partitions.log._SEARCH_SECONDS_MAX", 0.0)
        errors = [(await _offset(node, topic, 7, time_kind=pb.TIMESTAMP)).error for _ in range(3)]
        assert all(error.code == pb.NOT_READY and error.retriable for error in errors)
        assert (await _offset(node, topic, 7, time_kind=pb.TIMESTAMP)).offset == 0


async def test_the_latest_offset_is_refused_by_a_replica_that_cannot_confirm_it():
    async with running() as node:
        topic = await node.topic()
        node.lose_leadership(GroupId(topic.partitions[0].group_id), NodeId(2))
        assert (await _offset(node, topic, LATEST)).error.code == pb.NOT_LEADER
        assert not (await _offset(node, topic, EARLIEST)).HasField("error")


async def test_anonymous_producer_ids_come_from_one_block_and_are_distinct():
    async with running() as node:
        before = node.metadata.state_machine.applied_index
        answers = await asyncio.gather(
            *(node.log.init_producer(pb.InitProducerRequest(), node.call()) for _ in range(50))
        )
        ids = {answer.producer_id for answer in answers}
        assert len(ids) == 50
        assert 0 not in ids
        assert {answer.epoch for answer in answers} == {0}
        assert node.metadata.state_machine.applied_index == before + 1


async def test_a_named_producer_fences_its_predecessor_and_keeps_its_id():
    async with running() as node:

        async def init(**fields):
            return await node.log.init_producer(pb.InitProducerRequest(**fields), node.call())

        first, second = await init(name="job"), await init(name="job")
        assert second.producer_id == first.producer_id
        assert second.epoch == first.epoch + 1
        assert (await init(name="job", epoch=second.epoch)).epoch == second.epoch
        with pytest.raises(RequestError) as raised:
            await init(name="job", epoch=first.epoch)
        assert raised.value.code == pb.PRODUCER_FENCED
        with pytest.raises(RequestError) as raised:
            await init(epoch=3)
        assert raised.value.code == pb.INVALID_ARGUMENT
        with pytest.raises(RequestError) as raised:
            await init(name="x" * 300)
        assert raised.value.code == pb.INVALID_ARGUMENT


async def test_producers_that_share_a_named_epoch_agree_on_its_stamp():
    async with running() as node:

        async def init(**fields):
            return await node.log.init_producer(pb.InitProducerRequest(**fields), node.call())

        assert (await init(name="job", epoch=1, stamp=b"a")).stamp == b"a"
        assert (await init(name="job", epoch=1, stamp=b"b")).stamp == b"a"
        assert (await init(name="job", epoch=1, stamp=b"b", replaces=b"a")).stamp == b"b"
        assert (await init(name="job", epoch=2)).stamp == b""
        for fields in ({"stamp": b"a"}, {"name": "job", "replaces": b""}):
            with pytest.raises(RequestError) as raised:
                await init(**fields)
            assert raised.value.code == pb.INVALID_ARGUMENT


async def test_a_node_that_does_not_lead_asks_the_metadata_leader_for_producer_ids():
    async with running() as node:
        node.lose_leadership(METADATA_GROUP_ID, NodeId(2))
        node.forwarder.answer = pb.InitProducerResponse(producer_id=77)
        assert (await node.log.init_producer(pb.InitProducerRequest(), node.call())).producer_id == 77
        ((node_id, path, _),) = node.forwarder.calls
        assert (node_id, path) == (2, "/raftmq.v1.Log/InitProducer")
        with pytest.raises(RequestError) as raised:
            await node.log.init_producer(pb.InitProducerRequest(), node.call(is_forwarded=True))
        assert raised.value.code == pb.NOT_LEADER
