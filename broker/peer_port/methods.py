"""List the methods that other brokers may ask for on the peer port. A method without a row is answered as unknown.

Calls of clients that another broker may have to answer are derived from the table of the client port.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from raftmq import methods
from raftmq.broker.base import peer_methods
from raftmq.broker.grpc_port.methods import ROWS, AnsweredBy, Services
from raftmq.broker.services.call import Call, Right
from raftmq.methods import UnaryMethod


@dataclass(frozen=True, slots=True)
class PeerRow:
    """Describes how the broker answers one method."""

    method: UnaryMethod[Any, Any]  # each method has its own message types
    service: Callable[[Services], Callable[[Any, Call], Awaitable[Any]]]
    """Returns the service's method."""
    right: Right | None
    """The right that the client needs for whom the other broker asks. None: brokers ask for themselves."""
    is_for_visitors: bool = False
    """Whether a broker that is no member may ask."""


_FORWARDED: Final = (AnsweredBy.METADATA_LEADER, AnsweredBy.PARTITION_LEADER_FORWARDED, AnsweredBy.NAMED_BROKER)
_BETWEEN_BROKERS: Final = (
    PeerRow(peer_methods.REGISTER_BROKER, lambda of: of.nodes.register_node, None, is_for_visitors=True),
    PeerRow(peer_methods.DESCRIBE_FORMATION, lambda of: of.formation.describe_formation, None, is_for_visitors=True),
    PeerRow(peer_methods.REPORT_DAMAGE, lambda of: of.nodes.report_damage, None),
    PeerRow(peer_methods.REPORT_REPLICAS, lambda of: of.nodes.report_replicas, None),
    PeerRow(peer_methods.DESCRIBE_PARTITIONS, lambda of: of.health.describe_partitions, None),
    PeerRow(peer_methods.DESCRIBE_REPLICAS, lambda of: of.recovery.describe_replicas, None),
    PeerRow(peer_methods.DESCRIBE_BROKER, lambda of: of.health.describe_node, None),
    PeerRow(peer_methods.WRITE_OFFSETS, lambda of: of.offsets.write_offsets, None),
    PeerRow(peer_methods.SUMMARIZE_OFFSETS, lambda of: of.offsets.summarize_offsets, None),
)
_FOR_CLIENTS: Final = (
    PeerRow(methods.FETCH_OFFSETS, lambda of: of.offsets.fetch_offsets, Right.DESCRIBE),
    PeerRow(methods.APPEND, lambda of: of.log.append, Right.PRODUCE),
)
"""Calls that a broker makes while it answers a client, or for itself: offsets of a group, and copies of dead messages."""


def _forwarded() -> dict[str, PeerRow]:
    return {
        row.method.path: PeerRow(row.method, row.service, row.right)
        for row in ROWS
        if row.answered_by in _FORWARDED and isinstance(row.method, UnaryMethod)
    }


PEER_ROWS: Final[Mapping[str, PeerRow]] = _forwarded() | {
    row.method.path: row for row in (*_BETWEEN_BROKERS, *_FOR_CLIENTS)
}
"""Every method that other brokers may ask for, by its path."""
