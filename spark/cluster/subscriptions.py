"""Represent the topics and partitions that a read subscribes to. Must not import Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass

from raftmq.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Named:
    """Subscribe to all partitions of named topics."""

    topics: tuple[str, ...]

    def takes(self, topic: str) -> bool:
        """Return whether the subscription includes the topic."""
        return topic in self.topics


@dataclass(frozen=True, slots=True)
class Matching:
    """Subscribe to log topics whose whole name matches a Python regular expression, except names that begin with ``__``."""

    pattern: str

    def takes(self, topic: str) -> bool:
        """Return whether the subscription includes the topic."""
        return not topic.startswith("__") and re.fullmatch(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class Assigned:
    """Subscribe to single partitions."""

    partitions: frozenset[TopicPartition]

    def takes(self, topic: str) -> bool:
        """Return whether the subscription includes a partition of the topic."""
        return any(partition.topic == topic for partition in self.partitions)


Subscription = Named | Matching | Assigned
