"""`TimeSearchExact`: a search by timestamp finds the batch that a look at every entry finds, in every replica's log, whatever was replaced,
truncated, saved or lost (promise: a reader that begins at a time misses no record with a later timestamp).
"""

from __future__ import annotations

from collections.abc import Iterator

from raftmq.batch_header import max_timestamp_of
from raftmq.storage.entry_codec import decode_row, encode_key
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import LogIndex, Offset

from sim.cluster.world.disk import Disk
from sim.core.invariants.violation import demand


def check_time_search(where: str, store: LmdbLogStore, disk: Disk, key: ReplicaKey, turn: int) -> int:
    """Search the log of an open, undamaged replica. `turn` varies the times. Return the number of searches."""
    batches = list(_batches(store, disk, key))
    if not batches:
        return 0
    _, last_offset, _ = batches[-1]
    some = batches[turn % len(batches)]
    latest_ms = max(time_ms for _, _, time_ms in batches)
    wanted = [(some[2], 0), (some[2] + 1, 0), (latest_ms, 0), (latest_ms + 1, 0), (some[2], turn % (last_offset + 1))]
    for time_ms, first_offset in wanted:
        hits = (index for index, next_offset, at_ms in batches if next_offset > first_offset and at_ms >= time_ms)
        expected = next(hits, None)
        while not (search := store.find_timestamp(key, time_ms, Offset(first_offset))).is_complete:
            pass
        found = search.header.index if search.header is not None else None
        demand(
            found == expected,
            "TimeSearchExact",
            f"{where}: from offset {first_offset} the first batch at or after {time_ms} is entry {expected}, not {found}",
        )
    return len(wanted)


def _batches(store: LmdbLogStore, disk: Disk, key: ReplicaKey) -> Iterator[tuple[LogIndex, int, int]]:
    """Yield index, next offset and latest time of each record batch on the disk."""
    meta, rows = store._replicas[key].meta, disk.files[key].tables["log"].rows
    for index in range(meta.position.index + 1, meta.last_index + 1):
        entry = decode_row(index, rows[encode_key(index)])
        time_ms = max_timestamp_of(entry.payload)
        if entry.record_count and time_ms is not None:
            yield entry.index, entry.next_offset, time_ms
