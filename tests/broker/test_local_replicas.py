"""Which replicas a node hosts, by what metadata says."""

from raftmq.broker.local_replicas import LocalReplicas
from raftmq.fsm import metadata_commands as mc
from raftmq.types import NodeId, ReplicaId

from tests.fsm.harness import MetadataLog
from tests.fsm.histories import register


def hosted(log: MetadataLog, node_id: int) -> list[ReplicaId]:
    return [key.replica_id for key in LocalReplicas._wanted(log.state, NodeId(node_id))]


def test_a_replica_whose_disk_was_lost_is_never_hosted_again() -> None:
    """An empty one under its id would vote again, and deny what it had acknowledged."""
    log = MetadataLog(nodes=4)
    log.run(mc.CreateTopic("t", "log", 3, {}, (mc.PartitionPlan((1, 2, 3)),)))
    (lost,) = hosted(log, 3)
    log.run(register("another disk", 3, replaces_lost=True))
    (rebuilt,) = hosted(log, 3)
    assert rebuilt != lost

    assert isinstance(log.run(mc.SetReplicas(1, (1, 2, 4), log.state.revision)), mc.Done)
    partition = log.state.partition(1)
    assert partition is not None
    assert [(replica.replica_id, replica.is_lost) for replica in partition.retiring] == [(lost, True), (rebuilt, False)]
    assert hosted(log, 3) == [rebuilt]
