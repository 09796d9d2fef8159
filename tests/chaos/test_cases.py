"""Failures of other systems: each docstring tells which system failed and how.

The table in `cases.md` also lists the failures that tests elsewhere cover.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from raftmq import Admin, Consumer, Producer, TopicPartition
from raftmq.errors import DeliveryExpiredError, DeliveryTimeoutError, RaftMQError

from sim.history.checker import judge_files
from tests.chaos.cluster import ChaosCluster
from tests.chaos.condition import busiest_leader, is_led, wait_until, what_is_not_whole
from tests.chaos.damage import flip_bytes, replica_files, truncate
from tests.chaos.links import CLIENTS, partition
from tests.chaos.run import Trial
from tests.chaos.workload import Workload

pytestmark = [pytest.mark.e2e, pytest.mark.long]

LONGER_THAN_ELECTIONS_SECONDS = 5.0
"""With the fast timers of these clusters an election starts 1.6 to 3.2 s after the last heartbeat."""
WAIT_SECONDS = 90.0
RECORDS = 100

needs_volumes = pytest.mark.usefixtures("volumes")
needs_shim = pytest.mark.usefixtures("shim")


async def eventually(condition: Callable[[], bool], what: str) -> None:
    assert await asyncio.to_thread(wait_until, condition, WAIT_SECONDS), f"not within {WAIT_SECONDS:.0f} s: {what}"


async def whole(cluster: ChaosCluster, topic: str) -> None:
    await eventually(lambda: not what_is_not_whole(cluster, topic), "the cluster is whole")


async def progress(trial: Trial, records: int = RECORDS) -> None:
    assert await trial.workload.wait_progress(records, WAIT_SECONDS), "the clients do not get on"


# ----------------------------------------------------------------------------------------------------------------- power


@needs_volumes
async def test_power_loss_of_every_machine_at_once_loses_nothing_acknowledged(
    cluster: ChaosCluster, tmp_path: Path
) -> None:
    """NATS JetStream 2.12.1 lost 14 % of the acknowledged records: it acknowledged from the page cache and flushed every two minutes.

    Source: Jepsen, NATS 2.12.1 (2025), nats-server #7564.
    """
    async with Trial(cluster, tmp_path) as trial:
        await asyncio.to_thread(cluster.lose_power, *cluster.broker_ids)
        await asyncio.to_thread(cluster.restart_all)
        await progress(trial)
    trial.demand_clean()


@needs_volumes
@needs_shim
async def test_a_power_loss_with_fsync_disabled_is_found_to_lose_records(tmp_path: Path) -> None:
    """This is the control: these tests would notice records that are acknowledged before they are on disk, as in nats-server #7564."""
    topic, history = "control", tmp_path / "history.jsonl"
    async with ChaosCluster(has_disk_orders=True, has_volumes=True) as own:
        async with Admin(bootstrap_servers=own.bootstrap_servers) as admin:
            await admin.create_topic(topic, partitions=3, replication_factor=3)
        async with Workload(lambda: own.bootstrap_servers, topic, 3, history, seed=0) as workload:
            assert await workload.wait_progress(RECORDS, WAIT_SECONDS)
            for broker_id in own.broker_ids:
                own.disk(broker_id).swallow_syncs()
            assert await workload.wait_progress(RECORDS, WAIT_SECONDS)
            await workload.stop(WAIT_SECONDS)
            await asyncio.to_thread(own.lose_power, *own.broker_ids)
            for broker_id in own.broker_ids:
                own.disk(broker_id).work()
            await asyncio.to_thread(own.restart_all)
            await eventually(lambda: is_led(own, topic), "every partition is led")
            await workload.read_back(WAIT_SECONDS)
    verdict = judge_files([history])
    assert verdict.is_read_to_the_end
    lost = verdict.counts.get("never_read", 0) + verdict.counts.get("lost_write", 0)
    assert lost > RECORDS // 2, verdict.report()


@needs_volumes
async def test_power_loss_of_one_machine_while_another_is_frozen_splits_nothing(
    cluster: ChaosCluster, tmp_path: Path
) -> None:
    """In NATS JetStream 2.12.1 one machine's power loss and well-timed pauses left replicas that disagreed permanently.

    As in the report, two brokers are paused in turn, so that the broker that lost power is in the first majority afterwards.

    Source: Jepsen, NATS 2.12.1 (2025), nats-server #7567.
    """
    async with Trial(cluster, tmp_path) as trial:
        leader = busiest_leader(cluster, trial.topic)
        victim, slept = (broker_id for broker_id in cluster.broker_ids if broker_id != leader)
        cluster.pause(slept)
        await progress(trial)  # only the leader and the victim have these
        await asyncio.to_thread(cluster.lose_power, victim)
        cluster.pause(leader)
        cluster.resume(slept)
        cluster.restart(victim, wait=False)
        await eventually(lambda: is_led(cluster, trial.topic), "the two others lead")
        await progress(trial)
        cluster.resume(leader)
    trial.demand_clean()


@needs_shim
async def test_a_failed_fsync_is_not_tried_again(cluster: ChaosCluster, tmp_path: Path) -> None:
    """PostgreSQL repeated a failed fsync and believed the second answer, although the kernel had dropped the pages ("fsyncgate", 2018).

    RaftMQ's process ends. The disk works again immediately, so a repeated fsync would succeed.

    Source: Rebello and others, "Can Applications Recover from fsync Failures?", USENIX ATC 2020.
    """
    async with Trial(cluster, tmp_path) as trial:
        victim = busiest_leader(cluster, trial.topic)
        disk = cluster.disk(victim)
        failed = disk.counts()[3]
        disk.fail_syncs()
        await eventually(lambda: disk.counts()[3] > failed, "an fsync failed")
        disk.work()
        await eventually(lambda: not cluster.is_running(victim), "the broker ended")
        assert "CommitFailedError" in cluster.logs(victim)
        await progress(trial)
        cluster.restart(victim, wait=False)
    trial.demand_clean()


@needs_shim
async def test_a_leader_whose_disk_hangs_loses_its_leadership(cluster: ChaosCluster, tmp_path: Path) -> None:
    """In a gray failure a broker answers heartbeats while its disk hangs: it stays leader, and every client waits.

    Source: Huang and others, "Gray Failure: The Achilles' Heel of Cloud-Scale Systems", HotOS 2017.
    """
    async with Trial(cluster, tmp_path) as trial:
        victim = busiest_leader(cluster, trial.topic)
        cluster.disk(victim).hang()
        try:
            await eventually(
                lambda: victim not in cluster.leaders(trial.topic).values() and is_led(cluster, trial.topic),
                "others lead",
            )
            await progress(trial)
        finally:
            cluster.disk(victim).work()
    trial.demand_clean()


# ---------------------------------------------------------------------------------------------------------------- damage


async def test_truncated_and_flipped_files_of_a_minority_lose_nothing(cluster: ChaosCluster, tmp_path: Path) -> None:
    """NATS JetStream 2.12.1 lost up to half of the acknowledged records when block files of a minority were truncated or had flipped bits.

    This happened even with fsync on every write, because damaged brokers could lead.

    Source: Jepsen, NATS 2.12.1 (2025), nats-server #7549.
    """
    chance = random.Random(7549)
    async with Trial(cluster, tmp_path) as trial:
        await whole(cluster, trial.topic)
        victim = busiest_leader(cluster, trial.topic)
        cluster.kill(victim)
        first, second, *_ = sorted(replica_files(cluster.data_dir(victim)), key=lambda path: -path.stat().st_size)
        truncate(first, chance)
        flip_bytes(second, chance, second.stat().st_size // 500)
        await asyncio.to_thread(started_in_the_end, cluster, victim)
        await whole(cluster, trial.topic)
        survivor = next(broker_id for broker_id in cluster.broker_ids if broker_id != victim)
        cluster.kill(survivor)  # from now on a majority needs the rebuilt replicas
        await progress(trial)
        cluster.restart(survivor, wait=False)
    trial.demand_clean()


def started_in_the_end(cluster: ChaosCluster, broker_id: int) -> None:
    """Start a broker with damaged pages, which may end its first starts."""
    for _ in range(4):
        cluster.restart(broker_id, wait=False)
        try:
            cluster.wait_ready(broker_id)
        except Exception:  # noqa: BLE001 -- the last attempt, after the loop, raises
            continue
        return
    cluster.wait_ready(broker_id)


# ----------------------------------------------------------------------------------------------------------------- links


async def test_a_leader_alone_acknowledges_nothing_and_its_successors_lose_nothing(
    cluster: ChaosCluster, tmp_path: Path
) -> None:
    """Kafka 0.8 shrank the in-sync set to the leader alone, acknowledged records, and then elected a leader without them.

    Source: Kingsbury, "Call me maybe: Kafka" (2013), and KIP-966 on the last replica standing.
    """
    async with Trial(cluster, tmp_path) as trial:
        leader = busiest_leader(cluster, trial.topic)
        others = [broker_id for broker_id in cluster.broker_ids if broker_id != leader]
        partitions = [n for n, broker in cluster.leaders(trial.topic).items() if broker == leader]
        async with Producer(bootstrap_servers=cluster.address(leader), delivery_timeout_ms=2_000) as producer:
            for broker_id in others:
                cluster.kill(broker_id)
            for n in partitions:
                with pytest.raises((DeliveryTimeoutError, DeliveryExpiredError)):
                    await producer.send_and_wait(trial.topic, b"alone-%d" % n, partition=n)
        cluster.kill(leader)
        for broker_id in others:
            cluster.restart(broker_id, wait=False)
        await progress(trial)
        await eventually(lambda: is_led(cluster, trial.topic), "the two others lead everything")
        cluster.restart(leader, wait=False)
    trial.demand_clean()  # the finding "never_sent" would mean that a reader got an unacknowledged record of `producer`


async def test_a_partition_with_clients_on_both_sides_loses_nothing(cluster: ChaosCluster, tmp_path: Path) -> None:
    """RabbitMQ's mirrored queues accepted writes on both sides of a partition and discarded one side: a third of the acknowledged messages.

    Source: Kingsbury, "Call me maybe: RabbitMQ" (2014).
    """
    async with Trial(cluster, tmp_path) as trial:
        leader = busiest_leader(cluster, trial.topic)
        others = [broker_id for broker_id in cluster.broker_ids if broker_id != leader]
        partition(cluster.links, [leader], others)  # clients still reach all three
        cluster.pause(leader)  # so that `cluster.leaders` asks the others
        await eventually(
            lambda: leader not in cluster.leaders(trial.topic).values() and is_led(cluster, trial.topic), "others lead"
        )
        cluster.resume(leader)
        await progress(trial)
        cluster.links.heal()
    trial.demand_clean()


async def test_a_follower_that_was_cut_off_returns_without_deposing_its_leader(
    cluster: ChaosCluster, tmp_path: Path
) -> None:
    """In Redpanda a follower raised its term while it was cut off, and its return made a healthy leader step down.

    Source: Redpanda's post on availability under faults, and Ongaro's thesis 9.6 (pre-vote).
    """
    async with Trial(cluster, tmp_path, partitions=1) as trial:
        await whole(cluster, trial.topic)
        leader = busiest_leader(cluster, trial.topic)
        follower = next(broker_id for broker_id in cluster.broker_ids if broker_id != leader)
        before = cluster.leader_epochs(trial.topic)
        partition(cluster.links, [follower], [broker_id for broker_id in cluster.broker_ids if broker_id != follower])
        await asyncio.sleep(LONGER_THAN_ELECTIONS_SECONDS)
        cluster.links.heal()
        await whole(cluster, trial.topic)
        await progress(trial)
        assert cluster.leader_epochs(trial.topic) == before
    trial.demand_clean()


@pytest.mark.parametrize("is_leader_the_source", [True, False])
async def test_a_link_dead_in_one_direction_causes_at_most_one_election(
    cluster: ChaosCluster, tmp_path: Path, is_leader_the_source: bool
) -> None:
    """A switch that forwarded some directions and not others kept an etcd cluster in elections and a control plane down for hours.

    Source: Cloudflare, "A Byzantine failure in the real world" (2020).
    """
    async with Trial(cluster, tmp_path, partitions=1) as trial:
        await whole(cluster, trial.topic)
        leader = busiest_leader(cluster, trial.topic)
        follower = next(broker_id for broker_id in cluster.broker_ids if broker_id != leader)
        before = cluster.leader_epochs(trial.topic)
        cluster.links.cut(*((leader, follower) if is_leader_the_source else (follower, leader)))
        await asyncio.sleep(LONGER_THAN_ELECTIONS_SECONDS)
        await progress(trial)
        cluster.links.heal()
        await whole(cluster, trial.topic)
        after = cluster.leader_epochs(trial.topic)
        assert all(after[group] - before[group] <= 1 for group in before), (before, after)
    trial.demand_clean()


async def test_answers_lost_with_their_leader_cause_no_duplicates(cluster: ChaosCluster, tmp_path: Path) -> None:
    """Redpanda 21.10.1 wrote records of idempotent producers twice when a request was repeated to a new leader.

    The answers of a leader are lost before it is killed, so the producers repeat all requests in flight to its successors. In the second
    round one broker has its producer state from a snapshot.

    Source: Jepsen, Redpanda 21.10.1 (2022), redpanda #3039.
    """
    async with Trial(cluster, tmp_path) as trial:
        for _ in range(2):
            await whole(cluster, trial.topic)
            leader = busiest_leader(cluster, trial.topic)
            cluster.links.cut(leader, CLIENTS)
            await asyncio.sleep(0.5)
            cluster.kill(leader)
            cluster.links.heal()
            await progress(trial)
            await asyncio.to_thread(cluster.wipe, leader)  # it returns with the producers' state from snapshots
            cluster.restart(leader, wait=False)
    trial.demand_clean()


async def test_a_record_whose_send_definitely_failed_is_never_read(cluster: ChaosCluster, tmp_path: Path) -> None:
    """Redpanda 21.10.1 showed consumers records whose sends it had reported as failed (aborted reads), and Bufstream 0.1.0 lost others.

    Source: Jepsen, Redpanda 21.10.1 (2022), redpanda #3036, and Jepsen, Bufstream 0.1.0 (2024).
    """
    async with Trial(cluster, tmp_path) as trial:
        leader = busiest_leader(cluster, trial.topic)
        alone = next(broker_id for broker_id in cluster.broker_ids if broker_id != leader)
        dead = [broker_id for broker_id in cluster.broker_ids if broker_id != alone]
        for broker_id in dead:
            cluster.kill(broker_id)
        await asyncio.sleep(3.0)  # twice the delivery timeout of the impatient writer
        for broker_id in dead:
            cluster.restart(broker_id, wait=False)
        await progress(trial)
        assert trial.workload.failed.get("DeliveryExpiredError"), "nothing failed for certain"
    trial.demand_clean()


# ------------------------------------------------------------------------------------------------------------- processes


async def test_ends_and_positions_never_read_as_zero_or_go_back_while_leaders_change(
    cluster: ChaosCluster, tmp_path: Path
) -> None:
    """Bufstream 0.1.0 answered offset 0 for partitions with records, so consumers started again or lost their position.

    Redpanda 21.10.1 answered inconsistent offsets after leader changes.

    Source: Jepsen, Bufstream 0.1.0 (2024), and Jepsen, Redpanda 21.10.1 (2022), redpanda #3003.
    """
    async with Trial(cluster, tmp_path) as trial:
        targets = [TopicPartition(trial.topic, n) for n in range(trial.partitions)]
        watching = asyncio.create_task(watch_ends(cluster.bootstrap_servers, targets))
        victim = busiest_leader(cluster, trial.topic)
        cluster.kill(victim)
        await progress(trial)
        await asyncio.to_thread(cluster.restart, victim)
        await progress(trial)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
    trial.demand_clean()


async def watch_ends(servers: str, targets: list[TopicPartition]) -> None:
    """Ask for end offsets until cancelled. Raise AssertionError if one goes back."""
    ends = dict.fromkeys(targets, 0)
    answers = 0
    try:
        while True:
            async with Consumer(bootstrap_servers=servers) as consumer:
                try:
                    while True:
                        told = await consumer.end_offsets(targets)
                        for target, end in told.items():
                            assert end >= ends[target], f"the end of {target} went from {ends[target]} to {end}"
                        ends, answers = told, answers + 1
                        await asyncio.sleep(0.05)
                except RaftMQError:
                    await asyncio.sleep(0.1)
    finally:
        assert answers > 10
        assert all(ends.values())


async def test_committed_offsets_never_go_back_or_read_as_zero_while_leaders_change(
    cluster: ChaosCluster, tmp_path: Path
) -> None:
    """Bufstream 0.1.0 answered committed offset 0 to groups with progress, so they started again or lost their position.

    Its consumers also hung. Here leaders are killed and frozen while a member commits and another consumer asks for the committed offsets.

    Source: Jepsen, Bufstream 0.1.0 (2024).
    """
    async with Trial(cluster, tmp_path) as trial:
        progress_of = GroupProgress([TopicPartition(trial.topic, n) for n in range(trial.partitions)])
        progress_of.start(cluster.bootstrap_servers)
        for fault, undo in ((cluster.kill, cluster.restart), (cluster.pause, cluster.resume)):
            victim = busiest_leader(cluster, trial.topic)
            fault(victim)
            await asyncio.sleep(LONGER_THAN_ELECTIONS_SECONDS)
            await progress(trial)
            await asyncio.to_thread(undo, victim)
            await progress_of.wait_more(RECORDS)
        await progress_of.stop()
    trial.demand_clean()


class GroupProgress:
    """The committed offsets of a group as answered so far: no later answer may be lower."""

    def __init__(self, partitions: list[TopicPartition]) -> None:
        self._floors = dict.fromkeys(partitions, 0)
        self._answers = 0
        self._jobs: list[asyncio.Task[None]] = []

    def start(self, servers: str) -> None:
        self._jobs = [asyncio.create_task(job(servers)) for job in (self._commit_all, self._watch)]

    async def stop(self) -> None:
        """Stop both jobs, and raise the error of a job that ended before."""
        for job in self._jobs:
            job.cancel()
        for end in await asyncio.gather(*self._jobs, return_exceptions=True):
            if not isinstance(end, asyncio.CancelledError):
                raise end or AssertionError("it ended by itself")
        assert self._answers > 10

    async def wait_more(self, records: int) -> None:
        """Wait until `records` more are committed in all partitions together."""
        wanted = sum(self._floors.values()) + records
        async with asyncio.timeout(WAIT_SECONDS):
            while sum(self._floors.values()) < wanted and not any(job.done() for job in self._jobs):
                await asyncio.sleep(0.1)

    async def _commit_all(self, servers: str) -> None:
        """Read and commit as a member."""
        (topic,) = {partition.topic for partition in self._floors}
        async with Consumer(
            topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            while True:
                try:
                    records = await consumer.getmany(timeout_ms=100)
                    offsets = {partition: found[-1].offset + 1 for partition, found in records.items()}
                    await consumer.commit(offsets)
                except RaftMQError:
                    await asyncio.sleep(0.1)
                    continue
                for partition, offset in offsets.items():
                    assert offset >= self._floors[partition], f"{partition} was read again and {offset} committed"
                    self._floors[partition] = offset

    async def _watch(self, servers: str) -> None:
        """Ask repeatedly from another client. Raise AssertionError if a committed offset goes back."""
        (topic,) = {partition.topic for partition in self._floors}
        async with Consumer(bootstrap_servers=servers, group_id=topic, request_timeout_ms=2_000) as consumer:
            while True:
                floors = dict(self._floors)
                try:
                    told = await consumer.committed(*floors)
                except RaftMQError:
                    await asyncio.sleep(0.1)
                    continue
                for partition, floor in floors.items():
                    offset = told[partition] or 0
                    assert offset >= floor, f"committed in {partition} was {floor} and is {told[partition]}"
                    self._floors[partition] = max(self._floors[partition], offset)
                self._answers += 1
                await asyncio.sleep(0.05)


async def test_a_frozen_leader_and_a_killed_follower_lose_no_record_that_only_they_have(
    cluster: ChaosCluster, tmp_path: Path
) -> None:
    """In NATS JetStream 2.12.1 pauses and the crash of one machine were enough to lose acknowledged records.

    1. The leader and follower A have records that follower B lacks, because B was down.
    2. The leader is frozen, and A is killed.
    3. B returns alone and starts elections.
    4. A returns. It forms a majority with B, but only A may lead.
    5. The leader resumes and believes for a moment that it still leads.

    The invariants of a wrong leader would stop it before it loses a record. That is a defect, too.

    Source: Jepsen, NATS 2.12.1 (2025), nats-server #7567.
    """
    logged = {broker_id: len(cluster.logs(broker_id)) for broker_id in cluster.broker_ids}
    # Eight partitions hold eight elections, and the wrong broker may start each of them.
    async with Trial(cluster, tmp_path, partitions=8) as trial:
        await whole(cluster, trial.topic)
        leader = busiest_leader(cluster, trial.topic)
        killed, behind = (broker_id for broker_id in cluster.broker_ids if broker_id != leader)
        cluster.kill(behind)  # a frozen broker would find the records in its sockets when it resumes
        await progress(trial)
        cluster.pause(leader)
        cluster.kill(killed)
        cluster.restart(behind, wait=False)
        await asyncio.sleep(LONGER_THAN_ELECTIONS_SECONDS)
        cluster.restart(killed, wait=False)
        await progress(trial)
        cluster.resume(leader)
    trial.demand_clean()
    for broker_id, length in logged.items():
        assert "InvariantError" not in cluster.logs(broker_id)[length:]


async def test_replicas_are_byte_equal_after_being_killed_while_they_replayed(
    cluster: ChaosCluster, tmp_path: Path
) -> None:
    """etcd 3.5 wrote its applied index and the applied data separately, so a kill at the wrong moment made replicas differ permanently.

    Source: etcd's post-mortem on data inconsistency in v3.5 (2022), etcd #13766.
    """
    async with Trial(cluster, tmp_path, keeps_topic=True) as trial:
        for broker_id in cluster.broker_ids:
            for moment in (1.1, 0.0):
                cluster.kill(broker_id)
                cluster.restart(broker_id, wait=False)
                await asyncio.sleep(moment)
            await eventually(lambda: is_led(cluster, trial.topic), "led again")
    trial.demand_clean()
    await asyncio.to_thread(cluster.stop_all)
    try:
        compared = compare_logs(cluster)
    finally:
        await asyncio.to_thread(cluster.restart_all)
    assert compared > RECORDS


def rows_of(path: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=3) as environment:
        database = environment.open_db(b"log", create=False)
        with environment.begin(db=database) as transaction, transaction.cursor() as cursor:
            return {bytes(key): bytes(value) for key, value in cursor}


def compare_logs(cluster: ChaosCluster) -> int:
    """Check that common rows of a group's replicas are equal, and return how many were compared. No broker may run."""
    groups: dict[str, list[dict[bytes, bytes]]] = {}
    for broker_id in cluster.broker_ids:
        for path in replica_files(cluster.data_dir(broker_id)):
            groups.setdefault(path.name.split("-")[0], []).append(rows_of(path))
    compared = 0
    for replicas in groups.values():
        for one, other in itertools.pairwise(replicas):
            common = one.keys() & other.keys()
            assert {key for key in common if one[key] != other[key]} == set()
            compared += len(common)
    return compared


async def test_clients_of_a_healthy_cluster_read_every_record_and_never_hang(
    cluster: ChaosCluster, tmp_path: Path
) -> None:
    """Bufstream 0.1.0 lost acknowledged records, and its producers and consumers hung, in clusters without any fault.

    Source: Jepsen, Bufstream 0.1.0 (2024).
    """
    async with Trial(cluster, tmp_path) as trial:
        ends_at = time.monotonic() + 3
        while time.monotonic() < ends_at:
            await progress(trial)
    assert "DeliveryTimeoutError" not in trial.workload.failed
    trial.demand_clean()


async def test_a_replica_is_replaced_while_another_is_cut_off_and_killed(cluster: ChaosCluster, tmp_path: Path) -> None:
    """NATS JetStream 2.12.1 lost acknowledged records or whole streams when membership changed during partitions and kills.

    Here a replica is rebuilt on an empty disk while another broker is cut off and killed.

    Source: Jepsen, NATS 2.12.1 (2025), nats-server #7545.
    """
    async with Trial(cluster, tmp_path) as trial:
        await whole(cluster, trial.topic)
        replaced, cut_off, _ = cluster.broker_ids
        cluster.kill(replaced)
        await asyncio.to_thread(cluster.wipe, replaced)
        cluster.restart(replaced, wait=False)
        await asyncio.sleep(1.5)  # in the middle of the rebuild
        partition(cluster.links, [cut_off], [broker_id for broker_id in cluster.broker_ids if broker_id != cut_off])
        await asyncio.sleep(1.0)
        cluster.kill(cut_off)
        cluster.links.heal()
        cluster.restart(cut_off, wait=False)
        await progress(trial)
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            assert trial.topic in [topic.name for topic in await admin.list_topics()]
    trial.demand_clean()
