"""Bugs of followers that receive a snapshot."""

from __future__ import annotations

from raftmq.raft.core import RaftCore
from raftmq.raft.messages import (
    InstallSnapshot,
)


class SnapshotKeepsSuffix(RaftCore):
    """Keeps its log under a snapshot although the log does not match there (aioraft-ng, thesis 5.1)."""

    __slots__ = ()

    def _on_install_snapshot(self, message: InstallSnapshot) -> None:
        position = message.meta.position
        if self.log.commit < position.index <= self.log.last_index:
            self._hear_leader(message.source)
            self.log.commit_to(position.index)
            self._acknowledge(message.source, self.log.commit)
            return
        super()._on_install_snapshot(message)


class SnapshotDropsAcknowledged(RaftCore):
    """Replaces a matching log by a late snapshot, including entries that it has acknowledged (thesis 5.1)."""

    __slots__ = ()

    def _on_install_snapshot(self, message: InstallSnapshot) -> None:
        if message.meta.position.index > self.log.commit and self._may_restore(message.meta):
            self._hear_leader(message.source)
            self._restore(message)
            self._acknowledge(message.source, self.log.last_index)
            return
        super()._on_install_snapshot(message)
