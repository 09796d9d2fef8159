"""Whole nodes: a cluster whose metadata has lost its majority is revived from the directory of one stopped broker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from raftmq import Admin, Producer, Queue
from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.metadata_recovery import (
    INDEX_GAP,
    MetadataRecoveryError,
    leave_cluster,
    read_metadata,
    recover_metadata,
)
from raftmq.broker.node import Node
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.doctor import NoDataDirectoryError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.registry import Registry
from raftmq.types import METADATA_GROUP_ID, GroupId

from tests.support.broker.whole_nodes import NOBODY, WAIT_SECONDS, Nodes, three_voters
from tests.support.broker.whole_nodes import until as standing_for

NEW_ID = "new-cluster"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


async def stopped_cluster(nodes: Nodes) -> list[Path]:
    """Run three brokers with a topic of ten records on each, stop all, and return their directories."""
    first = await nodes.serve("one", bootstrap=True, stable_seconds=0.3)
    join = (first.addresses.peer,)
    others = [await nodes.serve(name, join=join, stable_seconds=0.3) for name in ("two", "three")]
    await three_voters(first)
    async with Admin(bootstrap_servers=first.addresses.client) as admin:
        await admin.create_topic("flights", 1, 3)
        async with Producer(bootstrap_servers=first.addresses.client) as producer:
            for number in range(10):
                await producer.send("flights", b"%d" % number)
    running = [first, *others]
    await until(lambda: all(has_records(node, 10) for node in running))
    for node in running:
        await nodes.stop(node)
    return [node.config.data_dir for node in running]


def has_records(node: Node, count: int) -> bool:
    (topic,) = node.view.metadata.state_machine.topics() or (None,)
    if topic is None:
        return False
    partition = node.partitions.get(GroupId(topic.group_ids[0]))
    return partition is not None and partition.high_watermark == count


async def test_a_cluster_is_revived_from_one_broker(nodes: Nodes) -> None:
    one, two, three = await stopped_cluster(nodes)
    before = read_metadata(three)
    assert (before.broker_id, before.voters, before.other_brokers) == (3, (1, 2, 3), (1, 2))
    assert (before.topic_count, before.partition_count) == (1, 1)
    made = recover_metadata(three, lambda: NEW_ID)
    assert (made.cluster_id, made.broker_id, made.voters) == (NEW_ID, 3, (3,))
    assert made.last_index == before.last_index + INDEX_GAP
    assert made.term > before.term
    recovered = await nodes.serve("three", stable_seconds=0.3)
    machine = recovered.view.metadata.state_machine
    assert recovered.view.metadata.is_leader
    assert (machine.cluster_id, [node.node_id for node in machine.nodes()]) == (NEW_ID, [1, 2, 3])
    # a broker of the old cluster is kept out
    stray = nodes.begin("one", join=(recovered.addresses.peer,))
    refused = await nodes.failure(stray)
    assert isinstance(refused, RequestError)
    assert refused.code == pb.WRONG_CLUSTER
    assert f"raftmq recover rejoin {one}" in str(refused), "an empty directory would give its data up"
    await nodes.stop(stray)
    stray = nodes.begin("one", cluster_id=NEW_ID)
    assert f"raftmq recover rejoin {one}" in str(await nodes.failure(stray))
    await nodes.stop(stray)
    # a survivor joins with the data of its partitions
    left = leave_cluster(two)
    assert (left.broker_id, left.cluster_id) == (2, before.cluster_id)
    back = await nodes.serve("two", join=(recovered.addresses.peer,), stable_seconds=0.3)
    assert (back.view.node_id, back.view.cluster_id) == (2, NEW_ID)
    await until(lambda: has_records(recovered, 10) and has_records(back, 10))
    async with Admin(bootstrap_servers=recovered.addresses.client) as admin:
        await admin.create_topic("later", 1, 1)
    (later,) = (topic for topic in recovered.view.metadata.state_machine.topics() if topic.name == "later")
    assert later.group_ids[0] > 1_000_000, "the lost voters may have given the next ids out"
    async with Producer(bootstrap_servers=recovered.addresses.client) as producer:
        assert (await (await producer.send("flights", b"10"))).offset == 10
    with pytest.raises(MetadataRecoveryError, match="in use by another process"):
        read_metadata(three)
    assert read_metadata(one).cluster_id == before.cluster_id
    await three_voters_again(nodes, one, recovered)


@pytest.mark.parametrize("is_quarantined", [True, False])
async def test_a_survivor_with_damaged_metadata_rejoins_with_its_partitions(
    nodes: Nodes, *, is_quarantined: bool
) -> None:
    """It was refused, and told to use the directory of another broker: only an empty directory was left, without its data."""
    _, two, three = await stopped_cluster(nodes)
    before = read_metadata(two)
    recover_metadata(three, lambda: NEW_ID)
    (file,) = (two / "groups").glob("0-*.mdb")
    file.write_bytes(file.read_bytes()[:5000])
    if is_quarantined:
        registry = Registry(two / "node.mdb")
        (key,) = registry.live_replicas_of(METADATA_GROUP_ID)
        registry.quarantine(key, "a bad sector")
        registry.close(is_clean=True)
    with pytest.raises(MetadataRecoveryError, match=r"is damaged: use the directory of another|cannot be used"):
        recover_metadata(two, lambda: "never")
    shown, left = read_metadata(two, may_be_lost=True), leave_cluster(two)
    assert (left.broker_id, left.cluster_id, shown.broker_id, shown.cluster_id) == (2, before.cluster_id) * 2
    assert left.problem
    assert shown.problem
    recovered = await nodes.serve("three", stable_seconds=0.3)
    back = await nodes.serve("two", join=(recovered.addresses.peer,), stable_seconds=0.3)
    assert (back.view.node_id, back.view.cluster_id) == (2, NEW_ID)
    await until(lambda: has_records(recovered, 10) and has_records(back, 10))


async def three_voters_again(nodes: Nodes, directory: Path, recovered: Node) -> None:
    """The last broker joins, too, and votes again."""
    leave_cluster(directory)
    await nodes.serve(directory.name, join=(recovered.addresses.peer,), stable_seconds=0.3)
    await three_voters(recovered)
    assert {recovered.view.metadata.node_of(one) for one in recovered.view.metadata.core.membership.voters} == {1, 2, 3}


async def test_groups_that_followed_a_cluster_recovered_by_mistake_follow_the_right_one(nodes: Nodes) -> None:
    """They had carried out a target with a later revision than the right cluster's, and refused its targets without end."""
    one, two, three = await stopped_cluster(nodes)
    began_ms = 1_800_000_000_000
    recover_metadata(three, lambda: "by-mistake", began_ms)
    leave_cluster(two)
    wrong = await nodes.serve("three", stable_seconds=0.3)
    other = await nodes.serve("two", join=(wrong.addresses.peer,), stable_seconds=0.3)
    async with Admin(bootstrap_servers=wrong.addresses.client) as admin:
        for number in range(10):
            await admin.create_topic(f"other-{number}", 1, 1)
            await admin.delete_topic(f"other-{number}")
        await admin.remove_broker(1, force=True)
        await admin.set_replication_factor("flights", 2)
    (topic,) = wrong.view.metadata.state_machine.topics()
    followed = wrong.partitions[GroupId(topic.group_ids[0])].replica.core
    await until(lambda: len(followed.membership.voters) == 2)
    for node in (other, wrong):
        await nodes.stop(node)

    recover_metadata(one, lambda: "right", began_ms + 60_000)
    right = await nodes.serve("one", stable_seconds=0.3)
    for directory in (two, three):
        leave_cluster(directory)
        await nodes.serve(directory.name, join=(right.addresses.peer,), stable_seconds=0.3)
    core = right.partitions[GroupId(topic.group_ids[0])].replica.core
    await until(lambda: len(core.membership.voters) == 3 and core.membership.revision >= began_ms + 60_000)


async def test_a_queue_partition_is_recovered_after_the_metadata(nodes: Nodes) -> None:
    """The group of its recovery has an id above 32 bits, and no session could be opened: the number of one did not fit its field."""
    first = await nodes.serve("one", bootstrap=True, stable_seconds=0.3)
    join = (first.addresses.peer,)
    others = [await nodes.serve(name, join=join, stable_seconds=0.3) for name in ("two", "three")]
    await three_voters(first)
    async with Admin(bootstrap_servers=first.addresses.client) as admin:
        await admin.create_topic("jobs", 1, 3, kind="queue")
    async with Queue("jobs", bootstrap_servers=first.addresses.client) as queue:
        await queue.put(b"0")
    (topic,) = first.view.metadata.state_machine.topics()
    old = GroupId(topic.group_ids[0])
    await until(lambda: len({one.partitions[old].replica.core.applied_index for one in (first, *others)}) == 1)
    for node in (first, *others):
        await nodes.stop(node)
    recover_metadata(others[1].config.data_dir, lambda: NEW_ID)
    recovered = await nodes.serve("three", stable_seconds=0.3)
    await until(lambda: old in recovered.partitions)
    async with Admin(bootstrap_servers=recovered.addresses.client) as admin:
        await admin.recover_partition("jobs", 0, 3, unsafe=True)
        await until(lambda: any(group > 1 << 32 for group in recovered.partitions))
    leave_cluster(others[0].config.data_dir)  # the clock of a queue needs a second broker
    await nodes.serve("two", join=(recovered.addresses.peer,), stable_seconds=0.3)
    async with Queue("jobs", bootstrap_servers=recovered.addresses.client) as queue:
        message = await queue.get(wait_ms=10_000)
        assert message is not None
        (partition,) = queue._desk._settler._partitions.values()
        await until(lambda: bool(partition._session))
        await message.ack()
        assert await queue.get(wait_ms=500) is None


async def test_a_broker_that_left_its_cluster_forms_no_other_one(nodes: Nodes) -> None:
    """Its founder ended with a broken invariant. Any other broker formed a second cluster over its old partitions."""
    one = await nodes.serve("one", bootstrap=True)
    two = await nodes.serve("two", join=(one.addresses.peer,))
    async with Admin(bootstrap_servers=one.addresses.client) as admin:
        await admin.create_topic("flights", 2, 1)
    for node in (one, two):
        await nodes.stop(node)
        leave_cluster(node.config.data_dir)
    for name in ("one", "two"):
        node = nodes.begin(name, bootstrap=True)
        refused = await nodes.failure(node)
        assert isinstance(refused, RequestError)
        assert refused.code == pb.CLUSTER_ALREADY_FORMED
        assert "has left its cluster" in str(refused)
        assert "start with --join HOST:PORT" in str(refused)
        await nodes.stop(node)
        alone = nodes.begin(name)
        refused = await nodes.failure(alone)
        await nodes.stop(alone)
        assert isinstance(refused, RequestError)
        assert refused.code == pb.NOT_FORMED
        assert "has left its cluster (raftmq recover rejoin): start with --join HOST:PORT" in str(refused)
        assert "--bootstrap" not in str(refused), "it would be refused"
        waiting = nodes.begin(name, join=(NOBODY,))
        await standing_for(waiting, Reason.JOINING)
        with pytest.raises(RequestError, match="has left its cluster") as ordered:
            await waiting.view.formation.order()
        assert ordered.value.code == pb.CLUSTER_ALREADY_FORMED
        assert waiting.view.formation.describe().cluster_id


async def test_a_broker_without_partitions_that_left_its_cluster_forms_no_other_one(nodes: Nodes) -> None:
    one = await nodes.serve("one", bootstrap=True)
    await nodes.stop(one)
    leave_cluster(one.config.data_dir)
    refused = await nodes.failure(nodes.begin("one", bootstrap=True))
    assert isinstance(refused, RequestError)
    assert refused.code == pb.CLUSTER_ALREADY_FORMED


async def test_a_broker_that_left_its_cluster_by_mistake_may_return_to_it(nodes: Nodes) -> None:
    """The cluster named the metadata replica that the broker had given up, and each start ended with a KeyError."""
    one = await nodes.serve("one", bootstrap=True, stable_seconds=0.3)
    join = (one.addresses.peer,)
    two, three = [await nodes.serve(name, join=join, stable_seconds=0.3) for name in ("two", "three")]
    await three_voters(one)
    async with Admin(bootstrap_servers=one.addresses.client) as admin:
        await admin.create_topic("flights", 1, 3)
        async with Producer(bootstrap_servers=one.addresses.client) as producer:
            await (await producer.send("flights", b"0"))
    await nodes.stop(two)
    leave_cluster(two.config.data_dir)
    back = await nodes.serve("two", join=join, stable_seconds=0.3)
    assert back.view.node_id == 2
    await until(lambda: all(has_records(node, 1) for node in (one, three, back)))
    metadata = one.view.metadata
    await until(lambda: set(map(metadata.node_of, metadata.core.membership.voters)) == {1, 2, 3})


async def test_a_crash_of_the_recovery_can_be_repeated(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await nodes.serve("one", bootstrap=True)
    await nodes.stop(first)
    directory = first.config.data_dir

    class KilledError(BaseException):
        pass

    def kill(*arguments: object, **named: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr("raftmq.storage.registry.Registry.enter_cluster", kill)
        with pytest.raises(KilledError):
            recover_metadata(directory, lambda: "never")
    assert len(LmdbLogStore(directory).stored_replicas()) == 2
    assert recover_metadata(directory, lambda: NEW_ID).cluster_id == NEW_ID
    again = await nodes.serve("one")
    assert again.view.metadata.state_machine.cluster_id == NEW_ID
    assert len(LmdbLogStore(directory).stored_replicas()) == 1


async def test_looking_at_metadata_changes_nothing(nodes: Nodes) -> None:
    """It counted a boot, removed files of interrupted writes, and made lock files."""
    first = await nodes.serve("one", bootstrap=True)
    await nodes.stop(first)
    directory = first.config.data_dir
    (directory / "groups" / "0-1.mdb.new").touch()
    before = contents(directory)
    shown = read_metadata(directory)
    assert contents(directory) == before
    made = recover_metadata(directory, lambda: NEW_ID)
    assert made.last_index == shown.last_index + INDEX_GAP, "as a command that opens the files for writing sees it"
    assert (made.voters, made.broker_id, made.topic_count) == (shown.voters, shown.broker_id, shown.topic_count)


async def test_looking_at_damaged_metadata_names_the_damage(nodes: Nodes) -> None:
    first = await nodes.serve("one", bootstrap=True)
    await nodes.stop(first)
    directory = first.config.data_dir
    registry, metadata = directory / "node.mdb", directory / "groups" / "0-1.mdb"
    sound = metadata.read_bytes()
    metadata.write_bytes(sound[: len(sound) // 2])
    with pytest.raises(MetadataRecoveryError, match=r"this broker cannot be used: it has \d+ bytes of \d+"):
        read_metadata(directory)
    metadata.unlink()
    for make in (lambda path: None, os.mkfifo):
        make(metadata)
        with pytest.raises(MetadataRecoveryError, match="this broker cannot be used: its file is missing"):
            read_metadata(directory)
    changed = registry.read_bytes().replace(b'"cluster_id": "', b'"cluster_id": "x')
    registry.write_bytes(changed[: registry.stat().st_size])
    with pytest.raises(MetadataRecoveryError, match=r"node.mdb in .* is .*damaged .*: keep the directory"):
        read_metadata(directory)


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the time of change of each file and directory."""
    return {
        str(path.relative_to(directory)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in (directory, *directory.rglob("*"))
    }


async def test_the_metadata_of_interrupted_commands_goes_to_the_trash(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash of the last step, the file of the old group stayed beside the new one for good."""

    class KilledError(BaseException):
        pass

    def kill(*_: object) -> None:
        raise KilledError

    def interrupted(command: Callable[[], object]) -> None:
        with monkeypatch.context() as patched, pytest.raises(KilledError):
            patched.setattr("raftmq.storage.lmdb_log_store.LmdbLogStore.retire", kill)
            command()
        assert len(LmdbLogStore(directory).stored_replicas()) == 2

    first = await nodes.serve("one", bootstrap=True)
    await nodes.stop(first)
    directory = first.config.data_dir
    interrupted(lambda: recover_metadata(directory, lambda: "interrupted"))
    assert read_metadata(directory).cluster_id == "interrupted"
    assert recover_metadata(directory, lambda: NEW_ID).cluster_id == NEW_ID
    assert len(LmdbLogStore(directory).stored_replicas()) == 1
    interrupted(lambda: recover_metadata(directory, lambda: "interrupted again"))
    again = await nodes.serve("one")
    assert again.view.metadata.state_machine.cluster_id == "interrupted again"
    assert len(again.store.stored_replicas()) == 1
    assert len(list((directory / "trash").iterdir())) == 3


def test_directories_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NoDataDirectoryError, match="is not a data directory"):
        read_metadata(tmp_path)


@pytest.mark.parametrize("command", [read_metadata, leave_cluster, lambda path: recover_metadata(path, lambda: NEW_ID)])
@pytest.mark.parametrize("content", ["empty", "no commit", "damaged"])
def test_an_empty_registry_is_refused_and_stays_empty(
    tmp_path: Path, command: Callable[[Path], object], content: str
) -> None:
    """Only looking made a new registry of it, and the advice was to start the broker with --join, although it has replicas."""
    path = tmp_path / "node.mdb"
    path.touch()
    if content != "empty":
        lmdb.open(str(path), subdir=False, lock=False).close()
    if content == "damaged":
        path.write_bytes(path.read_bytes()[:5000])
    before = path.read_bytes()
    assert bool(before) == (content != "empty")
    with pytest.raises(
        MetadataRecoveryError, match=r"is empty or damaged .*: keep the directory, and use that of another"
    ):
        command(tmp_path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["node.mdb"]


def test_a_new_registry_beside_replicas_is_a_lost_one(tmp_path: Path) -> None:
    Registry(tmp_path / "node.mdb").close(is_clean=True)
    with pytest.raises(MetadataRecoveryError, match="belongs to no cluster"):
        read_metadata(tmp_path)
    (tmp_path / "groups").mkdir(exist_ok=True)
    (tmp_path / "groups" / "0-1.mdb").touch()
    with pytest.raises(MetadataRecoveryError, match="was lost, and is a new one: keep the directory"):
        read_metadata(tmp_path)
