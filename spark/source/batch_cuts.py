"""Find how far a query may read its topics so that it sees whole batches only.

Lives on the driver. Must not import Spark. Remembers the marks of each topic, so that a look without new records writes nothing to the cluster.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from raftmq.spark.atomic.batch_marks import TopicMarks
from raftmq.spark.atomic.mark_calls import describe
from raftmq.spark.base.offsets import Position, TopicOffsets
from raftmq.spark.cluster.cluster import ClusterView, TopicView
from raftmq.spark.errors import RaftMQSparkWarning

HIDDEN_LOOK_SECONDS: Final = 0.2
"""Pause between looks at a topic with an open batch. Each look asks a majority of the metadata's brokers, and Spark would look a hundred times per second."""
LONG_OPEN_MS: Final = 300_000
"""Age at which an open batch is reported, because it hides all later records."""


@dataclass(frozen=True, slots=True)
class _Look:
    marks: TopicMarks
    at: float


class BatchCuts:
    """Find the cuts for one query. `clock` counts seconds, `now` is the time in seconds since 1970."""

    def __init__(
        self, view: ClusterView, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._view = view
        self._clock = clock
        self._now = now
        self._looks: dict[tuple[str, int], _Look] = {}
        self.has_hidden = False
        """Whether a topic had an open batch at the last look."""

    def position(self, topics: Mapping[str, TopicView]) -> Position:
        """Return the end of the whole batches of each topic. Raises as `ClusterView.find_cut`."""
        found = {topic: self._marks(topic, view.topic_id) for topic, view in topics.items()}
        self._looks = {(topic, topics[topic].topic_id): look for topic, look in found.items()}
        self.has_hidden = any(look.marks.open for look in found.values())
        return Position(
            {
                topic: TopicOffsets(
                    view.topic_id, {number: found[topic].marks.end(number) for number in sorted(view.partitions)}
                )
                for topic, view in topics.items()
            }
        )

    def _marks(self, topic: str, topic_id: int) -> _Look:
        last = self._looks.get((topic, topic_id))
        if last is not None and last.marks.open and self._clock() - last.at < HIDDEN_LOOK_SECONDS:
            return last
        marks = self._view.find_cut(topic, topic_id, last.marks if last is not None else None)
        for batch in marks.open:
            if self._now() * 1000 - batch.since_ms > LONG_OPEN_MS:
                # The registry of warnings shows a text once per process and place.
                warnings.warn(
                    f"raftmq: {topic}: {describe(batch)} hides all later records from readers with isolation=batch; start its query"
                    " again, or abandon it (python -m raftmq.spark batches), but only if its query is dead: the batch of a running one is"
                    " then read in parts",
                    RaftMQSparkWarning,
                    stacklevel=2,
                )
        return _Look(marks, self._clock())
