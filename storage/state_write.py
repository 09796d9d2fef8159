"""The changes of one transaction on the file of a derived state that is larger than memory."""

from __future__ import annotations

from typing import NamedTuple

from raftmq.raft.membership import Membership
from raftmq.storage.log_store import StateRow
from raftmq.types import LogIndex


class StateWrite(NamedTuple):
    """A write-back. It holds frozen bytes, never live objects of the state machine."""

    rows: tuple[StateRow, ...]
    state_index: LogIndex
    """The exact index to which the rows and `membership` bring the derived state."""
    membership: Membership | None
    """The configuration as of `state_index`, or None if it did not change."""
