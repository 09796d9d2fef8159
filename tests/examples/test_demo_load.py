"""The demo's load: its victim, the times of the kill and the restart, its measurements, and a failed append."""

import asyncio
import io
from collections.abc import Generator, Iterable
from typing import cast

import pytest
from raftmq import AppendedSpan, Producer
from raftmq.errors import DeliveryTimeoutError, RaftMQError
from raftmq.testing import LocalCluster

from examples.demo_flights.load import CHUNK_RECORDS, KILL_AT, RESTART_AT, Load, LoadReport, choose_victim
from examples.demo_flights.progress import Reporter

LEADERS = {0: 1, 1: 2, 2: 2, 3: 3, 4: 2, 5: 1}


class FakeCluster:
    def __init__(self) -> None:
        self.events: list[str] = []

    def wait_leaders(self, topic: str) -> dict[int, int]:
        return LEADERS

    def kill(self, broker_id: int) -> None:
        self.events.append(f"kill {broker_id}")

    def restart(self, broker_id: int) -> None:
        self.events.append(f"restart {broker_id}")


class FakeDelivery:
    """A delivery to the given partitions that is acknowledged one turn of the loop after it is awaited."""

    def __init__(self, count: int, partitions: Iterable[int], error: RaftMQError | None) -> None:
        self.count = count
        self._spans = [AppendedSpan("t", partition, 0, count) for partition in partitions]
        self._error = error

    def __await__(self) -> Generator[object, None, list[AppendedSpan]]:
        yield from asyncio.sleep(0).__await__()
        if self._error is not None:
            raise self._error
        return self._spans


class FakeProducer:
    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.taken: list[tuple[bytes | None, bytes]] = []
        self.error: RaftMQError | None = None

    async def send_many(self, topic: str, records: list[tuple[bytes | None, bytes]]) -> FakeDelivery:
        self.taken += records
        self.cluster.events.append(f"taken {len(self.taken)}")
        # Each chunk goes to one partition, so a single acknowledgement must not end a failover of three partitions.
        return FakeDelivery(len(records), [len(self.taken) // CHUNK_RECORDS % len(LEADERS)], self.error)


def flights(count: int) -> list[tuple[bytes | None, bytes]]:
    return [(b"k", b"%d" % number) for number in range(count)]


async def run(cluster: FakeCluster, producer: FakeProducer, count: int) -> LoadReport:
    load = Load(cast("LocalCluster", cluster), "t", cast("Producer", producer), Reporter(io.StringIO()))
    return await load.run(flights(count))


def test_the_victim_leads_most_partitions() -> None:
    assert choose_victim(LEADERS) == (2, (1, 2, 4))
    assert choose_victim({0: 3, 1: 1}) == (1, (1,))


async def test_the_kill_comes_in_the_middle_and_the_restart_later() -> None:
    cluster = FakeCluster()
    producer = FakeProducer(cluster)
    count = 100 * CHUNK_RECORDS
    report = await run(cluster, producer, count)
    assert producer.taken == flights(count)
    assert cluster.events.index("kill 2") == KILL_AT * 100
    restarted = cluster.events.index("restart 2")
    assert restarted > RESTART_AT * 100
    assert (report.killed_broker, report.killed_partitions, report.killed_after) == (2, (1, 2, 4), KILL_AT * count)
    assert report.records == count
    assert report.bytes == sum(len(value) + 1 for _, value in flights(count))
    assert len(report.append_seconds) == 100


async def test_the_failover_ends_with_the_last_partition_of_the_dead_broker() -> None:
    cluster = FakeCluster()
    report = await run(cluster, FakeProducer(cluster), 100 * CHUNK_RECORDS)
    assert 0 < report.failover_seconds < report.seconds


async def test_the_broker_stays_down_until_the_others_have_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    monkeypatch.setitem(LEADERS, 77, 2)  # a partition that never acknowledges
    report = await run(cluster, FakeProducer(cluster), 100 * CHUNK_RECORDS)
    assert report.failover_seconds == 0
    assert cluster.events[-1] == "restart 2"
    assert report.restarted_after == 100 * CHUNK_RECORDS


async def test_a_failed_append_ends_the_load() -> None:
    cluster = FakeCluster()
    producer = FakeProducer(cluster)
    producer.error = DeliveryTimeoutError("not acknowledged")
    with pytest.raises(ExceptionGroup) as failed:
        await run(cluster, producer, 50 * CHUNK_RECORDS)
    assert failed.group_contains(DeliveryTimeoutError)
