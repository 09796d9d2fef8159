"""The feature level that each command needs: every broker must be able to read a command before any broker may write
it.

A broker that meets a committed command that it cannot read must stop that replica (`UnsupportedCommandError`). So a
command is proposed only when every broker of the cluster can read it. The cluster's feature level guarantees this: it
never exceeds the level of any registered broker, and only rises. A leader with an old copy of metadata knows a lower
level and refuses more. `RaiseFeatureLevel` raises it.

To add a command, give it a row here with the level that introduces it. To add a field to a command of an earlier level,
name it in `FIELD_LEVELS`. A program refuses fields that it does not know, so the field counts like a command of its
own. So does the kind of a new topic (`topic_kinds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from raftmq.fsm import log_commands as lc
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.field_levels import FieldLevels, level_of_fields
from raftmq.fsm.topic_kinds import TOPIC_KINDS

FEATURE_LEVEL: Final = 10
"""The highest level that this program knows."""

METADATA_LEVELS: Final[Mapping[type[mc.MetadataCommand], int]] = {
    mc.InitializeCluster: 0,  # it sets the level
    mc.RaiseFeatureLevel: 1,  # the brokers of level 1 apply it, too
    mc.RegisterNode: 1,
    mc.RemoveNode: 1,
    mc.SetMetadataMembership: 1,
    mc.CreateTopic: 1,
    mc.AddPartitions: 1,
    mc.AlterTopicConfig: 1,
    mc.DeleteTopic: 1,
    mc.AllocateProducerIds: 1,
    mc.InitNamedProducer: 1,
    mc.ForgetProducerNames: 5,
    mc.RemoveReplica: 1,
    mc.ReplaceReplica: 1,
    mc.SetReplicas: 1,
    mc.SetNodeState: 3,
    mc.RevertReplicas: 5,
    mc.AdmitReplica: 3,
    mc.SetReplicationFactor: 3,
    mc.SetBalancing: 3,
    mc.AlterConfig: 7,
    mc.RecoverPartition: 4,
    mc.JoinConsumerGroup: 1,
    mc.LeaveConsumerGroup: 1,
    mc.SetTargetAssignment: 1,
    mc.ReleasePartitions: 1,
    mc.RegrantPartitions: 1,
    mc.TakeGroupEpoch: 1,
    mc.DeleteConsumerGroup: 1,
}
"""Every command of the metadata group."""

NEWCOMER_LEVEL: Final = 3
"""From this level on `SetReplicas` marks the replicas that replace none (`ReplicaView.is_newcomer`). Brokers of an earlier level apply
the same command without the mark, so its effect depends on the cluster's level."""

PIN_LEVEL: Final = 5
"""From this level on partitions are pinned, and moves that make no progress are given up."""

MARK_RENEWAL_LEVEL: Final = 6
"""From this level on brokers renew the marks of their directories while they run. Brokers of an earlier level take a renewed mark for that
of another process."""

SECOND_CLAIM_LEVEL: Final = 8
"""From this level on one command claims two stamps. Before, the metadata leader proposes two commands."""

UNITED_STAMPS_LEVEL: Final = 9
"""From this level on a second claim may add bits to a stamp. Before, it only replaces the stamp that it names."""

LOG_LEVELS: Final[Mapping[type[lc.LogPartitionCommand], int]] = {
    lc.OpenPartition: 1,
    lc.CommitOffset: 1,
    lc.CommitOffsets: 1,
    lc.ResetOffset: 1,
    lc.ForgetOffsets: 1,
    lc.TrimLog: 1,
}
"""Every command of a log partition."""

FIELD_LEVELS: Final[FieldLevels] = {
    mc.SetBalancing: {"bytes_per_second": 5},
    mc.SetReplicas: {"is_pinned": 5},
    mc.InitNamedProducer: {"then": SECOND_CLAIM_LEVEL},
    mc.StampClaim: {"shared_bytes": UNITED_STAMPS_LEVEL},
}
"""Fields that were added at a later level than their command, by command. A field at its default value is not written.
"""


def metadata_level(payload: bytes) -> int | None:
    """Return the level that an encoded metadata command needs, or None when this version cannot read it."""
    command = mc.decode_command(payload)
    if command is None:
        return None
    level = METADATA_LEVELS[type(command)]
    if isinstance(command, mc.CreateTopic):
        level = max(level, TOPIC_KINDS[command.kind])
    return _needed(command, level)


def log_level(payload: bytes) -> int | None:
    """Return the level that an encoded command of a log partition needs, or None when this version cannot read it."""
    command = lc.decode_command(payload)
    return None if command is None else _needed(command, LOG_LEVELS[type(command)])


def _needed(command: msgspec.Struct, level: int) -> int:
    """Return the level of the command, or of the latest field that is written in it or in its nested structs."""
    return max(level, level_of_fields(command, FIELD_LEVELS)) if FIELD_LEVELS else level
