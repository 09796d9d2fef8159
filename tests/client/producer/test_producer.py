from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from zlib import crc32

import pytest
from raftmq import errors
from raftmq.batch_header import parse_header
from raftmq.broker.services.locator import PARTITIONS_PER_REQUEST_MAX
from raftmq.client.base import settings as limits
from raftmq.client.producer.producer import Producer
from raftmq.client.producer.sequenced_append import SequencedAppender
from raftmq.fsm.producer_ids import REPLACEABLE_IDLE_MS
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeBroker, FakeCluster, detail, records_in


def producer(cluster: FakeCluster, **settings: object) -> Producer:
    return Producer(bootstrap_servers=cluster.bootstrap_servers, **settings)


def values_in(cluster: FakeCluster, topic: str, partition: int = 0) -> list[bytes | None]:
    return [value for _, value in records_in(cluster.topics[topic].partitions[partition])]


async def wait_requests(cluster: FakeCluster, count: int) -> None:
    async with cluster.appended:
        await cluster.appended.wait_for(lambda: len(cluster.append_requests) >= count)


async def passes(count: int) -> None:
    """Let all ready tasks run, `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


# ------------------------------------------------------------------------------------------------------ acknowledgements


async def test_a_request_has_no_more_partitions_than_brokers_accept(cluster: FakeCluster, monkeypatch):
    """Records for thousands of partitions of one broker, a few for each, fit into one request by their size."""
    assert limits.REQUEST_PARTITIONS_MAX <= PARTITIONS_PER_REQUEST_MAX
    monkeypatch.setattr(limits, "REQUEST_PARTITIONS_MAX", 2)
    cluster.create_topic("t", partitions=10)
    async with producer(cluster) as p:
        deliveries = [await p.send("t", b"%d" % n, partition=n) for n in range(10)]
        for delivery in deliveries:
            await delivery
    assert max(len(request.partitions) for _, request in cluster.append_requests) == 2
    assert [values_in(cluster, "t", n) for n in range(10)] == [[b"%d" % n] for n in range(10)]


async def test_a_delivery_returns_the_position_of_its_record(cluster: FakeCluster):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        first = await p.send("t", b"a", key=b"k", timestamp_ms=5, headers=[("h", b"1")])
        second = await p.send("t", b"b", timestamp_ms=6)
        assert not first.done()
        assert await second == await p_result(second)
        placed = await first
    assert (placed.topic, placed.partition, placed.offset, placed.timestamp) == ("t", 0, 0, 5)
    assert (second.result().offset, second.result().timestamp) == (1, 6)
    assert await first == placed, "a delivery can be awaited again, also after close"


async def p_result(delivery):
    return await delivery


async def test_records_of_one_pass_of_the_loop_share_a_batch(cluster: FakeCluster):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        found = await asyncio.gather(*[p.send_and_wait("t", b"%d" % n) for n in range(100)])
    assert sorted(m.offset for m in found) == list(range(100))
    assert len(cluster.topics["t"].partitions[0].batches) == 1


async def test_records_gather_while_a_request_is_unanswered(cluster: FakeCluster):
    cluster.create_topic("t")
    cluster.append_gate.clear()
    async with producer(cluster) as p:
        await p.send("t", b"first")
        await wait_requests(cluster, 1)
        for n in range(50):
            await p.send("t", b"%d" % n)
            await asyncio.sleep(0)
        assert len(cluster.append_requests) == 1
        cluster.append_gate.set()
        await p.flush()
    assert [count for _, count, _, _ in cluster.topics["t"].partitions[0].batches] == [1, 50]


async def test_linger_gathers_until_flush(cluster: FakeCluster):
    cluster.create_topic("t")
    async with producer(cluster, linger_ms=60_000) as p:
        for n in range(3):
            delivery = await p.send("t", b"%d" % n)
            await passes(5)
        assert not cluster.append_requests
        await p.flush()
        assert delivery.done()
    assert len(cluster.topics["t"].partitions[0].batches) == 1


async def test_linger_ends_after_its_time(cluster: FakeCluster):
    cluster.create_topic("t")
    async with producer(cluster, linger_ms=20) as p:
        assert (await p.send_and_wait("t", b"x")).offset == 0


async def test_the_partitioner_determines_the_partition_of_a_key(cluster: FakeCluster):
    cluster.create_topic("t", partitions=5)
    keys = [b"key-%d" % n for n in range(40)]
    async with producer(cluster) as p:
        placed = [await p.send_and_wait("t", b"v", key=key) for key in keys]
        spans = await (await p.send_many("t", [(key, b"bulk") for key in keys]))
    assert [m.partition for m in placed] == [crc32(key) % 5 for key in keys]
    for number in range(5):
        found = [key for key, _ in records_in(cluster.topics["t"].partitions[number])]
        expected = [key for key in keys if crc32(key) % 5 == number]
        assert found == expected + expected
    assert sum(span.record_count for span in spans) == 40


async def test_a_custom_partitioner_and_serializers_are_used(cluster: FakeCluster):
    cluster.create_topic("t", partitions=3)
    settings = {
        "partitioner": lambda key, count: len(key) % count,
        "key_serializer": str.encode,
        "value_serializer": lambda number: b"%d" % number,
    }
    async with producer(cluster, **settings) as p:
        assert (await p.send_and_wait("t", 7, key="abcde")).partition == 2
        await (await p.send_many("t", [("a", 8), (None, None)], partition=0))
    assert records_in(cluster.topics["t"].partitions[2]) == [(b"abcde", b"7")]
    assert records_in(cluster.topics["t"].partitions[0]) == [(b"a", b"8"), (None, None)]


async def test_records_without_a_key_visit_all_partitions(cluster: FakeCluster):
    cluster.create_topic("t", partitions=3)
    async with producer(cluster) as p:
        await (await p.send_many("t", [(None, b"x" * 1000)] * 4000))
    assert all(partition.end for partition in cluster.topics["t"].partitions)
    assert sum(partition.end for partition in cluster.topics["t"].partitions) == 4000


async def test_slow_records_without_a_key_change_partitions_over_time(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    cluster.create_topic("t", partitions=3)
    monkeypatch.setattr(limits, "STICKY_SECONDS", 0.0)
    async with producer(cluster) as p:
        moves = [(await p.send_and_wait("t", b"x")).partition for _ in range(6)]
    assert set(moves) == {0, 1, 2}


async def test_send_many_keeps_order_and_counts_across_many_batches(cluster: FakeCluster):
    cluster.create_topic("t")
    pairs = [(b"%d" % (n % 3) if n % 5 else None, b"%d" % n + b"." * (n % 700)) for n in range(20_000)]
    async with producer(cluster, max_batch_size=64 * 1024, compression_type="lz4") as p:
        delivery = await p.send_many("t", iter(pairs))
        spans = await delivery
    assert delivery.count == 20_000
    assert records_in(cluster.topics["t"].partitions[0]) == pairs
    at = 0
    for span in spans:
        assert span.base_offset == at
        at += span.record_count
    assert at == 20_000


async def test_batches_obey_the_topics_limit(cluster: FakeCluster):
    cluster.create_topic("t").config["max.batch.bytes"] = "4096"
    cluster.changed()
    async with producer(cluster) as p:
        await (await p.send_many("t", [(b"k", bytes(100))] * 500))
        for _ in range(100):
            await p.send("t", bytes(100))
    assert all(len(batch) <= 4096 for _, _, batch, _ in cluster.topics["t"].partitions[0].batches)
    assert cluster.topics["t"].partitions[0].end == 600


@pytest.mark.parametrize("compression", ["lz4", "zstd", "snappy", "gzip"])
async def test_compression_shrinks_and_reads_back(cluster: FakeCluster, compression: str):
    cluster.create_topic("t")
    async with producer(cluster, compression_type=compression) as p:
        await (await p.send_many("t", [(None, b"a" * 500)] * 100))
    (_, _, batch, _) = cluster.topics["t"].partitions[0].batches[0]
    assert len(batch) < 5000
    assert values_in(cluster, "t") == [b"a" * 500] * 100


async def test_a_record_of_the_largest_size_passes_and_a_larger_one_is_refused(cluster: FakeCluster):
    cluster.create_topic("t")
    largest = limits.RECORD_BYTES_MAX - limits.RECORD_OVERHEAD_BYTES
    async with producer(cluster) as p:
        await p.send_and_wait("t", bytes(largest))
        await (await p.send_many("t", [(None, bytes(largest)), (None, b"small")]))
        with pytest.raises(errors.RecordTooLargeError):
            await p.send("t", bytes(largest + 1))
        with pytest.raises(errors.RecordTooLargeError):
            await p.send_many("t", [(None, bytes(largest + 1))])
        assert p._budget.used_bytes == 0
    assert cluster.topics["t"].partitions[0].end == 3


async def test_a_topic_with_a_higher_limit_accepts_larger_records(cluster: FakeCluster):
    cluster.create_topic("t").config["max.batch.bytes"] = str(2 << 20)
    largest = (2 << 20) - limits.TOPIC_BATCH_OVERHEAD_BYTES - limits.RECORD_OVERHEAD_BYTES
    async with producer(cluster) as p:
        await p.send_and_wait("t", bytes(largest))
        await (await p.send_many("t", [(None, bytes(largest)), (None, b"small")]))
        with pytest.raises(errors.RecordTooLargeError, match=f"at most {largest} are allowed"):
            await p.send("t", bytes(largest + 1))
        with pytest.raises(errors.RecordTooLargeError, match=f"at most {largest} are allowed"):
            await p.send_many("t", [(None, bytes(largest + 1))])
        assert p._budget.used_bytes == 0
    assert cluster.topics["t"].partitions[0].end == 3


@pytest.mark.parametrize(
    "bad", [{"value": "text"}, {"value": b"v", "key": 5}, {"value": b"v", "headers": [("a", "b")]}]
)
async def test_values_of_wrong_types_are_not_accepted(cluster: FakeCluster, bad: dict[str, object]):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        with pytest.raises(TypeError):
            await p.send("t", **bad)
        with pytest.raises(TypeError):
            await p.send_many("t", [(None, "text"), (None, b"ok")])
        with pytest.raises(TypeError):
            await p.send_many("t", [(b"only one",)])
        assert p._budget.used_bytes == 0


async def test_unknown_topics_and_partitions_raise_typed_errors(cluster: FakeCluster):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        with pytest.raises(errors.UnknownTopicError):
            await p.send("nope", b"x")
        with pytest.raises(errors.UnknownPartitionError):
            await p.send("t", b"x", partition=1)
        with pytest.raises(errors.UnknownPartitionError):
            await p.send_many("t", [(None, b"x")], partition=-1)
        assert p._budget.used_bytes == 0


async def test_a_newly_added_partition_is_found(cluster: FakeCluster):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        await p.send_and_wait("t", b"x")
        async with cluster.silence():
            cluster.add_partitions("t", 3)
            assert (await p.send_and_wait("t", b"x", partition=1)).partition == 1
            [span] = await (await p.send_many("t", [(None, b"x")], partition=2))
            assert span.partition == 2
            with pytest.raises(errors.UnknownPartitionError):
                await p.send("t", b"x", partition=3)


# ---------------------------------------------------------------------------------------------------------------- retries


def sequences(cluster: FakeCluster, partition: int = 0) -> list[tuple[int, int, int]]:
    """Return (epoch, first sequence, count) of every batch of every request, in the order of arrival at the brokers."""
    found = []
    for _, request in cluster.append_requests:
        for part in request.partitions:
            if part.partition == partition:
                headers = map(parse_header, part.batches)
                found += [(h.producer_epoch, h.first_sequence, h.record_count) for h in headers]
    return found


async def test_a_refused_batch_is_repeated_with_its_sequence(cluster: FakeCluster):
    cluster.create_topic("t")
    verdicts = iter([detail(pb.THROTTLED), detail(pb.NO_LEADER), detail(pb.LEADERSHIP_LOST)])
    cluster.append_hook = lambda *_: next(verdicts, None)
    async with producer(cluster) as p:
        assert (await p.send_and_wait("t", b"x")).offset == 0
        assert (await p.send_and_wait("t", b"y")).offset == 1
    assert sequences(cluster) == [(0, 0, 1)] * 4 + [(0, 1, 1)]


async def test_a_lost_answer_does_not_write_twice(cluster: FakeCluster):
    """The broker wrote the batch, but its answer was lost. The stream is abandoned after the request timeout."""
    cluster.create_topic("t")
    verdicts = iter(["drop"])
    cluster.append_hook = lambda *_: next(verdicts, None)
    async with producer(cluster, request_timeout_ms=100) as p:
        assert (await p.send_and_wait("t", b"x")).offset == 0
    assert values_in(cluster, "t") == [b"x"]
    assert len(cluster.append_requests) == 2


async def test_without_idempotence_batches_have_no_identity(cluster: FakeCluster):
    cluster.create_topic("t")
    async with producer(cluster, enable_idempotence=False) as p:
        await p.send_and_wait("t", b"x")
    header = parse_header(cluster.topics["t"].partitions[0].batches[0][2])
    assert (header.producer_id, header.producer_epoch, header.first_sequence) == (0, 0, 0)


async def test_the_leader_in_an_error_is_used_immediately(cluster: FakeCluster):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        await p.send_and_wait("t", b"a")
        cluster.move_leader("t", 0, broker=2, is_announced=False)
        await p.send_and_wait("t", b"b")
    assert values_in(cluster, "t") == [b"a", b"b"]
    assert [broker for broker, _ in cluster.append_requests] == [1, 1, 2]


async def test_batches_at_a_silent_leader_go_to_its_successor(cluster: FakeCluster):
    """A frozen leader answers nothing. When the topology names another one, unanswered batches are repeated there, once each."""
    cluster.create_topic("t")
    cluster.append_hook = lambda broker, *_: "swallow" if broker == 1 else None
    async with producer(cluster, request_timeout_ms=60_000) as p:
        deliveries = [await p.send("t", b"%d" % n) for n in range(10)]
        await wait_requests(cluster, 1)
        cluster.move_leader("t", 0, broker=2)
        await asyncio.gather(*map(p_result, deliveries))
        assert [d.result().offset for d in deliveries] == list(range(10))
    assert values_in(cluster, "t") == [b"%d" % n for n in range(10)]


async def test_a_repeated_batch_that_a_request_has_no_room_for_follows_in_the_next_one(
    cluster: FakeCluster, monkeypatch
):
    """It followed only when the producer looked for expired batches."""
    monkeypatch.setattr(limits, "TICK_SECONDS", 60.0)
    monkeypatch.setattr(limits, "REQUEST_BYTES_MAX", 100_000)
    cluster.create_topic("t", partitions=3)
    cluster.append_hook = lambda broker, *_: "swallow" if broker == 1 else None
    async with producer(cluster, request_timeout_ms=60_000) as p:
        deliveries = [await p.send("t", bytes(60_000), partition=number) for number in (0, 2)]
        await wait_requests(cluster, 2)
        for number in (0, 2):
            cluster.move_leader("t", number, broker=2)
        async with asyncio.timeout(10):
            for delivery in deliveries:
                await delivery
    assert [broker for broker, _ in cluster.append_requests] == [1, 1, 2, 2]


async def test_the_late_end_of_an_old_leaders_stream_does_not_delay_its_successor(cluster: FakeCluster):
    cluster.create_topic("t")
    cluster.append_hook = lambda broker, *_: "swallow" if broker == 1 else None
    async with producer(cluster, request_timeout_ms=60_000) as p:
        await p.send("t", b"a")
        await wait_requests(cluster, 1)
        cluster.append_gate.clear()  # the successor answers later
        cluster.move_leader("t", 0, broker=2)
        await wait_requests(cluster, 2)
        old, new = (p._dispatcher.senders[cluster.brokers[n].address] for n in (1, 2))
        [(queue, _)] = next(iter(new._pending.values())).sent
        old._drop_stream(errors.BrokenConnectionError("the old leader is gone"))
        assert (queue.failures, queue.not_before, queue.has_unanswered) == (0, 0.0, True)
        cluster.append_gate.set()
        await p.flush()
    assert values_in(cluster, "t") == [b"a"]


async def test_a_restarted_node_gets_the_batches_again(cluster: FakeCluster):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        await p.send_and_wait("t", b"a")
        await cluster.brokers[1].stop()
        delivery = await p.send("t", b"b")
        await asyncio.sleep(0)
        await cluster.brokers[1].start()
        await delivery
    assert values_in(cluster, "t") == [b"a", b"b"]


async def test_a_node_that_stopped_reading_is_written_to_again(monkeypatch: pytest.MonkeyPatch):
    """A frozen broker's window is full, and a write waits for it. Abandoning the stream ends this write, but not later writes."""
    read_on = FakeBroker.AppendStream
    streams: list[object] = []

    async def stuck_at_first(self, requests, context):
        streams.append(requests)
        if len(streams) == 1:
            await asyncio.Event().wait()
        async for response in read_on(self, requests, context):
            yield response

    monkeypatch.setattr(FakeBroker, "AppendStream", stuck_at_first)
    async with FakeCluster(brokers=1) as cluster:
        cluster.create_topic("t", partitions=4)
        async with producer(cluster, request_timeout_ms=500, delivery_timeout_ms=30_000) as p:
            for _ in range(2):  # 8 MiB are under way at most: more than fits into any window
                deliveries = [await p.send_many("t", [(None, bytes(100_000))] * 50, partition=n) for n in range(4)]
                await asyncio.gather(*map(p_result, deliveries))
        assert len(streams) >= 2  # more where a busy machine is late with an answer
        assert [partition.end for partition in cluster.topics["t"].partitions] == [100] * 4


async def test_order_and_uniqueness_survive_any_faults(cluster: FakeCluster):
    """Random refusals, lost answers, swallowed requests and leader changes: each record is written once, in order per partition."""
    cluster.create_topic("t", partitions=3)
    rng = random.Random(7)

    def verdict(*_: object):
        roll = rng.random()
        if roll < 0.10:
            return detail(rng.choice([pb.THROTTLED, pb.LEADERSHIP_LOST, pb.REQUEST_TIMED_OUT, pb.NOT_READY]))
        return "drop" if roll < 0.14 else "swallow" if roll < 0.18 else None

    cluster.append_hook = verdict

    async def disturb() -> None:
        while True:
            for _ in range(5):
                async with cluster.appended:
                    await cluster.appended.wait()
            cluster.move_leader("t", rng.randrange(3), rng.choice([1, 2]), is_announced=rng.random() < 0.7)

    task = asyncio.create_task(disturb())
    async with producer(cluster, request_timeout_ms=50, max_batch_size=2048) as p:
        deliveries = []
        for n in range(3000):
            deliveries.append(await p.send("t", b"%d" % n, partition=n % 3))
            if n % 10 == 0:
                await asyncio.sleep(0)
        task.cancel()
        cluster.append_hook = None
        cluster.changed()
        placed = await asyncio.gather(*map(p_result, deliveries))
    for number in range(3):
        assert values_in(cluster, "t", number) == [b"%d" % n for n in range(number, 3000, 3)]
    for n, metadata in enumerate(placed):
        assert metadata.offset in (n // 3, -1)
    assert sum(metadata.offset == -1 for metadata in placed) < 600


async def test_an_out_of_order_batch_is_repeated_after_its_predecessor(cluster: FakeCluster):
    """The first batch is refused as throttled and the second as out of order. Both are repeated, in order, in one request."""
    cluster.create_topic("t")
    cluster.append_gate.clear()
    verdicts = iter([detail(pb.THROTTLED, "", retry_after_ms=20)])
    cluster.append_hook = lambda *_: next(verdicts, None)
    async with producer(cluster, max_batch_size=1024) as p:
        for n in range(30):  # ten records fill a batch
            await p.send("t", b"%03d" % n + b"." * 80)
        await wait_requests(cluster, 1)
        cluster.append_gate.set()
        await p.flush()
    assert [value[:3] for value in values_in(cluster, "t")] == [b"%03d" % n for n in range(30)]


async def test_without_idempotence_definite_refusals_lose_and_repeat_nothing(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    rng = random.Random(3)
    cluster.append_hook = lambda *_: detail(pb.THROTTLED) if rng.random() < 0.3 else None
    async with producer(cluster, enable_idempotence=False, max_batch_size=1024) as p:
        deliveries = [await p.send("t", b"%03d" % n + b"." * 90, partition=n % 2) for n in range(400)]
        await asyncio.gather(*map(p_result, deliveries))
        assert p.metrics().retries_total > 10
    for number in range(2):
        found = sorted(value or b"" for value in values_in(cluster, "t", number))
        assert found == [b"%03d" % n + b"." * 90 for n in range(number, 400, 2)]


async def test_without_idempotence_a_retry_waits_for_the_old_leaders_answer(cluster: FakeCluster):
    """The topology names a new leader while the old one still works on the batch. If it were sent to both, it would be written twice."""
    cluster.create_topic("t")
    cluster.append_gate.clear()
    async with producer(cluster, enable_idempotence=False) as p:
        first = await p.send("t", b"a")
        await wait_requests(cluster, 1)
        cluster.append_hook = lambda *_: cluster.move_leader(
            "t", 0, broker=2
        )  # written by the old leader, then it is replaced
        moved = asyncio.Event()
        p._resolver.subscribe(moved.set)
        cluster.changed()
        await moved.wait()
        cluster.append_gate.set()
        await first
        cluster.append_hook = None
        await p.send_and_wait("t", b"b")
    assert values_in(cluster, "t") == [b"a", b"b"]


async def test_without_idempotence_a_lost_batch_is_repeated_when_its_stream_has_ended(cluster: FakeCluster):
    """Delivery is at least once: the only way to deliver a batch whose answer was lost is to send it again."""
    cluster.create_topic("t")
    verdicts = iter(["drop"])
    cluster.append_hook = lambda *_: next(verdicts, None)
    async with producer(cluster, enable_idempotence=False, request_timeout_ms=100) as p:
        assert (await p.send_and_wait("t", b"x")).offset == 1
    assert values_in(cluster, "t") == [b"x", b"x"]


# --------------------------------------------------------------------------------------------------------------- metrics


async def test_metrics_count_what_happened(cluster: FakeCluster):
    cluster.create_topic("t")
    verdicts = iter([detail(pb.THROTTLED), detail(pb.RECORD_TOO_LARGE)])
    cluster.append_hook = lambda *_: next(verdicts, None)
    async with producer(cluster) as p:
        with pytest.raises(errors.RecordTooLargeError):
            await p.send_and_wait("t", b"refused")
        await (await p.send_many("t", [(None, b"x" * 100)] * 1000))
        cluster.append_gate.clear()
        waiting = await p.send("t", b"under way")
        await wait_requests(cluster, 4)
        now = p.metrics()
        assert (now.requests_in_flight, now.batches_waiting) == (1, 1)
        assert now.bytes_in_flight > 64
        assert now.buffer_bytes == len(b"under way") + limits.RECORD_OVERHEAD_BYTES
        cluster.append_gate.set()
        await waiting
    done = p.metrics()
    assert (done.records_total, done.batches_total) == (1001, 2)
    assert done.bytes_total == sum(len(batch) for _, _, batch, _ in cluster.topics["t"].partitions[0].batches)
    assert (done.failed_records_total, done.failed_batches_total, done.retries_total) == (1, 1, 1)
    assert done.errors_total == {"THROTTLED": 1, "RECORD_TOO_LARGE": 1}
    assert done.requests_total == 4
    assert 0 < done.request_seconds_max <= done.request_seconds_sum
    assert (done.requests_in_flight, done.batches_waiting, done.buffer_bytes) == (0, 0, 0)


# --------------------------------------------------------------------------------------------------------------- timeouts


async def test_an_unanswered_batch_ends_with_an_unknown_outcome_and_the_next_is_written(cluster: FakeCluster):
    cluster.create_topic("t")
    cluster.append_hook = lambda *_: "swallow"
    async with producer(cluster, request_timeout_ms=60_000) as p:
        lost = await p.send("t", b"lost")
        await wait_requests(cluster, 1)
        lost._batch.deadline = 0.0
        with pytest.raises(errors.DeliveryTimeoutError) as caught:
            await lost
        assert caught.value.outcome is errors.Outcome.UNKNOWN
        cluster.append_hook = None
        assert (await p.send_and_wait("t", b"next")).offset == 0
    assert sequences(cluster)[-1] == (1, 0, 1), "the next epoch begins at sequence 0"


async def test_batches_after_a_given_up_one_are_written_once(cluster: FakeCluster):
    """Three batches are in flight, all applied, without an answer. The first expires, and the others turn out to be written."""
    cluster.create_topic("t")
    cluster.append_hook = lambda *_: "drop"
    async with producer(cluster, request_timeout_ms=200, max_batch_size=1024) as p:
        first = await p.send("t", b"a" * 1000)
        await wait_requests(cluster, 1)
        first._batch.deadline = 0.0
        second = await p.send("t", b"b" * 1000)
        third = await p.send("t", b"c" * 1000)
        with pytest.raises(errors.DeliveryTimeoutError):
            await first
        cluster.append_hook = None
        await second
        await third
        await p.send_and_wait("t", b"d")
    assert [value[:1] for value in values_in(cluster, "t")] == [b"a", b"b", b"c", b"d"]


async def test_a_batch_that_was_never_sent_expires_as_not_applied(cluster: FakeCluster):
    cluster.create_topic("t")
    cluster.topics["t"].partitions[0].leader = 0
    async with producer(cluster) as p:
        delivery = await p.send("t", b"x")
        delivery._batch.deadline = 0.0
        with pytest.raises(errors.DeliveryExpiredError) as caught:
            await delivery
        assert caught.value.outcome is errors.Outcome.NOT_APPLIED
        cluster.move_leader("t", 0, broker=1)
        assert (await p.send_and_wait("t", b"y")).offset == 0
    assert sequences(cluster) == [(0, 0, 1)], "nothing was sent, so no sequence was used up"


async def test_a_batch_that_waited_for_a_connection_expires_as_not_applied():
    """The leader's host accepts connections and never answers, until the leader is started again."""
    async with FakeCluster(brokers=2) as cluster:
        cluster.create_topic("t")
        leader = cluster.brokers[2]
        await leader.stop()
        cluster.move_leader("t", 0, broker=2)
        async with Producer(bootstrap_servers=cluster.brokers[1].address) as p:
            with socket.create_server(("127.0.0.1", leader.port)):
                delivery = await p.send("t", b"x")
                await passes(10)
                assert delivery._batch.is_sent
                delivery._batch.deadline = 0.0
                with pytest.raises(errors.DeliveryExpiredError, match="no connection in") as caught:
                    await delivery
                assert caught.value.outcome is errors.Outcome.NOT_APPLIED
            await leader.start()
            assert (await p.send_and_wait("t", b"y")).offset == 0
    assert values_in(cluster, "t") == [b"y"]


async def test_a_batch_is_not_in_doubt_when_the_request_timeout_is_shorter_than_the_opening():
    async with FakeCluster(brokers=2) as cluster:
        cluster.create_topic("t")
        leader = cluster.brokers[2]
        await leader.stop()
        cluster.move_leader("t", 0, broker=2)
        async with Producer(
            bootstrap_servers=cluster.brokers[1].address, request_timeout_ms=100, delivery_timeout_ms=20_000
        ) as p:
            with socket.create_server(("127.0.0.1", leader.port)):
                delivery = await p.send("t", b"x")
                while not p._dispatcher.counters.requests.errors:
                    await asyncio.sleep(0.05)
                assert set(p._dispatcher.counters.requests.errors) == {"UnreachableError"}
                assert not delivery._batch.may_be_applied
            await leader.start()
            await delivery
    assert values_in(cluster, "t") == [b"x"]


async def test_a_definite_refusal_fails_its_batch_only(cluster: FakeCluster):
    cluster.create_topic("t")
    verdicts = iter([detail(pb.RECORD_TOO_LARGE)])
    cluster.append_hook = lambda *_: next(verdicts, None)
    async with producer(cluster) as p:
        refused = await p.send("t", b"x")
        with pytest.raises(errors.RecordTooLargeError):
            await refused
        await p.send_and_wait("t", b"y")
    assert values_in(cluster, "t") == [b"y"]


async def test_an_expired_producer_state_starts_a_new_epoch(cluster: FakeCluster):
    """The partition forgot the producer (24 h of silence). Its next sequence is refused as a gap, definitely not applied."""
    cluster.create_topic("t")
    async with producer(cluster) as p:
        await p.send_and_wait("t", b"a")
        cluster.topics["t"].partitions[0].producers.clear()
        await p.send_and_wait("t", b"b")
    assert values_in(cluster, "t") == [b"a", b"b"]
    assert sequences(cluster)[-1] == (1, 0, 1)


async def test_a_deleted_topic_fails_its_records_and_a_new_one_begins_with_new_sequences(cluster: FakeCluster):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        await p.send_and_wait("t", b"a")
        cluster.append_gate.clear()
        delivery = await p.send("t", b"b")
        await wait_requests(cluster, 2)
        cluster.delete_topic("t")
        cluster.append_gate.set()
        with pytest.raises(errors.UnknownTopicError):
            await delivery
        cluster.create_topic("t")
        assert (await p.send_and_wait("t", b"c")).offset == 0


async def test_records_that_wait_for_a_retry_fail_when_the_topic_is_deleted(cluster: FakeCluster):
    """They fail before their delivery timeout: the partition's last leader is asked once more, and reports the deletion."""
    cluster.create_topic("t")
    cluster.append_hook = lambda *_: detail(pb.LEADERSHIP_LOST)
    async with producer(cluster, delivery_timeout_ms=60_000) as p:
        delivery = await p.send("t", b"a")
        await wait_requests(cluster, 2)
        cluster.delete_topic("t")
        async with asyncio.timeout(30):
            with pytest.raises(errors.UnknownTopicError):
                await delivery


async def test_a_record_that_a_deleted_topic_may_have_contained_has_an_unknown_outcome(cluster: FakeCluster):
    """Its first attempt was written and may have been read before the topic was deleted. The answer was lost."""
    cluster.create_topic("t")
    cluster.append_hook = lambda *_: "drop" if len(cluster.append_requests) == 1 else detail(pb.THROTTLED)
    async with producer(cluster, request_timeout_ms=50) as p:
        written = await p.send("t", b"written")
        await wait_requests(cluster, 2)
        never_sent = await p.send("t", b"never sent")
        cluster.delete_topic("t")
        with pytest.raises(errors.UnknownTopicError) as unknown:
            await written
        with pytest.raises(errors.UnknownTopicError) as definite:
            await never_sent
    assert unknown.value.outcome is errors.Outcome.UNKNOWN
    assert definite.value.outcome is errors.Outcome.NOT_APPLIED


# ------------------------------------------------------------------------------------------------------- flush and close


async def test_flush_reports_a_failure_that_nobody_awaited_once(cluster: FakeCluster):
    cluster.create_topic("t")
    verdicts = iter([detail(pb.RECORD_TOO_LARGE), None, detail(pb.RECORD_TOO_LARGE)])
    cluster.append_hook = lambda *_: next(verdicts, None)
    async with producer(cluster) as p:
        await p.send("t", b"x")
        with pytest.raises(errors.RecordTooLargeError):
            await p.flush()
        await p.flush()
        await p.send_and_wait("t", b"y")
        seen = await p.send("t", b"z")
        with pytest.raises(errors.RecordTooLargeError):
            await seen
        await p.flush()


async def test_close_writes_the_accepted_records(cluster: FakeCluster):
    cluster.create_topic("t")
    async with producer(cluster, linger_ms=60_000) as p:
        for n in range(5):
            await p.send("t", b"%d" % n)
    assert values_in(cluster, "t") == [b"%d" % n for n in range(5)]
    with pytest.raises(errors.ClosedClientError):
        await p.send("t", b"late")
    await p.close()


async def test_a_cancelled_close_closes_immediately_and_reports_unknown_outcomes(cluster: FakeCluster):
    cluster.create_topic("t")
    cluster.append_hook = lambda *_: "swallow"
    p = producer(cluster)
    await p.start()
    sent = await p.send("t", b"sent")
    await wait_requests(cluster, 1)
    waiting = await p.send("t", b"waiting")
    closing = asyncio.create_task(p.close())
    await passes(5)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(errors.ClosedInFlightError):
        await sent
    with pytest.raises(errors.ClosedClientError):
        await waiting


async def test_a_start_without_a_broker_raises_bootstrap_error():
    p = Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=200)
    with pytest.raises(errors.BootstrapError):
        await p.start()
    with pytest.raises(errors.ClosedClientError):
        await p.send("t", b"x")


@pytest.mark.parametrize(
    "settings",
    [
        {"compression_type": "brotli"},
        {"partitioner": "random"},
        {"max_batch_size": 1},
        {"linger_ms": -1},
        {"bootstrap_servers": "nonsense"},
        {"bootstrap_servers": []},
        {"buffer_memory": 1},
    ],
)
async def test_invalid_producer_settings_are_refused(settings: dict[str, object]):
    with pytest.raises((errors.UsageError, errors.ProtocolError)):
        Producer(**settings)


# ---------------------------------------------------------------------------------------------------------- back-pressure


async def test_send_waits_for_buffer_space_and_memory_is_bounded(cluster: FakeCluster):
    cluster.create_topic("t")
    cluster.append_gate.clear()
    async with producer(cluster, buffer_memory=256 * 1024) as p:
        pairs = ((None, bytes(1000)) for _ in range(2000))
        sending = asyncio.create_task(p.send_many("t", pairs))
        await wait_requests(cluster, 1)
        await passes(100)
        assert not sending.done()
        assert 0 < p._budget.used_bytes <= 256 * 1024
        cluster.append_gate.set()
        delivery = await sending
        await delivery
        assert p._budget.used_bytes == 0
    assert cluster.topics["t"].partitions[0].end == 2000


async def test_a_full_buffer_raises_buffer_full_error_in_time(cluster: FakeCluster):
    cluster.create_topic("t")
    async with producer(cluster, buffer_memory=128 * 1024, linger_ms=60_000, max_batch_size=1 << 20) as p:
        p._max_block_seconds = 0.05  # after the start, for which it would be too short on a busy machine
        for _ in range(13):
            await p.send("t", bytes(10_000))
        with pytest.raises(errors.BufferFullError):
            await p.send("t", bytes(10_000))
        await p.flush()
        await p.send("t", b"room again")


# ----------------------------------------------------------------------------------------------------------- cancellation


async def test_cancelling_a_wait_does_not_cancel_the_record_or_other_waiters(cluster: FakeCluster):
    cluster.create_topic("t")
    cluster.append_gate.clear()
    async with producer(cluster) as p:
        first, second = await p.send("t", b"a"), await p.send("t", b"b")
        waits = [asyncio.create_task(p_result(d)) for d in (first, first, second)]
        await wait_requests(cluster, 1)
        waits[0].cancel()
        await asyncio.wait([waits[0]])
        cluster.append_gate.set()
        assert (await waits[1]).offset == 0
        assert (await waits[2]).offset == 1


@pytest.mark.parametrize("point", range(40))
async def test_cancelling_at_any_point_leaves_the_producer_usable(point: int):
    """A task that sends and awaits is cancelled after `point` passes of the loop. Nothing leaks, and later records are written."""
    async with FakeCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        async with producer(cluster, buffer_memory=128 * 1024, max_batch_size=32 * 1024) as p:

            async def work() -> None:
                bulk = await p.send_many("t", ((None, b"bulk%04d" % n + bytes(900)) for n in range(400)))
                await p.send_and_wait("t", b"single")
                await bulk
                await p.flush()

            task = asyncio.create_task(work())
            for _ in range(point):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert (await p.send_and_wait("t", b"last")).offset >= 0
            await p.flush()
            assert p._budget.used_bytes == 0
            assert not p._dispatcher.active
        found = [value[:8] for value in values_in(cluster, "t") if value.startswith(b"bulk")]
        assert found == [b"bulk%04d" % n for n in range(len(found))]


@pytest.mark.parametrize("point", range(0, 30, 3))
async def test_cancelling_start_closes_the_producer(point: int):
    async with FakeCluster(brokers=1) as cluster:
        p = producer(cluster)
        task = asyncio.create_task(p.start())
        for _ in range(point):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if not task.cancelled():
            await p.close()
        with pytest.raises(errors.ClosedClientError):
            await p.send("t", b"x")


async def test_no_task_is_left_behind(cluster: FakeCluster):
    cluster.create_topic("t")
    before = asyncio.all_tasks()
    async with producer(cluster) as p:
        await p.send_and_wait("t", b"x")
    left = {task for task in asyncio.all_tasks() - before if task.get_name().startswith("raftmq")}
    assert not left


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_batch_without_an_answer_stays_unknown_when_its_producer_was_forgotten(
    cluster: FakeCluster, is_written: bool
):
    """Nobody can tell any more whether the unanswered attempt was written, so it is neither reported as lost nor written again."""
    topic = cluster.create_topic("t")
    async with producer(cluster, request_timeout_ms=100) as p:
        await p.send_and_wait("t", b"a")
        verdicts = iter(["drop" if is_written else "swallow"])
        cluster.append_hook = lambda *_: next(verdicts, None)
        lost = await p.send("t", b"b")
        await wait_requests(cluster, 2)
        topic.partitions[0].forget_producers()
        with pytest.raises(errors.OutOfOrderSequenceError) as raised:
            await lost
        assert raised.value.outcome is errors.Outcome.UNKNOWN
        await p.send_and_wait("t", b"c")
    assert values_in(cluster, "t") == ([b"a", b"b", b"c"] if is_written else [b"a", b"c"])


async def test_a_batch_that_was_never_sent_before_is_written_when_its_producer_was_forgotten(cluster: FakeCluster):
    topic = cluster.create_topic("t")
    async with producer(cluster) as p:
        await p.send_and_wait("t", b"a")
        topic.partitions[0].forget_producers()
        await p.send_and_wait("t", b"b")
    assert values_in(cluster, "t") == [b"a", b"b"]


async def test_a_batch_without_an_answer_is_written_when_the_broker_knows_that_it_is_not(cluster: FakeCluster):
    """An earlier batch was given up, so the broker reports a gap. The broker remembers everything that this producer wrote."""
    cluster.create_topic("t")
    async with producer(cluster, request_timeout_ms=100, delivery_timeout_ms=600, max_batch_size=1024) as p:
        await p.send_and_wait("t", b"a")
        cluster.append_hook = lambda _broker, _topic, _number, batch: (
            "swallow" if parse_header(batch).first_sequence == 1 else None
        )
        with pytest.raises(errors.DeliveryTimeoutError):
            await p.send_and_wait("t", b"b")
        cluster.append_hook = None
        await p.send_and_wait("t", b"c")
    assert values_in(cluster, "t") == [b"a", b"c"]


async def test_batches_at_a_silent_leader_are_written_after_a_recovery_without_earlier_ones(cluster: FakeCluster):
    """The kept log lacks an acknowledged batch, and several later ones have no answer. None waits for its delivery timeout."""
    topic = cluster.create_topic("t")
    async with producer(cluster, request_timeout_ms=60_000, max_batch_size=1024) as p:
        await p.send_and_wait("t", b"a")
        cluster.append_hook = lambda broker, *_: "swallow" if broker == 1 else None
        deliveries = []
        for count, value in enumerate((b"b", b"c", b"d"), start=2):
            deliveries.append(await p.send("t", value * 1000))
            await wait_requests(cluster, count)
        topic.partitions[0].batches.clear()
        topic.partitions[0].producers.clear()
        cluster.move_leader("t", 0, broker=2)
        async with asyncio.timeout(10):
            await asyncio.gather(*map(p_result, deliveries))
    assert [value[:1] for value in values_in(cluster, "t")] == [b"b", b"c", b"d"]


def test_the_longest_delivery_is_shorter_than_brokers_remember_a_producer():
    """A batch that is repeated after the broker forgot its producer would be written twice."""
    longest = limits.DELIVERY_TIMEOUT_MS_MAX
    assert 2 * longest <= REPLACEABLE_IDLE_MS
    Producer(delivery_timeout_ms=longest)
    with pytest.raises(errors.InvalidArgumentError, match="delivery_timeout_ms"):
        Producer(delivery_timeout_ms=longest + 1)
    with pytest.raises(errors.InvalidArgumentError, match="delivery_timeout_seconds"):
        SequencedAppender(None, delivery_timeout_seconds=longest / 1000 + 1)
