"""The interface of an assignor: its input and output values.

Invariants: only values are exchanged. Topics and partitions are ids, so a topic that is created again under its old
name is a different topic.

Source: KIP-848 (server-side assignors).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

AssignedPartition = tuple[int, int]
"""(topic id, partition number). A plain pair, because groups have a hundred thousand of them."""
Assignment = dict[str, tuple[AssignedPartition, ...]]
"""The partitions of each member, ascending. Every member has an entry, which may be empty."""


@dataclass(frozen=True, slots=True)
class Member:
    """Represent one member of the consumer group."""

    member_id: str
    topic_ids: frozenset[int]
    """Subscribed topics. Ids that the group does not list as topics are ignored."""
    rack: str = ""
    """The rack that the member runs in; empty if it does not say."""


@dataclass(frozen=True, slots=True)
class Topic:
    """Represent one topic that members may have subscribed to."""

    topic_id: int
    partition_count: int
    racks: tuple[frozenset[str], ...] = ()
    """The racks that hold a replica, for each partition. If the tuple is shorter than the topic, the racks of the rest
    are unknown."""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """Hold everything that an assignment depends on."""

    members: tuple[Member, ...]
    """In any order, each id once."""
    topics: tuple[Topic, ...]
    """In any order, each id once."""
    owned: Mapping[str, Sequence[AssignedPartition]] = field(default_factory=dict[str, Sequence[AssignedPartition]])
    """The previous assignment. A partition is ignored if its owner can no longer have it: the owner left or changed its
    subscription, or the partition is gone. If two members claim one partition, the first by id has it."""


class Assignor(Protocol):
    """Divide the partitions of a consumer group among its members."""

    @property
    def name(self) -> str:
        """The name by which subscribers ask for the assignor."""
        ...

    def assign(self, group: ConsumerGroup) -> Assignment:
        """Divide all partitions of subscribed topics among their subscribers. Pure and deterministic; never raises."""
        ...
