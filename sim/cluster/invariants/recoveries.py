"""`OldGroupSilent`: a group that was replaced after it had lost its majority is never served again, so that at most one group of a partition
serves. The data of the kept replica stays. If it has everything that any replica ever applied, the other invariants see the new group as
the continuation of the old one. Otherwise they see a new log, which begins with the part of the old one that the kept replica has.
"""

from __future__ import annotations

from sim.core.invariants.violation import demand


class Recoveries:
    """The groups that were replaced, and their successors."""

    def __init__(self) -> None:
        self._origins: dict[int, int] = {}
        """Group -> the first group of its partition."""
        self._shortened: dict[int, int] = {}
        """Group -> the one that continues a part of its log."""
        self._replaced: dict[int, int] = {}
        """Replaced group -> its successor."""

    def origin(self, group_id: int) -> int:
        """Return the first group of the partition, whose log this one continues."""
        return self._origins.get(group_id, group_id)

    def is_known(self, group_id: int) -> bool:
        """Return whether the log that the group continues is known."""
        return group_id in self._origins

    def on_continued(self, old_group_id: int, group_id: int) -> None:
        """Record that a group continues the whole log of the one that it replaces."""
        self._origins[group_id] = self.origin(old_group_id)

    def on_shortened(self, old_group_id: int, group_id: int) -> None:
        """Record that a group continues a part of the log of the one that it replaces. It counts as another log."""
        self._shortened[self.origin(old_group_id)] = group_id
        self._origins[group_id] = group_id

    def newest(self, group_id: int) -> int:
        """Return the group that counts for a partition now. A client may still know an earlier one."""
        group_id = self.origin(group_id)
        while group_id in self._shortened:
            group_id = self._shortened[group_id]
        return group_id

    def on_recovered(self, old_group_id: int, group_id: int) -> None:
        """Record that metadata has the recovery, and that no majority of the old group could run until then."""
        self._replaced[old_group_id] = group_id

    def on_leader(self, group_id: int, replica_id: int) -> None:
        """Check a replica that begins to lead."""
        demand(
            group_id not in self._replaced,
            "OldGroupSilent",
            f"r{replica_id} leads g{group_id}, which g{self._replaced.get(group_id)} has replaced",
        )
