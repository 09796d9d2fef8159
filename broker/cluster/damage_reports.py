"""Report damaged replicas to the leaders of their groups, and from there to the metadata leader, which has them replaced.

A leader passes a report on only if its group has a majority without the damaged replica. Nothing here is remembered for long: a report
that is lost is repeated until metadata shows its effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.replica.leadership_table import LeadershipTable
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, NodeId

log = structlog.get_logger(__name__)

REPORT_SECONDS = 5.0
"""The interval at which an unchanged report is repeated until metadata shows it, because its receiver may have lost it, or may be waiting
for a healthy majority.
"""
_REPORTED_MAX = 500
"""The most damaged replicas, or replicas that left, in one report."""
_NO_REVISIONS: Final[Mapping[GroupId, int]] = MappingProxyType({})


class DamageHost(Protocol):
    """The node as its damage reports see it."""

    loop: asyncio.AbstractEventLoop
    leadership: LeadershipTable
    reported_damage: ReportedDamage

    @property
    def node_id(self) -> NodeId:
        """Return this node's id."""
        ...

    @property
    def node_uuid(self) -> str:
        """Return this node's identity."""
        ...

    def partition_replicas(self) -> list[Replica[StateMachine]]:
        """Return every serving partition replica here."""
        ...

    def quarantined(self) -> dict[ReplicaKey, str]:
        """Return the damaged replicas here, with the reason."""
        ...


class Reporter(Protocol):
    """Sends reports to other nodes."""

    async def report_damage(self, leader: NodeId, request: peer_pb.ReportDamageRequest) -> None:
        """Tell the leader of damaged replicas' groups. Raises RequestError."""
        ...

    async def report_replicas(self, request: peer_pb.ReportReplicasRequest) -> None:
        """Tell the metadata leader. Raises RequestError."""
        ...


@dataclass
class Moved:
    """Replicas whose part in groups that are led here has changed as metadata wants."""

    left: list[ReplicaKey] = field(default_factory=list[ReplicaKey])
    """Retiring replicas that have left their groups."""
    joined: list[ReplicaKey] = field(default_factory=list[ReplicaKey])
    """Newcomers that vote."""
    stuck: dict[ReplicaKey, str] = field(default_factory=dict[ReplicaKey, str])
    """New replicas of moves that make no progress, with the reason."""
    revisions: dict[GroupId, int] = field(default_factory=dict[GroupId, int])
    """The revision of each group's partition for which this was found."""


class ReportedDamage:
    """The damaged replicas that other nodes reported to this one lately."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Take `now`, which returns loop time."""
        self._now = now
        self._reported_at: dict[ReplicaKey, float] = {}

    def __contains__(self, key: ReplicaKey) -> bool:
        return key in self._reported_at

    def record(self, key: ReplicaKey) -> None:
        """Record that a node reports its replica of a group led here as damaged."""
        if key in self._reported_at or len(self._reported_at) < _REPORTED_MAX:
            self._reported_at[key] = self._now()

    def current(self, metadata: Metadata) -> list[ReplicaKey]:
        """Return the replicas that metadata still has and whose nodes still report them. The others are forgotten."""
        horizon = self._now() - 2 * REPORT_SECONDS
        self._reported_at = {
            key: at
            for key, at in self._reported_at.items()
            if at >= horizon and metadata.replica_node(*key) is not None
        }
        return list(self._reported_at)


class _Repeats:
    """Decides when a report is due: when it changed, and then every `REPORT_SECONDS`."""

    def __init__(self) -> None:
        self._content: frozenset[object] = frozenset()
        self._at = float("-inf")

    def is_due(self, content: Iterable[object], now: float) -> bool:
        """Return whether to send it now. If so, it counts as sent."""
        frozen = frozenset(content)
        if not frozen or (frozen == self._content and now - self._at < REPORT_SECONDS):
            return False
        self._content, self._at = frozen, now
        return True


class DamageReports:
    """The damage that one node knows of: its own, and that of the groups it leads."""

    def __init__(self, host: DamageHost, reporter: Reporter) -> None:
        self._host = host
        self._reporter = reporter
        self._to_leaders = _Repeats()
        self._to_metadata_leader = _Repeats()

    async def confirm_spared(self, metadata: Metadata) -> list[ReplicaKey]:
        """Return the reported replicas of groups led here that can be spared: their group confirms that a majority answers without them.

        Without a healthy majority nothing happens automatically: a damaged replica may hold the only copy of some records.
        """
        current = self._host.reported_damage.current(metadata)
        if not current:
            return []
        led = {replica.group_id: replica for replica in self._host.partition_replicas() if replica.is_leader}
        reported = [key for key in current if key.group_id in led]
        answers = await asyncio.gather(*(led[key.group_id].read_index() for key in reported), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, RequestError):
                raise answer
        return [key for key, answer in zip(reported, answers, strict=True) if not isinstance(answer, RequestError)]

    async def tell_leaders(self, metadata: Metadata) -> None:
        """Report the quarantined replicas that metadata still wants here. A damaged metadata replica ends the process instead."""
        damaged = {
            key: reason
            for key, reason in self._host.quarantined().items()
            if key.group_id != METADATA_GROUP_ID and metadata.replica_node(*key) == self._host.node_id
        }
        by_leader: dict[NodeId, list[ReplicaKey]] = {}
        for key in damaged:
            leader = self._host.leadership.get(key.group_id).node_id
            if leader not in (NO_NODE, self._host.node_id):
                by_leader.setdefault(leader, []).append(key)
        pairs = [(leader, key) for leader, keys in by_leader.items() for key in keys]
        if not self._to_leaders.is_due(pairs, self._host.loop.time()):
            return
        log.warning("replica_damage_reported", replicas=len(pairs))
        await asyncio.gather(
            *(
                self._tell_leader(leader, [_report(key, damaged[key]) for key in keys[:_REPORTED_MAX]])
                for leader, keys in by_leader.items()
            )
        )

    async def _tell_leader(self, leader: NodeId, reports: list[peer_pb.ReplicaReport]) -> None:
        """Tell one leader. A failure must not prevent reports to other leaders: the last known one may have been dead for long."""
        request = peer_pb.ReportDamageRequest(broker_id=self._host.node_id, uuid=self._host.node_uuid, replicas=reports)
        try:
            await self._reporter.report_damage(leader, request)
        except RequestError as error:
            log.debug("reconciliation_postponed", reason=str(error))

    async def tell_metadata_leader(self, damaged: list[ReplicaKey], moved: Moved) -> None:
        """Report damaged replicas that can be spared, retiring ones that left their groups, newcomers that vote, and moves that are stuck."""
        revisions = moved.revisions
        content: list[tuple[object, ...]] = [("damaged", key) for key in damaged]
        content += [("left", key, revisions.get(key.group_id)) for key in moved.left]
        content += [("joined", key, revisions.get(key.group_id)) for key in moved.joined]
        content += [("stuck", key) for key in moved.stuck]
        if content:
            # a new leader may not know of the last report, or there was none to send it to
            content.append(("leader", self._host.leadership.get(METADATA_GROUP_ID)))
        if not self._to_metadata_leader.is_due(content, self._host.loop.time()):
            return
        await self._reporter.report_replicas(
            peer_pb.ReportReplicasRequest(
                broker_id=self._host.node_id,
                uuid=self._host.node_uuid,
                damaged=[_report(key) for key in damaged[:_REPORTED_MAX]],
                left=[_report(key, revisions=revisions) for key in moved.left[:_REPORTED_MAX]],
                joined=[_report(key, revisions=revisions) for key in moved.joined[:_REPORTED_MAX]],
                stuck=[_report(key, reason, revisions) for key, reason in list(moved.stuck.items())[:_REPORTED_MAX]],
            )
        )
        log.info(
            "replicas_reported",
            damaged=len(damaged),
            left=len(moved.left),
            joined=len(moved.joined),
            stuck=len(moved.stuck),
        )


def _report(
    key: ReplicaKey, reason: str = "", revisions: Mapping[GroupId, int] = _NO_REVISIONS
) -> peer_pb.ReplicaReport:
    revision = revisions.get(key.group_id, 0)
    return peer_pb.ReplicaReport(
        group_id=key.group_id, replica_id=key.replica_id, reason=reason[:300], revision=revision
    )
