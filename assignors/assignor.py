"""What an assignor is: the values it takes and gives, and nothing of how it decides.

Invariants: values only; topics and partitions are ids, so a topic made again under its old name is another one.

Source: KIP-848 (server-side assignors).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

AssignedPartition = tuple[int, int]
"""(topic id, partition number). A plain pair: groups have a hundred thousand of them."""
Assignment = dict[str, tuple[AssignedPartition, ...]]
"""Partitions of each member, ascending; every member has an entry, if an empty one."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the group."""

    member_id: str
    topic_ids: frozenset[int]
    """What it subscribed to. Ids that the group does not list as topics are ignored."""
    rack: str = ""
    """Where it runs; empty: it does not say."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic that somebody may have subscribed to."""

    topic_id: int
    partition_count: int
    racks: tuple[frozenset[str], ...] = ()
    """Of each partition, the racks that hold a replica; shorter than the topic: nothing is known of the rest."""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """Everything an assignment depends on."""

    members: tuple[Member, ...]
    """In any order; each id once."""
    topics: tuple[Topic, ...]
    """In any order; each id once."""
    owned: Mapping[str, Sequence[AssignedPartition]] = field(default_factory=dict[str, Sequence[AssignedPartition]])
    """The assignment before this one. What its owner cannot have any more (it left, it subscribed to something else, the
    partition is gone) is ignored; of two who claim one partition, the first by id has it."""


class Assignor(Protocol):
    """A way to divide partitions."""

    @property
    def name(self) -> str:
        """How subscribers ask for it."""
        ...

    def assign(self, group: ConsumerGroup) -> Assignment:
        """Divide all partitions of subscribed topics among their subscribers. Pure and deterministic; never raises."""
        ...
