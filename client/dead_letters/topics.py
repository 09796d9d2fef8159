"""Finds the dead-letter topics of a cluster by the contents of their newest records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raftmq.client.admin.admin import Admin
from raftmq.client.base import settings
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.dead_letters.letter import DeadLetter
from raftmq.client.dead_letters.newest import answering, newest_letters
from raftmq.client.dead_letters.topic import DeadLetterTopic
from raftmq.types import TopicPartition


@dataclass(frozen=True, slots=True)
class DeadLetterTopicSummary:
    """A dead-letter topic."""

    topic: str
    waiting: int
    """The number of records that were neither sent back nor purged."""
    newest: DeadLetter
    """The record that was given up last."""


class DeadLetterTopics(NamedTuple):
    """The dead-letter topics of a cluster."""

    topics: list[DeadLetterTopicSummary]
    unread: list[TopicPartition]
    """Partitions of logs whose leader did not answer. Their records are not counted, and their topics may be missing."""


async def find_dead_letter_topics(bootstrap_servers: str | Sequence[str], timeout_seconds: float) -> DeadLetterTopics:
    """Return every topic in which a worker wrote the newest record of a partition, by name. Raises `RaftMQError`."""
    async with Admin(bootstrap_servers=bootstrap_servers, request_timeout_ms=timeout_seconds * 1000) as admin:
        topics = await admin.list_topics()
    logs = [topic for topic in topics if topic.kind == settings.LOG_KIND]
    partitions = [TopicPartition(topic.name, p.partition) for topic in logs for p in topic.partitions]
    newest: defaultdict[str, list[DeadLetter]] = defaultdict(list)
    async with Consumer(
        bootstrap_servers=bootstrap_servers, auto_offset_reset="latest", request_timeout_ms=timeout_seconds * 1000
    ) as consumer:
        read = set(await answering(consumer, partitions))
        for letter in await newest_letters(consumer, read, timeout_seconds):
            newest[letter.record.topic].append(letter)
    found = []
    for name, letters in sorted(newest.items()):
        async with DeadLetterTopic(name, bootstrap_servers=bootstrap_servers, timeout_seconds=timeout_seconds) as topic:
            waiting = sum(count.waiting for count in await topic.count(read))
        found.append(DeadLetterTopicSummary(name, waiting, max(letters, key=lambda letter: letter.time_ms)))
    return DeadLetterTopics(found, [tp for tp in partitions if tp not in read])
