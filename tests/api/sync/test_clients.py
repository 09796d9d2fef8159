"""The synchronous clients beside the asynchronous ones."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from raftmq import Admin, Consumer, Producer, errors, sync
from raftmq.client.base.loop_thread import LoopThread
from raftmq.client.producer.batch import ProducerBatch
from raftmq.proto import queue_pb2 as pb
from raftmq.sync import consumer as consumer_module
from raftmq.types import TopicPartition

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


def test_a_delivery_is_done_only_when_its_outcome_is_complete():
    """Another thread may look at it in between, and would take a failed record for a written one."""
    seen: list[tuple[str, bool]] = []

    class Watched(ProducerBatch):
        def __setattr__(self, name: str, value: object) -> None:
            if name in ("base_offset", "error"):
                seen.append((name, getattr(self, "is_done", False)))
            super().__setattr__(name, value)

    batch = Watched("t", 0, 1, 0.0, 0.0)
    seen.clear()
    batch.finish(-1, errors.DeliveryTimeoutError("late"))
    assert seen == [("base_offset", False), ("error", False)]
    assert batch.is_done


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


class UnfairLock:
    """Prefers the thread that iterates, as a `threading.Lock` may."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses = 0
        self.iterating: threading.Thread | None = None

    def __enter__(self) -> None:
        is_preferred = threading.current_thread() is self.iterating
        uses = -1
        while not (is_preferred or uses == self._uses) or not self._lock.acquire(timeout=1):
            uses = self._uses
            time.sleep(0.02)
        self._uses += 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_an_iteration_that_finds_nothing_lets_other_threads_use_the_consumer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    """It takes the lock again as soon as it has released it, and other threads got it by chance only."""
    cluster.create_topic("t")
    monkeypatch.setattr(consumer_module, "ITERATION_WAIT_MS", 5)
    with sync.Consumer("t", bootstrap_servers=cluster.bootstrap_servers) as consumer:
        lock = UnfairLock()
        monkeypatch.setattr(consumer, "_lock", lock)
        lock.iterating = threading.Thread(target=lambda: list(consumer))
        lock.iterating.start()
        other = threading.Thread(target=consumer.position, args=(T0,))
        other.start()
        other.join(3)
        was_served = not other.is_alive()
        consumer.close()
        lock.iterating.join(20)
        other.join(20)
        assert was_served


def test_a_consumer_whose_lock_another_thread_held_at_a_fork_refuses_to_be_used(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    """That thread does not exist in the child, and would never release the lock."""
    cluster.create_topic("t")
    with sync.Consumer("t", bootstrap_servers=cluster.bootstrap_servers) as consumer:
        consumer._reader = threading.get_ident()
        with consumer._lock, monkeypatch.context() as patch:
            patch.setattr(consumer, "_generation", consumer._generation - 1)
            for call in (consumer.getmany, consumer.close, lambda: consumer.seek(T0, 0), lambda: next(consumer)):
                with pytest.raises(errors.ForkedClientError):
                    call()


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
        assert admin.raise_feature_level() == admin.describe_cluster().feature_level == 2
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


def test_an_exit_in_code_of_the_program_does_not_end_the_background_loop(cluster: FakeCluster):
    """`sys.exit` in a callback ends an event loop of asyncio. Here it would leave every client of the process without one."""
    cluster.create_topic("t")
    called: list[str] = []

    def leave(delivery: sync.Delivery) -> None:
        called.append("first")
        sys.exit(3)

    def refuse(value: bytes) -> bytes:
        raise SystemExit(value)

    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=200) as producer:
        producer.send("t", b"1").add_done_callback(leave)
        last = producer.send("t", b"2")
        last.add_done_callback(lambda _: called.append("second"))
        assert last.result(timeout_seconds=10).offset == 1
        producer.flush(10)
    assert called == ["first", "second"]
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers, value_serializer=refuse) as refusing:
        with pytest.raises(SystemExit):
            refusing.send("t", b"3")
        refusing.flush(10)


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
