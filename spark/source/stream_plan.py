"""Plan the reads of each trigger of a streaming query: new records, partitions and topics, limits, and AvailableNow runs.

Lives on the driver, in the one process that tracks a query's offsets. Must not import Spark or fetch records.

With ``isolation=batch`` the ends are those of whole batches (`batch_cuts`).

Invariants: an offset never goes back, unless a recovery has lost its records, which is reported. Without new records the start is returned unchanged, so that Spark runs no batch. After
`prepare_available_now`, exactly the records that existed then are offered.
Source: Kafka's ``KafkaMicroBatchStream`` (latestOffset, delayBatch, rateLimit).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from raftmq.client.connection.leader_calls import LATEST_TIME
from raftmq.errors import UnknownPartitionError, UnknownTopicError
from raftmq.spark.base.offsets import Position, TopicOffsets
from raftmq.spark.cluster.cluster import ClusterView, TopicView
from raftmq.spark.cluster.subscriptions import Named
from raftmq.spark.errors import InvalidOptionError, RaftMQSparkWarning
from raftmq.spark.source.batch_cuts import BatchCuts
from raftmq.spark.source.bounds import existing_topics, position_at, starting_position
from raftmq.spark.source.options import AtOffsets, Everywhere, SourceOptions
from raftmq.spark.source.planning import OffsetRange, cap, gather, split
from raftmq.spark.source.range_plan import (
    LOOKS_MAX,
    edge_offsets,
    first_offsets,
    look,
    look_for,
    plan_ranges,
    report_loss,
)
from raftmq.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold the limits of one trigger. None means no limit."""

    rows_max: int | None = None
    rows_min: int | None = None


UNLIMITED = Limits()


class StreamPlan:
    """Plan the batches of one query. `clock` counts seconds."""

    def __init__(self, view: ClusterView, options: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._view = view
        self._options = options
        self._clock = clock
        self._cuts = BatchCuts(view, clock) if options.reads_batches else None
        self._initial: Position | None = None
        """The position at which this process began the query. None if it resumed one."""
        self._reached: Position | None = None
        """The end of the last planned batch."""
        self._offered: Position | None = None
        """The end of the last batch that this process has offered to Spark."""
        self._target: Position | None = None
        """The position at which an AvailableNow run ends."""
        self._triggered_at: float | None = None
        self._kept_ends: dict[tuple[TopicPartition, int, int], int | None] = {}
        """The end that recoveries have kept between two Raft groups of a partition. Never changes, so each trigger can look here."""
        self.newest: Position | None = None
        """The ends of the partitions at the last look."""

    # ------------------------------------------------------------------------------------------------------- for Spark

    def initial(self) -> Position:
        """Return the position at which a new query begins.

        It is the same for each call, because Spark asks again until the first batch is logged.
        """
        if self._initial is None:
            topics = existing_topics(self._view, self._options.subscription)
            self._initial = starting_position(self._view, self._options, topics)
            if self._cuts is not None:
                self._initial = self._latest_cut(self._initial, self._cuts.position(topics))
            self._initial = _with_groups(self._initial, topics)
        return self._initial

    def _latest_cut(self, start: Position, cut: Position) -> Position:
        """Return the start in which partitions that begin at their latest offset begin at the end of the last whole batch."""
        bound = self._options.starting
        topics = {}
        for topic, known in start.topics.items():
            offsets = {}
            for number, offset in known.offsets.items():
                is_latest = bound == Everywhere(LATEST_TIME) or (
                    isinstance(bound, AtOffsets) and bound.offsets.get(TopicPartition(topic, number)) == LATEST_TIME
                )
                end = cut.get(topic, known.topic_id, number)
                offsets[number] = end if is_latest and end is not None else offset
            topics[topic] = TopicOffsets(known.topic_id, offsets)
        return Position(topics)

    def prepare_available_now(self) -> None:
        """Read exactly the records that exist now, and end."""
        self._target = self._ends({}, is_fresh=True)[1]

    def next_end(self, start: Position | None, limits: Limits) -> Position:
        """Return the end of the next batch, or `start` itself when there is nothing to read.

        Args:
            start: The start of the batch. None (Spark before 4.2) means the end of the last planned batch.
            limits: The limits of this trigger.

        Raises:
            RecordsLostError: a topic was deleted, and `fail_on_data_loss` is set.
        """
        if start is None:
            start = self._reached or self.initial()
        known = {topic: offsets.topic_id for topic, offsets in start.topics.items()}
        topics, ends = self._ends(known)
        self._warn_of_missing(start, topics)
        start_there = self._without_deleted(start, topics)
        start_left = self._within_logs(start_there, _beyond(start_there, ends), topics)
        if start_left != start_there:  # a batch that only goes back: its end must not be beyond its start again
            self._offered = replace(start_left, initial=self._initial if start == self._initial else None)
            return self._offered
        if self._target is not None:
            ends = _not_beyond(ends, self._target)
        backlog = self._backlog(start_left, ends, limits)
        rows = sum(range_.count for range_ in backlog)
        if start_left == start and (rows == 0 or self._is_delayed(rows, limits)):
            return start
        if limits.rows_max is not None:
            backlog = cap(backlog, limits.rows_max)
        self._triggered_at = self._clock()
        end = _with_groups(_advanced(start_left, ends, backlog), topics)
        self._offered = replace(end, initial=self._initial if start == self._initial else None)
        return self._offered

    def tasks(self, start: Position, end: Position) -> list[tuple[OffsetRange, ...]]:
        """Return the ranges that each task of a batch reads. Raises `RecordsLostError`."""
        self._reached = end
        if start == end:
            return []  # Spark before 4.2 tells the position of a resumed query by this call
        if end != self._offered:  # an earlier process has logged the batch
            topics = look_for(self._view, {topic: known.topic_id for topic, known in end.topics.items()})
            end = self._within_logs(end, dict(end.partitions()), topics)
        planned = plan_ranges(self._view, start, end, fail_on_data_loss=self._options.fail_on_data_loss)
        return divide(planned, self._options)

    # ---------------------------------------------------------------------------------------------------------- looking

    def _ends(self, known: Mapping[str, int], is_fresh: bool = False) -> tuple[dict[str, TopicView], Position]:
        """Return the query's topics and their ends. `known` holds the ids of the topics that it has read."""
        for number in range(LOOKS_MAX):
            topics = look(self._view, self._options.subscription, known, is_fresh=is_fresh or number > 0)
            try:
                if self._cuts is None:
                    self.newest = position_at(self._view, topics, LATEST_TIME)
                    return topics, self.newest
                cut = self._cuts.position(topics)
                self.newest = position_at(self._view, topics, LATEST_TIME) if self._cuts.has_hidden else cut
                return topics, cut
            except (UnknownTopicError, UnknownPartitionError):
                continue  # deleted between the two requests
        raise UnknownTopicError("topics of the query keep vanishing")

    def _warn_of_missing(self, start: Position, topics: dict[str, TopicView]) -> None:
        """Warn of named topics that do not exist. A resumed query may name a topic that was deleted before, or misspell it."""
        if isinstance(self._options.subscription, Named):
            names = self._options.subscription.topics
            missing = [topic for topic in names if topic not in topics and topic not in start.topics]
            if missing:
                text = f"raftmq: there is no topic {', '.join(missing)}; it is read when there is"
                warnings.warn(text, RaftMQSparkWarning, stacklevel=2)

    def _without_deleted(self, start: Position, topics: dict[str, TopicView]) -> Position:
        """Forget topics that were deleted or created again, if that is allowed."""
        left = {}
        absent = {topic: known.topic_id for topic, known in start.topics.items() if topic not in topics}
        absent = {topic: topic_id for topic, topic_id in absent.items() if self._options.subscription.takes(topic)}
        there = topics | look_for(self._view, absent) if absent else topics
        for topic, known in start.topics.items():
            now = there.get(topic)
            # The offsets of a topic that the query no longer subscribes to stay, in case it is read again.
            is_left_out = topic not in topics and topic not in absent
            if is_left_out or (now is not None and now.topic_id == known.topic_id):
                left[topic] = known
            else:
                what = "was deleted" if now is None else "was deleted and created again"
                report_loss(f"topic {topic} {what} while a query reads it", self._options.fail_on_data_loss)
        return start if len(left) == len(start.topics) else Position(left)

    def _within_logs(
        self, position: Position, doubtful: Mapping[TopicPartition, int], topics: Mapping[str, TopicView]
    ) -> Position:
        """Return the position without offsets after records that a recovery has lost. `doubtful` are offsets in it that may be beyond the end.

        Ends are confirmed by a quorum. So an end is below an offset that the query has reached only after a recovery that has lost records.
        To wait until the partition has the offset again would leave out the records that it gets until then. A partition that has it again
        has another Raft group than the position names.
        """
        position = self._before_lost(position, topics)
        reached = dict(position.partitions())
        doubtful = {partition: offset for partition, offset in doubtful.items() if reached[partition] == offset}
        ids = {partition: position.topics[partition.topic].topic_id for partition in doubtful}
        ends = edge_offsets(self._view, ids, LATEST_TIME) if ids else {}
        lost = {partition: end for partition, end in ends.items() if end < doubtful[partition]}
        for partition, end in sorted(lost.items()):
            report_loss(
                f"{partition.topic}/{partition.partition}: the query has reached offset {doubtful[partition]}, and the log ends at {end}, so"
                " a recovery of the partition has lost records; those that it got since then may be left out, too"
                " (raftmq cluster recover shows where they begin)",
                self._options.fail_on_data_loss,
            )
        return _moved_back(position, lost)

    def _before_lost(self, position: Position, topics: Mapping[str, TopicView]) -> Position:
        """Return the position in which offsets after lost records are the kept ends of their partitions."""
        lost: dict[TopicPartition, int] = {}
        for partition, offset in position.partitions():
            end = self._kept_end(position, partition, topics)
            if end is not None and end < offset:
                lost[partition] = end
                report_loss(
                    f"{partition.topic}/{partition.partition}: the query has reached offset {offset}, and records from offset {end} on were"
                    " lost when the partition was recovered",
                    self._options.fail_on_data_loss,
                )
        return _with_groups(_moved_back(position, lost), topics) if lost else position

    def _kept_end(self, position: Position, partition: TopicPartition, topics: Mapping[str, TopicView]) -> int | None:
        """Return the end that recoveries have kept since the Raft group that a position names, or None without one."""
        known, now = position.topics[partition.topic], topics.get(partition.topic)
        group_id = known.groups.get(partition.partition, 0)
        if not group_id or now is None or now.topic_id != known.topic_id:
            return None
        key = (partition, group_id, now.groups.get(partition.partition, group_id))
        if key[2] <= group_id:
            return None
        if key not in self._kept_ends:
            try:
                self._kept_ends[key] = self._view.kept_ends({partition: group_id}).get(partition)
            except (UnknownTopicError, UnknownPartitionError):
                return None  # just deleted, which the next trigger reports
        return self._kept_ends[key]

    def _backlog(self, start: Position, ends: Position, limits: Limits) -> list[OffsetRange]:
        """Return the ranges that could be read. They begin at the first remaining record where that matters for counting."""
        begins: dict[TopicPartition, int | None] = {}
        for partition, _ in ends.partitions():
            known = start.topics.get(partition.topic)
            begin = start.get(partition.topic, ends.topics[partition.topic].topic_id, partition.partition)
            begins[partition] = 0 if begin is None and known is not None else begin
        # Trimmed records must not use up a limit, or the query would crawl over records that no longer exist.
        skips_lost = limits.rows_max is not None and not self._options.fail_on_data_loss
        unsure = [p for p, end in ends.partitions() if (begin := begins[p]) is None or (skips_lost and begin < end)]
        # A partition whose topic has just been deleted has no first offset. `ranges` reports the loss.
        firsts = first_offsets(self._view, {p: ends.topics[p.topic].topic_id for p in unsure}) if unsure else {}
        ranges = []
        for partition, end in ends.partitions():
            begin = begins[partition]
            first = firsts.get(partition, 0)
            begin = first if begin is None else max(begin, first)
            topic_id = ends.topics[partition.topic].topic_id
            # A new leader may lag for a moment behind the records that were read before.
            ranges.append(OffsetRange(partition.topic, topic_id, partition.partition, begin, max(begin, end)))
        return ranges

    def _is_delayed(self, rows: int, limits: Limits) -> bool:
        """Return whether to wait for more records, up to the delay since the last trigger.

        An AvailableNow run and the first trigger do not wait.
        """
        if limits.rows_min is None or rows >= limits.rows_min or self._target is not None or self._triggered_at is None:
            return False
        return self._clock() - self._triggered_at < self._options.trigger_delay_max_ms / 1000


def divide(ranges: Sequence[OffsetRange], options: SourceOptions) -> list[tuple[OffsetRange, ...]]:
    """Divide ranges among tasks, as the options say."""
    pieces = split(ranges, options.partitions_min, options.task_rows_max)
    return gather(pieces, options.task_rows_min, options.task_rows_max)


def limits_of(options: SourceOptions) -> Limits:
    """Return the limits that the options set."""
    return Limits(options.rows_max, options.rows_min)


def check_blind_cap(options: SourceOptions) -> None:
    """Refuse limits that the user has not confirmed where Spark has no admission control. Raises `InvalidOptionError`.

    Spark before 4.2 asks a Python source for its latest offset once per trigger, and AvailableNow runs one batch up to that offset. A
    capped source would silently end such a run early, so the cap must be confirmed by a second option.
    """
    if (options.rows_max is not None or options.rows_min is not None) and not options.allow_blind_cap:
        raise InvalidOptionError(
            "this version of Spark has no admission control for Python sources (4.2 has): with maxOffsetsPerTrigger or"
            " minOffsetsPerTrigger a query with Trigger.AvailableNow ends before it has read everything; set"
            " allowCapWithoutAdmissionControl=true if the query has another trigger"
        )


def _with_groups(position: Position, topics: Mapping[str, TopicView]) -> Position:
    """Return the position with the Raft groups of the topics that are there. Its offsets must have been compared with those that it names."""
    changed = {}
    for topic, known in position.topics.items():
        now = topics.get(topic)
        if now is not None and now.topic_id == known.topic_id:
            groups = {
                number: max(now.groups[number], known.groups.get(number, 0))  # the view may be a moment behind
                for number in known.offsets
                if number in now.groups
            }
            changed[topic] = replace(known, groups={**known.groups, **groups})
        else:
            changed[topic] = known
    return replace(position, topics=changed)


def _moved_back(position: Position, lost: Mapping[TopicPartition, int]) -> Position:
    if not lost:
        return position
    topics = {
        topic: replace(
            known,
            offsets={
                number: lost.get(TopicPartition(topic, number), offset) for number, offset in known.offsets.items()
            },
        )
        for topic, known in position.topics.items()
    }
    return replace(position, topics=topics)


def _beyond(start: Position, ends: Position) -> dict[TopicPartition, int]:
    """Return the offsets of a start that are beyond the ends of their partitions."""
    found: dict[TopicPartition, int] = {}
    for partition, end in ends.partitions():
        offset = start.get(partition.topic, ends.topics[partition.topic].topic_id, partition.partition)
        if offset is not None and offset > end:
            found[partition] = offset
    return found


def _not_beyond(ends: Position, target: Position) -> Position:
    """Cut the ends to those at the beginning of the run. Topics and partitions created since are left for the next run."""
    topics = {}
    for topic, known in ends.topics.items():
        offsets = {
            partition: min(offset, limit)
            for partition, offset in known.offsets.items()
            if (limit := target.get(topic, known.topic_id, partition)) is not None
        }
        if offsets:
            topics[topic] = TopicOffsets(known.topic_id, offsets)
    return Position(topics)


def _advanced(start: Position, ends: Position, read: list[OffsetRange]) -> Position:
    """Return `start` advanced by the ranges read. A new partition without records stays unknown, so that it makes no batch."""
    topics = {topic: dict(known.offsets) for topic, known in start.topics.items()}
    ids = {topic: known.topic_id for topic, known in (*start.topics.items(), *ends.topics.items())}
    for range_ in read:
        if range_.count or range_.partition in topics.get(range_.topic, {}):
            topics.setdefault(range_.topic, {})[range_.partition] = range_.end
    groups = {topic: known.groups for topic, known in start.topics.items()}
    return Position(
        {topic: TopicOffsets(ids[topic], offsets, groups.get(topic, {})) for topic, offsets in topics.items()}
    )
