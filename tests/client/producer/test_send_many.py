"""`send_many`: the records that it accepts, those that it refuses, and those that fail later."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq import errors
from raftmq.batch_header import parse_header
from raftmq.client.base import settings as limits
from raftmq.client.codec.batch import decode_records
from raftmq.client.producer.batch import BulkDelivery
from raftmq.client.producer.producer import Producer
from raftmq.client.producer.record_checks import check_records, record_sizes
from raftmq.proto import queue_pb2 as pb
from raftmq.serializers import Json
from raftmq.types import Record

from tests.support.client.fake_broker import FakeCluster, detail, records_in
from tests.support.client.memory_transport import MemoryTransport

TOO_LARGE = bytes(limits.RECORD_BYTES_MAX)


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster(brokers=1)
    cluster.create_topic("t", partitions=3)
    cluster.create_topic("one")
    return cluster


def producer_of(cluster: FakeCluster, **settings: Any) -> Producer[Any, Any]:
    transport = MemoryTransport(cluster)
    return Producer(bootstrap_servers=transport.addresses, transport=transport, **settings)


@pytest.fixture
async def producer(cluster: FakeCluster) -> AsyncIterator[Producer]:
    async with producer_of(cluster) as running:
        yield running


def stored(cluster: FakeCluster, topic: str = "one", partition: int = 0) -> list[Record]:
    found: list[Record] = []
    for base, _, batch, _ in cluster.topics[topic].partitions[partition].batches:
        found += decode_records(batch, parse_header(batch), topic, partition, base)
    return found


# ------------------------------------------------------------------------------------------------- headers and timestamps


async def test_records_may_have_their_own_headers_and_timestamps(cluster: FakeCluster, producer: Producer):
    records = [
        (b"a", b"1"),
        (None, b"2", [("trace", b"x"), ("trace", b"y")]),
        (b"c", None, (), 1_000),
        (b"d", b"4", [("h", b"")], -5),
        (b"e", b"5", None, None),
    ]
    delivery = await producer.send_many("one", records, timestamp_ms=77)
    await delivery
    assert [(r.key, r.value, r.headers, r.timestamp) for r in stored(cluster)] == [
        (b"a", b"1", (), 77),
        (None, b"2", (("trace", b"x"), ("trace", b"y")), 77),
        (b"c", None, (), 1_000),
        (b"d", b"4", (("h", b""),), -5),
        (b"e", b"5", (), 77),
    ]


async def test_headers_and_times_follow_their_records_through_partitions_and_batches(cluster: FakeCluster):
    records = [(b"k%d" % (n % 7), b"%05d" % n + bytes(n % 50), [("n", b"%d" % n)], n) for n in range(3000)]
    async with producer_of(cluster, max_batch_size=4096) as producer:
        spans = await (await producer.send_many("t", records))
        assert producer.metrics().buffer_bytes == 0
    assert sum(span.record_count for span in spans) == 3000
    found = [record for number in range(3) for record in stored(cluster, "t", number)]
    assert sorted((r.timestamp, r.key, r.value, r.headers) for r in found) == sorted(
        (n, key, value, tuple(headers)) for key, value, headers, n in records
    )
    for number in range(3):
        times = [record.timestamp for record in stored(cluster, "t", number)]
        assert times == sorted(times)


async def test_single_and_many_records_share_a_batch_with_their_own_headers(cluster: FakeCluster):
    async with producer_of(cluster, linger_ms=60_000) as producer:
        await producer.send("one", b"0", timestamp_ms=5)
        await producer.send_many("one", [(None, b"1", [("h", b"1")])], timestamp_ms=5)
        await producer.send_many("one", [(None, b"2")], timestamp_ms=5)
        await producer.send("one", b"3", timestamp_ms=6, headers=[("h", b"3")])
    assert len(cluster.topics["one"].partitions[0].batches) == 1
    assert [(r.value, r.timestamp, r.headers) for r in stored(cluster)] == [
        (b"0", 5, ()),
        (b"1", 5, (("h", b"1"),)),
        (b"2", 5, ()),
        (b"3", 6, (("h", b"3"),)),
    ]


# ----------------------------------------------------------------------------------------------------- which was refused


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ((None, "text"), TypeError),
        ((5, b"v"), TypeError),
        ((b"only one",), TypeError),
        ((b"k", b"v", [], 0, "too many"), TypeError),
        (None, TypeError),
        ((b"k", b"v", [("h", "no bytes")]), TypeError),
        ((b"k", b"v", (), 1.5), TypeError),
        ((b"k", b"v", (), 1 << 63), errors.InvalidArgumentError),
        ((b"k", TOO_LARGE), errors.RecordTooLargeError),
        ((b"k", b"v", [("h", TOO_LARGE)]), errors.RecordTooLargeError),
    ],
    ids=["value", "key", "short", "long", "nothing", "header", "time", "late", "large", "large header"],
)
@pytest.mark.parametrize("at", [0, 10, 700])
async def test_exactly_the_records_before_a_refused_one_are_accepted(
    cluster: FakeCluster, producer: Producer, bad: Any, error: type[Exception], at: int
):
    good = [(b"k", b"%d" % n) for n in range(at)]
    into = BulkDelivery()
    with pytest.raises(error) as raised:
        await producer.send_many("one", [*good, bad, (b"k", b"behind")], into=into)
    assert raised.value.__notes__ == [f"raised by record {at} of send_many; the records before it are accepted"]
    assert into.count == at
    await producer.flush()
    assert records_in(cluster.topics["one"].partitions[0]) == good
    assert producer.metrics().buffer_bytes == 0


async def test_an_exception_of_a_serializer_names_its_record(cluster: FakeCluster):
    def fragile(value: int) -> bytes:
        if value == 13:
            raise ZeroDivisionError
        return b"%d" % value

    async with producer_of(cluster, value_serializer=fragile, key_serializer=Json().serialize) as producer:
        into = BulkDelivery()
        with pytest.raises(ZeroDivisionError) as raised:
            await producer.send_many("one", [({"b": 1, "a": n}, n) for n in range(20)], into=into)
        assert "record 13" in raised.value.__notes__[0]
        with pytest.raises(TypeError, match="unsupported"):
            await producer.send_many("one", [(1, 50), (object(), 51)], into=into)
        assert into.count == 14
    assert [(r.key, r.value) for r in stored(cluster)] == [
        *[(b'{"a":%d,"b":1}' % n, b"%d" % n) for n in range(13)],
        (b"1", b"50"),
    ]


async def test_records_before_an_exception_of_the_iterable_are_written(cluster: FakeCluster, producer: Producer):
    def records() -> Iterator[tuple[None, bytes]]:
        for n in range(1000):
            yield None, b"%d" % n
        raise RuntimeError("the source broke")

    into = BulkDelivery()
    with pytest.raises(RuntimeError, match="the source broke"):
        await producer.send_many("one", records(), into=into)
    spans = await into
    assert sum(span.record_count for span in spans) == into.count > 0
    assert [r.value for r in stored(cluster)] == [b"%d" % n for n in range(into.count)]


@pytest.mark.parametrize("timestamp", [1.5, "now", 1 << 63, -(1 << 63)])
async def test_a_wrong_timestamp_is_refused_before_any_record_is_accepted(producer: Producer, timestamp: Any):
    """Otherwise it would fail where the batch is encoded, in the background, and end the producer."""
    for send in (
        producer.send("one", b"x", timestamp_ms=timestamp),
        producer.send_many("one", [], timestamp_ms=timestamp),
    ):
        with pytest.raises((TypeError, errors.InvalidArgumentError), match="timestamp_ms"):
            await send
    assert producer.metrics().buffer_bytes == 0
    assert (await producer.send_and_wait("one", b"y", timestamp_ms=-1)).timestamp == -1


# ------------------------------------------------------------------------------------------------------ which failed later


@pytest.mark.parametrize("buffer_memory", [1 << 20, 128 * 1024], ids=["roomy", "narrow"])
@pytest.mark.parametrize("with_keys", [True, False], ids=["keys", "no keys"])
async def test_failures_name_the_records_of_refused_batches(cluster: FakeCluster, with_keys: bool, buffer_memory: int):
    """Every third batch is refused. The missing records are exactly those that `failures` returns.

    With a small buffer, the first records have failed before the last are accepted.
    """
    refused: list[int] = []
    seen = 0

    def refuse(*_: object) -> pb.ErrorDetail | None:
        nonlocal seen
        seen += 1
        if seen % 3:
            return None
        refused.append(seen)
        return detail(pb.RECORD_TOO_LARGE)

    cluster.append_hook = refuse
    records = [(b"key%d" % (n % 11) if with_keys else None, b"%05d" % n + bytes(200)) for n in range(4000)]
    async with producer_of(cluster, max_batch_size=8192, buffer_memory=buffer_memory) as producer:
        delivery = await producer.send_many("t", records)
        with pytest.raises(errors.RecordTooLargeError):
            await delivery
        failures = delivery.failures()
        await producer.flush()
    assert refused
    assert len(failures) == len(refused)
    written = {record for partition in cluster.topics["t"].partitions for record in map(tuple, records_in(partition))}
    named: list[int] = []
    for failed in failures:
        assert isinstance(failed.error, errors.RecordTooLargeError)
        assert list(failed.indexes) == sorted(failed.indexes)
        named += failed.indexes
    assert len(set(named)) == len(named)
    assert [failed.indexes[0] for failed in failures] == sorted(failed.indexes[0] for failed in failures)
    missing = {n for n, record in enumerate(records) if record not in written}
    assert set(named) == missing


async def test_an_endless_send_many_uses_bounded_memory(cluster: FakeCluster):
    into = BulkDelivery()
    most = 0

    def records() -> Iterator[tuple[bytes, bytes]]:
        nonlocal most
        for n in range(60_000):
            most = max(most, len(into._pieces))
            yield b"%d" % n, bytes(500)

    async with producer_of(cluster, buffer_memory=1 << 20, max_batch_size=64 * 1024) as producer:
        await (await producer.send_many("t", records(), into=into))
    assert into.count == 60_000
    assert into._failed == []
    assert 0 < most < 20, "about what the buffer holds, of some 240 pieces"


async def test_a_written_delivery_has_no_failures(producer: Producer):
    delivery = await producer.send_many("t", [(b"a", b"1"), (None, b"2")])
    assert not delivery.done()
    assert delivery.failures() == []
    await delivery
    assert delivery.failures() == []


# ---------------------------------------------------------------------------------------------------------- partitioners


async def test_a_custom_partitioner_is_called_only_for_keys(cluster: FakeCluster):
    asked: list[tuple[bytes, int]] = []

    def by_region(key: bytes, partition_count: int) -> int:
        asked.append((key, partition_count))
        return {b"eu": 0, b"us": 1}.get(key.split(b"-")[0], 2)

    async with producer_of(cluster, partitioner=by_region) as producer:
        assert (await producer.send_and_wait("t", b"v", key=b"us-1")).partition == 1
        await (await producer.send_many("t", [(b"eu-2", b"v"), (None, b"v"), (b"asia-3", b"v")]))
        await producer.send_and_wait("t", b"v", key=b"us-1", partition=0)
        await producer.send_and_wait("t", b"v")
    assert asked == [(b"us-1", 3), (b"eu-2", 3), (b"asia-3", 3)]


@pytest.mark.parametrize(
    ("choice", "error"),
    [(-1, errors.UnknownPartitionError), (3, errors.UnknownPartitionError), ("0", TypeError), (None, TypeError)],
)
async def test_a_partitioner_cannot_choose_a_missing_partition(
    cluster: FakeCluster, choice: Any, error: type[Exception]
):
    """A list would interpret -1 as its last element."""
    async with producer_of(cluster, partitioner=lambda key, count: choice) as producer:
        with pytest.raises(error):
            await producer.send("t", b"v", key=b"k")
        into = BulkDelivery()
        with pytest.raises(error):
            await producer.send_many("t", [(b"k", b"v")], into=into)
        assert into.count == 0
        assert producer.metrics().buffer_bytes == 0
        assert (await producer.send_and_wait("t", b"v")).offset == 0


# ----------------------------------------------------------------------------------------------------- against slow twins

CELLS = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=5)), max_size=2)
RECORDS = st.lists(
    st.tuples(CELLS, CELLS)
    | st.tuples(CELLS, CELLS, HEADERS)
    | st.tuples(CELLS, CELLS, HEADERS, st.none() | st.integers(-(2**62), 2**62))
)


@given(RECORDS)
def test_columns_contain_the_records(records: list[tuple[Any, ...]]):
    columns = check_records(records, None, None)
    assert columns.refusal is None
    expected = [(*record, *((), None)[len(record) - 2 :]) for record in records]
    count = len(records)
    keys = columns.keys or [None] * count
    headers = columns.headers or [()] * count
    times = columns.timestamps or [None] * count
    assert list(zip(keys, columns.values, headers, times, strict=True)) == [
        (key, value, tuple(more), at) for key, value, more, at in expected
    ]
    assert columns.size == sum(record_sizes(columns.keys, columns.values, columns.headers))


@pytest.mark.parametrize("column", ["key", "value"])
async def test_a_serializer_that_raises_stop_iteration_fails_and_hides_no_record(cluster: FakeCluster, column: str):
    """It may come from `next` of an iterator at its end. The records from there on were lost without an error."""
    texts = iter([b"0", b"1"])

    def serialize(_: object) -> bytes:
        return next(texts)

    async with producer_of(cluster, **{f"{column}_serializer": serialize}) as p:
        with pytest.raises(RuntimeError, match=f"{column}_serializer raised StopIteration"):
            await p.send_many("one", [(b"k" if column == "key" else None, b"v")] * 4)
        await p.flush()
    assert len(records_in(cluster.topics["one"].partitions[0])) == 2
