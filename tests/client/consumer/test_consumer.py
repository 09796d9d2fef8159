from __future__ import annotations

import asyncio
import contextlib

import pytest
from raftmq import errors
from raftmq.batch_header import seal
from raftmq.client.base import settings as limits
from raftmq.client.codec.batch import encode_body
from raftmq.client.connection.time_search import OffsetAndTimestamp
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.consumer.partition_fetch import PartitionFetch
from raftmq.proto import queue_pb2 as pb
from raftmq.types import Record, TopicPartition

from tests.support.client.fake_broker import FakeBroker, FakeCluster
from tests.support.client.memory_transport import MemoryTransport

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


def consumer(cluster: FakeCluster, *topics: str, **settings: object) -> Consumer:
    settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50} | settings
    return Consumer(*topics, bootstrap_servers=cluster.bootstrap_servers, **settings)


def fill(cluster: FakeCluster, tp: TopicPartition, batches: int, records: int = 10, start: int = 0) -> list[bytes]:
    """Append batches with numbered values as a producer would, and return the values."""
    partition = cluster.topics[tp.topic].partitions[tp.partition]
    values = [b"%d" % (start + n) for n in range(batches * records)]
    for n in range(batches):
        chunk = values[n * records : (n + 1) * records]
        partition.append(encode_body(chunk, None, 1000 + n).seal(), 5000 + n)
    cluster.changed()
    return values


async def read(c: Consumer, count: int, **arguments: object) -> dict[TopicPartition, list[Record]]:
    found: dict[TopicPartition, list[Record]] = {}
    async with asyncio.timeout(10):
        while sum(map(len, found.values())) < count:
            for tp, records in (await c.getmany(timeout_ms=1000, **arguments)).items():
                found.setdefault(tp, []).extend(records)
    return found


async def wait_polls(cluster: FakeCluster, count: int) -> None:
    async with cluster.polled:
        await cluster.polled.wait_for(lambda: len(cluster.poll_requests) >= count)


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


# ---------------------------------------------------------------------------------------------------------------- reading


async def test_everything_is_read_in_order_from_every_partition(cluster: FakeCluster):
    cluster.create_topic("t", partitions=3)
    expected = {tp: fill(cluster, tp, 7, 13, start=1000 * tp.partition) for tp in (T0, T1, T2)}
    async with consumer(cluster, "t") as c:
        assert c.assignment() == {T0, T1, T2}
        found = await read(c, 3 * 91)
    assert {tp: values(records) for tp, records in found.items()} == expected
    for tp, records in found.items():
        assert [record.offset for record in records] == list(range(91))
        assert {(record.topic, record.partition) for record in records} == {tp}
        assert [record.timestamp for record in records[::13]] == [1000 + n for n in range(7)]


@pytest.mark.parametrize(("reset", "position"), [("latest", 10), ("earliest", 0), ("none", None)])
async def test_a_topic_that_is_subscribed_later_begins_where_the_reset_policy_says(
    cluster: FakeCluster, reset: str, position: int | None
):
    """Its partitions were taken for new ones, whose records are all read, as those of topics that are created later."""
    cluster.create_topic("t")
    fill(cluster, T0, 1)
    async with consumer(cluster, auto_offset_reset=reset) as c:
        c.subscribe(["t", "later"])
        if position is None:
            with pytest.raises(errors.NoPositionError):
                await c.position(T0)
        else:
            assert await c.position(T0) == position
        cluster.create_topic("later")
        fill(cluster, TopicPartition("later", 0), 1)
        later = TopicPartition("later", 0)
        async with asyncio.timeout(10):
            while later not in c.assignment():
                await asyncio.sleep(0.01)
        assert await c.position(later) == 0


@pytest.mark.parametrize("polls_max", [1, 4])
async def test_a_request_has_no_more_partitions_than_brokers_accept(cluster: FakeCluster, monkeypatch, polls_max: int):
    """A reader of thousands of partitions of one broker needs several requests, and each partition gets its turn."""
    monkeypatch.setattr(limits, "REQUEST_PARTITIONS_MAX", 2)
    monkeypatch.setattr(limits, "POLLS_IN_FLIGHT_MAX", polls_max)
    cluster.create_topic("t", partitions=12)
    asked: list[int] = []
    list_offsets = FakeBroker.ListOffsets

    async def counted(broker, request, context):
        asked.append(len(request.partitions))
        return await list_offsets(broker, request, context)

    monkeypatch.setattr(FakeBroker, "ListOffsets", counted)
    transport = MemoryTransport(cluster)
    usual = {"bootstrap_servers": transport.addresses, "transport": transport, "fetch_max_wait_ms": 50}
    async with Consumer("t", auto_offset_reset="latest", **usual) as c:
        for number in range(12):
            fill(cluster, TopicPartition("t", number), 1, 1)
        assert len(await read(c, 12)) == 12
    assert asked == [2] * 6
    assert max(len(request.partitions) for _, request in cluster.poll_requests) == 2


@pytest.mark.parametrize("how", ["looked up", "sought", "given back"])
async def test_the_first_poll_names_the_group_in_which_its_position_was_found(cluster: FakeCluster, how: str):
    """Otherwise a recovery before that poll, after which other records have the lost ones' offsets, would let the reader skip them."""
    cluster.create_topic("t")
    fill(cluster, T0, 1)
    partition = cluster.topics["t"].partitions[0]
    group_id = partition.group_id
    async with consumer(cluster) as c:
        c.assign([T0])
        c.pause(T0)
        assert await c.position(T0) == 0
        if how == "sought":
            await c.seek(T0, 3)
        elif how == "given back":
            c.resume(T0)
            await read(c, 8, max_records=8)
            c.pause(T0)
            c._assignment.give_back({T0: 4})
        async with asyncio.timeout(5):
            while c._fetcher.polls_in_flight:
                await asyncio.sleep(0.01)
        partition.group_id += 1000
        cluster.changed()
        async with asyncio.timeout(5):
            while c._resolver.present_group(group_id) == group_id:
                await c._resolver.wait_change(1)
        cluster.poll_requests.clear()
        c.resume(T0)
        await wait_polls(cluster, 1)
        (asked,) = cluster.poll_requests[0][1].partitions
        assert (asked.offset, asked.group_id) == ({"looked up": 0, "sought": 3, "given back": 4}[how], group_id)


@pytest.mark.parametrize("seek", [Consumer.seek_to_beginning, Consumer.seek_to_end])
async def test_a_position_that_is_looked_up_during_a_recovery_is_of_the_earlier_group(
    cluster: FakeCluster, monkeypatch, seek
):
    """It named the new group, where other records may have the lost ones' offsets, so that the broker could not notice."""
    cluster.create_topic("t")
    fill(cluster, T0, 1)
    partition = cluster.topics["t"].partitions[0]
    group_id = partition.group_id
    list_offsets = FakeBroker.ListOffsets
    looked_up, recovered = asyncio.Event(), asyncio.Event()
    recovered.set()

    async def late(broker, request, context):
        answer = await list_offsets(broker, request, context)
        looked_up.set()
        await recovered.wait()
        return answer

    monkeypatch.setattr(FakeBroker, "ListOffsets", late)
    transport = MemoryTransport(cluster)
    usual = {"bootstrap_servers": transport.addresses, "transport": transport, "fetch_max_wait_ms": 50}
    async with Consumer(auto_offset_reset="earliest", **usual) as c:
        c.assign([T0])
        c.pause(T0)
        assert await c.position(T0) == 0
        looked_up.clear()
        recovered.clear()
        seeking = asyncio.ensure_future(seek(c))
        await asyncio.wait_for(looked_up.wait(), 5)
        partition.group_id += 1000
        cluster.changed()
        async with asyncio.timeout(5):
            while c._resolver.present_group(group_id) == group_id:
                await c._resolver.wait_change(1)
        recovered.set()
        await seeking
        cluster.poll_requests.clear()
        c.resume(T0)
        await wait_polls(cluster, 1)
        (asked,) = cluster.poll_requests[0][1].partitions
        assert asked.group_id == group_id


async def test_getmany_returns_an_empty_dictionary_without_records(cluster: FakeCluster):
    cluster.create_topic("t")
    async with consumer(cluster, "t") as c:
        assert await c.getmany() == {}
        assert await c.getmany(timeout_ms=80) == {}


async def test_getmany_returns_nothing_without_an_assignment(cluster: FakeCluster):
    async with consumer(cluster) as c:
        assert await c.getmany(timeout_ms=10) == {}
        assert c.assignment() == frozenset()


async def test_latest_reads_the_records_written_after_the_start(cluster: FakeCluster):
    cluster.create_topic("t")
    fill(cluster, T0, 2)
    async with consumer(cluster, "t", auto_offset_reset="latest") as c:
        fill(cluster, T0, 1, start=500)
        found = await read(c, 10)
        assert [record.offset for record in found[T0]] == list(range(20, 30))


async def test_max_records_splits_batches_without_losing_records(cluster: FakeCluster):
    cluster.create_topic("t")
    expected = fill(cluster, T0, 5, 100)
    async with consumer(cluster, "t", max_poll_records=64) as c:
        found = []
        while len(found) < 500:
            part = await c.getmany(timeout_ms=1000, max_records=7 if len(found) < 100 else None)
            assert 0 < len(part[T0]) <= (7 if len(found) < 100 else 64)
            found += values(part[T0])
            assert await c.position(T0) == len(found)
    assert found == expected


async def test_the_high_watermark_is_that_of_the_leaders_last_answer(cluster: FakeCluster):
    cluster.create_topic("t")
    async with consumer(cluster, "t") as c:
        assert c.highwater(T0) is None
        fill(cluster, T0, 2)
        await read(c, 20)
        assert c.highwater(T0) == (await c.end_offsets([T0]))[T0] == 20
        with pytest.raises(errors.InvalidArgumentError, match="is not assigned"):
            c.highwater(T1)


async def test_iteration_yields_single_records_and_moves_the_position(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    fill(cluster, T0, 2)
    fill(cluster, T1, 2)
    seen: list[Record] = []
    async with consumer(cluster, "t") as c:
        async for record in c:
            seen.append(record)
            assert await c.position(TopicPartition(record.topic, record.partition)) == record.offset + 1
            if len(seen) == 40:
                break
    assert sorted((r.partition, r.offset) for r in seen) == [(p, n) for p in range(2) for n in range(20)]


async def test_closing_ends_iteration(cluster: FakeCluster):
    cluster.create_topic("t")
    fill(cluster, T0, 1)
    c = consumer(cluster, "t")
    await c.start()

    is_waiting = asyncio.Event()

    async def count() -> int:
        number = 0
        async for record in c:
            number += 1
            if record.offset == 9:
                is_waiting.set()
        return number

    counting = asyncio.create_task(count())
    await is_waiting.wait()
    await c.close()
    assert await counting == 10
    with pytest.raises(errors.ClosedClientError):
        await c.getmany()
    await c.close()


async def test_deserializers_are_not_called_for_none(cluster: FakeCluster):
    cluster.create_topic("t")
    batch = encode_body([b"1", None], [None, b"k"], 1, [(("h", b"x"),), ()]).seal()
    cluster.topics["t"].partitions[0].append(batch, 1)
    async with consumer(cluster, "t", value_deserializer=int, key_deserializer=bytes.decode) as c:
        (one, two) = (await read(c, 2))[T0]
    assert (one.key, one.value, one.headers) == (None, 1, (("h", b"x"),))
    assert (two.key, two.value, two.headers) == ("k", None, ())


async def test_a_deserializer_that_fails_loses_no_record(cluster: FakeCluster):
    """The records before it are returned first. Then every read fails until a seek."""
    cluster.create_topic("t")
    partition = cluster.topics["t"].partitions[0]
    partition.append(encode_body([b"0", b"1", b"bad", b"3"], None, 1).seal(), 1)
    partition.append(encode_body([b"4"], None, 1).seal(), 1)
    async with consumer(cluster, "t", value_deserializer=int) as c:
        assert values((await read(c, 1))[T0]) == [0, 1]
        for _ in range(2):
            assert await c.position(T0) == 2
            with pytest.raises(ValueError, match="bad") as raised:
                await c.getmany(timeout_ms=1000)
            assert raised.value.__notes__ == ["raised by a deserializer of t/0 at offset 2"]
        await c.seek(T0, 3)
        assert values((await read(c, 2))[T0]) == [3, 4]


async def test_a_deserializer_that_fails_once_is_asked_again_for_the_same_record(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    for tp in (T0, T1):
        fill(cluster, tp, 2, 3)
    failures = iter([ValueError("once")])

    def flaky(value: bytes) -> int:
        if int(value) == 4 and (error := next(failures, None)) is not None:
            raise error
        return int(value)

    found: dict[TopicPartition, list[object]] = {T0: [], T1: []}
    async with consumer(cluster, "t", value_deserializer=flaky) as c, asyncio.timeout(10):
        while sum(map(len, found.values())) < 12:
            with contextlib.suppress(ValueError):
                for tp, records in (await c.getmany(timeout_ms=1000, max_records=2)).items():
                    found[tp] += values(records)
    assert found == {T0: [*range(6)], T1: [*range(6)]}


async def test_iterating_stays_at_a_record_that_cannot_be_deserialized(cluster: FakeCluster):
    cluster.create_topic("t")
    cluster.topics["t"].partitions[0].append(encode_body([b"0", b"bad", b"2"], None, 1).seal(), 1)
    async with consumer(cluster, "t", value_deserializer=int) as c, asyncio.timeout(10):
        assert (await anext(c)).value == 0
        for _ in range(2):
            with pytest.raises(ValueError, match="bad"):
                await anext(c)
            assert await c.position(T0) == 1
        await c.seek(T0, 2)
        assert (await anext(c)).value == 2


async def test_a_new_record_arrives_without_waiting_for_the_poll_to_end(cluster: FakeCluster):
    cluster.create_topic("t")
    async with consumer(cluster, "t", fetch_max_wait_ms=10_000) as c:
        waiting = asyncio.create_task(c.getmany(timeout_ms=5000))
        await wait_polls(cluster, 1)
        fill(cluster, T0, 1)
        async with asyncio.timeout(4):
            assert len((await waiting)[T0]) == 10


@pytest.mark.parametrize("has_data_ports", [False, True])
async def test_the_next_poll_is_sent_before_the_program_gets_the_records(*, has_data_ports: bool):
    async with FakeCluster(has_data_ports=has_data_ports) as cluster:
        cluster.create_topic("t")
        async with consumer(cluster, "t", fetch_max_wait_ms=10_000) as c, asyncio.timeout(10):
            for _ in range(3):
                reading = asyncio.create_task(c.getmany(timeout_ms=5000))
                polls = len(cluster.poll_requests)
                await wait_polls(cluster, max(polls, 1))
                fill(cluster, T0, 1)
                assert len((await reading)[T0]) == 10
                assert c.metrics().requests_in_flight == 1


async def test_a_partition_that_is_full_is_polled_again_when_its_batches_are_read(cluster: FakeCluster):
    cluster.create_topic("t")
    fill(cluster, T0, 5)
    async with consumer(cluster, "t", max_partition_fetch_bytes=1) as c, asyncio.timeout(10):
        assert [(await anext(c)).offset for _ in range(50)] == list(range(50))


async def test_prefetching_is_bounded(cluster: FakeCluster):
    cluster.create_topic("t")
    partition = cluster.topics["t"].partitions[0]
    for _ in range(300):
        partition.append(encode_body([bytes(10_000)], None, 1).seal(), 1)
    async with consumer(cluster, "t", max_partition_fetch_bytes=100_000) as c:
        got = 0
        while got < 300:
            got += len((await c.getmany(timeout_ms=1000, max_records=3))[T0])
            assert c._fetcher.partitions[T0].buffered_bytes < 250_000


# -------------------------------------------------------------------------------------------------------------- positions


async def test_seek_reaches_records_inside_a_batch(cluster: FakeCluster):
    cluster.create_topic("t")
    expected = fill(cluster, T0, 5)
    async with consumer(cluster, "t") as c:
        await read(c, 20)
        for offset in (33, 0, 7, 49):
            await c.seek(T0, offset)
            assert await c.position(T0) == offset
            assert values((await read(c, 1))[T0])[0] == expected[offset]
        with pytest.raises(errors.InvalidArgumentError):
            await c.seek(T0, -1)
        with pytest.raises(errors.InvalidArgumentError):
            await c.seek(T1, 1)


async def test_seek_to_beginning_and_end(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    fill(cluster, T0, 3)
    fill(cluster, T1, 2)
    cluster.topics["t"].partitions[0].log_start = 5
    async with consumer(cluster, "t", auto_offset_reset="latest") as c:
        assert await c.getmany(timeout_ms=60) == {}
        await c.seek_to_beginning()
        assert (await c.position(T0), await c.position(T1)) == (5, 0)
        assert await c.beginning_offsets([T0, T1]) == {T0: 5, T1: 0}
        assert await c.end_offsets([T0]) == {T0: 30}
        found = await read(c, 45)
        assert (found[T0][0].offset, found[T1][0].offset) == (5, 0)
        await c.seek_to_beginning(T1)
        await c.seek_to_end(T0)
        assert (await c.position(T0), await c.position(T1)) == (30, 0)


async def test_a_seek_during_iteration_takes_effect_immediately(cluster: FakeCluster):
    cluster.create_topic("t")
    fill(cluster, T0, 3)
    seen = []
    async with consumer(cluster, "t") as c:
        async for record in c:
            seen.append(record.offset)
            if len(seen) == 3:
                await c.seek(T0, 25)
            if len(seen) == 5:
                break
    assert seen == [0, 1, 2, 25, 26]


async def test_offsets_for_times_asks_the_leaders(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    fill(cluster, T0, 3)
    async with consumer(cluster, "t") as c:
        found = await c.offsets_for_times({T0: 1001, T1: 1001})
        assert found == {T0: OffsetAndTimestamp(10, 1001), T1: None}
        found = await c.offsets_for_times({T0: 5001, T1: 5001}, by_append_time=True)
        assert found == {T0: OffsetAndTimestamp(10, 5001), T1: None}
        with pytest.raises(errors.InvalidArgumentError):
            await c.offsets_for_times({T0: -1})
        with pytest.raises(errors.UnknownTopicError):
            await c.offsets_for_times({TopicPartition("nope", 0): 1})
        with pytest.raises(errors.UnknownPartitionError):
            await c.end_offsets([TopicPartition("t", 9)])


async def test_a_newly_added_partition_is_found(cluster: FakeCluster):
    cluster.create_topic("t")
    fill(cluster, T0, 1)
    async with consumer(cluster, "t") as c:
        assert await c.end_offsets([T0]) == {T0: 10}
        async with cluster.silence():
            cluster.add_partitions("t", 2)
            fill(cluster, T1, 3)
            assert await c.end_offsets([T1]) == {T1: 30}


async def test_pause_withholds_records_and_resume_returns_them(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    fill(cluster, T0, 3)
    fill(cluster, T1, 3)
    async with consumer(cluster, "t") as c:
        c.pause(T0)
        assert c.paused() == {T0}
        found = await read(c, 30)
        assert set(found) == {T1}
        assert await c.getmany(timeout_ms=60) == {}
        c.resume(T0)
        assert set(await read(c, 30)) == {T0}


async def test_getmany_of_some_partitions_leaves_the_others(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    fill(cluster, T0, 1)
    fill(cluster, T1, 1)
    async with consumer(cluster, "t") as c:
        assert set(await c.getmany(T1, timeout_ms=1000)) == {T1}
        assert await c.getmany(T1, timeout_ms=60) == {}
        assert set(await c.getmany(timeout_ms=1000)) == {T0}
        with pytest.raises(errors.InvalidArgumentError):
            await c.getmany(T2)


async def test_assign_keeps_the_positions_of_partitions_that_stay(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    fill(cluster, T0, 1)
    fill(cluster, T1, 1)
    async with consumer(cluster) as c:
        c.assign([T0])
        assert set(await read(c, 10)) == {T0}
        c.assign([T0, T1])
        assert set(await read(c, 10)) == {T1}
        assert await c.position(T0) == 10
        c.assign([])
        assert c.assignment() == frozenset()
    async with consumer(cluster, "t") as c:
        with pytest.raises(errors.InvalidArgumentError):
            c.assign([T0])


async def test_partitions_added_later_are_read_from_their_start(cluster: FakeCluster):
    cluster.create_topic("t")
    async with consumer(cluster, "t", auto_offset_reset="latest") as c:
        cluster.add_partitions("t", 2)
        expected = fill(cluster, T1, 1)
        assert values((await read(c, 10))[T1]) == expected
        assert c.assignment() == {T0, T1}


# ----------------------------------------------------------------------------------------------------------------- resets


def trim(cluster: FakeCluster, below: int) -> None:
    partition = cluster.topics["t"].partitions[0]
    partition.log_start = below
    partition.batches = [b for b in partition.batches if b[0] + b[1] > below]


@pytest.mark.parametrize(("policy", "first"), [("earliest", 40), ("latest", 50)])
async def test_a_position_below_the_log_start_is_reset(cluster: FakeCluster, policy: str, first: int):
    cluster.create_topic("t")
    fill(cluster, T0, 5)
    trim(cluster, 40)
    async with consumer(cluster, "t", auto_offset_reset=policy) as c:
        await c.seek(T0, 3)
        await c.getmany(timeout_ms=200, max_records=1)
        fill(cluster, T0, 1)
        found = await read(c, 1)
        assert found[T0][0].offset in (first, first + 1)


async def test_a_reset_to_the_earliest_uses_the_offset_of_the_error(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    """After a restart of all brokers, a replica may not know yet that a deletion was committed, and would serve the records again."""
    cluster.create_topic("t")
    fill(cluster, T0, 5)
    partition = cluster.topics["t"].partitions[0]
    everything = list(partition.batches)
    trim(cluster, 40)
    list_offsets = type(cluster.brokers[1]).ListOffsets
    has_restarted = False

    async def by_one_that_may_restart(self: object, request: pb.ListOffsetsRequest, context: object) -> object:
        if has_restarted:
            partition.log_start, partition.batches = 0, everything
        return await list_offsets(self, request, context)

    monkeypatch.setattr(type(cluster.brokers[1]), "ListOffsets", by_one_that_may_restart)
    await cluster.brokers[1].stop()
    await cluster.brokers[1].start()
    async with consumer(cluster, "t") as c:
        await read(c, 10)
        has_restarted = True
        await c.seek(T0, 30)
        found = await read(c, 10)
        assert [record.offset for record in found[T0]] == list(range(40, 50))


async def test_an_error_of_a_partition_does_not_keep_an_iteration_from_the_others(cluster: FakeCluster):
    """A program that goes on after the error got it again and again, and no record of another partition."""
    cluster.create_topic("t", partitions=3)
    for tp in (T0, T1, T2):
        fill(cluster, tp, 2)
    trim(cluster, 10)

    def deserialize(value: bytes) -> int:
        if value == b"99":
            raise ZeroDivisionError
        return int(value)

    fill(cluster, T1, 1, start=99)
    async with consumer(cluster, auto_offset_reset="none", value_deserializer=deserialize) as c:
        c.assign([T0, T1, T2])
        await c.seek(T0, 0)
        await c.seek(T1, 20)
        await c.seek(T2, 0)
        seen: dict[str, int] = {}
        async with asyncio.timeout(10):
            while seen.get("2", 0) < 20 or len(seen) < 3:
                try:
                    record = await anext(c)
                    name = str(record.partition)
                except (errors.OffsetOutOfRangeError, ZeroDivisionError) as error:
                    name = type(error).__name__
                seen[name] = seen.get(name, 0) + 1
                await asyncio.sleep(0.001)
        assert set(seen) == {"2", "OffsetOutOfRangeError", "ZeroDivisionError"}


async def test_a_topic_that_cannot_be_looked_up_does_not_keep_the_others_from_being_read(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    """Without a majority of the metadata no broker can say whether it exists."""
    cluster.create_topic("t")
    fill(cluster, T0, 1)

    async def refuse(self: FakeBroker, name: str, context) -> None:
        await self.refuse(context, pb.NOT_READY)

    async with consumer(cluster) as c:
        monkeypatch.setattr(FakeBroker, "_known", refuse)
        c.assign([TopicPartition("unknown", 0), T0])
        assert len((await read(c, 10))[T0]) == 10


async def test_without_a_reset_policy_reading_raises_an_error(cluster: FakeCluster):
    cluster.create_topic("t")
    fill(cluster, T0, 5)
    trim(cluster, 40)
    async with consumer(cluster, "t", auto_offset_reset="none") as c:
        with pytest.raises(errors.NoPositionError):
            await c.getmany(timeout_ms=1000)
        await c.seek(T0, 3)
        with pytest.raises(errors.OffsetOutOfRangeError) as caught:
            await c.getmany(timeout_ms=1000)
        assert (caught.value.log_start_offset, caught.value.high_watermark) == (40, 50)
        await c.seek(T0, caught.value.log_start_offset)
        assert len((await read(c, 10))[T0]) == 10


async def test_a_new_leader_is_followed_while_polling(cluster: FakeCluster):
    cluster.create_topic("t")
    fill(cluster, T0, 1)
    async with consumer(cluster, "t", fetch_max_wait_ms=5000) as c:
        await read(c, 10)
        await wait_polls(cluster, 2)  # the second is parked at broker 1
        cluster.move_leader("t", 0, broker=2)
        fill(cluster, T0, 1)
        async with asyncio.timeout(4):
            assert [r.offset for r in (await read(c, 10))[T0]] == list(range(10, 20))
        cluster.move_leader("t", 0, broker=1, is_announced=False)
        fill(cluster, T0, 1)
        async with asyncio.timeout(4):
            await read(c, 10)


async def test_a_node_that_comes_back_is_read_again(cluster: FakeCluster):
    cluster.create_topic("t")
    fill(cluster, T0, 1)
    async with consumer(cluster, "t") as c:
        await read(c, 10)
        await cluster.brokers[1].stop()
        assert await c.getmany(timeout_ms=50) == {}
        await cluster.brokers[1].start()
        fill(cluster, T0, 1)
        assert len((await read(c, 10))[T0]) == 10


async def test_metrics_count_what_was_fetched(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    fill(cluster, T0, 3)
    async with consumer(cluster, "t") as c:
        await read(c, 30)
        c.pause(T1)
        now = c.metrics()
        assert (now.records_total, now.batches_total, now.partitions, now.partitions_paused) == (30, 3, 2, 1)
        assert now.bytes_total == sum(len(batch) for _, _, batch, _ in cluster.topics["t"].partitions[0].batches)
        assert now.buffer_bytes == 0
        cluster.move_leader("t", 0, broker=2, is_announced=False)
        async with asyncio.timeout(30):
            while c.metrics().errors_total.get("NOT_LEADER", 0) < 1:  # one poll is refused, which says who leads
                await asyncio.sleep(0.01)
        fill(cluster, T0, 1)
        await read(c, 10)
    done = c.metrics()
    assert done.requests_total >= 2
    assert 0 < done.request_seconds_max <= done.request_seconds_sum


# ----------------------------------------------------------------------------------------------------------------- damage


def forge(cluster: FakeCluster, count: int) -> None:
    """Return a batch with a valid CRC and a body of another program."""
    batch = seal(b"\xff" * 64, record_count=count, raw_body_bytes=64, base_timestamp_ms=0, max_timestamp_ms=0)
    cluster.topics["t"].partitions[0].append(batch, 1)


@pytest.mark.parametrize("way", ["getmany", "iterate"])
async def test_a_corrupt_batch_is_reported_after_the_records_before_it_and_can_be_skipped(
    cluster: FakeCluster, way: str
):
    cluster.create_topic("t")
    fill(cluster, T0, 1)
    forge(cluster, 7)
    fill(cluster, T0, 1)
    async with consumer(cluster, "t") as c:

        async def take(count: int) -> list[Record]:
            if way == "getmany":
                return (await read(c, count))[T0]
            return [await anext(c) for _ in range(count)]

        assert [r.offset for r in await take(10)] == list(range(10))
        for _ in range(2):  # again and again, until it is skipped
            with pytest.raises(errors.CorruptBatchError) as caught:
                await take(1)
            error = caught.value
            assert (error.topic, error.partition, error.offset, error.next_offset) == ("t", 0, 10, 17)
        await c.seek(T0, error.next_offset)
        assert [r.offset for r in await take(10)] == list(range(17, 27))


async def test_a_batch_with_a_bad_checksum_is_never_returned(cluster: FakeCluster):
    cluster.create_topic("t")
    fill(cluster, T0, 1)
    partition = cluster.topics["t"].partitions[0]
    base, count, batch, at = partition.batches[0]
    damaged = bytearray(batch)
    damaged[-5] ^= 1
    partition.batches[0] = (base, count, bytes(damaged), at)
    async with consumer(cluster, "t") as c:
        with pytest.raises(errors.CorruptBatchError):
            await c.getmany(timeout_ms=1000)
        partition.batches[0] = (base, count, batch, at)  # it was the network's
        assert len((await read(c, 10))[T0]) == 10


async def test_a_deleted_topic_is_an_error(cluster: FakeCluster):
    cluster.create_topic("t")
    fill(cluster, T0, 1)
    async with consumer(cluster, "t") as c:
        await read(c, 10)
        cluster.delete_topic("t")
        with pytest.raises(errors.UnknownTopicError):
            await c.getmany(timeout_ms=3000)


async def test_unknown_topics_are_refused(cluster: FakeCluster):
    with pytest.raises(errors.UnknownTopicError):
        await consumer(cluster, "nope").start()
    async with consumer(cluster) as c:
        c.assign([TopicPartition("nope", 0)])
        with pytest.raises(errors.UnknownTopicError):
            await c.getmany(timeout_ms=1000)


# ----------------------------------------------------------------------------------------------------------- cancellation


@pytest.mark.parametrize("way", ["getmany", "iterate", "seek", "position"])
@pytest.mark.parametrize("point", range(0, 24, 2))
async def test_cancelling_anywhere_loses_and_repeats_nothing(way: str, point: int):
    async with FakeCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        expected = fill(cluster, T0, 4)
        async with consumer(cluster, "t") as c:
            got: list[Record] = []

            async def work() -> None:
                for _ in range(3):
                    if way == "getmany":
                        got.extend((await c.getmany(timeout_ms=1000, max_records=7)).get(T0, []))
                    elif way == "iterate":
                        got.append(await anext(c))
                    elif way == "seek":
                        await c.seek_to_beginning()
                    else:
                        await c.position(T0)

            task = asyncio.create_task(work())
            for _ in range(point):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert await c.position(T0) == len(got)
            if len(got) < 40:
                got += (await read(c, 40 - len(got)))[T0]
            assert values(got) == expected


async def test_no_task_is_left_behind(cluster: FakeCluster):
    cluster.create_topic("t")
    before = asyncio.all_tasks()
    async with consumer(cluster, "t", fetch_max_wait_ms=60_000) as c:
        await c.getmany(timeout_ms=20)
    assert not {task for task in asyncio.all_tasks() - before if task.get_name().startswith("raftmq")}


async def test_a_partition_without_a_leader_does_not_hold_up_the_others(cluster: FakeCluster):
    """One of the positions cannot be looked up, because the partition has no known leader."""
    cluster.create_topic("t", partitions=3)
    expected = fill(cluster, T0, 1)
    fill(cluster, T2, 1)
    cluster.topics["t"].partitions[1].leader = 0
    cluster.changed()
    async with consumer(cluster) as c:
        c.assign([T0, T1, T2])
        found = await read(c, 20)
        assert values(found[T0]) == expected
        assert T1 not in found
        cluster.move_leader("t", 1, 1)
        fill(cluster, T1, 1)
        assert set(await read(c, 10)) == {T1}


async def test_a_deleted_partition_does_not_affect_the_others(cluster: FakeCluster):
    cluster.create_topic("t")
    cluster.create_topic("gone")
    async with consumer(cluster, "t", "gone", auto_offset_reset="latest") as c:
        fill(cluster, T0, 1)
        async with asyncio.timeout(10):
            await read(c, 10)
            states = [PartitionFetch(tp, -2, c._fetcher.counters) for tp in (T0, TopicPartition("gone", 0))]
            for state in states:
                await c._fetcher._find_topic(state, 5)
            cluster.topics.pop("gone")  # the client has not heard of it
            await c._fetcher.prepare(states, 5)
        assert (states[0].position, states[0].error) == (0, None)
        assert isinstance(states[1].error, errors.UnknownTopicError)


async def test_records_buffered_during_a_pause_survive_a_reset_of_the_position(cluster: FakeCluster):
    cluster.create_topic("t")
    fill(cluster, T0, 2)
    async with consumer(cluster, "t") as c:
        await read(c, 1, max_records=1)
        c.pause(T0)
        (state,) = c._fetcher.partitions.values()
        c._fetcher._on_out_of_range(state, errors.OffsetOutOfRangeError(log_start_offset=500))
        c.resume(T0)
        found = await read(c, 19)
        assert [record.offset for record in found[T0]] == list(range(1, 20))
