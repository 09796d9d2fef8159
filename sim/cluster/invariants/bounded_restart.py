"""`BoundedRestart`: opening a replica checks no entry that the clean point on the disk covers (promise: the duration of a restart depends
on the entries written since then, and not on the whole log).
"""

from __future__ import annotations

from raftmq.storage.entry_codec import CodecError
from raftmq.storage.lmdb_replica import LmdbReplica
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.replica_codec import META_KEY, decode_meta, decode_note

from sim.cluster.world.disk import Disk
from sim.core.invariants.violation import InvariantViolation


def durable_clean_point(disk: Disk, key: ReplicaKey) -> int:
    """Return the clean point that is stored on the disk, or 0 if it cannot be read."""
    file = disk.files.get(key)
    row = file.tables["meta"].rows.get(META_KEY, b"") if file is not None else b""
    try:
        return max(decode_meta(row).position.index, decode_note(row).verified_index)
    except CodecError:
        return 0


def check_bounded_restart(replica: LmdbReplica, clean_point: int) -> None:
    """Check a replica that was just opened."""
    rows_max = max(0, replica.meta.last_index - clean_point)
    if replica.scanned.rows_checked > rows_max:
        raise InvariantViolation(
            "BoundedRestart",
            f"r{replica.key.replica_id} of g{replica.key.group_id} was opened by checking {replica.scanned.rows_checked} entries, and"
            f" {rows_max} of its {replica.meta.last_index} are beyond {clean_point}",
        )
