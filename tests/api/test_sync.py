from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from raftmq import Admin, Consumer, Producer, errors, sync
from raftmq.client.base.loop_thread import LoopThread
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

from tests.support.broker.harness import Harness
from tests.support.client.broker_transport import ADDRESS, BrokerTransport, produce
from tests.support.client.fake_broker import FakeCluster, detail, records_in

T0 = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Run fake brokers on the background loop of `raftmq.sync`, so that the process has a single gRPC event loop."""
    loop = LoopThread.get()

    async def make() -> FakeCluster:
        return await FakeCluster(brokers=2).__aenter__()

    running = loop.run(make())
    yield running
    loop.run(running.__aexit__(None, None, None))


def test_eight_threads_share_a_producer(cluster: FakeCluster):
    cluster.create_topic("t", partitions=3)
    failures: list[BaseException] = []
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:

        def work(number: int) -> None:
            try:
                deliveries = [producer.send("t", b"%d-%d" % (number, n), key=b"%d" % number) for n in range(100)]
                offsets = [delivery.result(timeout_seconds=20).offset for delivery in deliveries]
                assert offsets == sorted(offsets)
                spans = producer.send_many("t", [(b"%d" % number, b"bulk-%d" % number)] * 200).result(20)
                assert sum(span.record_count for span in spans) == 200
            except BaseException as error:  # noqa: BLE001 - handed to the test
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failures
    found = [record for partition in cluster.topics["t"].partitions for record in records_in(partition)]
    assert len(found) == 8 * 300
    for number in range(8):
        mine = [value for key, value in found if key == b"%d" % number and not value.startswith(b"bulk")]
        assert mine == [b"%d-%d" % (number, n) for n in range(100)]


def test_a_consumer_iterates_seeks_and_ends(cluster: FakeCluster):
    cluster.create_topic("t")
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_many("t", [(None, b"%d" % n) for n in range(2000)])
        producer.flush()
        assert producer.send_and_wait("t", b"last").offset == 2000
    with sync.Consumer("t", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        assert consumer.assignment() == {T0}
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 700:
                assert consumer.position(T0) == 700, "records that were fetched and not returned do not count"
            if len(seen) == 2001:
                break
        assert seen == list(range(2001))
        consumer.seek(T0, 1990)
        assert next(consumer).offset == 1990
        found = consumer.getmany(timeout_ms=5000)
        assert [record.offset for record in found[T0]] == list(range(1991, 2001))
        assert consumer.getmany() == {}
        consumer.seek_to_beginning()
        assert consumer.position(T0) == 0
        assert consumer.end_offsets([T0]) == {T0: 2001}
        consumer.pause(T0)
        assert consumer.getmany(timeout_ms=50) == {}
        assert consumer.paused() == {T0}
        consumer.resume(T0)
        assert next(consumer).offset == 0
    assert list(consumer) == []
    with pytest.raises(errors.ClosedClientError):
        consumer.getmany()


def test_metrics_equal_those_of_the_asynchronous_client(cluster: FakeCluster):
    cluster.create_topic("t")
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_and_wait("t", b"x")
        assert (producer.metrics().records_total, producer.metrics().batches_total) == (1, 1)
    with sync.Consumer("t", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        assert next(consumer).value == b"x"
        assert (consumer.metrics().records_total, consumer.metrics().partitions) == (1, 1)


def test_callbacks_and_failures_equal_those_of_the_asynchronous_client(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
):
    cluster.create_topic("t")
    verdicts = iter([None, detail(pb.RECORD_TOO_LARGE)])
    cluster.append_hook = lambda *_: next(verdicts, None)
    seen: list[tuple[str, object]] = []
    threads: set[str] = set()
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:

        def on_done(delivery: sync.Delivery) -> None:
            threads.add(threading.current_thread().name)
            seen.append(("one", delivery.result().offset))
            raise ValueError("the program's own mistake")

        one = producer.send("t", b"x")
        one.add_done_callback(on_done)
        producer.flush()
        assert seen == [("one", 0)]
        assert threads == {"raftmq-sync"}
        assert "the program's own mistake" in caplog.text

        many = sync.BulkDelivery()
        with pytest.raises(TypeError):
            producer.send_many("t", [(None, b"a"), (None, b"b", [("h", b"1")]), (None, "text")], into=many)
        assert many.count == 2
        many.add_done_callback(lambda delivery: seen.append(("many", delivery.count)))
        with pytest.raises(errors.RecordTooLargeError):
            many.result()
        (failed,) = many.failures()
        assert list(failed.indexes) == [0, 1]
        producer.flush()
        assert seen[1:] == [("many", 2)]


def test_flush_and_close_obey_their_time_limits(cluster: FakeCluster):
    cluster.create_topic("t")
    cluster.append_hook = lambda *_: "swallow"
    producer = sync.Producer(bootstrap_servers=cluster.bootstrap_servers)
    delivery = producer.send("t", b"x")
    with pytest.raises(TimeoutError):
        producer.flush(timeout_seconds=0.05)
    assert not delivery.done()
    with pytest.raises(TimeoutError):
        producer.close(timeout_seconds=0.05)
    with pytest.raises((errors.ClosedInFlightError, errors.ClosedClientError)):
        delivery.result()
    with pytest.raises(errors.ClosedClientError):
        producer.send("t", b"y")
    producer.close()


def test_a_named_synchronous_producer_fences_its_predecessor(cluster: FakeCluster):
    cluster.create_topic("t")
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers, producer_name="job") as first:
        first.send_and_wait("t", b"old")
        with sync.Producer(bootstrap_servers=cluster.bootstrap_servers, producer_name="job") as second:
            second.send_and_wait("t", b"new")
        with pytest.raises(errors.ProducerFencedError):
            first.send_and_wait("t", b"zombie")
        with pytest.raises(errors.ProducerFencedError):
            first.flush()


def test_closing_ends_an_iteration_in_another_thread(cluster: FakeCluster):
    cluster.create_topic("t")
    consumer = sync.Consumer("t", bootstrap_servers=cluster.bootstrap_servers)
    thread = threading.Thread(target=lambda: list(consumer))
    thread.start()
    consumer.close()
    thread.join(20)
    assert not thread.is_alive()


def test_admin_results_and_errors_equal_those_of_the_asynchronous_client(cluster: FakeCluster):
    with sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert admin.create_topic("t", partitions=2).name == "t"
        with pytest.raises(errors.TopicAlreadyExistsError):
            admin.create_topic("t")
        assert [topic.name for topic in admin.list_topics()] == ["t"]
        assert admin.describe_cluster().topic_count == 1
        assert admin.remove_broker(2, force=True).replica_count == 7
        with pytest.raises(errors.BrokerInUseError):
            admin.remove_broker(2)
        admin.delete_topic("t")
    with (
        sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
        pytest.raises(errors.UnknownTopicError),
    ):
        producer.send("t", b"x")
    with pytest.raises(errors.BootstrapError):
        sync.Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=100)
    with pytest.raises(TypeError):
        sync.Producer(nonsense=1)  # type: ignore[call-arg]


def test_a_call_on_the_background_loop_is_refused():
    loop = LoopThread.get()

    async def misuse() -> None:
        with pytest.raises(RuntimeError, match="own event loop"):
            sync.Producer(bootstrap_servers="127.0.0.1:1")

    loop.run(misuse())


def test_synchronous_clients_have_the_methods_of_the_asynchronous_ones():
    """Synchronous methods have the same arguments, some with an additional time limit."""
    for theirs, ours in ((Producer, sync.Producer), (Consumer, sync.Consumer), (Admin, sync.Admin)):
        names = {name for name in vars(theirs) if not name.startswith("_")} - {"start"}
        assert names - set(vars(ours)) == set(), ours
        for name in names:
            expected = inspect.signature(getattr(theirs, name)).parameters.values()
            found = inspect.signature(getattr(ours, name)).parameters.values()
            assert [(p.name, p.kind, p.default) for p in found if p.name != "timeout_seconds"] == [
                (p.name, p.kind, p.default) for p in expected
            ], name


def test_an_interrupted_read_loses_no_record(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C may arrive together with records, which no caller gets then."""
    cluster.create_topic("t")
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_many("t", [(None, b"%d" % n) for n in range(10)]).result(20)
    run = LoopThread.run

    def run_interrupted(self, coroutine, timeout_seconds=None):
        run(self, coroutine, timeout_seconds)
        raise KeyboardInterrupt

    with sync.Consumer("t", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        for read in (lambda: next(consumer), lambda: consumer.getmany(timeout_ms=5000)):
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(LoopThread, "run", run_interrupted)
                read()
        (records,) = consumer.getmany(timeout_ms=5000).values()
        assert records[0].offset == 0


FORK = """
import os, sys
from raftmq import errors, sync
from raftmq.client.base.loop_thread import LoopThread
from tests.support.client.fake_broker import FakeCluster

loop = LoopThread.get()
async def make():
    cluster = await FakeCluster().__aenter__()
    cluster.create_topic("t")
    return cluster
cluster = loop.run(make())
producer = sync.Producer(bootstrap_servers=cluster.bootstrap_servers)
consumer = sync.Consumer("t", bootstrap_servers=cluster.bootstrap_servers)
inner = producer._client
producer.send_and_wait("t", b"x")
open_delivery = producer.send("t", b"later")
bulk = producer.send_many("t", [(None, b"later")])
child = os.fork()
if child == 0:
    refused = 0
    for call in (
        lambda: producer.send("t", b"y"), producer.flush, producer.close, consumer.getmany, consumer.close,
        inner._check_usable, lambda: iter(consumer), bulk.result, bulk.failures, lambda: sync.Admin(bootstrap_servers=cluster.bootstrap_servers),
    ):
        try:
            call()
        except errors.ForkedClientError:
            refused += 1
    os._exit(0 if refused == 10 else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert (open_delivery.result().offset, producer.send_and_wait("t", b"z").offset) == (1, 3)
producer.close()
consumer.close()
loop.run(cluster.__aexit__(None, None, None))
print("done")
"""


def test_open_clients_refuse_to_be_used_after_fork():
    done = subprocess.run([sys.executable, "-c", FORK], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "done"


FORGOTTEN = """
import asyncio, atexit
from raftmq import sync
from raftmq.client.base.loop_thread import LoopThread
from tests.support.client.fake_broker import FakeCluster, records_in

loop = LoopThread.get()
async def make():
    cluster = await FakeCluster().__aenter__()
    for name in ("good", "bad"):
        cluster.create_topic(name)
    cluster.append_hook = lambda broker, topic, *_: "swallow" if topic.name == "bad" else None
    return cluster
cluster = loop.run(make())
sync.EXIT_FLUSH_SECONDS = 0.5
settings = {"bootstrap_servers": cluster.bootstrap_servers, "linger_ms": 60_000}
atexit._clear()
atexit.register(lambda: print(sorted(value for _, value in records_in(cluster.topics["good"].partitions[0]))))
atexit.register(sync._close_at_exit)

def let_go():
    sync.Producer(**settings).send("good", b"let go")

let_go()
hopeless = [sync.Producer(**settings) for _ in range(3)]
for producer in hopeless:
    producer.send("bad", b"x")
kept = sync.Producer(**settings)
kept.send("good", b"kept")
"""


@pytest.mark.parametrize("options", [(), ("-W", "error::ResourceWarning")], ids=["", "warnings are errors"])
def test_records_of_an_unclosed_producer_are_written_at_exit(options: tuple[str, ...]):
    """This holds if the program dropped the producer, and if other producers cannot be flushed, which is reported."""
    command = [sys.executable, *options, "-c", FORGOTTEN]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[b'kept', b'let go']", done.stderr
    assert "TimeoutError" in done.stderr


LET_GO = """
import asyncio, atexit, gc
from raftmq import sync
from raftmq.client.base.loop_thread import LoopThread
from tests.support.client.fake_broker import FakeCluster

async def make():
    return await FakeCluster().__aenter__()
loop = LoopThread.get()
cluster = loop.run(make())
cluster.create_topic("t")
kept = [kind(bootstrap_servers=cluster.bootstrap_servers) for kind in (sync.Consumer, sync.Admin)]
for kind in (sync.Consumer, sync.Admin):
    kind(bootstrap_servers=cluster.bootstrap_servers)
    gc.collect()
closed = [kind(bootstrap_servers=cluster.bootstrap_servers) for kind in (sync.Consumer, sync.Admin)]
for client in closed:
    client.close()
inner = [client._client for client in kept]
atexit._clear()
atexit.register(lambda: print([client._is_open for client in inner]))
atexit.register(sync._close_at_exit)
print("end of the program", flush=True)
"""


def test_unclosed_consumers_and_admins_are_closed_at_exit_with_a_warning():
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", LET_GO]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["end of the program", "[False, False]"], done.stderr
    for kind in ("Consumer", "Admin"):
        text = f"ResourceWarning: a raftmq.sync.{kind} was not closed: use with, or close()"
        assert done.stderr.count(text) == 2, done.stderr


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
                other.join(
                    0.5
                )  # the records that it gets now must not be committed: without a defect it waits for this commit
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
