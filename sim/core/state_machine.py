"""The simplest state machine that tells histories apart: a hash chain of what was applied. Pure values."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from raftmq.raft.entry import Entry


@dataclass(frozen=True, slots=True)
class MachineState:
    """Everything derived from the log up to `index`; immutable, so a snapshot of it is itself."""

    index: int
    digest: int
    """Chain over index, term, kind, offsets and payload of every entry applied."""
    next_offset: int


def applied(state: MachineState, entry: Entry) -> MachineState:
    """The state after `entry`."""
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
