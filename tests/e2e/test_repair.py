"""Damage and loss that a healthy majority repairs without an operator: the lost replica is rebuilt and counts again.

To prove that a rebuilt replica is complete, another broker is killed afterwards: nothing works without it.
"""

import asyncio
import json
import os
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from raftmq.storage.checksum import CHECKSUM_BYTES, seal
from raftmq.testing import LocalCluster

from tests.support.e2e.helpers import PARTITIONS, TOPIC, data_files, eventually, gauge, is_ready
from tests.support.e2e.raftmq_command import raftmq
from tests.support.e2e.workload import Workload

pytestmark = [pytest.mark.e2e]

ROUND_SECONDS = 5.0
"""Interval of the background checks of files (`retention_check_seconds`)."""


def is_whole(cluster: LocalCluster) -> bool:
    """Return whether every partition has a leader and all of its replicas are connected voters."""
    led = without = 0.0
    for broker_id in cluster.broker_ids:
        without += gauge(cluster, broker_id, "raftmq_under_replicated_partitions")
        without += gauge(cluster, broker_id, "raftmq_quarantined_replicas")
        led += gauge(cluster, broker_id, "raftmq_groups_led")
    return without == 0 and led == PARTITIONS + 1


async def wait_replaced(cluster: LocalCluster, broker_id: int, old: set[str]) -> None:
    """Wait until new files have replaced those of the damaged or lost replicas and every partition is whole."""

    def is_replaced() -> bool:
        now = replica_files(cluster, broker_id)
        return not old & now and len(now) == PARTITIONS + 1 and is_whole(cluster)

    await eventually(is_replaced)


def replica_files(cluster: LocalCluster, broker_id: int) -> set[str]:
    return {path.name for path in (cluster.data_dir(broker_id) / "groups").glob("*.mdb")}


def metadata_file(cluster: LocalCluster, broker_id: int) -> Path:
    (path,) = (cluster.data_dir(broker_id) / "groups").glob("0-*.mdb")
    return path


def has_rows(path: Path) -> bool:
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=3) as environment:
        database = environment.open_db(b"log", create=False)
        with environment.begin(db=database) as transaction:
            return bool(transaction.stat(database)["entries"])


def is_quarantined_as_missing(cluster: LocalCluster, broker_id: int, file: Path) -> bool:
    """Return whether the broker logged that it quarantined the replica of this file because the file is missing."""
    group_id, replica_id = file.stem.split("-")
    reason = f"replica {replica_id} of group {group_id}: its file is missing"
    return any("replica_quarantined" in line and reason in line for line in cluster.logs(broker_id).splitlines())


def flip_a_byte(path: Path) -> None:
    """Flip a bit of the newest log row, in every copy that copy-on-write left in the file."""
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=3) as environment:
        database = environment.open_db(b"log", create=False)
        with environment.begin(db=database) as transaction, transaction.cursor() as cursor:
            assert cursor.last()
            row = cursor.value()
    content = bytearray(path.read_bytes())
    at = content.find(row)
    assert at >= 0
    while at >= 0:
        content[at + len(row) // 2] ^= 1
        at = content.find(row, at + 1)
    path.write_bytes(content)


def used_file(cluster: LocalCluster, broker_id: int) -> Path:
    """Return one of the broker's partition files. It contains entries."""
    file = data_files(cluster, broker_id)[0]
    assert has_rows(file)
    return file


async def rebuild(
    cluster: LocalCluster,
    workload: Workload,
    choose: Callable[[LocalCluster, int], Path],
    spoil: Callable[[Path], None],
) -> tuple[int, Path]:
    """Spoil one file of a stopped broker, wait for its replacement, and return the broker and the file.

    The replacement belongs to the same group, and all other files stay.
    """
    victim = 2
    cluster.kill(victim)
    await workload.wait_progress()
    spoiled = choose(cluster, victim)
    others = replica_files(cluster, victim) - {spoiled.name}
    spoil(spoiled)
    await asyncio.to_thread(cluster.restart, victim)
    await wait_replaced(cluster, victim, {spoiled.name})
    files = replica_files(cluster, victim)
    assert others < files
    (new,) = files - others
    assert new.split("-")[0] == spoiled.name.split("-")[0]
    return victim, spoiled


def forget(file: Path) -> None:
    """Delete the replica's row from its broker's registry, as restoring an older copy of node.mdb would do."""
    row = struct.pack(">QQ", *map(int, file.stem.split("-")))
    with lmdb.open(str(file.parent.parent / "node.mdb"), subdir=False, max_dbs=2) as environment:
        replicas = environment.open_db(b"replicas")
        broker = environment.open_db(b"node")
        with environment.begin(write=True) as transaction:
            assert transaction.delete(row, db=replicas)
            # the broker records each of its transactions in this row: a missing record would be reported as damage first
            fields = json.loads(bytes(transaction.get(b"node", db=broker))[:-CHECKSUM_BYTES])
            fields["transaction_id"] = transaction.id()
            transaction.put(b"node", seal(b"node", json.dumps(fields).encode()), db=broker)


async def check_with_the_repaired_in_the_quorum(cluster: LocalCluster, workload: Workload, repaired: int) -> None:
    other = next(broker_id for broker_id in cluster.broker_ids if broker_id != repaired)
    cluster.kill(other)
    await workload.wait_progress()
    await workload.check()


@pytest.mark.long
async def test_the_next_broker_may_be_stopped_as_soon_as_status_reports_no_problem(
    cluster: LocalCluster, workload: Workload
) -> None:
    """A broker that returns with damaged replicas is connected and ready before they are replaced.

    If status called it healthy by then, an operator who follows the guide and stops the next broker would keep one replica of three.
    """
    victim = 2
    await workload.wait_progress()
    cluster.kill(victim)
    damaged = [path for path in data_files(cluster, victim) if has_rows(path)]
    for path in damaged:
        flip_a_byte(path)
    await asyncio.to_thread(cluster.restart, victim)
    await eventually(lambda: raftmq(cluster, "cluster", "status").returncode == 0)
    assert gauge(cluster, victim, "raftmq_quarantined_replicas") == 0
    assert not {path.name for path in damaged} & replica_files(cluster, victim)
    await check_with_the_repaired_in_the_quorum(cluster, workload, victim)


@pytest.mark.long
async def test_damaged_partition_files_are_rebuilt_from_the_peers(cluster: LocalCluster, workload: Workload) -> None:
    victim = 2
    await workload.wait_progress()
    cluster.kill(victim)
    await workload.wait_progress()
    damaged = [path for path in data_files(cluster, victim) if has_rows(path)]  # a new file has no rows yet
    assert damaged
    for path in damaged:
        flip_a_byte(path)
    await asyncio.to_thread(cluster.restart, victim)
    await wait_replaced(cluster, victim, {path.name for path in damaged} - {metadata_file(cluster, victim).name})
    assert "replica_quarantined" in cluster.logs(victim)
    await check_with_the_repaired_in_the_quorum(cluster, workload, victim)


async def test_a_broker_whose_disk_was_wiped_gets_all_its_replicas_again(
    cluster: LocalCluster, workload: Workload
) -> None:
    victim = 3
    cluster.kill(victim)
    await workload.wait_progress()
    old = replica_files(cluster, victim)
    shutil.rmtree(cluster.data_dir(victim))
    await asyncio.to_thread(cluster.restart, victim)
    await wait_replaced(cluster, victim, old)
    await check_with_the_repaired_in_the_quorum(cluster, workload, victim)


@pytest.mark.long
async def test_the_bootstrapping_broker_may_lose_its_disk_like_any_other(
    cluster: LocalCluster, workload: Workload
) -> None:
    """The bootstrapping broker holds nothing that the others lack."""
    victim = 1
    cluster.kill(victim)
    await workload.wait_progress()
    old = replica_files(cluster, victim)
    shutil.rmtree(cluster.data_dir(victim))
    await asyncio.to_thread(cluster.restart, victim)
    await wait_replaced(cluster, victim, old)
    await check_with_the_repaired_in_the_quorum(cluster, workload, victim)


@pytest.mark.long
async def test_a_damaged_metadata_replica_is_replaced_and_the_partitions_stay(
    cluster: LocalCluster, workload: Workload
) -> None:
    victim, _ = await rebuild(cluster, workload, metadata_file, flip_a_byte)
    await check_with_the_repaired_in_the_quorum(cluster, workload, victim)


@pytest.mark.long
async def test_a_missing_partition_file_is_rebuilt_and_the_others_stay(
    cluster: LocalCluster, workload: Workload
) -> None:
    """An empty file with the old replica's id would deny the entries it acknowledged and the votes it gave."""
    victim, gone = await rebuild(cluster, workload, used_file, Path.unlink)
    assert is_quarantined_as_missing(cluster, victim, gone)
    await check_with_the_repaired_in_the_quorum(cluster, workload, victim)


@pytest.mark.long
async def test_a_file_missing_after_deaths_by_a_memory_fault_is_rebuilt(
    cluster: LocalCluster, workload: Workload
) -> None:
    """After such deaths a child process first verifies the files that were being read.

    It reports a deleted file as missing, which does not prevent the start.
    """

    def die_of_it() -> None:
        os.kill(cluster.pid(2), signal.SIGBUS)

    await workload.wait_progress()
    await asyncio.to_thread(die_of_it)
    await asyncio.sleep(1.0)
    await asyncio.to_thread(cluster.restart, 2)
    assert "last_exit_by_fault" in cluster.logs(2)
    await asyncio.to_thread(die_of_it)
    await asyncio.sleep(1.0)
    gone = used_file(cluster, 2)
    gone.unlink()
    await asyncio.to_thread(cluster.restart, 2)
    assert is_quarantined_as_missing(cluster, 2, gone)
    await wait_replaced(cluster, 2, {gone.name})
    await check_with_the_repaired_in_the_quorum(cluster, workload, 2)


@pytest.mark.long
async def test_a_flipped_bit_of_a_meta_page_reverts_no_commit(cluster: LocalCluster, workload: Workload) -> None:
    """LMDB would present the commit before the last one with intact rows, without an entry that was acknowledged."""

    def flip_the_number_of_the_newest(file: Path) -> None:
        with file.open("r+b") as pages:
            numbers = [struct.unpack("<Q", os.pread(pages.fileno(), 8, page * 4096 + 144))[0] for page in (0, 1)]
            newest = numbers.index(max(numbers))
            os.pwrite(pages.fileno(), struct.pack("<Q", numbers[newest] ^ 2), newest * 4096 + 144)

    victim, _ = await rebuild(cluster, workload, used_file, flip_the_number_of_the_newest)
    assert "replica_quarantined" in cluster.logs(victim)
    assert "transaction" in cluster.logs(victim)
    await check_with_the_repaired_in_the_quorum(cluster, workload, victim)


@pytest.mark.long
async def test_a_replica_missing_from_the_registry_is_rebuilt_and_the_others_stay(
    cluster: LocalCluster, workload: Workload
) -> None:
    """Its file proves that it acknowledged entries, which an empty file with its id would deny."""
    victim, _ = await rebuild(cluster, workload, used_file, forget)
    assert "the registry does not know its file: it was written to" in cluster.logs(victim)
    await check_with_the_repaired_in_the_quorum(cluster, workload, victim)


@pytest.mark.long
async def test_a_missing_metadata_file_is_rebuilt_and_the_partitions_stay(
    cluster: LocalCluster, workload: Workload
) -> None:
    """Missing metadata is no evidence that the broker's partitions are orphaned.

    NATS JetStream 2.12.1 deleted a stream as orphaned when its snapshot of metadata was damaged.

    Source: Jepsen, NATS 2.12.1 (2025); nats-server #7556.
    """
    victim, gone = await rebuild(cluster, workload, metadata_file, Path.unlink)
    assert is_quarantined_as_missing(cluster, victim, gone)
    await check_with_the_repaired_in_the_quorum(cluster, workload, victim)


@pytest.mark.long
async def test_a_repair_completes_although_another_broker_is_killed_repeatedly(
    cluster: LocalCluster, workload: Workload
) -> None:
    victim, leader = 2, 1
    cluster.kill(victim)
    await workload.wait_progress()
    old = replica_files(cluster, victim)
    shutil.rmtree(cluster.data_dir(victim))
    await asyncio.to_thread(cluster.restart, victim, wait=False)
    for _ in range(3):
        await asyncio.sleep(0.4)  # in the middle of the repair, a little later each time
        cluster.kill(leader)
        await asyncio.to_thread(cluster.restart, leader, wait=False)
        await asyncio.to_thread(cluster.wait_ready, leader)
    await asyncio.to_thread(cluster.wait_ready, victim)
    await wait_replaced(cluster, victim, old)
    await check_with_the_repaired_in_the_quorum(cluster, workload, victim)


@pytest.mark.long
async def test_without_a_healthy_majority_no_replica_is_replaced(cluster: LocalCluster) -> None:
    """Two of three replicas are damaged. The third may hold the only copy, so no replica is replaced."""
    async with Workload(cluster.bootstrap_servers, TOPIC, PARTITIONS) as workload:
        await workload.wait_progress()
        await workload.finish()
    victims = (2, 3)
    for broker_id in victims:
        cluster.kill(broker_id)
    before = {broker_id: replica_files(cluster, broker_id) for broker_id in cluster.broker_ids}
    for broker_id in victims:
        for path in data_files(cluster, broker_id):
            flip_a_byte(path)
    for broker_id in victims:
        await asyncio.to_thread(cluster.restart, broker_id, wait=False)
    for broker_id in victims:
        await asyncio.to_thread(cluster.wait_ready, broker_id)
    await eventually(lambda: all("replica_quarantined" in cluster.logs(broker_id) for broker_id in victims))
    await asyncio.sleep(1.5)  # several rounds of the controller, each of which could have replaced them
    assert {broker_id: replica_files(cluster, broker_id) for broker_id in cluster.broker_ids} == before
    assert [gauge(cluster, broker_id, "raftmq_quarantined_replicas") for broker_id in (1, 2, 3)] == [0, 3, 3]


@pytest.mark.long
async def test_directories_in_place_of_files_do_not_end_the_broker(cluster: LocalCluster, workload: Workload) -> None:
    """A directory in the trash is ignored. One in place of a replica's file does not keep other files from being opened."""
    victim = 2
    await workload.wait_progress()
    cluster.kill(victim)
    file = used_file(cluster, victim)
    file.unlink()
    file.mkdir()
    (file / "of a person").touch()
    strange = cluster.data_dir(victim) / "trash" / "a-directory"
    strange.mkdir(parents=True)
    os.utime(strange, (1000, 1000))
    await asyncio.to_thread(cluster.restart, victim)
    assert is_ready(cluster, victim)
    pid = cluster.pid(victim)
    await asyncio.sleep(2.5 * ROUND_SECONDS)
    assert cluster.is_running(victim)
    assert cluster.pid(victim) == pid
    assert strange.is_dir()
    await wait_replaced(cluster, victim, {file.name})
    await eventually(lambda: raftmq(cluster, "cluster", "status").returncode == 0)
    assert "background_work_failed" not in cluster.logs(victim)
    await workload.check()
