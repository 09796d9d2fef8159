"""Consumer groups as stored in the metadata group: members, their target partitions, and the partitions that they own.

A partition is owned by at most one member of a group, from the command that granted it until it is released or its
owner is removed. A member may read the partitions that it owns *and* that its target includes. It is asked to release
the other partitions that it owns. The coordinator keeps sessions and timers and computes assignments; nothing of that
is here.

Invariants: `owners` and `targets` equal a scan of the members. No partition is in two targets or has two owners. An
owner epoch is the log index of the change that granted the partition, and stays the same while the member keeps it.

Source: KIP-848, sections "Group epoch", "Target assignment", "Current assignment".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from raftmq.fsm.tables import RowSource, Table, is_key_text, text_table

PartitionId = tuple[int, int]
"""(topic id, partition number)."""

_SEPARATOR: Final = "\0"
_FIRST_PRINTED: Final = " "
_DELETE: Final = "\x7f"


class ConsumerGroupRow(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The row of a consumer group."""

    epoch: int
    """Log index of the last change of members, subscriptions or target."""
    target_epoch: int = 0
    """The epoch of the last target. If it equals `epoch`, every member's target fits the present group."""
    assignor: str = ""
    """The assignor that computed the target."""
    topics: tuple[tuple[int, int], ...] = ()
    """(topic id, partition count) of the topics in the target, ascending."""
    emptied_time_ms: int = 0
    """Append time of the entry by which the last member left; 0 while there are members."""


class GroupMemberRow(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The row of a member."""

    instance_id: str
    """The name under which a static member comes back; empty if the member is not static."""
    client_id: str
    rack: str
    topics: tuple[str, ...]
    """Topics subscribed by name, ascending."""
    pattern: str
    """Topics subscribed by regular expression; empty if none are."""
    assignor: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    epoch: int
    """Log index of the last change of `assigned`: the version of the member's assignment."""
    target: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Partitions assigned to the member: (topic id, partition numbers), ascending."""
    owned: tuple[tuple[int, int, int], ...] = ()
    """Partitions that the member owns: (topic id, partition number, owner epoch), ascending."""

    def target_partitions(self) -> set[PartitionId]:
        """Return the partitions of the target."""
        return {(topic_id, number) for topic_id, numbers in self.target for number in numbers}

    def assigned(self) -> tuple[tuple[int, int, int], ...]:
        """Return the partitions that the member may read now: owned and in its target."""
        target = self.target_partitions()
        return tuple(part for part in self.owned if part[:2] in target)

    def unreleased(self) -> tuple[PartitionId, ...]:
        """Return the partitions that the member must release: owned and not in its target."""
        target = self.target_partitions()
        return tuple(part[:2] for part in self.owned if part[:2] not in target)


class ConsumerGroup:
    """One consumer group, for reading. Only `ConsumerGroups` changes it."""

    __slots__ = ("_is_settled", "members", "name", "owners", "row", "targets")

    def __init__(self, name: str, row: ConsumerGroupRow) -> None:
        self.name = name
        self.row = row
        self.members: dict[str, GroupMemberRow] = {}
        """Members by id. The order depends on history and must never affect a row or a result."""
        self.owners: dict[PartitionId, str] = {}
        """The owner of each partition."""
        self.targets: dict[PartitionId, str] = {}
        """The member whose target includes each partition."""
        self._is_settled: bool | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the target fits the present group and every member owns exactly the partitions of its target."""
        if self._is_settled is None:
            self._is_settled = self.row.epoch == self.row.target_epoch and self.owners == self.targets
        return self._is_settled

    def changed(self) -> None:
        """Discard every value derived from the fields."""
        self._is_settled = None

    def instance(self, instance_id: str) -> str | None:
        """Return the member that has this instance id."""
        found = (member_id for member_id, member in self.members.items() if member.instance_id == instance_id)
        return min(found, default=None) if instance_id else None


class ConsumerGroups:
    """Hold all consumer groups. Every write goes through a method here, which keeps rows and derived maps equal."""

    def __init__(self, group_tag: int, member_tag: int) -> None:
        self._groups: Table[str, ConsumerGroupRow] = text_table(group_tag, ConsumerGroupRow)
        self._members: Table[str, GroupMemberRow] = text_table(member_tag, GroupMemberRow)
        self.by_name: dict[str, ConsumerGroup] = {}
        """For reading only. The order depends on history."""
        self.subscription_bytes = 0
        """Approximate size of the members' texts, for the code that bounds it."""
        self.member_count = 0
        """Number of members of all groups."""

    # ------------------------------------------------------------------------------------------------------------ writing

    def put_row(self, name: str, row: ConsumerGroupRow) -> ConsumerGroup:
        """Insert or replace a group's row."""
        self._groups.put(name, row)
        group = self.by_name.get(name)
        if group is None:
            group = self.by_name[name] = ConsumerGroup(name, row)
        group.row = row
        group.changed()
        return group

    def put_member(self, group: ConsumerGroup, member_id: str, member: GroupMemberRow, index: int) -> None:
        """Insert or replace a member. Its epoch becomes `index` if the member is new or its assigned partitions
        changed.
        """
        old = group.members.get(member_id)
        if old is not None:
            self._forget_member(group, member_id, old)
        if old is None or old.assigned() != member.assigned():
            member = msgspec.structs.replace(member, epoch=index)
        self._members.put(_member_key(group.name, member_id), member)
        self._know_member(group, member_id, member)

    def remove_member(self, group: ConsumerGroup, member_id: str) -> GroupMemberRow:
        """Remove an existing member and free its partitions."""
        member = group.members[member_id]
        self._forget_member(group, member_id, member)
        self._members.delete(_member_key(group.name, member_id))
        return member

    def delete(self, group: ConsumerGroup) -> None:
        """Remove a group without members."""
        self._groups.delete(group.name)
        del self.by_name[group.name]

    # ---------------------------------------------------------------------------------------------------------------- rows

    @property
    def sources(self) -> tuple[RowSource, RowSource]:
        """Both tables in tag order."""
        return (self._groups, self._members)

    def rebuild(self) -> None:
        """Derive everything from the rows."""
        self.subscription_bytes = self.member_count = 0
        self.by_name = {name: ConsumerGroup(name, row) for name, row in self._groups.by_key.items()}
        for key, member in self._members.by_key.items():
            name, member_id = key.split(_SEPARATOR)
            self._know_member(self.by_name[name], member_id, member)

    def _know_member(self, group: ConsumerGroup, member_id: str, member: GroupMemberRow) -> None:
        group.changed()
        group.members[member_id] = member
        group.owners.update((part[:2], member_id) for part in member.owned)
        group.targets.update((partition, member_id) for partition in member.target_partitions())
        self.subscription_bytes += _text_bytes(member)
        self.member_count += 1

    def _forget_member(self, group: ConsumerGroup, member_id: str, member: GroupMemberRow) -> None:
        group.changed()
        del group.members[member_id]
        _drop(group.owners, member_id, (part[:2] for part in member.owned))
        _drop(group.targets, member_id, member.target_partitions())
        self.subscription_bytes -= _text_bytes(member)
        self.member_count -= 1


def is_group_text(text: str) -> bool:
    """Return whether a text may name a group or a member: not empty, not too long, no control characters."""
    return is_key_text(text) and all(_FIRST_PRINTED <= character != _DELETE for character in text)


def _member_key(group: str, member_id: str) -> str:
    return f"{group}{_SEPARATOR}{member_id}"


def _drop(holders: dict[PartitionId, str], member_id: str, partitions: Iterable[PartitionId]) -> None:
    """Remove a member as the holder of partitions, unless another member holds them now: targets are replaced member by
    member.
    """
    for partition in partitions:
        if holders.get(partition) == member_id:
            del holders[partition]


def _text_bytes(member: GroupMemberRow) -> int:
    names = (member.instance_id, member.client_id, member.rack, member.pattern, member.assignor)
    return sum(map(len, names)) + sum(map(len, member.topics))
