"""The coordinator's check of a heartbeat: the command to propose before answering it, or the reason to refuse it.

It is pure and used only on the leader of the metadata group. It knows no time, because sessions are kept elsewhere.

A release needs the newest epoch. Example: (1) member A is told to give up partition p and does. (2) p comes back to A
under a new member epoch. (3) An older heartbeat of A, without p, arrives late. It carries the old epoch, so it releases
nothing. A heartbeat with the present epoch was sent after A knew its present assignment, so a partition missing in it
was really given up.

Source: KIP-848, ConsumerGroupHeartbeat.
"""

from __future__ import annotations

from typing import NamedTuple

from raftmq.fsm import codes
from raftmq.fsm.consumer_groups import ConsumerGroup, GroupMemberRow, PartitionId
from raftmq.fsm.metadata_commands import JoinConsumerGroup, Rejected, ReleasePartitions


class MemberSubscription(NamedTuple):
    """The topics that a member wants to read, and the assignor it asks for."""

    topics: tuple[str, ...]
    pattern: str
    assignor: str


class MemberHeartbeat(NamedTuple):
    """The content of one heartbeat of a member."""

    group: str
    member_id: str
    member_epoch: int
    """Epoch of the assignment that the member knows; 0 if it joins."""
    instance_id: str
    client_id: str
    rack: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: MemberSubscription | None
    """None if the subscription is unchanged."""
    owned: frozenset[PartitionId]
    """All partitions that the member holds."""


def validate_heartbeat(
    group: ConsumerGroup | None, heartbeat: MemberHeartbeat, applied_index: int
) -> JoinConsumerGroup | ReleasePartitions | Rejected | None:
    """Return the command to propose first, or the refusal. None: answer with the member's assignment.

    `applied_index` is that of the coordinator's metadata, as of which the group is.
    """
    member = group.members.get(heartbeat.member_id) if group is not None else None
    if heartbeat.member_epoch > (applied_index if member is None else member.epoch):
        # a newer coordinator sent it this epoch, or let it join: this one was succeeded and does not know yet
        return Rejected(codes.NO_LEADER, "another coordinator is taking over; try again")
    if group is None or member is None:
        return _validate_stranger(group, heartbeat)
    if _says_something_new(member, heartbeat):
        return _join(
            heartbeat, heartbeat.subscription or MemberSubscription(member.topics, member.pattern, member.assignor)
        )
    if heartbeat.member_epoch == member.epoch:
        released = tuple(partition for partition in member.unreleased() if partition not in heartbeat.owned)
        if released:
            return ReleasePartitions(heartbeat.group, heartbeat.member_id, member.epoch, released)
    return None


def _validate_stranger(group: ConsumerGroup | None, heartbeat: MemberHeartbeat) -> JoinConsumerGroup | Rejected:
    if heartbeat.member_epoch == 0:
        if heartbeat.subscription is None:
            return Rejected(codes.INVALID_ARGUMENT, "a member that joins must send its subscription")
        return _join(heartbeat, heartbeat.subscription)
    if group is not None and group.instance(heartbeat.instance_id) is not None:
        return Rejected(codes.FENCED, f"another process joined as instance {heartbeat.instance_id!r}")
    return Rejected(codes.UNKNOWN_MEMBER, "the group no longer has this member: join again")


def _says_something_new(member: GroupMemberRow, heartbeat: MemberHeartbeat) -> bool:
    subscription = heartbeat.subscription
    if subscription is not None and (
        member.pattern != subscription.pattern
        or member.assignor != subscription.assignor
        or member.topics != tuple(sorted(set(subscription.topics)))
    ):
        return True
    return (member.client_id, member.rack, member.session_timeout_ms, member.rebalance_timeout_ms) != (
        heartbeat.client_id,
        heartbeat.rack,
        heartbeat.session_timeout_ms,
        heartbeat.rebalance_timeout_ms,
    )


def _join(heartbeat: MemberHeartbeat, subscription: MemberSubscription) -> JoinConsumerGroup:
    return JoinConsumerGroup(
        heartbeat.group,
        heartbeat.member_id,
        heartbeat.instance_id,
        heartbeat.client_id,
        heartbeat.rack,
        tuple(sorted(set(subscription.topics))),
        subscription.pattern,
        subscription.assignor,
        heartbeat.session_timeout_ms,
        heartbeat.rebalance_timeout_ms,
        must_exist=heartbeat.member_epoch > 0,
    )
