"""Provide Kafka as systems: three KRaft brokers on loopback from `KAFKA_HOME`, measured by aiokafka, confluent-kafka and its Java tool.

With replication factor 3, `min.insync.replicas` 2, `acks=all` and idempotent producers, the durability of an acknowledged record is as
near to RaftMQ's as Kafka allows. Each client is measured twice: with Kafka's default flush (the operating system chooses the time) and
with `flush.messages=1` (fsync before the acknowledgement).

`KAFKA_HOME` is an unpacked Kafka or any folder whose `libs/` has its jars. The JVM is started directly, with the options of Kafka's own
scripts. The client libraries are optional imports. Nothing is downloaded, and nothing is written outside a temporary directory.
"""

import asyncio
import logging
import os
import re
import shutil
import subprocess
import time
import uuid
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.servers import Servers, free_ports
from bench.systems import System, UnavailableError
from bench.workloads import WORKLOADS, Client

SERVER_OPTIONS = (
    *("-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)
"""The options that Kafka's start scripts give a broker."""
TOOL_OPTIONS = ("-Xmx512M", "-Djava.awt.headless=true")
START_SECONDS = 120.0
TOOL_SECONDS = 600.0
LINGER_MS = 5
BATCH_BYTES = 512 * 1024
"""The default of RaftMQ's producer."""
QUEUED_RECORDS_MAX = 1_000_000
READ_RECORDS_MAX = 20_000
CONSUME_RECORDS_MAX = 1000
CONSUME_SECONDS = 0.5
FLUSH_SECONDS = 60.0
FLUSHES: Mapping[str, Mapping[str, str]] = {"default": {}, "fsync": {"flush.messages": "1"}}
"""Name of the variant → topic configuration."""


# -------------------------------------------------------------------------------------------------------- installation


@dataclass(frozen=True, slots=True)
class Installation:
    """Describe a Kafka that can be started."""

    java: str
    libraries: Path
    version: str

    def command(self, main_class: str, *arguments: str, options: Sequence[str] = TOOL_OPTIONS) -> list[str]:
        """Return the command line of a Kafka program, found by its class name, because packages changed between versions."""
        return [self.java, *options, "-cp", f"{self.libraries}/*", find_class(self.libraries, main_class), *arguments]


def find_installation(environment: Mapping[str, str]) -> Installation:
    """Find the Kafka to start, and a client library. Raises `UnavailableError`, which says how to provide them."""
    kafka = find_brokers(environment)
    if not any(find_spec(name) for name in ("aiokafka", "confluent_kafka")):
        raise UnavailableError(
            "Kafka is left out: install aiokafka or confluent-kafka (both are measured when both are there)"
        )
    return kafka


def find_brokers(environment: Mapping[str, str]) -> Installation:
    """Find the Kafka to start. Raises `UnavailableError`, which says how to provide it."""
    home = environment.get("KAFKA_HOME", "")
    if not home:
        raise UnavailableError(
            "Kafka is left out: set KAFKA_HOME to an unpacked Kafka, or to a folder with its jars in libs/"
        )
    libraries = Path(home) / "libs"
    versions = [
        found[1]
        for path in sorted(libraries.glob("kafka_2.*.jar"))
        if (found := re.match(r"kafka_2\.\d+-([\d.]+)\.jar", path.name))
    ]
    if not versions:
        raise UnavailableError(f"Kafka is left out: KAFKA_HOME is {home}, which has no libs/kafka_2.*.jar")
    java_home = environment.get("JAVA_HOME")
    java = shutil.which("java", path=f"{java_home}/bin" if java_home else environment.get("PATH", ""))
    if java is None:
        raise UnavailableError("Kafka is left out: install a Java runtime, or set JAVA_HOME")
    return Installation(java, libraries, versions[-1])


def find_class(libraries: Path, name: str) -> str:
    """Return the full name of a class of Kafka."""
    for jar in sorted(libraries.glob("kafka*.jar")):
        with zipfile.ZipFile(jar) as archive:
            for entry in archive.namelist():
                if entry.endswith(f"/{name}.class"):
                    return entry.removesuffix(".class").replace("/", ".")
    raise UnavailableError(f"Kafka is left out: no jar in {libraries} has {name}")


# ------------------------------------------------------------------------------------------------------------- cluster


def broker_properties(node: int, ports: Sequence[tuple[int, int]], directory: Path) -> str:
    """Return `server.properties` of broker `node` (from 1), also a controller. `ports` has each broker's (client, controller)."""
    client_port, controller_port = ports[node - 1]
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, (_, port) in enumerate(ports, 1))
    return "\n".join(
        (
            "process.roles=broker,controller",
            f"node.id={node}",
            f"controller.quorum.voters={voters}",
            f"listeners=PLAINTEXT://127.0.0.1:{client_port},CONTROLLER://127.0.0.1:{controller_port}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{client_port}",
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            f"log.dirs={directory}",
            "default.replication.factor=3",
            "min.insync.replicas=2",
            "offsets.topic.replication.factor=3",
            "transaction.state.log.replication.factor=3",
            "transaction.state.log.min.isr=2",
            "auto.create.topics.enable=false",
            "",
        )
    )


@contextmanager
def kafka_systems(environment: Mapping[str, str]) -> Iterator[list[System]]:
    """Start the brokers. Yield a system for each client library that can be imported, with and without fsync."""
    kafka = find_installation(environment)
    with running_brokers(kafka) as (servers, addresses):
        systems = _systems(kafka, addresses)
        asyncio.run(servers.wait_serving(systems[0].connect, START_SECONDS))
        yield systems


@contextmanager
def running_brokers(kafka: Installation) -> Iterator[tuple[Servers, str]]:
    """Start three brokers. Yield their processes and addresses when they accept connections, before they can create topics."""
    with Servers("kafka") as servers:
        ports = free_ports(6)
        pairs = list(zip(ports[:3], ports[3:], strict=True))
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for node in range(1, 4):
            properties = servers.directory / f"broker-{node}.properties"
            properties.write_text(broker_properties(node, pairs, servers.directory / f"data-{node}"))
            subprocess.run(
                kafka.command("StorageTool", "format", "-t", cluster_id, "-c", str(properties)),
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # without a logger's jar its messages cannot be reduced
                cwd=servers.directory,
                timeout=START_SECONDS,
            )
            servers.start(f"broker-{node}", kafka.command("Kafka", str(properties), options=SERVER_OPTIONS))
        servers.wait_listening(ports[:3], START_SECONDS)
        yield servers, ",".join(f"127.0.0.1:{port}" for port in ports[:3])


def _systems(kafka: Installation, addresses: str) -> list[System]:
    every = frozenset(WORKLOADS) - {"read_back_group"}
    found: list[System] = []
    for variant, config in FLUSHES.items():
        admin: Callable[[], Client] | None = None
        if find_spec("aiokafka"):
            admin = connect = partial(AiokafkaClient, addresses, config)
            library = f"aiokafka {version('aiokafka')}"
            found.append(System(f"Kafka {variant}, aiokafka", f"{kafka.version}, {library}", connect, every, 0.1))
        if find_spec("confluent_kafka"):
            admin = connect_c = partial(ConfluentClient, addresses, config)
            library = f"confluent-kafka {version('confluent-kafka')}"
            works = frozenset(("produce_100b", "produce_1kib", "latency", "read_back"))
            found.append(
                System(f"Kafka {variant}, confluent-kafka", f"{kafka.version}, {library}", connect_c, works, 0.5)
            )
        if admin is not None:
            works = frozenset(("produce_100b", "produce_1kib"))
            connect_java = partial(JavaClient, kafka, addresses, admin)
            found.append(System(f"Kafka {variant}, Java", kafka.version, connect_java, works))
    return found


# ------------------------------------------------------------------------------------------------------------- clients


class AiokafkaClient(Client):
    def __init__(self, addresses: str, config: Mapping[str, str]) -> None:
        self._addresses = addresses
        self._config = dict(config)
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it retries after its warnings
        self._library: Any = import_module("aiokafka")  # an optional import: it has no types here
        self._admin_library: Any = import_module("aiokafka.admin")  # the same
        self._admin: Any = None  # the same
        self._producer: Any = None  # the same

    async def __aenter__(self) -> Self:
        self._admin = self._admin_library.AIOKafkaAdminClient(bootstrap_servers=self._addresses)
        self._producer = self._library.AIOKafkaProducer(
            bootstrap_servers=self._addresses, acks="all", enable_idempotence=True, max_batch_size=BATCH_BYTES
        )
        try:
            await self._admin.start()
            await self._producer.start()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.stop()
        await self._admin.close()

    async def create_topic(self, topic: str, partitions: int) -> None:
        new = self._admin_library.NewTopic(topic, partitions, 3, topic_configs=self._config)
        answer = await self._admin.create_topics([new])
        for name, code, *rest in answer.topic_errors:
            if code:
                raise RuntimeError(f"Kafka did not create {name}: error {code} {rest}")

    async def delete_topic(self, topic: str) -> None:
        await self._admin.delete_topics([topic])

    async def send_many(self, topic: str, values: Sequence[bytes], count: int) -> float:
        await self._producer.partitions_for(topic)
        send = self._producer.send
        started = time.perf_counter()
        sent = [await send(topic, value) for value in islice(cycle(values), count)]
        await self._producer.flush()
        seconds = time.perf_counter() - started
        await asyncio.gather(*sent)  # raises a record's failure
        return seconds

    async def send_one(self, topic: str, value: bytes) -> None:
        await self._producer.send_and_wait(topic, value)

    def producer(self) -> Client:
        return AiokafkaClient(self._addresses, self._config)

    async def read_all(self, topic: str, count: int) -> float:
        consumer = await self._consumer(topic)
        try:
            started = time.perf_counter()
            got = 0
            while got < count:
                for records in (await consumer.getmany(timeout_ms=1000, max_records=READ_RECORDS_MAX)).values():
                    got += len(records)
            return time.perf_counter() - started
        finally:
            await consumer.stop()

    async def receive(self, topic: str) -> AsyncGenerator[bytes, None]:
        consumer = await self._consumer(topic)
        try:
            async for record in consumer:
                yield record.value
        finally:
            await consumer.stop()

    async def _consumer(self, topic: str) -> Any:  # noqa: ANN401 -- of an optional import
        consumer = self._library.AIOKafkaConsumer(bootstrap_servers=self._addresses, auto_offset_reset="earliest")
        await consumer.start()
        partitions = await self._producer.partitions_for(topic)
        consumer.assign([self._library.TopicPartition(topic, partition) for partition in partitions])
        return consumer


class ConfluentClient(Client):
    """Use confluent-kafka. Its calls block, so it is measured only by workloads with one caller."""

    def __init__(self, addresses: str, config: Mapping[str, str]) -> None:
        self._servers = {
            "bootstrap.servers": addresses,
            "log_level": 2,
        }  # critical only, because it retries after other errors
        self._config = dict(config)
        self._library: Any = import_module("confluent_kafka")  # an optional import: it has no types here
        self._admin_library: Any = import_module("confluent_kafka.admin")  # the same
        self._admin: Any = self._admin_library.AdminClient(self._servers)  # the same; lives as long as its futures
        self._producer: Any = self._library.Producer(  # the same
            {
                **self._servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": LINGER_MS,
                "batch.size": BATCH_BYTES,
                "queue.buffering.max.messages": QUEUED_RECORDS_MAX,
            }
        )

    async def create_topic(self, topic: str, partitions: int) -> None:
        new = self._admin_library.NewTopic(topic, partitions, 3, config=self._config)
        for future in self._admin.create_topics([new]).values():
            future.result(30)

    async def delete_topic(self, topic: str) -> None:
        for future in self._admin.delete_topics([topic]).values():
            future.result(30)

    async def send_many(self, topic: str, values: Sequence[bytes], count: int) -> float:
        before = self._count(topic)
        produce, poll = self._producer.produce, self._producer.poll
        started = time.perf_counter()
        for value in islice(cycle(values), count):
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    poll(0.01)
        left = self._producer.flush(FLUSH_SECONDS)
        seconds = time.perf_counter() - started
        kept = self._count(topic) - before
        if left or kept != count:
            raise RuntimeError(f"Kafka has {kept} of {count} records, {left} are not acknowledged")
        return seconds

    async def send_one(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value, on_delivery=_raise_failure)
        self._producer.flush()

    async def read_all(self, topic: str, count: int) -> float:
        consumer = self._consumer()
        try:
            consumer.assign([self._library.TopicPartition(topic, n, 0) for n in self._partitions(topic)])
            started = time.perf_counter()
            got = 0
            while got < count:
                # Ask for no more than remain: with fewer records than asked for, it returns only after the timeout.
                records = consumer.consume(min(CONSUME_RECORDS_MAX, count - got), CONSUME_SECONDS)
                got += len(records)
                if any(record.error() for record in records):
                    raise RuntimeError("a record could not be read")
            return time.perf_counter() - started
        finally:
            consumer.close()

    def _consumer(self) -> Any:  # noqa: ANN401 -- of an optional import
        settings = {"group.id": "bench", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        return self._library.Consumer({**self._servers, **settings})

    def _partitions(self, topic: str) -> list[int]:
        return list(self._producer.list_topics(topic, timeout=30).topics[topic].partitions)

    def _count(self, topic: str) -> int:
        """Return the number of records in the topic."""
        consumer = self._consumer()
        try:
            ends = [
                consumer.get_watermark_offsets(self._library.TopicPartition(topic, n), timeout=30)
                for n in self._partitions(topic)
            ]
            return sum(high - low for low, high in ends)
        finally:
            consumer.close()


def _raise_failure(error: object, record: object) -> None:
    if error is not None:
        raise RuntimeError(f"Kafka did not accept a record: {error}")


class JavaClient(Client):
    """Run Kafka's own producer benchmark, in a new JVM for each run. The JVM's start is not counted."""

    def __init__(self, kafka: Installation, addresses: str, admin: Callable[[], Client]) -> None:
        self._kafka = kafka
        self._addresses = addresses
        self._admin = admin()

    async def __aenter__(self) -> Self:
        await self._admin.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._admin.__aexit__(kind, error, trace)

    async def create_topic(self, topic: str, partitions: int) -> None:
        await self._admin.create_topic(topic, partitions)

    async def delete_topic(self, topic: str) -> None:
        await self._admin.delete_topic(topic)

    async def send_one(self, topic: str, value: bytes) -> None:
        await self._admin.send_one(topic, value)

    async def send_many(self, topic: str, values: Sequence[bytes], count: int) -> float:
        """Send `count` random records that the tool generates, with the size of the first value."""
        settings = (f"bootstrap.servers={self._addresses}", "acks=all", f"linger.ms={LINGER_MS}")
        command = self._kafka.command(
            "ProducerPerformance",
            *(
                "--topic",
                topic,
                "--num-records",
                str(count),
                "--record-size",
                str(len(values[0])),
                "--throughput",
                "-1",
            ),
            *("--producer-props", *settings, f"batch.size={BATCH_BYTES}"),
        )
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ}
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), TOOL_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return count / records_per_second(output.decode(errors="replace"), count)


def records_per_second(output: str, count: int) -> float:
    """Return the rate in the last line of kafka-producer-perf-test, which must cover all records."""
    rates = re.findall(rf"^{count} records sent, ([\d.]+) records/sec", output, re.MULTILINE)
    if not rates:
        raise RuntimeError(f"the producer benchmark of Kafka did not send {count} records:\n{output[-2000:]}")
    return float(rates[-1])
