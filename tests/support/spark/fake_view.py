"""Provide a cluster in a dictionary, for planning without Spark or brokers."""

import time
from collections.abc import Generator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeVar

from raftmq.client.connection.leader_calls import EARLIEST_TIME, LATEST_TIME
from raftmq.errors import TopicKindMismatchError, UnknownTopicError
from raftmq.spark.atomic.batch_marks import Answer, Ask, Change, TopicMarks, find_cut
from raftmq.spark.cluster.cluster import TopicView
from raftmq.spark.cluster.subscriptions import Assigned, Matching, Named, Subscription
from raftmq.types import TopicPartition

T = TypeVar("T")


@dataclass
class FakeTopic:
    topic_id: int
    logs: dict[int, list[int]]
    """Append times of each partition's records, by offset."""
    starts: dict[int, int] = field(default_factory=dict)
    is_queue: bool = False
    groups: dict[int, int] = field(default_factory=dict)
    """The Raft groups of partitions that were recovered. Others have the group 100 + n."""
    kept_ends: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)
    """The group and the kept end of each recovery."""


class FakeView:
    """A `raftmq.spark.cluster.cluster.ClusterView` whose topics a test sets."""

    def __init__(self) -> None:
        self.by_name: dict[str, FakeTopic] = {}
        self.looks: list[bool] = []
        """The argument `is_fresh` of each call of `topics`."""
        self.stamps: dict[int, bytes] = {}
        """The marks of each topic, by its id."""
        self.time_ms = time.time_ns() // 1_000_000
        self.names_groups = False
        """Whether topics are shown with the Raft groups of their partitions."""
        self.kept_end_calls = 0
        self._last_id = 0
        self._held: dict[str, FakeTopic] | None = None

    def create(self, name: str, *counts: int) -> None:
        """Create a topic with `counts` records in its partitions. Record n was appended at time 1000 + n."""
        self._last_id += 1
        logs = {number: [1000 + n for n in range(count)] for number, count in enumerate(counts)}
        self.by_name[name] = FakeTopic(self._last_id, logs)

    def create_queue(self, name: str) -> None:
        self.create(name, 0)
        self.by_name[name].is_queue = True

    def grow(self, name: str, partition: int, to: int) -> None:
        self.by_name[name].logs[partition] = [1000 + n for n in range(to)]

    def trim(self, name: str, partition: int, before: int) -> None:
        self.by_name[name].starts[partition] = before

    def recover(self, name: str, partition: int, end: int) -> None:
        """Lose the records from `end` on."""
        topic = self.by_name[name]
        topic.groups[partition] = topic.groups.get(partition, 100 + partition) + 100
        recoveries = topic.kept_ends.setdefault(TopicPartition(name, partition), [])
        recoveries.append((topic.groups[partition], end))
        del topic.logs[partition][end:]

    def kept_ends(self, groups: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.kept_end_calls += 1
        found = {}
        for partition, group_id in groups.items():
            if partition.topic not in self.by_name:
                raise UnknownTopicError(partition.topic)
            recoveries = self.by_name[partition.topic].kept_ends.get(partition, [])
            ends = [end for group, end in recoveries if group > group_id]
            if ends:
                found[partition] = min(ends)
        return found

    def delete(self, name: str) -> None:
        del self.by_name[name]

    def hold(self) -> None:
        """Show the topics as they are now until a fresh read."""
        self._held = deepcopy(self.by_name)

    def topics(self, subscription: Subscription, *, is_fresh: bool = False) -> dict[str, TopicView]:
        self.looks.append(is_fresh)
        if is_fresh or isinstance(subscription, Matching):
            self._held = None
        shown = self.by_name if self._held is None else self._held
        match subscription:
            case Named(names):
                wanted = dict.fromkeys(names)
            case Matching():
                wanted = {
                    name: None for name, topic in shown.items() if subscription.takes(name) and not topic.is_queue
                }
            case Assigned(partitions):
                wanted = {partition.topic: None for partition in sorted(partitions)}
        found = {}
        for name in wanted:
            if name in shown:
                if shown[name].is_queue:
                    raise TopicKindMismatchError(name)
                numbers = frozenset(shown[name].logs)
                if isinstance(subscription, Assigned):
                    numbers = frozenset(p.partition for p in subscription.partitions if p.topic == name)
                groups = {number: shown[name].groups.get(number, 100 + number) for number in shown[name].logs}
                found[name] = TopicView(shown[name].topic_id, numbers, groups if self.names_groups else {})
        return found

    def find_cut(self, topic: str, topic_id: int, known: TopicMarks | None) -> TopicMarks:
        return self.run_marks(topic, find_cut(known))

    def run_marks(self, topic: str, steps: Generator[Ask, Answer, T]) -> T:
        """Execute the steps of `batch_marks`, none of which may wait."""
        found = self.by_name[topic]
        try:
            ask = next(steps)
            while True:
                if isinstance(ask, Change):
                    stamp = self.stamps.setdefault(found.topic_id, ask.stamp)
                    if ask.replaces == stamp:
                        self.stamps[found.topic_id] = ask.stamp
                    answer = Answer(self.stamps[found.topic_id], self.time_ms)
                else:
                    answer = Answer(ends=tuple(len(log) for log in found.logs.values()))
                ask = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {partition: self._offset(partition, time_ms) for partition, time_ms in times.items()}

    def _offset(self, partition: TopicPartition, time_ms: int) -> int:
        if partition.topic not in self.by_name:
            raise UnknownTopicError(partition.topic)
        topic = self.by_name[partition.topic]
        log = topic.logs[partition.partition]
        first = topic.starts.get(partition.partition, 0)
        if time_ms == EARLIEST_TIME:
            return first
        if time_ms == LATEST_TIME:
            return len(log)
        return next((n for n, at in enumerate(log) if n >= first and at >= time_ms), -1)
