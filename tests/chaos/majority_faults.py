"""A partition loses its majority, and the operator revives it from its leader. The leader has everything, so no acknowledged record is lost."""

from __future__ import annotations

from collections.abc import Iterator

from raftmq.client.admin.descriptions import PartitionDescription
from raftmq.errors import RaftMQError
from raftmq.sync import Admin

from tests.chaos.condition import wait_until, what_is_not_whole
from tests.chaos.damage import replica_files
from tests.chaos.fault import FaultError, Target, fault
from tests.chaos.operator import Answer

ASK_MS = 2_000.0
REVIVED_SECONDS = 60.0
"""The brokers must have found out by then that the replicas are lost."""
WHOLE_SECONDS = 120.0


def _seen_by(target: Target, broker_id: int, partition: int) -> PartitionDescription | None:
    """Return a partition as one broker knows it, or None if it does not answer."""
    try:
        with Admin(bootstrap_servers=target.cluster.address(broker_id), request_timeout_ms=ASK_MS) as admin:
            return admin.describe_topic(target.topic).partitions[partition]
    except RaftMQError:
        return None


def _remove_replica(target: Target, broker_id: int, group_id: int) -> None:
    for path in replica_files(target.cluster.data_dir(broker_id)):
        if path.name.startswith(f"{group_id}-"):
            path.unlink()


def _revive(target: Target, partition: int, group_id: int, kept: int) -> None:
    """Order the recovery until another group serves the partition. It is refused as long as brokers have not noticed the loss."""
    answer = Answer("unanswered")

    def is_revived() -> bool:
        nonlocal answer
        answer = target.operator.give(
            "recover",
            lambda admin: admin.recover_partition(target.topic, partition, kept, unsafe=True, group_id=group_id),
        )
        # An order whose answer was lost is refused when it is repeated.
        now = _seen_by(target, kept, partition)
        return now is not None and now.group_id != group_id

    if not wait_until(is_revived, REVIVED_SECONDS, target.stop):
        raise FaultError(f"the recovery of partition {partition} from broker {kept} is not carried out: {answer}")


@fault("majority", (0.0, 1.0), needs_whole=True)
def lost_majority(target: Target) -> Iterator[str]:
    """Let the followers of a partition lose their replicas of it, and revive the partition from its leader."""
    cluster = target.cluster
    partition, kept = target.chance.choice(sorted(cluster.leaders(target.topic).items()))
    before = _seen_by(target, kept, partition)
    if before is None or before.leader_broker_id != kept:
        yield f"the leader of partition {partition} changes"
        return
    others = [broker_id for broker_id in before.replica_brokers if broker_id != kept]
    for broker_id in others:
        cluster.kill(broker_id)
    try:
        now = _seen_by(target, kept, partition)
        is_certain = now is not None and (now.leader_broker_id, now.leader_epoch) == (kept, before.leader_epoch)
        if is_certain:  # the kept replica has every record that was acknowledged
            for broker_id in others:
                _remove_replica(target, broker_id, before.group_id)
    finally:
        for broker_id in others:
            cluster.restart(broker_id, wait=False)
    if not is_certain:
        yield f"the leader of partition {partition} changed"
        return
    _revive(target, partition, before.group_id, kept)
    if not wait_until(lambda: not what_is_not_whole(cluster, target.topic), WHOLE_SECONDS, target.stop):
        raise FaultError(f"after the recovery of partition {partition}: {what_is_not_whole(cluster, target.topic)}")
    yield f"partition {partition} was revived from broker {kept}"
