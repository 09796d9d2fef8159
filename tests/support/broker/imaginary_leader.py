"""Build the messages that an absent leader would send to a replica whose log starts at index 5, offset 0."""

from raftmq.raft.entry import Entry, EntryKind, LogPosition
from raftmq.raft.membership import Membership
from raftmq.raft.messages import InstallSnapshot, SnapshotMeta


def entry(index, *, term=6, payload=b"x"):
    """Return a record of the imaginary leader."""
    return Entry(index, term, EntryKind.DATA, index - 6, 1, 0, payload)


def snapshot(index, rows, *, state_index=None, members=(1, 2, 3)):
    """Return a snapshot of the imaginary leader, in one message."""
    meta = SnapshotMeta(LogPosition(index, 6, index - 5, 0), state_index or index, Membership(members))
    return InstallSnapshot(2, 1, 6, meta, rows)
