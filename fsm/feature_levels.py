"""Which feature level of the cluster each command needs: what every broker can read before any broker may write it.

A broker that meets a committed command it cannot read must stop that replica (`UnsupportedCommandError`). So a command is
proposed only when every broker of the cluster reads it. The cluster's feature level says so: it never exceeds what a
registered broker knows, and only rises. A leader with an old copy of metadata knows a lower level and refuses more.

To add a command: give it a row here, with the level that introduces it. To add a field to a command of an earlier level:
name it in `FIELD_LEVELS`. A program refuses fields that it does not know, so the field counts like a command of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from raftmq.fsm import log_commands as lc
from raftmq.fsm import metadata_commands as mc

FEATURE_LEVEL: Final = 1
"""The highest level that this program knows."""

METADATA_LEVELS: Final[Mapping[type[mc.MetadataCommand], int]] = {
    mc.InitializeCluster: 0,  # it sets the level
    mc.RegisterNode: 1,
    mc.RemoveNode: 1,
    mc.SetMetadataMembership: 1,
    mc.CreateTopic: 1,
    mc.AddPartitions: 1,
    mc.AlterTopicConfig: 1,
    mc.DeleteTopic: 1,
    mc.AllocateProducerIds: 1,
    mc.InitNamedProducer: 1,
    mc.RemoveReplica: 1,
    mc.ReplaceReplica: 1,
    mc.SetReplicas: 1,
    mc.JoinConsumerGroup: 1,
    mc.LeaveConsumerGroup: 1,
    mc.SetTargetAssignment: 1,
    mc.ReleasePartitions: 1,
    mc.RegrantPartitions: 1,
    mc.TakeGroupEpoch: 1,
    mc.DeleteConsumerGroup: 1,
}
"""Every command of the metadata group."""

LOG_LEVELS: Final[Mapping[type[lc.LogPartitionCommand], int]] = {
    lc.OpenPartition: 1,
    lc.CommitOffset: 1,
    lc.CommitOffsets: 1,
    lc.ResetOffset: 1,
    lc.ForgetOffsets: 1,
    lc.TrimLog: 1,
}
"""Every command of a log partition."""

FIELD_LEVELS: Final[Mapping[type, Mapping[str, int]]] = {}
"""By command: its fields that came at a later level than the command itself. At its default a field is not written."""


def metadata_level(payload: bytes) -> int | None:
    """The level that an encoded metadata command needs; None when this version cannot read it."""
    command = mc.decode_command(payload)
    return None if command is None else _needed(command, METADATA_LEVELS[type(command)])


def log_level(payload: bytes) -> int | None:
    """The level that an encoded command of a log partition needs; None when this version cannot read it."""
    command = lc.decode_command(payload)
    return None if command is None else _needed(command, LOG_LEVELS[type(command)])


def _needed(command: msgspec.Struct, level: int) -> int:
    """The level of the command, or of the latest field that is written in it or in what it holds."""
    return max(level, _level_of_fields(command)) if FIELD_LEVELS else level


def _level_of_fields(struct: msgspec.Struct) -> int:
    later, level = FIELD_LEVELS.get(type(struct), {}), 0
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if field.name in later and value != field.default:
            level = max(level, later[field.name])
        for held in value if isinstance(value, tuple) else (value,):
            if isinstance(held, msgspec.Struct):
                level = max(level, _level_of_fields(held))
    return level
