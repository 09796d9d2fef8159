from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from raftmq import errors
from raftmq.batch_header import CODEC_LZ4, parse_header
from raftmq.client.codec.batch import decode_records, encode_body
from raftmq.client.codec.queue_batch import encode_messages
from raftmq.client.connection.resolver import Resolver, TopicInfo
from raftmq.client.connection.transport import GrpcTransport
from raftmq.client.producer.sequenced_append import NamedEpoch, SequencedAppender, StampClaim, tail_of
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeCluster, detail


@pytest.fixture
async def resolver(cluster: FakeCluster) -> AsyncIterator[Resolver]:
    cluster.create_topic("t", partitions=2)
    resolver = Resolver(cluster.bootstrap_servers, GrpcTransport())
    await resolver.start(10)
    yield resolver
    await resolver.close()


@pytest.fixture
async def topic(resolver: Resolver) -> TopicInfo:
    return await resolver.topic("t", 5)


def batch(first: int, count: int, producer_id: int = 7, epoch: int = 0, codec: int = 0) -> bytes:
    numbers = range(first, first + count)
    body = encode_body(
        [b"v%d" % n for n in numbers],
        [b"k%d" % n if n % 2 else None for n in numbers],
        [1000 + n for n in numbers],
        [(("h", b"%d" % n),) if n % 3 else () for n in numbers],
        codec,
    )
    return body.seal(producer_id, epoch, first, flags=3 << 8)


def values(cluster: FakeCluster, partition: int = 0) -> list[bytes | None]:
    return [
        record.value
        for base, _, data, _ in cluster.topics["t"].partitions[partition].batches
        for record in decode_records(data, parse_header(data), "t", partition, base)
    ]


def numbered(count: int) -> list[bytes]:
    return [b"v%d" % n for n in range(count)]


async def test_batches_are_appended_in_order_and_their_offsets_returned(cluster, resolver, topic):
    appender = SequencedAppender(resolver)
    assert await appender.append(topic, 1, [batch(0, 3), batch(3, 2), batch(5, 1)]) == [0, 3, 5]
    assert values(cluster, 1) == numbered(6)


async def test_records_written_under_the_same_sequences_are_not_written_again(cluster, resolver, topic):
    appender = SequencedAppender(resolver)
    await appender.append(topic, 0, [batch(0, 4), batch(4, 4)])
    assert await appender.append(topic, 0, [batch(0, 4), batch(4, 4), batch(8, 1)]) == [0, 4, 8]
    assert values(cluster) == numbered(9)


async def test_a_batch_that_overlaps_with_earlier_ones_is_continued_after_them(cluster, resolver, topic):
    appender = SequencedAppender(resolver)
    await appender.append(topic, 0, [batch(0, 4), batch(4, 4)])
    assert await appender.append(topic, 0, [batch(0, 6), batch(6, 6), batch(12, 1)]) == [-1, 8, 12]
    assert values(cluster) == numbered(13)


@pytest.mark.parametrize("codec", [0, CODEC_LZ4])
def test_the_tail_of_a_batch_is_its_last_records_under_their_sequences(codec):
    whole = batch(10, 10, codec=codec)
    tail = tail_of(whole, 17)
    header = parse_header(tail)
    assert (header.first_sequence, header.record_count, header.flags, header.codec) == (17, 3, 3 << 8, codec)
    assert (header.producer_id, header.producer_epoch) == (7, 0)
    expected = decode_records(whole, parse_header(whole), "t", 0, 10)[7:]
    assert decode_records(tail, header, "t", 0, 17) == expected
    for outside in (10, 20):
        with pytest.raises(errors.ProtocolError):
            tail_of(whole, outside)


def messages(first: int, count: int) -> bytes:
    names = [f"m{n}" for n in range(first, first + count)]
    return encode_messages([name.encode() for name in names], ids=names).seal(7, 0, first)


async def test_a_batch_of_messages_that_overlaps_with_earlier_ones_is_continued_after_them(cluster, resolver):
    (queue,) = cluster.create_queue("q")
    topic = await resolver.topic("q", 5)
    appender = SequencedAppender(resolver)
    await appender.append(topic, 0, [messages(0, 4)])
    assert await appender.append(topic, 0, [messages(0, 6), messages(6, 2)]) == [4, 6]
    assert [message.body for message in queue.messages.values()] == [b"m%d" % n for n in range(8)]
    with pytest.raises(errors.ProtocolError):
        tail_of(messages(0, 4), 4)


async def test_a_lost_answer_is_repeated_and_written_once(cluster, resolver, topic):
    hooks = iter(["drop", "swallow"])
    cluster.append_hook = lambda *_: next(hooks, None)
    assert await SequencedAppender(resolver).append(topic, 0, [batch(0, 2)]) == [0]
    assert values(cluster) == numbered(2)
    assert len(cluster.append_requests) == 3


async def test_a_new_leader_is_followed(cluster, resolver, topic):
    cluster.move_leader("t", 0, broker=2, is_announced=False)
    assert await SequencedAppender(resolver).append(topic, 0, [batch(0, 2)]) == [0]
    assert [broker for broker, _ in cluster.append_requests] == [1, 2]


async def test_a_retriable_refusal_after_some_batches_repeats_only_the_rest(cluster, resolver, topic):
    verdicts = iter([None, detail(pb.LEADERSHIP_LOST)])
    cluster.append_hook = lambda *_: next(verdicts, None)
    assert await SequencedAppender(resolver).append(topic, 0, [batch(0, 1), batch(1, 1), batch(2, 1)]) == [0, 1, 2]
    assert [len(request.partitions[0].batches) for _, request in cluster.append_requests] == [3, 2]


async def test_refusals_that_retries_cannot_cure_are_raised(cluster, resolver, topic):
    appender = SequencedAppender(resolver)
    with pytest.raises(errors.OutOfOrderSequenceError):
        await appender.append(topic, 0, [batch(5, 1)])
    await appender.append(topic, 0, [batch(0, 1, epoch=2)])
    with pytest.raises(errors.ProducerFencedError):
        await appender.append(topic, 0, [batch(0, 1, epoch=1)])
    with pytest.raises(errors.UnknownPartitionError):
        await appender.append(topic, 2, [batch(0, 1)])
    assert values(cluster) == numbered(1)


@pytest.mark.parametrize(("is_forgotten", "outcome"), [(True, "UNKNOWN"), (False, "NOT_APPLIED")])
async def test_a_gap_after_an_unanswered_attempt_is_definite_only_if_the_broker_is_certain(
    cluster, resolver, topic, is_forgotten, outcome
):
    """After one batch was written, the next attempt gets no answer, and the one after it is told that an earlier batch is missing."""
    partition = cluster.topics["t"].partitions[0]
    appender = SequencedAppender(resolver, request_timeout_seconds=0.2)
    await appender.append(topic, 0, [batch(0, 2)])

    def swallow_once(*_):
        cluster.append_hook = None
        if is_forgotten:
            partition.forget_producers()
        return "swallow"

    cluster.append_hook = swallow_once
    with pytest.raises(errors.OutOfOrderSequenceError) as raised:
        await appender.append(topic, 0, [batch(5, 1)])
    assert raised.value.outcome is errors.Outcome[outcome]


async def test_an_unacknowledged_append_may_be_written(cluster, resolver, topic):
    cluster.append_hook = lambda *_: detail(pb.THROTTLED)
    with pytest.raises(errors.DeliveryTimeoutError) as raised:
        await SequencedAppender(resolver, delivery_timeout_seconds=0.2).append(topic, 0, [batch(0, 1)])
    assert raised.value.outcome is errors.Outcome.UNKNOWN
    assert isinstance(raised.value.__cause__, errors.ThrottledError)


async def test_all_claims_of_a_named_epoch_get_the_same_stamp(cluster, resolver):
    appender = SequencedAppender(resolver)
    first = await appender.claim("job", 4, b"one")
    assert first == NamedEpoch(first.producer_id, 4, b"one")
    assert await appender.claim("job", 4, b"two") == first
    assert (await appender.claim("job", 4, b"two", b"one")).stamp == b"two"
    with pytest.raises(errors.ProducerFencedError):
        await appender.claim("job", 3)
    one, two = await asyncio.gather(appender.anonymous_id(), appender.anonymous_id())
    assert one != two


async def test_a_second_claim_is_made_only_with_the_first(cluster, resolver):
    appender = SequencedAppender(resolver)
    assert (await appender.claim("task", 4, b"mine", then=StampClaim("all", 4, b"1"))).then == b"1"
    assert (await appender.claim("task", 4, b"mine", then=StampClaim("all", 4, b"2", b"1"))).then == b"2"
    assert (await appender.claim("task", 4, b"mine", then=StampClaim("all", 4, b"3", b"0", 0))).then == b"2"
    assert (await appender.claim("task", 4, b"mine", then=StampClaim("bits", 4, b"b\x01"))).then == b"b\x01"
    assert (await appender.claim("task", 4, b"mine", then=StampClaim("bits", 4, b"b\x02", b"b", 1))).then == b"b\x03"
    lost = await appender.claim("task", 4, b"other", then=StampClaim("all", 4, b"3", b"2"))
    assert (lost.stamp, lost.then) == (b"mine", None)
    with pytest.raises(errors.ProducerFencedError):
        await appender.claim("task", 4, b"mine", then=StampClaim("all", 3, b"4"))


async def test_a_lookup_after_a_claim_is_not_older_than_the_claim(cluster, resolver):
    cluster.revision += 7
    await SequencedAppender(resolver).claim("job", 4)
    assert resolver.metadata_revision == cluster.revision
