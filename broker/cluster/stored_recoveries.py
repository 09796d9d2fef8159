"""Read the recoveries of lost majorities from the metadata in a stopped broker's data directory, for `raftmq doctor`. Changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
from raftmq.errors import UnsupportedDataError
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_views import RecoveryView
from raftmq.storage.file_inspection import read_replica
from raftmq.storage.lmdb_log_store import replica_files
from raftmq.types import METADATA_GROUP_ID


class StoredRecovery(NamedTuple):
    """A recovery of a partition that the broker's metadata knows."""

    topic: str
    recovery: RecoveryView


def stored_recoveries(data_dir: Path) -> tuple[Path, list[StoredRecovery]]:
    """Return the newest metadata file of a directory that `examine` found sound, and the recoveries in it, oldest first."""
    newest, file = Metadata(), data_dir
    for key, path in replica_files(data_dir / "groups").items():
        machine = _metadata_in(path) if key.group_id == METADATA_GROUP_ID else None
        if machine is not None and machine.applied_index >= newest.applied_index:
            newest, file = machine, path
    found = []
    for recovery in newest.recoveries():
        topic = newest.topic(recovery.topic_id)
        found.append(StoredRecovery(topic.name if topic is not None else "?", recovery))
    return file, found


def _metadata_in(path: Path) -> Metadata | None:
    contents = read_replica(path)
    if contents is None:
        return None
    machine = Metadata()
    try:
        machine.restore(iter(contents.state), contents.meta.state_index)
        for entry in contents.entries:
            machine.apply(entry)
    except (UnsupportedDataError, ValueError, msgspec.MsgspecError):
        return None  # of a newer version
    return machine
