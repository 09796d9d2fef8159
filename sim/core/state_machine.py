"""The simplest state machine that distinguishes histories: a hash chain over the applied entries. Pure values."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from raftmq.raft.entry import Entry


@dataclass(frozen=True, slots=True)
class MachineState:
    """The state derived from the log up to `index`. It is immutable, so it is its own snapshot."""

    index: int
    digest: int
    """Hash chain over the index, term, kind, offsets and payload of every applied entry."""
    next_offset: int


def applied(state: MachineState, entry: Entry) -> MachineState:
    """Return the state after `entry`."""
    text = b"%d %d %d %d %d %d " % (
        entry.index,
        entry.term,
        entry.kind,
        entry.base_offset,
        entry.record_count,
        entry.append_time_ms,
    )
    digest = zlib.crc32(entry.payload, zlib.crc32(text, state.digest))
    return MachineState(entry.index, digest, entry.base_offset + entry.record_count)
