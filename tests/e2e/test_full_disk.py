"""A full disk: a broker refuses appends and serves everything else, also after a restart, and recovers when space is free.

The tests mount a small volume, which only root may do. For other users, unit tests with a fake probe cover full disks.
"""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq import Admin, Consumer, Producer, TopicPartition
from raftmq.errors import DeliveryExpiredError, DeliveryTimeoutError
from raftmq.testing import LocalCluster

from tests.e2e.test_broker_start import ANY
from tests.support.e2e.raftmq_command import RAFTMQ, assert_one_sentence, doctor

pytestmark = [pytest.mark.e2e]

MIB = 1024 * 1024
VOLUME_BYTES = 200 * MIB
RESERVE_BYTES = 20 * MIB
TOPIC = "full"
RECOVERY_SECONDS = 30.0


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "volume"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "tmpfs", str(directory)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a volume is not allowed here")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def fill(volume: Path, free_bytes: int) -> Path:
    """Let a file of another program fill the volume except for this number of bytes."""
    path = volume / "other-data"
    usage = os.statvfs(volume)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, usage.f_bavail * usage.f_frsize - free_bytes)
    return path


async def send(cluster: LocalCluster, value: bytes, *, seconds: float) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, delivery_timeout_ms=seconds * 1000) as producer:
        await producer.send_and_wait(TOPIC, value)


async def send_until_refused(cluster: LocalCluster) -> None:
    """Send until the broker refuses. It accepts appends until it has checked its disk."""
    for number in range(1000):
        await send(cluster, b"%d" % number, seconds=2)
        await asyncio.sleep(0.1)


async def read_all(cluster: LocalCluster, count: int) -> list[bytes | None]:
    async with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])
        values: list[bytes | None] = []
        async with asyncio.timeout(RECOVERY_SECONDS):
            while len(values) < count:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    values += [record.value for record in records]
        return values


async def test_a_full_disk_refuses_appends_and_nothing_else_and_recovers_by_itself(volume: Path) -> None:
    arguments = ("--set", f"disk_reserve_bytes={RESERVE_BYTES}")
    async with LocalCluster(brokers=1, directory=volume / "cluster", broker_arguments=arguments) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topic(TOPIC, partitions=1, replication_factor=1)
        await send(cluster, b"before", seconds=30)
        other = fill(volume, RESERVE_BYTES // 2)
        with pytest.raises((DeliveryExpiredError, DeliveryTimeoutError)):
            await send_until_refused(cluster)
        assert "disk_reserve_reached" in cluster.logs(1)
        taken = len(await read_all(cluster, 1))
        assert taken >= 1, "reads go on"

        await asyncio.to_thread(cluster.restart, 1)
        with pytest.raises((DeliveryExpiredError, DeliveryTimeoutError)):
            await send(cluster, b"refused", seconds=3)
        assert "disk_space_recovered" not in cluster.logs(1), "the released ballast is not space to write to"

        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.delete_records({TopicPartition(TOPIC, 0): 1})  # requests that free space are not refused
        other.unlink()
        await send(cluster, b"after", seconds=RECOVERY_SECONDS)
        values = await read_all(cluster, taken)
        assert b"before" not in values
        assert values[-1] == b"after"
        assert b"refused" not in values
        assert "disk_space_recovered" in cluster.logs(1)


async def fill_with_records(cluster: LocalCluster, topic: str) -> int:
    """Send until the broker refuses, and return the number of accepted records."""
    taken = 0
    value = os.urandom(900_000)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, delivery_timeout_ms=4000) as producer:
        with pytest.raises((DeliveryExpiredError, DeliveryTimeoutError)):
            for _ in range(VOLUME_BYTES // len(value)):
                await producer.send_and_wait(topic, value)
                taken += 1
                await asyncio.sleep(0.02)  # the broker checks its disk once a second
    return taken


async def wait_until_taken(cluster: LocalCluster, topic: str) -> None:
    async with asyncio.timeout(RECOVERY_SECONDS):
        while True:
            with contextlib.suppress(DeliveryExpiredError, DeliveryTimeoutError):
                async with Producer(bootstrap_servers=cluster.bootstrap_servers, delivery_timeout_ms=1000) as producer:
                    await producer.send_and_wait(topic, b"after")
                    return


def allocated_bytes(volume: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in volume.rglob("*.mdb*") if path.is_file())


async def wait_until_small(volume: Path, bytes_max: int) -> None:
    async with asyncio.timeout(RECOVERY_SECONDS):
        while allocated_bytes(volume) > bytes_max:
            await asyncio.sleep(0.1)


@pytest.mark.long
async def test_a_disk_full_of_deleted_data_recovers_by_itself(volume: Path) -> None:
    """Nobody else frees space: deleted records, a deleted topic and retention must suffice while appends are refused."""
    arguments = ("--set", f"disk_reserve_bytes={RESERVE_BYTES}", "--set", "retention_check_seconds=1")
    async with (
        LocalCluster(brokers=1, directory=volume / "cluster", broker_arguments=arguments) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        for name in (TOPIC, "deleted", "short"):
            await admin.create_topic(name, partitions=1, replication_factor=1)
        assert await fill_with_records(cluster, TOPIC) > 50
        full = allocated_bytes(volume)
        await admin.delete_records({TopicPartition(TOPIC, 0): -1})
        await wait_until_taken(cluster, TOPIC)
        await wait_until_small(volume, full // 4)

        assert await fill_with_records(cluster, "deleted") > 50
        await admin.delete_topic(
            "deleted"
        )  # its file moves to the trash, which is emptied before its ten minutes are over
        await wait_until_taken(cluster, TOPIC)

        assert await fill_with_records(cluster, "short") > 50
        await asyncio.to_thread(cluster.restart, 1)
        await admin.alter_topic_config("short", {"retention.bytes": "5000000"})
        await wait_until_taken(cluster, TOPIC)
        await wait_until_small(volume, 20 * MIB)


@pytest.mark.long
def test_a_start_on_a_full_volume_is_refused_and_the_doctor_names_the_reason(volume: Path) -> None:
    with LocalCluster(
        brokers=1, directory=volume / "cluster", broker_arguments=("--set", "disk_reserve_bytes=0")
    ) as cluster:
        directory = cluster.data_dir(1)
        cluster.kill(1)
    (directory / "ballast").unlink(missing_ok=True)
    other = fill(volume, 0)
    command = [*RAFTMQ, "broker", "start", "--data-dir", str(directory), *ANY]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert_one_sentence(
        done, 1, "the disk is full", f"the volume of {directory} has 0.0 MB free", "needs 2.1 MB to start"
    )
    said = doctor(str(directory))
    assert said.returncode == 6
    assert "volume: is full: 0.0 MB are free, and the broker needs 2.1 MB to start" in said.stdout.decode()
    other.unlink()
    with LocalCluster(brokers=1, directory=volume / "cluster"):
        pass
