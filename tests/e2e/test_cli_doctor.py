"""`raftmq doctor` on the data directory of a real broker."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq.testing import LocalCluster

from tests.support.e2e.raftmq_command import RAFTMQ, assert_one_sentence, doctor, lines_of, raftmq

pytestmark = [pytest.mark.e2e]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Path]]:
    """Yield a cluster whose broker accepted records and was stopped, and the broker's data directory."""
    with LocalCluster(brokers=1, directory=tmp_path_factory.mktemp("cluster")) as cluster:
        assert raftmq(cluster, "topic", "create", "t", "--partitions", "2").returncode == 0
        lines = b"".join(b"record %d of the doctor's test\n" % n for n in range(5000))
        assert raftmq(cluster, "produce", "t", stdin=lines).returncode == 0
        assert_one_sentence(doctor(str(cluster.data_dir(1))), 4, "in use by a running broker", str(cluster.pid(1)))
        cluster.stop(1)
        yield cluster, cluster.data_dir(1)


def test_the_files_of_a_stopped_broker_have_no_problems(stopped: tuple[LocalCluster, Path]) -> None:
    _, directory = stopped
    done = doctor(str(directory))
    assert done.returncode == 0, done.stdout
    assert done.stdout.decode().endswith("\nno problems found\n")
    diagnosis = json.loads(doctor(str(directory), "--output", "json").stdout)
    assert diagnosis["is_healthy"]
    assert diagnosis["findings"] == []
    assert (diagnosis["broker_id"], diagnosis["replica_count"]) == (1, 3)
    assert diagnosis["row_count"] > 20


def test_a_flipped_bit_is_reported_and_the_restored_file_serves_every_record(
    stopped: tuple[LocalCluster, Path],
) -> None:
    cluster, directory = stopped
    file = next(path for path in (directory / "groups").glob("*.mdb") if b"of the doctor's test" in path.read_bytes())
    content = file.read_bytes()
    file.write_bytes(content.replace(b"of the doctor's test", b"of the doctor'r test"))
    try:
        done = doctor(str(directory))
        assert done.returncode == 6
        said = done.stdout.decode()
        assert f"damage: groups/{file.name}: entry " in said
        assert "does not match its checksum" in said
        assert "what to do: start the broker while the others run" in said
        findings = json.loads(doctor(str(directory), "--output", "json").stdout)["findings"]
        assert {finding["subject"] for finding in findings} == {f"groups/{file.name}"}
    finally:
        file.write_bytes(content)
    cluster.restart(1)
    try:
        assert len(lines_of(cluster, "t", "--from-beginning")) == 5000
    finally:
        cluster.stop(1)


@pytest.mark.long
def test_a_damaged_registry_ends_the_broker_with_one_sentence(stopped: tuple[LocalCluster, Path]) -> None:
    """The doctor and the broker report the same damage, and neither shows a stack trace."""
    _, directory = stopped
    registry = directory / "node.mdb"
    content = registry.read_bytes()
    registry.write_bytes(content.replace(b'"uuid"', b'"uuie"'))
    try:
        done = doctor(str(directory))
        assert done.returncode == 6
        assert b"damage: node.mdb: row b'node' is missing or does not match its checksum" in done.stdout
        ports = ("--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
        broker = subprocess.run(
            [*RAFTMQ, "broker", "start", "--data-dir", str(directory), *ports],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert_one_sentence(broker, 6, "node.mdb is damaged", f"raftmq doctor {directory}")
    finally:
        registry.write_bytes(content)
