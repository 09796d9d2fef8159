"""The operations of real SDK clients are recorded truthfully, and the SDK's errors decide whether a failure is definite."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from raftmq import errors
from raftmq.client.admin.admin import Admin
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.producer import Producer
from raftmq.errors import ERROR_CLASSES, Outcome, RaftMQError
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

from sim.history.checker import judge
from sim.history.events import Event, Partition
from sim.history.recorder import Recorder, first_word, kind_of
from sim.history.recording_admin import RecordingAdmin
from sim.history.recording_consumer import RecordingConsumer
from sim.history.recording_producer import RecordingProducer
from tests.support.client.fake_broker import FakeCluster, detail
from tests.support.client.memory_transport import MemoryTransport


class Recorded:
    """A cluster in memory, and clients that write into one history. The time is the number of the event."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.transport = MemoryTransport(self.cluster)
        self.events: list[Event] = []
        ticks = count(1)
        self.recorder = Recorder(self.events.append, lambda: next(ticks))

    def producer(self, name: str = "writer", **settings: object) -> RecordingProducer:
        made = Producer(bootstrap_servers=self.transport.addresses, transport=self.transport, **settings)
        is_idempotent = bool(settings.get("enable_idempotence", True))
        return RecordingProducer(made, self.recorder, name, is_idempotent=is_idempotent)

    def consumer(self, *topics: str, name: str = "reader") -> RecordingConsumer:
        made = Consumer(
            *topics,
            bootstrap_servers=self.transport.addresses,
            transport=self.transport,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=10,
        )
        return RecordingConsumer(made, self.recorder, name, start="earliest")

    def admin(self, name: str = "admin") -> RecordingAdmin:
        made = Admin(bootstrap_servers=self.transport.addresses, transport=self.transport)
        return RecordingAdmin(made, self.recorder, name)

    def told(self) -> list[tuple[str, str]]:
        return [(event.operation, event.kind) for event in self.events]


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


# --------------------------------------------------------------------------------------------------------------- outcomes


@pytest.mark.parametrize("error", [cls for cls in ERROR_CLASSES.values()], ids=lambda cls: cls.__name__)  # noqa: C416
def test_a_failure_is_definite_only_when_the_sdk_says_so(error: type[RaftMQError]) -> None:
    assert kind_of(error()) == ("fail" if error.outcome is Outcome.NOT_APPLIED else "info")


@pytest.mark.parametrize(
    "error", [TimeoutError(), asyncio.CancelledError(), ValueError("x"), errors.DeliveryTimeoutError()]
)
def test_anything_else_is_unknown(error: BaseException) -> None:
    assert kind_of(error) == "info"


def test_the_id_of_a_record_is_its_first_word() -> None:
    assert [first_word(value) for value in (b"17 ...", b"17", b"", None, b"\xff x")] == ["17", "17", "", "", "\\xff"]


def test_an_operation_ends_once() -> None:
    events: list[Event] = []
    operation = Recorder(events.append, lambda: 1).invoke("p", "send", topic="t", value="v")
    operation.ok()
    operation.fail()
    assert [event.kind for event in events] == ["invoke", "ok"]


# --------------------------------------------------------------------------------------------------------------- producer


async def test_an_acknowledged_send_is_recorded_before_its_sender_continues(recorded: Recorded) -> None:
    recorded.cluster.create_topic("t")
    async with recorded.producer() as producer:
        metadata = await producer.send_and_wait("t", b"v0 padding", key=b"k")
        assert recorded.told() == [("send", "invoke"), ("send", "ok")]
    invoked, done = recorded.events
    assert (invoked.process, invoked.value, invoked.key, invoked.producer) == ("writer", "v0", "k", "writer")
    assert (done.id, done.partition, done.offset, metadata.offset) == (invoked.id, 0, 0, 0)


async def test_outcomes_of_sends_that_nobody_awaits_are_recorded(recorded: Recorded) -> None:
    recorded.cluster.create_topic("t", partitions=2)
    async with recorded.producer() as producer:
        deliveries = [await producer.send("t", b"v%d" % number, partition=number % 2) for number in range(10)]
        await producer.settled()
        assert all(delivery.done() for delivery in deliveries)
    assert recorded.told().count(("send", "ok")) == 10
    judge(recorded.events).demand_clean()


async def test_a_send_that_is_not_answered_in_time_is_unknown(recorded: Recorded) -> None:
    recorded.cluster.create_topic("t")
    recorded.cluster.append_hook = lambda *_: "swallow"
    async with recorded.producer(delivery_timeout_ms=50, request_timeout_ms=20) as producer:
        with pytest.raises(errors.DeliveryTimeoutError):
            await producer.send_and_wait("t", b"v0")
    assert recorded.events[-1].kind == "info"
    assert recorded.events[-1].error == "DeliveryTimeoutError"


async def test_a_refused_send_is_a_definite_failure(recorded: Recorded) -> None:
    recorded.cluster.create_topic("t")
    recorded.cluster.append_hook = lambda *_: detail(pb.RECORD_TOO_LARGE)
    async with recorded.producer() as producer:
        with pytest.raises(errors.RecordTooLargeError):
            await producer.send_and_wait("t", b"v0")
        with pytest.raises(errors.UnknownTopicError):
            await producer.send("nowhere", b"v1")
    assert recorded.told() == [("send", "invoke"), ("send", "fail")] * 2


async def test_an_abandoned_producer_leaves_its_sends_open(recorded: Recorded) -> None:
    recorded.cluster.create_topic("t")
    recorded.cluster.append_gate.clear()
    producer = recorded.producer()
    await producer.start()
    delivery = await producer.send("t", b"v0")
    await producer.abandon()
    recorded.cluster.append_gate.set()
    await delivery
    await producer.close()
    assert recorded.told() == [("send", "invoke")]


async def test_many_sends_have_offsets_when_they_go_to_one_partition(recorded: Recorded) -> None:
    recorded.cluster.create_topic("t", partitions=2)
    async with recorded.producer() as producer:
        await producer.send_many("t", [(None, b"v%d" % number) for number in range(5)], partition=1)
        await producer.send_many("t", [(b"k", b"w%d" % number) for number in range(5)])
    ends = [event for event in recorded.events if event.kind == "ok"]
    assert [(event.value, event.partition, event.offset) for event in ends[:5]] == [(f"v{n}", 1, n) for n in range(5)]
    assert [(event.value, event.partition, event.offset) for event in ends[5:]] == [
        (f"w{n}", None, None) for n in range(5)
    ]


async def test_each_record_of_a_failed_bulk_send_is_unknown(recorded: Recorded) -> None:
    recorded.cluster.create_topic("t")
    recorded.cluster.append_hook = lambda *_: detail(pb.RECORD_TOO_LARGE)
    async with recorded.producer() as producer:
        with pytest.raises(errors.RecordTooLargeError):
            await producer.send_many("t", [(None, b"v0"), (None, b"v1")])
    assert recorded.told()[2:] == [("send", "info")] * 2


async def test_a_producer_without_idempotence_promises_nothing(recorded: Recorded) -> None:
    recorded.cluster.create_topic("t")
    async with recorded.producer(enable_idempotence=False) as producer:
        await producer.send_and_wait("t", b"v0")
    assert recorded.events[0].producer is None


# --------------------------------------------------------------------------------------------------------------- consumer


async def test_polls_are_recorded_with_the_seeks_between_them(recorded: Recorded) -> None:
    recorded.cluster.create_topic("t")
    t0 = TopicPartition("t", 0)
    async with recorded.producer() as producer, recorded.consumer() as consumer:
        for number in range(3):
            await producer.send_and_wait("t", b"v%d" % number)
        consumer.assign([t0])
        read = 0
        while read < 3:
            read += len((await consumer.getmany(timeout_ms=1000)).get(t0, ()))
        await consumer.seek(t0, 1)
        assert (await anext(consumer)).offset == 1
        await consumer.seek_to_beginning()
        await consumer.seek_to_end(t0)
    reader = [event for event in recorded.events if event.process == "reader" and event.kind == "ok"]
    assert reader[0].assignment == [Partition("t", 0)]
    assert reader[0].start == "earliest"
    polled = [batch for event in reader for batch in event.records or []]
    assert [(batch.offsets, batch.values) for batch in polled][-1] == ([1], ["v1"])
    assert [event.offset for event in reader if event.operation == "seek"] == [1, 0, 3]
    judge(recorded.events).demand_clean()


async def test_a_consumer_created_with_topics_records_its_assignment(recorded: Recorded) -> None:
    recorded.cluster.create_topic("t", partitions=2)
    async with recorded.consumer("t"):
        pass
    assert recorded.events[-1].assignment == [Partition("t", 0), Partition("t", 1)]


async def test_a_cancelled_poll_is_a_failure_without_records(recorded: Recorded) -> None:
    recorded.cluster.create_topic("t")
    async with recorded.consumer() as consumer:
        consumer.assign([TopicPartition("t", 0)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await consumer.getmany(timeout_ms=60_000)
    assert (recorded.events[-1].operation, recorded.events[-1].kind) == ("poll", "fail")


async def test_a_complete_reading_would_find_a_loss(recorded: Recorded) -> None:
    recorded.cluster.create_topic("t", partitions=2)
    partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
    async with recorded.producer() as producer, recorded.consumer() as consumer:
        for number in range(20):
            await producer.send("t", b"v%d" % number, partition=number % 2)
        await producer.settled()
        read = await consumer.read_all(partitions)
    assert {partition: len(records) for partition, records in read.items()} == dict.fromkeys(partitions, 10)
    last = recorded.events[-1]
    assert (last.operation, last.kind, last.ends) == ("read_all", "ok", [("t", 0, 10), ("t", 1, 10)])
    judge(recorded.events).demand_clean()
    # add an acknowledgement of a record that was never written, before the reading
    ghost = recorded.events[0], recorded.events[-1]
    operation = Recorder(recorded.events.append, lambda: ghost[1].time).invoke(
        "x", "send", topic="t", value="lost", producer="x"
    )
    operation.ok(topic="t", value="lost", partition=0, offset=10)
    late = recorded.events[-2:]
    assert judge([*late, *recorded.events[:-2]]).counts == {"never_read": 1}


async def test_a_failed_reading_is_not_complete(recorded: Recorded) -> None:
    async with recorded.consumer() as consumer:
        with pytest.raises(errors.UnknownTopicError):
            await consumer.read_all([TopicPartition("nowhere", 0)])
    assert (recorded.events[-1].operation, recorded.events[-1].kind) == ("read_all", "fail")


# ------------------------------------------------------------------------------------------------------------------ admin


async def test_changes_of_topics_are_recorded_and_linearizable(recorded: Recorded) -> None:
    async with recorded.admin() as admin, recorded.producer() as producer:
        await admin.create_topic("t", partitions=2, config={"a": 1})
        with pytest.raises(errors.TopicAlreadyExistsError):
            await admin.create_topic("t")
        await admin.alter_topic_config("t", {"b": 2}, unset=["a"])
        await admin.add_partitions("t", 3)
        assert (await admin.describe_topic("t")).config == {"b": "2"}
        await producer.send_and_wait("t", b"v0", partition=0)
        assert await admin.delete_records({TopicPartition("t", 0): -1}) == {TopicPartition("t", 0): 1}
        await admin.delete_topic("t")
        for call in (
            admin.describe_topic("t"),
            admin.alter_topic_config("t", {"x": "1"}),
            admin.add_partitions("t", 9),
        ):
            with pytest.raises(errors.UnknownTopicError):
                await call
    assert recorded.told() == [
        *[("create_topic", "invoke"), ("create_topic", "ok")],
        *[("create_topic", "invoke"), ("create_topic", "fail")],
        *[("alter_topic", "invoke"), ("alter_topic", "ok")],
        *[("add_partitions", "invoke"), ("add_partitions", "ok")],
        *[("describe_topic", "invoke"), ("describe_topic", "ok")],
        *[("send", "invoke"), ("send", "ok")],
        *[("trim", "invoke"), ("trim", "ok")],
        *[("delete_topic", "invoke"), ("delete_topic", "ok")],
        *[("describe_topic", "invoke"), ("describe_topic", "fail")],
        *[("alter_topic", "invoke"), ("alter_topic", "fail")],
        *[("add_partitions", "invoke"), ("add_partitions", "fail")],
    ]
    judge(recorded.events).demand_clean()


def test_a_trim_by_retention_is_recorded(recorded: Recorded) -> None:
    recorded.recorder.record_trim("t", 0, 5)
    assert recorded.told() == [("trim", "invoke"), ("trim", "info")]
    assert judge(recorded.events).is_clean
