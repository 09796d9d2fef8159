"""Committed commands of a newer version stop a replica, and no command is proposed before every broker can read it."""

from __future__ import annotations

import typing

import msgspec
import pytest
from raftmq.errors import UnsupportedDataError
from raftmq.fsm import feature_levels
from raftmq.fsm import log_commands as lc
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.state_machine import UnsupportedCommandError
from raftmq.fsm.topic_kinds import TOPIC_KINDS
from raftmq.raft.entry import EntryKind
from raftmq.storage.errors import UnsupportedFormatError

from tests.support.fsm.histories import LogBuilder, Machine

MACHINES = pytest.mark.parametrize(
    ("machine", "known"),
    [
        (Metadata(), {"t": "init", "cluster_id": "c1", "feature_level": 1}),
        (LogPartition(), {"t": "trim", "before_offset": 0}),
    ],
    ids=["metadata", "partition"],
)


def test_every_command_declares_its_level():
    assert set(feature_levels.METADATA_LEVELS) == set(typing.get_args(mc.MetadataCommand))
    assert set(feature_levels.LOG_LEVELS) == set(typing.get_args(lc.LogPartitionCommand))
    levels = {*feature_levels.METADATA_LEVELS.values(), *feature_levels.LOG_LEVELS.values()}
    assert max(levels) <= feature_levels.FEATURE_LEVEL


@MACHINES
@pytest.mark.parametrize("change", ["tag", "field", "layout"])
def test_a_command_of_a_newer_version_stops_the_replica(machine: Machine, known: dict[str, object], change: str):
    """Refusing the command or ignoring its field would lead to another state than on newer brokers."""
    last = list(known)[-1]
    changes: dict[str, dict[str, object]] = {
        "tag": {"t": "of the future"},
        "field": {"of_the_future": 1},
        "layout": {last: ["another type"]},
    }
    log = LogBuilder()
    future = msgspec.msgpack.encode(known | changes[change])
    assert machine.level_needed(msgspec.msgpack.encode(known)) is not None
    assert machine.level_needed(future) is None
    before = (machine.applied_index, tuple(machine.rows()))
    with pytest.raises(UnsupportedCommandError, match="Upgrade this broker") as stopped:
        machine.apply(log.append(EntryKind.COMMAND, future))
    assert isinstance(stopped.value, UnsupportedDataError)
    assert (machine.applied_index, tuple(machine.rows())) == before


@pytest.mark.parametrize("item", [mc.PartitionPlan((1,)), mc.MemberTarget("m1", ())])
def test_an_item_with_more_fields_than_known_is_not_readable(item: msgspec.Struct):
    longer = [*msgspec.to_builtins(item), "more"]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(longer, type(item))


def test_a_field_of_a_later_level_counts_only_when_it_is_written(monkeypatch):
    monkeypatch.setattr(feature_levels, "FIELD_LEVELS", {mc.RemoveNode: {"is_forced": 2}})
    levels = [feature_levels.metadata_level(mc.encode_command(mc.RemoveNode(1, forced))) for forced in (False, True)]
    assert levels == [1, 2]


def created(kind: str) -> dict[str, object]:
    """Return a command as bytes of any version hold it."""
    fields = {"name": "t", "kind": kind, "replication_factor": 1, "config": {}, "partitions": [[[1]]]}
    return {"t": "topic+", **fields}


def test_a_topic_needs_the_level_of_its_kind():
    for kind, level in TOPIC_KINDS.items():
        assert feature_levels.metadata_level(msgspec.msgpack.encode(created(kind))) == level
    assert max(TOPIC_KINDS.values()) <= feature_levels.FEATURE_LEVEL


def test_a_topic_of_an_unknown_kind_stops_the_replica():
    """A newer version wrote it and serves it. A replica that refused the topic would have another state."""
    payload = msgspec.msgpack.encode(created("of the future"))
    assert feature_levels.metadata_level(payload) is None
    with pytest.raises(UnsupportedCommandError):
        Metadata().apply(LogBuilder().append(EntryKind.COMMAND, payload))


def test_files_and_commands_of_another_version_raise_the_same_kind_of_error():
    assert issubclass(UnsupportedFormatError, UnsupportedDataError)


def test_a_later_field_of_a_nested_struct_counts_too(monkeypatch):
    monkeypatch.setattr(feature_levels, "FIELD_LEVELS", {lc.CommitOffset: {"metadata": 2}})
    plain, noted = lc.CommitOffset("g", "m", 1, 5), lc.CommitOffset("g", "m", 1, 5, "a note")
    assert feature_levels.log_level(lc.encode_command(lc.CommitOffsets((plain, plain)))) == 1
    assert feature_levels.log_level(lc.encode_command(noted)) == 2
    assert feature_levels.log_level(lc.encode_command(lc.CommitOffsets((plain, noted)))) == 2
