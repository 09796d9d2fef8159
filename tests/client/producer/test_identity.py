"""Named producers: there is one at a time, and the replaced one stops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raftmq import errors
from raftmq.batch_header import parse_header
from raftmq.client.base import settings as limits
from raftmq.client.producer.identity import check_name
from raftmq.client.producer.producer import Producer
from raftmq.proto import queue_pb2 as pb

from tests.support.client.cancelling import passes
from tests.support.client.fake_broker import FakeCluster, detail, records_in
from tests.support.client.memory_transport import MemoryTransport


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster(brokers=2)
    cluster.create_topic("t", partitions=3)
    return cluster


def named(cluster: FakeCluster, name: str | None = "job", **settings: Any) -> Producer:
    transport = MemoryTransport(cluster)
    return Producer(bootstrap_servers=transport.addresses, transport=transport, producer_name=name, **settings)


def values(cluster: FakeCluster, partition: int) -> list[bytes | None]:
    return [value for _, value in records_in(cluster.topics["t"].partitions[partition])]


async def test_a_second_producer_of_the_name_fences_the_first(cluster: FakeCluster):
    async with named(cluster) as first:
        for number in range(3):
            await first.send_and_wait("t", b"old", partition=number)
        async with named(cluster) as second:
            for number in range(3):
                await second.send_and_wait("t", b"new", partition=number)
            with pytest.raises(errors.ProducerFencedError) as raised:
                await first.send_and_wait("t", b"zombie", partition=1)
            assert raised.value.outcome is errors.Outcome.NOT_APPLIED
            assert "newer" in str(raised.value)
            await second.send_and_wait("t", b"newer", partition=1)
    assert [values(cluster, number) for number in range(3)] == [
        [b"old", b"new"],
        [b"old", b"new", b"newer"],
        [b"old", b"new"],
    ]


async def test_a_fenced_producer_writes_nothing_more_anywhere(cluster: FakeCluster):
    """This includes partitions to which its successor has not written: it has stopped, and every call says why."""
    async with named(cluster) as first:
        async with named(cluster) as second:
            await second.send_and_wait("t", b"new", partition=0)
        cluster.append_gate.clear()
        zombie = await first.send("t", b"zombie", partition=0)
        await passes(20)
        waiting = await first.send("t", b"waiting", partition=0)
        cluster.append_gate.set()
        for delivery in (zombie, waiting):
            with pytest.raises(errors.ProducerFencedError):
                await delivery
        for call in (
            first.send("t", b"x", partition=2),
            first.send_many("t", [(b"k", b"x")]),
            first.send_and_wait("t", b"x"),
            first.flush(),
        ):
            with pytest.raises(errors.ProducerFencedError):
                await call
        assert first.metrics().buffer_bytes == 0
    assert [values(cluster, number) for number in range(3)] == [[b"new"], [], []]


async def test_records_in_flight_to_other_partitions_may_be_written_when_a_producer_is_fenced(cluster: FakeCluster):
    cluster.append_hook = lambda broker, topic, partition, batch: (
        "drop" if partition == 1 and b"under way" in batch else None
    )
    async with named(cluster) as first:
        await first.send_and_wait("t", b"a", partition=0)
        under_way = await first.send("t", b"under way", partition=1)
        await passes(30)
        async with named(cluster) as second:
            await second.send_and_wait("t", b"new", partition=0)
        with pytest.raises(errors.ProducerFencedError) as definite:
            await first.send_and_wait("t", b"zombie", partition=0)
        with pytest.raises(errors.ProducerFencedError) as doubtful:
            await under_way
    assert definite.value.outcome is errors.Outcome.NOT_APPLIED
    assert doubtful.value.outcome is errors.Outcome.UNKNOWN
    assert values(cluster, 1) == [b"under way"]


async def test_a_refusal_after_an_unanswered_attempt_has_an_unknown_outcome(cluster: FakeCluster):
    """The first attempt was written and its answer lost. Then the producer is fenced, but "not applied" would be wrong."""
    verdicts = iter(["drop"])
    cluster.append_hook = lambda *_: next(verdicts, None)
    async with named(cluster, request_timeout_ms=50) as first:
        lost = await first.send("t", b"lost answer", partition=0)
        await passes(30)
        async with named(cluster) as second:
            await second.send_and_wait("t", b"new", partition=0)
        with pytest.raises(errors.ProducerFencedError) as raised:
            await lost
    assert raised.value.outcome is errors.Outcome.UNKNOWN
    assert values(cluster, 0) == [b"lost answer", b"new"]


async def test_close_raises_the_fencing_that_nobody_awaited(cluster: FakeCluster):
    first = named(cluster)
    await first.start()
    async with named(cluster) as second:
        await second.send_and_wait("t", b"new", partition=0)
    await first.send("t", b"zombie", partition=0)
    with pytest.raises(errors.ProducerFencedError):
        await first.close()
    await first.close()
    assert values(cluster, 0) == [b"new"]


async def test_close_raises_the_fencing_of_a_producer_that_had_stopped(cluster: FakeCluster):
    first = named(cluster)
    await first.start()
    async with named(cluster) as second:
        await second.send_and_wait("t", b"new", partition=0)
    zombie = await first.send("t", b"zombie", partition=0)
    await zombie._batch.wait_done()
    with pytest.raises(errors.ProducerFencedError):
        await first.close()


async def test_abandoned_sequences_do_not_reach_the_successors_epoch(cluster: FakeCluster):
    """A producer raises its own epoch when it gives up a batch. If both epochs were one number, the successor's first record would look like
    a repetition of the zombie's record: it would be acknowledged and never written.
    """
    async with named(cluster, request_timeout_ms=60_000) as first:
        await first.send_and_wait("t", b"a", partition=0)
        for _ in range(3):
            cluster.append_hook = lambda *_: "swallow"
            lost = await first.send("t", b"lost", partition=0)
            await passes(20)
            lost._batch.deadline = 0.0
            with pytest.raises(errors.DeliveryTimeoutError):
                await lost
            cluster.append_hook = None
            await first.send_and_wait("t", b"b", partition=0)
        async with named(cluster) as second:
            assert (await second.send_and_wait("t", b"new", partition=0)).offset == 4
            with pytest.raises(errors.ProducerFencedError):
                await first.send_and_wait("t", b"zombie", partition=0)
            await second.send_and_wait("t", b"newer", partition=0)
    assert values(cluster, 0) == [b"a", b"b", b"b", b"b", b"new", b"newer"]
    epochs = [parse_header(batch).producer_epoch for _, _, batch, _ in cluster.topics["t"].partitions[0].batches]
    assert epochs == [0, 1, 2, 3, 1 << 32, 1 << 32]


async def test_an_idle_producer_learns_that_it_was_replaced(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "NAME_CONFIRM_SECONDS", 0.01)
    async with named(cluster) as first:
        keeper = first._name_keeper
        assert keeper is not None
        async with named(cluster):
            await asyncio.wait([keeper])
        with pytest.raises(errors.ProducerFencedError):
            await first.send("t", b"x")


async def test_confirming_keeps_the_name_through_failures(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch):
    """Brokers forget a name 14 days after its last use. A producer that lives longer must keep its name."""
    monkeypatch.setattr(limits, "NAME_CONFIRM_SECONDS", 0.01)
    asked: list[int] = []
    enough = asyncio.Event()
    broker_class = type(cluster.brokers[1])
    answer = broker_class.InitProducer

    async def counted(self, request, context):
        if request.HasField("epoch"):
            asked.append(request.epoch)
            if len(asked) % 2:
                raise errors.RejectedError("not now")
            if len(asked) > 5:
                enough.set()
        return await answer(self, request, context)

    monkeypatch.setattr(broker_class, "InitProducer", counted)
    async with named(cluster):
        pass
    async with named(cluster) as producer:
        await enough.wait()
        await producer.send_and_wait("t", b"x", partition=0)
    assert set(asked) == {1}
    assert cluster.names["job"][1] == 1


async def test_a_producer_stops_if_its_expired_name_has_a_new_owner(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "NAME_CONFIRM_SECONDS", 0.01)
    async with named(cluster) as first:
        cluster.names["job"] = (cluster.next_producer_id(), 0, b"")
        keeper = first._name_keeper
        assert keeper is not None
        await asyncio.wait([keeper])
        with pytest.raises(errors.ProducerFencedError, match="expired"):
            await first.flush()


async def test_a_restarted_named_producer_continues(cluster: FakeCluster):
    for number in range(3):
        async with named(cluster) as producer:
            assert (await producer.send_and_wait("t", b"%d" % number, partition=0)).offset == number
    assert cluster.names["job"][1] == 2


async def test_different_names_and_no_name_do_not_affect_each_other(cluster: FakeCluster):
    async with named(cluster, "a") as a, named(cluster, "b") as b, named(cluster, None) as nobody:
        for producer in (a, b, nobody, a, b, nobody):
            await producer.send_and_wait("t", b"x", partition=0)
        assert nobody._name_keeper is None
    assert len(values(cluster, 0)) == 6


async def test_a_fencing_answer_without_a_name_fails_only_its_batch(cluster: FakeCluster):
    """Only a defective broker sends it to a producer that does not share its id. Continuing under the next epoch is harmless."""
    verdicts = iter([detail(pb.PRODUCER_FENCED)])
    cluster.append_hook = lambda *_: next(verdicts, None)
    async with named(cluster, None) as producer:
        with pytest.raises(errors.ProducerFencedError):
            await producer.send_and_wait("t", b"x", partition=0)
        await producer.send_and_wait("t", b"y", partition=0)
    assert values(cluster, 0) == [b"y"]


async def test_a_name_of_another_kind_of_producer_is_refused(cluster: FakeCluster):
    cluster.names["job"] = (5, 1 << 40, b"")
    with pytest.raises(errors.InvalidArgumentError, match="another kind of producer"):
        await named(cluster).start()


@pytest.mark.parametrize("name", ["", "x" * 250, "ü" * 125, 5])
def test_invalid_names_are_refused_immediately(name: Any):
    with pytest.raises(errors.InvalidArgumentError, match="producer_name"):
        check_name(name)
    check_name("x" * 249)


async def test_a_name_needs_idempotence():
    with pytest.raises(errors.InvalidArgumentError, match="enable_idempotence"):
        Producer(producer_name="job", enable_idempotence=False)


# ----------------------------------------------------------------------------------------------------------- predecessors


async def test_a_predecessor_is_refused_in_partitions_to_which_its_successor_never_wrote(cluster: FakeCluster):
    async with named(cluster) as first:
        await first.send_and_wait("t", b"old", partition=1)
        async with named(cluster):
            for partition in (1, 2):
                with pytest.raises(errors.ProducerFencedError):
                    await first.send_and_wait("t", b"zombie", partition=partition)
    assert [values(cluster, number) for number in range(3)] == [[], [b"old"], []]


async def test_the_first_producer_of_a_name_informs_no_broker(cluster: FakeCluster):
    cluster.fence_gate.clear()
    async with named(cluster), named(cluster, None):
        assert not cluster.fenced


async def test_the_start_informs_every_broker(cluster: FakeCluster):
    """This includes a broker that the client does not know: the brokers name each other."""
    async with named(cluster):
        pass
    transport = MemoryTransport(cluster)
    heard = cluster.table
    cluster.table = lambda: _without_broker(heard(), 2)  # type: ignore[method-assign]
    asked: list[int] = []
    answer = type(cluster.brokers[1]).FenceProducer

    async def noted(self, request, context):
        asked.append(self.broker_id)
        return await answer(self, request, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(cluster.brokers[1]), "FenceProducer", noted)
        async with Producer(
            bootstrap_servers=transport.addresses.split(",")[0], transport=transport, producer_name="job"
        ):
            assert asked == [1, 2]


def _without_broker(table: pb.TopologyUpdate, broker_id: int) -> pb.TopologyUpdate:
    kept = [broker for broker in table.brokers if broker.broker_id != broker_id]
    del table.brokers[:]
    table.brokers.extend(kept)
    return table


async def test_the_start_waits_for_a_broker_that_cannot_be_informed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The start waits until the broker must have heard of the successor from others, or accepts no records under any name."""
    monkeypatch.setattr(limits, "PREDECESSOR_SECONDS", 0.3)
    async with named(cluster):
        pass
    transport = MemoryTransport(cluster)
    transport.cut(cluster.brokers[2].address)
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with Producer(bootstrap_servers=transport.addresses, transport=transport, producer_name="job") as producer:
        assert loop.time() - started >= 0.3
        await producer.send_and_wait("t", b"x", partition=0)
    assert [record.getMessage().split()[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "producer_predecessor_awaited"
    ]


async def test_a_broker_that_comes_back_ends_the_waiting(cluster: FakeCluster):
    async with named(cluster):
        pass
    transport = MemoryTransport(cluster)
    transport.cut(cluster.brokers[2].address)
    producer = Producer(bootstrap_servers=transport.addresses, transport=transport, producer_name="job")
    starting = asyncio.ensure_future(producer.start())
    await passes(50)
    assert not starting.done()
    transport.heal()
    async with asyncio.timeout(limits.PREDECESSOR_SECONDS - 1):
        await starting
    await producer.close()


async def test_the_start_fails_without_the_time_to_wait(cluster: FakeCluster):
    async with named(cluster):
        pass
    transport = MemoryTransport(cluster)
    transport.cut(cluster.brokers[2].address)
    producer = Producer(
        bootstrap_servers=transport.addresses, transport=transport, producer_name="job", max_block_ms=100
    )
    with pytest.raises(errors.RequestTimedOutError, match="max_block_ms"):
        await producer.start()


async def test_a_producer_with_a_newer_successor_does_not_start(cluster: FakeCluster):
    async with named(cluster):
        pass
    cluster.fence_gate.clear()
    second = named(cluster)
    starting = asyncio.ensure_future(second.start())
    await passes(30)
    cluster.fenced[cluster.names["job"][0]] = 9 << 32  # another successor was faster
    cluster.fence_gate.set()
    with pytest.raises(errors.ProducerFencedError):
        await starting


async def test_a_cancelled_start_leaves_no_task(cluster: FakeCluster):
    async with named(cluster):
        pass
    cluster.fence_gate.clear()
    second = named(cluster)
    starting = asyncio.ensure_future(second.start())
    await passes(30)
    assert not starting.done()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(errors.ClosedClientError):
        await second.send("t", b"x")
