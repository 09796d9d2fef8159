"""A synchronous consumer as a member of a group, on a real broker in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from raftmq import errors, sync
from raftmq.client.base.loop_thread import LoopThread
from raftmq.sync import consumer as consumer_module
from raftmq.types import TopicPartition

from tests.support.broker.harness import Harness
from tests.support.client.broker_transport import ADDRESS, BrokerTransport, produce

T0 = TopicPartition("t", 0)


class GroupBroker:
    """A real broker in memory on the background loop of `raftmq.sync`."""

    def __init__(self) -> None:
        self.loop = LoopThread.get()
        self.broker: Harness = self.loop.run(self._make())

    async def _make(self) -> Harness:
        broker = await Harness().start()
        self.coordinating = asyncio.create_task(broker.coordinator.run())
        self.topic = await broker.topic("t", partitions=2)
        return broker

    def produce(self, partition: int, count: int) -> None:
        self.loop.run(produce(self.broker, self.topic, partition, count))

    def consumer(self, *topics: str, **settings: object) -> sync.Consumer:
        usual: dict[str, object] = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50, "group_id": "g"}
        transport = BrokerTransport(self.broker)
        return sync.Consumer(*topics, bootstrap_servers=ADDRESS, transport=transport, **(usual | settings))

    async def _close(self) -> None:
        self.coordinating.cancel()
        await asyncio.wait([self.coordinating])
        self.broker.close()

    def close(self) -> None:
        self.loop.run(self._close())


@pytest.fixture
def group_broker() -> Iterator[GroupBroker]:
    broker = GroupBroker()
    yield broker
    broker.close()


def test_a_group_consumer_commits_only_the_records_its_thread_got(group_broker: GroupBroker):
    """The iterator fetches 500 records together. A commit and a clean end count only those that the program got."""
    group_broker.produce(0, 20)
    with group_broker.consumer("t") as consumer:
        assert [next(consumer).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        consumer.commit()
        assert consumer.committed(T0) == {T0: 5}
        assert next(consumer).offset == 5
    with group_broker.consumer("t") as consumer:
        assert next(consumer).offset == 6
        assert consumer.lag(T0) == {T0: 13}
        consumer.commit_nowait({T0: 3}).result(10)
        with pytest.raises(errors.FencedError):
            consumer.commit({TopicPartition("t", 9): 1})
        assert next(consumer).offset == 7
        with pytest.raises(ZeroDivisionError), consumer:
            1 // 0  # noqa: B018
    with group_broker.consumer("t") as consumer:
        assert next(consumer).offset == 3


def test_a_commit_excludes_records_that_another_thread_is_fetching(
    group_broker: GroupBroker, monkeypatch: pytest.MonkeyPatch
):
    group_broker.produce(0, 20)
    start = LoopThread.start
    with group_broker.consumer("t", enable_auto_commit=False) as consumer:
        other = threading.Thread(target=lambda: next(consumer))

        def start_late(self, coroutine):
            if not other.ident and threading.current_thread() is not other:
                other.start()
                other.join(0.5)  # what it takes now must not be committed; it waits for us if all is well
            return start(self, coroutine)

        with monkeypatch.context() as patch:
            patch.setattr(LoopThread, "start", start_late)
            consumer.commit()
        other.join(20)
        assert (consumer.committed(T0)[T0] or 0) <= 1


def test_closing_from_another_thread_does_not_commit_the_readers_current_record(group_broker: GroupBroker):
    group_broker.produce(0, 20)
    consumer = group_broker.consumer("t")
    is_at_work, may_go_on = threading.Event(), threading.Event()

    def read() -> None:
        for record in consumer:
            if record.offset == 5:
                is_at_work.set()
                may_go_on.wait(10)

    reader = threading.Thread(target=read)
    reader.start()
    assert is_at_work.wait(10)
    consumer.close()
    may_go_on.set()
    reader.join(10)
    with group_broker.consumer("t") as again:
        assert next(again).offset <= 5


def test_a_slow_iteration_stays_in_the_group_and_commits_automatically(
    group_broker: GroupBroker, monkeypatch: pytest.MonkeyPatch
):
    """Records that were fetched together took longer than `max_poll_interval_ms`: the member left, and got them again without end."""
    monkeypatch.setattr(consumer_module, "ITERATION_SECONDS_MAX", 0.1)
    group_broker.produce(0, 40)
    with group_broker.consumer("t", max_poll_interval_ms=1000, auto_commit_interval_ms=20) as consumer:
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 30:
                break
            time.sleep(0.05)
        assert seen == list(range(30))
        assert consumer.metrics().lost_total == 0
        assert (consumer.committed(T0)[T0] or 0) >= 20


def test_a_listener_runs_in_a_thread_and_may_commit(group_broker: GroupBroker):
    group_broker.produce(0, 20)
    heard: list[tuple[str, int]] = []

    class Committing(sync.RebalanceListener):
        def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            heard.append(("assigned", len(partitions)))

        def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            heard.append(("revoked", len(partitions)))
            consumer.commit({T0: 9})

    with group_broker.consumer(listener=Committing(), enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"])
        assert consumer.subscription() == {"t"}
        assert next(consumer).offset == 0
        consumer.unsubscribe()
        while consumer.assignment():
            consumer.getmany(timeout_ms=20)
        assert heard == [("assigned", 2), ("revoked", 2)]
        assert consumer.committed(T0) == {T0: 9}
