"""A named producer with a successor is refused in every partition, even where the successor never writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.producer_fence import METADATA_AGE_SECONDS_MAX
from raftmq.client.base import settings
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID

from tests.support.broker.harness import Harness, append_request, batch, running


async def init(node: Harness, **fields: Any) -> pb.InitProducerResponse:
    return await node.log.init_producer(pb.InitProducerRequest(name="job", **fields), node.call())


async def append(node: Harness, topic: pb.Topic, *batches: bytes) -> pb.PartitionAppendResult:
    answer = await node.log.append(append_request(topic, *batches), node.call())
    return answer.partitions[0]


async def fence(node: Harness, answer: pb.InitProducerResponse, seconds: float = 10.0) -> pb.FenceProducerResponse:
    request = pb.FenceProducerRequest(
        producer_id=answer.producer_id, epoch=answer.epoch << 32, metadata_revision=answer.metadata_revision
    )
    return await node.log.fence_producer(request, node.call(seconds))


def grow_old(node: Harness, seconds: float = METADATA_AGE_SECONDS_MAX + 1) -> int:
    """Age the last confirmation of the node's metadata by this time."""
    node.metadata.reads.confirmed_ns = node.boottime_ns() - int(seconds * 1e9)
    return node.metadata.reads.confirmed_ns


async def test_a_zombie_is_refused_where_its_successor_never_wrote():
    async with running() as node:
        topic = await node.topic()
        first = await init(node)
        assert list((await append(node, topic, batch(producer=first.producer_id))).base_offsets) == [0]
        second = await init(node)
        assert (second.producer_id, second.epoch) == (first.producer_id, 1)
        for sequence in (1, 5):  # the next sequence, and one after a gap
            refused = await append(node, topic, batch(producer=first.producer_id, sequence=sequence))
            assert (refused.error.code, refused.error.outcome) == (pb.PRODUCER_FENCED, pb.NOT_APPLIED)
        # an epoch that the producer raised by itself is its own, not the name's
        refused = await append(node, topic, batch(producer=first.producer_id, epoch=7))
        assert refused.error.code == pb.PRODUCER_FENCED
        accepted = await append(node, topic, batch(producer=second.producer_id, epoch=1 << 32))
        assert list(accepted.base_offsets) == [1]


async def test_a_zombie_is_refused_in_a_partition_that_never_heard_of_either():
    async with running() as node:
        topic = await node.topic()
        first = await init(node)
        await init(node)
        assert (await append(node, topic, batch(producer=first.producer_id))).error.code == pb.PRODUCER_FENCED


async def test_batches_written_by_a_zombie_are_still_acknowledged_to_it():
    """Its answer was lost, and it repeats the batch. The answer "not written" would be wrong."""
    async with running() as node:
        topic = await node.topic()
        first = await init(node)
        written = batch(producer=first.producer_id, count=3)
        await append(node, topic, written)
        await init(node)
        repeated = await append(node, topic, written, batch(producer=first.producer_id, sequence=3))
        assert list(repeated.base_offsets) == [0]
        assert repeated.error.code == pb.PRODUCER_FENCED


async def test_requested_epochs_are_those_of_the_batches():
    """Spark's sink does this: a batch's id is the epoch."""
    async with running() as node:
        topic = await node.topic()
        producer = (await init(node, epoch=7)).producer_id
        assert (await init(node, epoch=7)).producer_id == producer
        assert list((await append(node, topic, batch(producer=producer, epoch=7))).base_offsets) == [0]
        await init(node, epoch=8)
        refused = await append(node, topic, batch(producer=producer, epoch=7, sequence=1))
        assert refused.error.code == pb.PRODUCER_FENCED
        assert list((await append(node, topic, batch(producer=producer, epoch=8))).base_offsets) == [1]


async def test_a_repeated_request_gets_the_same_epoch_and_fences_no_producer():
    async with running() as node:
        answers = [await init(node, stamp=stamp) for stamp in (b"a", b"a", b"b", b"b", b"a")]
        assert [answer.epoch for answer in answers] == [0, 0, 1, 1, 2]


async def test_a_broker_with_old_metadata_confirms_it_before_it_accepts_a_named_batch():
    async with running() as node:
        topic = await node.topic()
        producer = (await init(node)).producer_id
        before = grow_old(node)
        answers = await asyncio.gather(
            *(append(node, topic, batch(producer=producer, sequence=sequence)) for sequence in range(4))
        )
        assert [list(answer.base_offsets) for answer in answers] == [[0], [1], [2], [3]]
        assert (node.metadata.reads.confirmed_ns or 0) > before


async def test_metadata_is_refreshed_before_it_is_too_old():
    async with running() as node:
        topic = await node.topic()
        producer = (await init(node)).producer_id
        await append(node, topic, batch(producer=producer))
        before = grow_old(node, 0.6 * METADATA_AGE_SECONDS_MAX)
        answering = asyncio.ensure_future(append(node, topic, batch(producer=producer, sequence=1)))
        assert list((await answering).base_offsets) == [1], "it was accepted immediately"
        await node.metadata.reads.refresh()
        assert (node.metadata.reads.confirmed_ns or 0) > before


async def test_a_broker_that_was_suspended_confirms_its_metadata_before_it_accepts_a_named_batch():
    """The loop's clock stood still, so that the confirmation seemed recent. In the meantime a successor may have been started."""
    async with running() as node:
        topic = await node.topic()
        producer = (await init(node)).producer_id
        await append(node, topic, batch(producer=producer))
        reads, before = node.metadata.reads, node.boottime_ns()
        assert reads.is_confirmed_within(METADATA_AGE_SECONDS_MAX)
        node.clock_ms += 60_000
        assert not reads.is_confirmed_within(METADATA_AGE_SECONDS_MAX)
        assert list((await append(node, topic, batch(producer=producer, sequence=1))).base_offsets) == [1]
        assert (reads.confirmed_ns or 0) > before


async def test_a_broker_that_cannot_confirm_its_metadata_accepts_no_named_batch():
    """It may be cut off from brokers that know of a successor. The refusal is definite and retriable, and delays no other producer."""
    async with running() as node:
        topic = await node.topic()
        producer = (await init(node)).producer_id
        await node.metadata.reads.refresh()
        node.lose_leadership(METADATA_GROUP_ID)
        assert list((await append(node, topic, batch(producer=producer))).base_offsets) == [0], "recent enough"
        grow_old(node)
        refused = (await append(node, topic, batch(producer=producer, sequence=1))).error
        assert (refused.code, refused.retriable, refused.outcome) == (pb.NOT_READY, True, pb.NOT_APPLIED)
        assert list((await append(node, topic, batch(producer=5))).base_offsets) == [1], "without a name"
        repeated = await append(node, topic, batch(producer=producer))
        assert list(repeated.base_offsets) == [0], "written before"
        node.campaign(METADATA_GROUP_ID)
        while not node.metadata.is_leader:
            await asyncio.sleep(0)
        assert list((await append(node, topic, batch(producer=producer, sequence=1))).base_offsets) == [2]


async def test_fencing_waits_for_batches_accepted_before():
    async with running() as node:
        topic = await node.topic()
        first = await init(node)
        await node.metadata.reads.refresh()
        node.hold_commits = True
        under_way = asyncio.ensure_future(append(node, topic, batch(producer=first.producer_id)))
        await asyncio.sleep(0)
        partition = node.partition(topic)
        # the name gets its next epoch elsewhere, because commits are held here, those of the metadata too
        settling = asyncio.ensure_future(partition.appends.settle(first.producer_id, 1 << 32, node.loop.time() + 10))
        others = asyncio.ensure_future(partition.appends.settle(first.producer_id, 0, node.loop.time() + 10))
        for _ in range(10):
            await asyncio.sleep(0)
        assert (settling.done(), others.done()) == (False, True)
        with pytest.raises(RequestError) as raised:
            await partition.appends.settle(first.producer_id, 1 << 32, node.loop.time() + 0.01)
        assert raised.value.code == pb.REQUEST_TIMED_OUT
        node.release_commits()
        await settling
        assert partition.high_watermark == 1
        assert list((await under_way).base_offsets) == [0]


async def test_fencing_waits_until_the_broker_knows_the_epoch_and_names_all_brokers():
    async with running() as node:
        await node.register(2, "uuid-2")
        answer = await init(node)
        assert list((await fence(node, answer)).addresses) == ["node-1:9400", "node-2:9400"]
        answer.metadata_revision = node.metadata.state_machine.applied_index + 1
        waiting = asyncio.ensure_future(fence(node, answer))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        await node.register(3, "uuid-3")
        assert len((await waiting).addresses) == 3


async def test_fencing_with_an_outdated_epoch_is_refused():
    async with running() as node:
        await init(node)
        second = await init(node)
        await init(node)
        with pytest.raises(RequestError) as raised:
            await fence(node, second)
        assert raised.value.code == pb.PRODUCER_FENCED


def test_the_sdk_waits_longer_than_a_broker_trusts_its_metadata():
    assert settings.PREDECESSOR_SECONDS >= 1.6 * METADATA_AGE_SECONDS_MAX


async def test_a_fence_waits_while_other_producers_write() -> None:
    """It waited inside the iteration over the batches in flight, which ended with an error as soon as another batch was accepted."""
    async with running() as node:
        topic = await node.topic()
        first = await init(node)
        node.hold_commits = True
        held = asyncio.ensure_future(append(node, topic, batch(producer=first.producer_id)))
        await asyncio.sleep(0.01)
        appends = node.partition(topic).appends
        settling = asyncio.ensure_future(appends.settle(first.producer_id, 1 << 32, node.loop.time() + 10))
        await asyncio.sleep(0.01)
        other = asyncio.ensure_future(append(node, topic, batch(producer=first.producer_id + 7)))
        await asyncio.sleep(0.01)
        node.release_commits()
        await settling
        assert list((await held).base_offsets) == [0]
        assert list((await other).base_offsets) == [1]
