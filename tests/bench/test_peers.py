"""Check that a missing peer system is reported with instructions, and that an installed one is configured as documented."""

import zipfile
from pathlib import Path

import pytest

from bench import kafka_cluster, nats_cluster
from bench.spark import kafka_topics
from bench.systems import UnavailableError


def installed_kafka(home: Path) -> None:
    (home / "libs").mkdir()
    with zipfile.ZipFile(home / "libs/kafka_2.13-4.3.1.jar", "w") as jar:
        jar.writestr("kafka/Kafka.class", b"")
    with zipfile.ZipFile(home / "libs/kafka-tools-4.3.1.jar", "w") as jar:
        jar.writestr("org/apache/kafka/tools/ProducerPerformance.class", b"")


def program(folder: Path, name: str) -> str:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_each_missing_requirement_of_kafka_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_cluster, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="set KAFKA_HOME"):
        kafka_cluster.find_installation({})
    with pytest.raises(UnavailableError, match="no libs/kafka_2"):
        kafka_cluster.find_installation({"KAFKA_HOME": str(tmp_path)})
    installed_kafka(tmp_path)
    with pytest.raises(UnavailableError, match="install a Java runtime"):
        kafka_cluster.find_installation({"KAFKA_HOME": str(tmp_path), "PATH": ""})
    program(tmp_path, "java")
    with pytest.raises(UnavailableError, match="install aiokafka or confluent-kafka"):
        kafka_cluster.find_installation({"KAFKA_HOME": str(tmp_path), "PATH": str(tmp_path)})


def test_each_missing_requirement_of_kafkas_connector_is_reported(tmp_path: Path) -> None:
    installed_kafka(tmp_path)
    program(tmp_path, "java")
    environment = {"KAFKA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    with pytest.raises(UnavailableError, match="set KAFKA_HOME"):
        kafka_topics.find_connector({})
    with pytest.raises(UnavailableError, match="set SPARK_KAFKA_JARS"):
        kafka_topics.find_connector(environment | {"SPARK_KAFKA_JARS": str(tmp_path)})
    jar = tmp_path / "spark-sql-kafka-0-10_2.13-4.2.0.jar"
    jar.touch()
    assert kafka_topics.find_connector(environment | {"SPARK_KAFKA_JARS": str(tmp_path)})[1] == [jar]


def test_kafka_is_started_without_its_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_cluster, "find_spec", lambda name: name == "aiokafka")
    installed_kafka(tmp_path)
    java = program(tmp_path, "java")
    kafka = kafka_cluster.find_installation({"KAFKA_HOME": str(tmp_path), "PATH": str(tmp_path)})
    assert kafka.version == "4.3.1"
    assert kafka.command("ProducerPerformance", "--topic", "x", options=("-Xmx1G",)) == [
        java,
        "-Xmx1G",
        "-cp",
        f"{tmp_path}/libs/*",
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic",
        "x",
    ]
    with pytest.raises(UnavailableError, match="has StorageTool"):
        kafka.command("StorageTool")


def test_kafka_has_three_replicas_and_needs_two_acknowledgements(tmp_path: Path) -> None:
    properties = dict(
        line.split("=", 1) for line in kafka_cluster.broker_properties(2, [(1, 4), (2, 5), (3, 6)], tmp_path).split()
    )
    assert properties["default.replication.factor"] == "3"
    assert properties["min.insync.replicas"] == "2"
    assert properties["node.id"] == "2"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:4,2@127.0.0.1:5,3@127.0.0.1:6"
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:5"
    assert properties["log.dirs"] == str(tmp_path)
    assert kafka_cluster.FLUSHES == {"default": {}, "fsync": {"flush.messages": "1"}}


def test_the_rate_of_kafkas_own_benchmark_is_its_total() -> None:
    output = (
        "4000 records sent, 800.0 records/sec (0.08 MB/sec), 1.0 ms avg latency\n"
        "5000 records sent, 1234.5 records/sec (0.12 MB/sec), 25.0 ms avg latency, 40 ms 50th\n"
    )
    assert kafka_cluster.records_per_second(output, 5000) == 1234.5
    with pytest.raises(RuntimeError, match="did not send 9000"):
        kafka_cluster.records_per_second(output, 9000)


def test_each_missing_requirement_of_nats_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_cluster, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="set NATS_SERVER"):
        nats_cluster.find_server({})
    with pytest.raises(UnavailableError, match="which is not a program"):
        nats_cluster.find_server({"NATS_SERVER": str(tmp_path / "nats-server")})
    server = program(tmp_path, "nats-server")
    with pytest.raises(UnavailableError, match="install nats-py"):
        nats_cluster.find_server({"NATS_SERVER": server})
    monkeypatch.setattr(nats_cluster, "find_spec", lambda name: name == "nats")
    assert nats_cluster.find_server({"NATS_SERVER": server}) == server


def test_nats_servers_have_routes_and_a_sync_interval(tmp_path: Path) -> None:
    always = nats_cluster.server_configuration(3, [(1, 4), (2, 5), (3, 6)], tmp_path, nats_cluster.SYNCS["always"])
    assert "sync_interval: always" in always
    assert 'listen: "127.0.0.1:3"' in always
    assert always.count("nats://127.0.0.1:") == 3
    default = nats_cluster.server_configuration(3, [(1, 4), (2, 5), (3, 6)], tmp_path, nats_cluster.SYNCS["default"])
    assert "sync_interval" not in default
