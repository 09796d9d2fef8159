"""Every error that a user of the SDK can meet: its class, code, outcome and advice, within a bounded time.

Each case runs with the asynchronous and the synchronous SDK on a real cluster. A fake broker plays only the parts that a real
one cannot play: another version, refused rights, another cluster, no answers.
"""

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc.aio
import pytest
from raftmq import Admin, Consumer, Producer, TopicPartition, errors, sync
from raftmq.errors import ErrorCode, Outcome
from raftmq.proto import queue_pb2 as pb
from raftmq.testing import LocalCluster

from tests.support.client.fake_broker import FakeCluster, abort, detail

pytestmark = [pytest.mark.e2e]

TOPIC = "known"
T0 = TopicPartition(TOPIC, 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as running:
        with sync.Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, partitions=2, replication_factor=3)
            admin.create_topic("narrow", config={"max.batch.bytes": "2048"})
        yield running


@pytest.fixture(autouse=True)
def no_noise(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Assert that no background task or callback of any event loop raised an unhandled exception."""
    yield
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


class Threaded:
    """A synchronous client with the methods of the asynchronous one. Each call runs in a thread."""

    def __init__(self, cls: Callable[..., Any], *args: object, **settings: object) -> None:
        self._make = lambda: cls(*args, **settings)

    async def __aenter__(self) -> Self:
        self._client = await asyncio.to_thread(self._make)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.to_thread(self._client.close)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: object, **settings: object) -> Any:
            return await asyncio.to_thread(getattr(self._client, name), *args, **settings)

        return call


class Sdk:
    """A factory of clients of one kind, asynchronous or synchronous, for one cluster."""

    def __init__(self, kind: str, servers: str) -> None:
        self.kind = kind
        self.servers = servers

    def _make(self, cls: Any, sync_cls: Any, *args: object, **settings: object) -> AbstractAsyncContextManager[Any]:
        arguments = {"bootstrap_servers": self.servers} | settings
        client: AbstractAsyncContextManager[Any] = (
            Threaded(sync_cls, *args, **arguments) if self.kind == "sync" else cls(*args, **arguments)
        )
        return client

    def producer(self, **settings: object) -> AbstractAsyncContextManager[Any]:
        return self._make(Producer, sync.Producer, **settings)

    def consumer(self, *topics: str, **settings: object) -> AbstractAsyncContextManager[Any]:
        return self._make(Consumer, sync.Consumer, *topics, **settings)

    def admin(self, **settings: object) -> AbstractAsyncContextManager[Any]:
        return self._make(Admin, sync.Admin, **settings)


SECONDS_MAX = 15.0
"""At most half of the time for which a call would be repeated. A busy machine may take seconds for the start of a client."""


class Case(NamedTuple):
    """A user's action and the expected error."""

    name: str
    act: Callable[[Sdk], Awaitable[object]]
    error: type[errors.RaftMQError]
    code: ErrorCode | None
    says: tuple[str, ...]
    """Parts of the text, one of which is advice."""
    outcome: Outcome = Outcome.NOT_APPLIED


async def check(case: Case, sdk: Sdk) -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(errors.RaftMQError) as caught:
        async with asyncio.timeout(30):
            await case.act(sdk)
    elapsed = asyncio.get_running_loop().time() - started
    error = caught.value
    assert type(error) is case.error, repr(error)
    assert (error.code, error.outcome) == (case.code, case.outcome)
    for part in case.says:
        assert part in str(error)
    assert "\n" not in str(error), "one sentence, for a command line"
    assert elapsed < SECONDS_MAX


# ------------------------------------------------------------------------------------------------------ at a real cluster


async def send(sdk: Sdk, topic: str = TOPIC, value: bytes = b"x", **settings: object) -> object:
    async with sdk.producer(**settings) as producer:
        return await producer.send_and_wait(topic, value)


async def send_to_partition_99(sdk: Sdk) -> object:
    async with sdk.producer() as producer:
        return await producer.send_and_wait(TOPIC, b"x", partition=99)


async def send_many_too_large(sdk: Sdk) -> object:
    async with sdk.producer() as producer:
        return await producer.send_many(TOPIC, [(None, b"fits"), (None, bytes(2 << 20))])


async def fill_the_buffer(sdk: Sdk) -> object:
    settings = {"buffer_memory": 128 * 1024, "max_batch_size": 1 << 20, "linger_ms": 60_000, "max_block_ms": 200}
    async with sdk.producer(**settings) as producer:
        for _ in range(20):
            await producer.send(TOPIC, bytes(10_000), partition=0)
    return None


async def read_unknown(sdk: Sdk, topic: str = "nowhere") -> object:
    async with sdk.consumer(topic) as consumer:
        return await consumer.getmany(timeout_ms=1000)


async def read_without_a_position(sdk: Sdk) -> object:
    async with sdk.consumer(TOPIC, auto_offset_reset="none") as consumer:
        return await consumer.getmany(timeout_ms=5000)


async def read_behind_the_end(sdk: Sdk) -> object:
    async with sdk.consumer("narrow", auto_offset_reset="none") as consumer:
        await consumer.seek(TopicPartition("narrow", 0), 1_000_000)
        return await consumer.getmany(timeout_ms=10_000)


async def seek_what_is_not_assigned(sdk: Sdk) -> object:
    async with sdk.consumer(TOPIC) as consumer:
        return await consumer.seek(TopicPartition("other", 0), 1)


async def use_after_close(sdk: Sdk) -> object:
    async with sdk.producer() as producer:
        pass
    return await producer.send(TOPIC, b"x")


async def read_after_close(sdk: Sdk) -> object:
    async with sdk.consumer(TOPIC) as consumer:
        pass
    return await consumer.getmany(timeout_ms=1000)


async def describe_after_close(sdk: Sdk) -> object:
    async with sdk.admin() as admin:
        pass
    return await admin.list_topics()


async def administrate(sdk: Sdk, method: str, *args: object, **settings: object) -> object:
    async with sdk.admin() as admin:
        return await getattr(admin, method)(*args, **settings)


def admin_case(name: str, error: type[errors.RaftMQError], says: tuple[str, ...], *args: Any, **settings: Any) -> Case:
    return Case(name, lambda sdk: administrate(sdk, *args, **settings), error, error.code, says)


CASES = [
    Case("send to an unknown topic", lambda sdk: send(sdk, "nowhere"), errors.UnknownTopicError, ErrorCode.UNKNOWN_TOPIC,
         ("'nowhere'", "raftmq topic create")),
    Case("read an unknown topic", read_unknown, errors.UnknownTopicError, ErrorCode.UNKNOWN_TOPIC,
         ("'nowhere'", "raftmq topic create")),
    Case("send to a name no topic can have", lambda sdk: send(sdk, "a topic"), errors.InvalidTopicNameError,
         ErrorCode.INVALID_TOPIC_NAME, ("'a topic'", "a-z A-Z")),
    Case("read a name no topic can have", lambda sdk: read_unknown(sdk, "a/b"), errors.InvalidTopicNameError,
         ErrorCode.INVALID_TOPIC_NAME, ("'a/b'", "a-z A-Z")),
    admin_case("describe an unknown topic", errors.UnknownTopicError, ("'nowhere'",), "describe_topic", "nowhere"),
    admin_case("delete an unknown topic", errors.UnknownTopicError, ("'nowhere'",), "delete_topic", "nowhere"),
    Case("send to an unknown partition", send_to_partition_99, errors.UnknownPartitionError, ErrorCode.UNKNOWN_PARTITION,
         ("partitions 0 to 1", "99", "add partitions")),
    admin_case("a name with a slash", errors.InvalidTopicNameError, ("a/b", "a-z A-Z"), "create_topic", "a/b"),
    admin_case("an empty name", errors.InvalidTopicNameError, ("a-z A-Z",), "create_topic", ""),
    admin_case("a name too long", errors.InvalidTopicNameError, ("1 to 249",), "create_topic", "x" * 250),
    admin_case("a reserved name", errors.InvalidTopicNameError, ("__", "reserved"), "create_topic", "__mine"),
    admin_case("a name in use", errors.TopicAlreadyExistsError, (TOPIC, "if_not_exists"), "create_topic", TOPIC),
    admin_case("more replicas than brokers", errors.InvalidReplicationFactorError, ("factor 4", "3", "fewer replicas"),
               "create_topic", "wide", replication_factor=4),
    admin_case("an unknown setting", errors.InvalidConfigError, ("'colour'", "retention.ms"),
               "create_topic", "odd", config={"colour": "blue"}),
    admin_case("a bad value", errors.InvalidConfigError, ("retention.ms", "soon"),
               "create_topic", "odd", config={"retention.ms": "soon"}),
    admin_case("no partitions", errors.InvalidArgumentError, ("partitions must be positive",), "create_topic", "odd", 0),
    admin_case("too many partitions", errors.TooManyPartitionsError, ("at most",), "create_topic", "odd", 1_000_000),
    admin_case("fewer partitions", errors.InvalidPartitionsError, ("has 2", "larger"), "add_partitions", TOPIC, 1),
    Case("a record too large", lambda sdk: send(sdk, value=bytes(2 << 20)), errors.RecordTooLargeError,
         ErrorCode.RECORD_TOO_LARGE, ("2097152", "1048560", "send less")),
    Case("one of many too large", send_many_too_large, errors.RecordTooLargeError, ErrorCode.RECORD_TOO_LARGE,
         ("1048560", "send less")),
    Case("too large for the topic", lambda sdk: send(sdk, "narrow", bytes(10_000)), errors.RecordTooLargeError,
         ErrorCode.RECORD_TOO_LARGE, ("2048", "send less")),
    Case("buffer full", fill_the_buffer, errors.BufferFullError, None, ("131072", "0.2 s", "buffer_memory")),
    Case("no position", read_without_a_position, errors.NoPositionError, None, (f"{TOPIC}/", "seek")),
    Case("behind the end", read_behind_the_end, errors.OffsetOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE,
         ("narrow/0", "auto_offset_reset")),
    Case("not assigned", seek_what_is_not_assigned, errors.InvalidArgumentError, ErrorCode.INVALID_ARGUMENT,
         ("is not assigned",)),
    Case("unknown compression", lambda sdk: send(sdk, compression_type="brotli"), errors.UnsupportedCompressionError,
         ErrorCode.UNSUPPORTED_COMPRESSION, ("'brotli'", "lz4, zstd, snappy, gzip")),
    Case("an address without a port", lambda sdk: send(sdk, bootstrap_servers="localhost"), errors.InvalidArgumentError,
         ErrorCode.INVALID_ARGUMENT, ("'localhost'", "host:port")),
    Case("closed producer", use_after_close, errors.ClosedClientError, None, ("is closed", "create a new one")),
    Case("closed consumer", read_after_close, errors.ClosedClientError, None, ("is closed", "create a new one")),
    Case("closed admin", describe_after_close, errors.ClosedClientError, None, ("is closed", "create a new one")),
    Case("unknown assignor", lambda sdk: read_group(sdk, assignor="best"), errors.InvalidArgumentError,
         ErrorCode.INVALID_ARGUMENT, ("'best'", "sticky")),
    Case("commit without a group", lambda sdk: commit_alone(sdk), errors.InvalidArgumentError,
         ErrorCode.INVALID_ARGUMENT, ("group_id",)),
    Case("commit of a stranger's partition", lambda sdk: read_group(sdk, commits={TopicPartition(TOPIC, 77): 1}),
         errors.FencedError, ErrorCode.FENCED, (f"{TOPIC}/77", "does not hold")),
]  # fmt: skip


async def read_group(sdk: Sdk, commits: dict[TopicPartition, int] | None = None, **settings: object) -> object:
    async with sdk.consumer(TOPIC, group_id="g", **settings) as consumer:
        return await consumer.commit(commits)


async def commit_alone(sdk: Sdk) -> object:
    async with sdk.consumer(TOPIC) as consumer:
        return await consumer.commit()


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_a_users_mistake_raises_a_typed_error_with_advice(cluster: LocalCluster, case: Case, kind: str) -> None:
    await check(case, Sdk(kind, cluster.bootstrap_servers))


async def test_a_client_that_was_not_started_names_async_with(cluster: LocalCluster) -> None:
    servers = cluster.bootstrap_servers
    calls: list[Awaitable[object]] = [
        Producer(bootstrap_servers=servers).send(TOPIC, b"x"),
        Consumer(TOPIC, bootstrap_servers=servers).getmany(),
        Admin(bootstrap_servers=servers).list_topics(),
    ]
    for call in calls:
        with pytest.raises(errors.ClosedClientError, match="async with"):
            await call


def test_a_file_in_place_of_a_data_directory_is_refused(tmp_path: Path) -> None:
    """The operating system checks permissions. A test that runs as root is refused only if the path is a file."""
    taken = tmp_path / "a file"
    taken.write_text("mine")
    with pytest.raises(OSError, match="a file"), LocalCluster(brokers=1, directory=taken):
        pass
    assert taken.read_text() == "mine"


# --------------------------------------------------------------------------------------------------------- without a majority


async def write_without_majority(sdk: Sdk) -> object:
    async with sdk.producer(max_block_ms=2500, delivery_timeout_ms=2500) as producer:
        deliveries = [await producer.send(TOPIC, b"x", partition=partition) for partition in range(2)]
        for delivery in deliveries:
            await (asyncio.to_thread(delivery.result) if isinstance(delivery, sync.Delivery) else delivery)
    return None


@pytest.fixture
async def minority(cluster: LocalCluster) -> AsyncIterator[str]:
    """Freeze two of three brokers, so that nothing has a leader, and yield the third one's address."""
    lone, *frozen = cluster.broker_ids
    for broker_id in frozen:
        cluster.pause(broker_id)
    yield cluster.address(lone)
    for broker_id in frozen:
        cluster.resume(broker_id)
    await asyncio.to_thread(cluster.wait_leaders, TOPIC)
    await asyncio.to_thread(cluster.wait_formed)


async def test_without_a_majority_every_call_ends_in_time(minority: str) -> None:
    """The error depends on how much the lone broker has noticed: it is retriable, or its outcome is unknown."""
    unavailable = (
        errors.DeliveryExpiredError,
        errors.DeliveryTimeoutError,
        errors.NoLeaderError,
        errors.NotLeaderError,
        errors.NotReadyError,
        errors.RequestTimedOutError,
        errors.LeadershipLostError,
        errors.UnreachableError,
    )

    async def end_offsets(sdk: Sdk) -> object:
        async with sdk.consumer(request_timeout_ms=2500) as consumer:
            return await consumer.end_offsets([T0, TopicPartition(TOPIC, 1)])

    async def create(sdk: Sdk) -> object:
        async with sdk.admin(request_timeout_ms=2500) as admin:
            return await admin.create_topic("never")

    async def meet(act: Callable[[Sdk], Awaitable[object]], kind: str) -> errors.RaftMQError:
        with pytest.raises(unavailable) as caught:
            async with asyncio.timeout(15):
                await act(Sdk(kind, minority))
        return caught.value

    kinds = ("async", "sync")
    met = await asyncio.gather(
        *(meet(act, kind) for act in (write_without_majority, end_offsets, create) for kind in kinds)
    )
    assert all(error.retriable or error.outcome is Outcome.UNKNOWN for error in met)
    assert all(";" in str(error) or "try again" in str(error) or ":" in str(error) for error in met), met


# ------------------------------------------------------------------------------------------------------------- at a fake broker


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=1) as running:
        running.create_topic(TOPIC)
        yield running


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def starts(sdk: Sdk, seconds: float) -> list[Callable[[Sdk], Awaitable[object]]]:
    """Return functions that start each of the three clients with this timeout."""

    async def start(client: AbstractAsyncContextManager[Any]) -> None:
        async with client:
            pass

    milliseconds = seconds * 1000
    return [
        lambda sdk: start(sdk.producer(max_block_ms=milliseconds)),
        lambda sdk: start(sdk.consumer(request_timeout_ms=milliseconds)),
        lambda sdk: start(sdk.admin(request_timeout_ms=milliseconds)),
    ]


async def check_starts(sdk: Sdk, error: type[errors.RaftMQError], *says: str, seconds: float = 0.5) -> None:
    """Check that each client fails in this way when it may take so many seconds to start."""
    cases = [Case("start", act, error, error.code, says) for act in starts(sdk, seconds)]
    await asyncio.gather(*(check(case, sdk) for case in cases))


async def test_starting_names_each_address_that_refused_the_connection(kind: str) -> None:
    sdk = Sdk(kind, "127.0.0.1:1,127.0.0.1:2")
    await check_starts(
        sdk, errors.BootstrapError, "127.0.0.1:1 (connection refused)", "127.0.0.1:2", "check bootstrap_servers"
    )


async def test_starting_at_an_unresponsive_server_fails_with_advice(kind: str) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        sdk = Sdk(kind, f"127.0.0.1:{mute.getsockname()[1]}")
        await check_starts(sdk, errors.BootstrapError, "check bootstrap_servers")


async def test_starting_at_a_server_of_another_kind_or_version_fails_immediately(kind: str) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sdk = Sdk(kind, f"127.0.0.1:{port}")
    await check_starts(sdk, errors.UnsupportedVersionError, "upgrade", "client address", seconds=60)
    await server.stop(None)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (pb.UNSUPPORTED_VERSION, errors.UnsupportedVersionError),
        (pb.PERMISSION_DENIED, errors.PermissionDeniedError),
    ],
)
async def test_a_permanent_refusal_of_a_broker_is_raised_immediately(
    fake: FakeCluster, kind: str, code: int, error: type[errors.RaftMQError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: object, request: object, context: object) -> AsyncIterator[pb.TopologyUpdate]:
        await abort(context, detail(code, "go away"))
        yield pb.TopologyUpdate()

    monkeypatch.setattr(type(fake.brokers[1]), "Watch", refuse)
    await fake.brokers[1].stop()
    await fake.brokers[1].start()
    await check_starts(Sdk(kind, fake.bootstrap_servers), error, "go away", error.advice, seconds=60)


@asynccontextmanager
async def opened(sdk: Sdk, **settings: object) -> AsyncIterator[tuple[Any, Any, Any]]:
    async with (
        sdk.producer(**settings) as producer,
        sdk.consumer(TOPIC, auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer,
        sdk.admin(request_timeout_ms=1000) as admin,
    ):
        await producer.send_and_wait(TOPIC, b"x")
        await consumer.getmany(timeout_ms=2000)
        yield producer, consumer, admin


async def test_clients_report_an_address_that_now_belongs_to_another_cluster(fake: FakeCluster, kind: str) -> None:
    sdk = Sdk(kind, fake.bootstrap_servers)
    async with opened(sdk) as (producer, consumer, admin):
        fake.cluster_id = "another"
        fake.changed()
        with pytest.raises((errors.WrongClusterError, errors.ClosedInFlightError)):  # a request may be in flight
            await until_it_fails(lambda: producer.send_and_wait(TOPIC, b"y"))
        for act in (
            lambda _: until_it_fails(lambda: producer.send_and_wait(TOPIC, b"y")),
            lambda _: until_it_fails(lambda: consumer.getmany(timeout_ms=100)),
            lambda _: until_it_fails(admin.list_topics),
        ):
            says = ("another", "check bootstrap_servers")
            await check(Case("call", act, errors.WrongClusterError, ErrorCode.WRONG_CLUSTER, says), sdk)


async def until_it_fails(act: Callable[[], Awaitable[object]]) -> None:
    while True:
        await act()
        await asyncio.sleep(0)


async def test_without_brokers_a_producer_and_an_admin_name_the_reason_and_a_consumer_waits(
    fake: FakeCluster, kind: str
) -> None:
    sdk = Sdk(kind, fake.bootstrap_servers)
    async with opened(sdk, delivery_timeout_ms=700) as (producer, consumer, admin):
        await fake.brokers[1].stop()
        with pytest.raises(
            (errors.DeliveryExpiredError, errors.DeliveryTimeoutError)
        ):  # the request may have been in flight when the broker stopped
            await producer.send_and_wait(TOPIC, b"y")
        says = ("within 0.7 s", "connection refused", "send it again")
        lost = Case("send", lambda _: producer.send_and_wait(TOPIC, b"y"), errors.DeliveryExpiredError, None, says)
        await check(lost, sdk)
        refused = Case("list", lambda _: admin.list_topics(), errors.UnreachableError, None, ("connection refused",))
        await check(refused, sdk)
        assert await consumer.getmany(timeout_ms=100) == {}


async def test_calls_to_a_broker_that_stops_answering_end_with_an_unknown_outcome(
    fake: FakeCluster, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: object, request: object, context: object) -> None:
        await asyncio.Event().wait()

    sdk = Sdk(kind, fake.bootstrap_servers)
    async with opened(sdk, delivery_timeout_ms=700, request_timeout_ms=60_000) as (producer, _, admin):
        fake.append_hook = lambda *_: "swallow"
        monkeypatch.setattr(type(fake.brokers[1]), "ListTopics", never)
        await fake.brokers[1].stop()
        await fake.brokers[1].start()
        says = ("within 0.7 s", "may have been written", "check whether")
        lost = Case("send", lambda _: producer.send_and_wait(TOPIC, b"y"), errors.DeliveryTimeoutError, None, says)
        await check(lost._replace(outcome=Outcome.UNKNOWN), sdk)
        late = Case("list", lambda _: admin.list_topics(), errors.RequestTimedOutError, ErrorCode.REQUEST_TIMED_OUT,
                    ("check whether",), Outcome.UNKNOWN)  # fmt: skip
        await check(late, sdk)


# ------------------------------------------------------------------------------------------------------------- whole programs

PROGRAM = """
import asyncio, sys
from raftmq import Admin, Consumer, Producer, errors, sync

servers, topic = sys.argv[1:]

async def main(number):
    async with (
        Producer(bootstrap_servers=servers) as producer,
        Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
        Admin(bootstrap_servers=servers) as admin,
    ):
        await producer.send_many(topic, [(None, b"x" * 100)] * 500)
        found = await consumer.getmany(timeout_ms=10_000)
        await admin.describe_cluster()
        try:
            await producer.send("nowhere", b"x")
        except errors.UnknownTopicError:
            return len(found)

async def cancelled():
    try:
        async with asyncio.timeout(0.01):
            await main(0)
    except TimeoutError:
        return

async def refused():
    try:
        async with Admin(bootstrap_servers="127.0.0.1:1", request_timeout_ms=50):
            pass
    except errors.BootstrapError:
        return

for number in range(5):
    assert asyncio.run(main(number))
    asyncio.run(cancelled())
    asyncio.run(refused())

with sync.Producer(bootstrap_servers=servers) as producer:
    delivery = producer.send(topic, b"x")
    print("ready", flush=True)
    sys.stdin.readline()  # the test stops a broker before it writes this line
    assert asyncio.run(main(9))
    delivery.result()
    producer.send_and_wait(topic, b"y")
sync.Consumer(topic, bootstrap_servers=servers)  # and never closed
print("done")
"""


def test_a_program_with_many_event_loops_writes_nothing_to_stderr(cluster: LocalCluster) -> None:
    """It calls `asyncio.run` repeatedly, with cancelled and refused clients, a stopped broker and the synchronous SDK."""
    command = [sys.executable, "-c", PROGRAM, cluster.bootstrap_servers, TOPIC]
    victim = cluster.broker_ids[-1]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        said = program.stdout.readline()
        if said == "ready\n":
            assert cluster.stop(victim) == 0
        out, complained = program.communicate("go on\n", 60)
    if not cluster.is_running(victim):
        cluster.restart(victim)
        cluster.wait_formed()
    assert complained == ""
    assert (said, out, program.returncode) == ("ready\n", "done\n", 0)


def test_a_producer_logs_its_start_and_counts_its_records(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "raftmq")
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_and_wait(TOPIC, b"x")
        assert producer.metrics().records_total == 1
    assert any(record.getMessage().startswith("producer_started ") for record in caplog.records)
