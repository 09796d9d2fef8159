"""Provide Kafka to the Spark rows: three brokers from `KAFKA_HOME`, and Spark's own connector from `SPARK_KAFKA_JARS`.

`SPARK_KAFKA_JARS` is a folder with the jars of the Maven artifact `org.apache.spark:spark-sql-kafka-0-10_2.13` and its dependencies.
Topics are managed by the Kafka client among them, in Spark's JVM. Nothing is downloaded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final  # Any: classes of the JVM have no types here

from bench.kafka_cluster import START_SECONDS, Installation, find_brokers, running_brokers
from bench.servers import POLL_SECONDS
from bench.systems import UnavailableError

PARTITIONS: Final = 4
REPLICAS: Final = 3


def find_connector(environment: Mapping[str, str]) -> tuple[Installation, list[Path]]:
    """Return the Kafka to start and the connector's jars. Raises `UnavailableError`, which says how to provide them."""
    kafka = find_brokers(environment)
    folder = environment.get("SPARK_KAFKA_JARS", "")
    jars = sorted(Path(folder).glob("*.jar")) if folder else []
    if not any(jar.name.startswith("spark-sql-kafka-0-10_") for jar in jars):
        raise UnavailableError(
            "Kafka is left out of the Spark rows: set SPARK_KAFKA_JARS to a folder with the jars of spark-sql-kafka-0-10_2.13 and its"
            " dependencies"
        )
    return kafka, jars


@contextmanager
def kafka_topics(kafka: Installation, spark: Any) -> Iterator[KafkaTopics]:  # noqa: ANN401 - a session
    """Start the brokers, and yield when they can create topics."""
    with running_brokers(kafka) as (servers, addresses):
        topics = KafkaTopics(spark.sparkContext._jvm, addresses, servers.pids)
        deadline = time.monotonic() + START_SECONDS
        while True:
            servers.check_running()
            try:
                topics.create("ready")
                break
            except Exception:  # py4j's error has the class of Kafka's in its text only
                if time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)
        yield topics


class KafkaTopics:
    """Create and delete topics, and send single records, through Kafka's client in Spark's JVM."""

    def __init__(self, jvm: Any, addresses: str, pids: list[int]) -> None:  # noqa: ANN401 - a view of the JVM
        self.addresses = addresses
        self.pids = pids
        self._jvm = jvm
        self._clients = jvm.org.apache.kafka.clients
        self._admin = self._clients.admin.AdminClient.create(self._settings())
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        self._producer = self._clients.producer.KafkaProducer(
            self._settings() | {"key.serializer": serializer, "value.serializer": serializer, "acks": "all"}
        )

    def create(self, topic: str, *, fsync: bool = False) -> None:
        """Create a topic whose records are, with `fsync`, on disk before they are acknowledged, as RaftMQ's are."""
        new = self._clients.admin.NewTopic(topic, PARTITIONS, REPLICAS)
        if fsync:
            new.configs({"flush.messages": "1"})
        self._admin.createTopics([new]).all().get()

    def delete(self, topic: str) -> None:
        self._admin.deleteTopics([topic]).all().get()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(self._clients.producer.ProducerRecord(topic, partition, None, value))

    def flush(self) -> None:
        self._producer.flush()

    def _settings(self) -> dict[str, str]:
        return {"bootstrap.servers": self.addresses}
