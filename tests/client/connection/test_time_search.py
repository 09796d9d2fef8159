"""A search by timestamp finds the very record, whatever the order of times, and whatever the headers of batches say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from hypothesis import given
from hypothesis import strategies as st
from raftmq.batch_header import BATCH_MAGIC, parse_header, seal
from raftmq.client.codec.batch import encode_body
from raftmq.client.connection.leader_calls import list_offsets
from raftmq.client.connection.resolver import Resolver
from raftmq.client.connection.time_search import OffsetAndTimestamp, find_record
from raftmq.client.connection.transport import GrpcTransport
from raftmq.types import TopicPartition

from tests.support.client.fake_broker import FakeCluster

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
NOTHING = OffsetAndTimestamp(-1, 0)


def stamped(times_ms: Sequence[int]) -> bytes:
    return encode_body([b"v"] * len(times_ms), None, list(times_ms)).seal()


def lying(times_ms: Sequence[int], latest_ms: int) -> bytes:
    """Return a batch whose header claims another latest time."""
    batch = stamped(times_ms)
    header = parse_header(batch)
    return seal(
        batch[64:],
        record_count=header.record_count,
        raw_body_bytes=header.raw_body_bytes,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=latest_ms,
        magic=BATCH_MAGIC,
    )


def fill(cluster: FakeCluster, partition: TopicPartition, *batches: bytes) -> None:
    for batch in batches:
        cluster.topics["t"].partitions[partition.partition].append(batch, 5000)


@asynccontextmanager
async def searching(cluster: FakeCluster) -> AsyncIterator[Resolver]:
    cluster.create_topic("t", partitions=3)
    resolver = Resolver(cluster.bootstrap_servers.split(","), GrpcTransport())
    await resolver.start(10)
    yield resolver
    await resolver.close()


async def test_the_first_record_at_or_after_a_time_is_found_in_its_batch(cluster: FakeCluster) -> None:
    async with searching(cluster) as resolver:
        fill(cluster, T0, stamped([5, 1, 9, 3]), stamped([2, 7]), stamped([20]))
        fill(cluster, T2, stamped([30, 40]))
        found = [
            await list_offsets(resolver, {T0: time_ms, T1: time_ms, T2: time_ms}, 10) for time_ms in (0, 6, 10, 31, 41)
        ]
    assert [each[T0] for each in found] == [(0, 5), (2, 9), (6, 20), NOTHING, NOTHING]
    assert [each[T1] for each in found] == [NOTHING] * 5
    assert [each[T2] for each in found] == [(0, 30), (0, 30), (0, 30), (1, 40), NOTHING]


async def test_a_batch_whose_record_was_trimmed_is_passed(cluster: FakeCluster) -> None:
    async with searching(cluster) as resolver:
        fill(cluster, T0, stamped([50, 1, 2]), stamped([3, 60]), stamped([70]))
        cluster.topics["t"].partitions[0].log_start = 1
        assert await list_offsets(resolver, {T0: 50}, 10) == {T0: (4, 60)}
        assert await list_offsets(resolver, {T0: 2}, 10) == {T0: (2, 2)}


async def test_a_header_that_lies_about_its_times_hides_no_later_batch(cluster: FakeCluster) -> None:
    async with searching(cluster) as resolver:
        fill(cluster, T0, lying([1, 2], 99), lying([3, 4], 99), stamped([5, 50]))
        assert await list_offsets(resolver, {T0: 50}, 10) == {T0: (5, 50)}
        assert await list_offsets(resolver, {T0: 51}, 10) == {T0: NOTHING}


async def test_brokers_that_do_not_know_timestamps_answer_by_append_time(cluster: FakeCluster) -> None:
    async with searching(cluster) as resolver:
        fill(cluster, T0, stamped([1, 2]))
        cluster.knows_timestamps = False
        assert await list_offsets(resolver, {T0: 100}, 10) == {T0: (0, 5000)}


async def test_large_batches_of_many_partitions_are_read_one_after_the_other(cluster: FakeCluster) -> None:
    """An answer has room for at least one batch, so that each poll brings the search on."""
    async with searching(cluster) as resolver:
        large = encode_body([b"v" * (3 << 20), b"v"], None, [1, 9]).seal()
        wanted = dict.fromkeys((T0, T1, T2), 5)
        for partition in wanted:
            cluster.topics["t"].partitions[partition.partition].batches.append((0, 2, large, 5000))
        assert await list_offsets(resolver, wanted, 10) == dict.fromkeys(wanted, (1, 9))


@given(
    times=st.lists(st.integers(-9, 9), min_size=1, max_size=9),
    base_offset=st.integers(0, 5),
    first_offset=st.integers(0, 15),
    wanted=st.integers(-10, 10),
)
def test_a_record_is_found_like_in_a_list(times: list[int], base_offset: int, first_offset: int, wanted: int) -> None:
    batch = stamped(times)
    expected = next(
        (pair for pair in enumerate(times, base_offset) if pair[0] >= first_offset and pair[1] >= wanted), None
    )
    assert find_record(batch, parse_header(batch), base_offset, first_offset, wanted) == expected


def test_of_a_batch_that_cannot_be_decoded_the_first_record_is_returned() -> None:
    """Its reader gets the error. Behind it, records would be missed in silence."""
    batch = seal(b"x" * 64, record_count=4, raw_body_bytes=64, base_timestamp_ms=1, max_timestamp_ms=9)
    assert find_record(batch, parse_header(batch), 10, 12, 5) == (12, 9)
