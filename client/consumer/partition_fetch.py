"""One assigned partition of a consumer: its position, its fetched batches, and the decoded records. No `await`, no network.

Invariant: it returns exactly the records from `position` on, in order, whatever was fetched. A `seek` drops everything fetched before. One
batch is decoded at a time, when its records are requested.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from raftmq.batch_header import HEADER_BYTES, BatchFormatError, parse_header, validate
from raftmq.client.base import settings
from raftmq.client.base.error_details import fresh_copy
from raftmq.client.base.metrics import ConsumerCounters
from raftmq.client.codec.batch import decode_records
from raftmq.client.connection.resolver import Leader
from raftmq.errors import CorruptBatchError, RaftMQError, UnsupportedCompressionError
from raftmq.offset_ranges import Ranges
from raftmq.types import Record, TopicPartition


class FetchedBatch(NamedTuple):
    """A batch as a broker served it."""

    base_offset: int
    data: bytes


class PartitionFetch:
    """The state of one assigned partition. `Fetcher` fills it and `RecordBuffer` reads it."""

    def __init__(self, topic_partition: TopicPartition, reset_time: int | None, counters: ConsumerCounters) -> None:
        self.topic_partition = topic_partition
        self._counters = counters
        self.topic_id = 0
        """0 until the topic is found."""
        self.group_id = 0
        self.read_group_id = 0
        """The Raft group that served the records before the position, or the position itself. 0: unknown, so that of the next poll counts."""
        self.position: int | None = None
        """The offset of the next record to return, or None until it is looked up."""
        self.reset_time = reset_time
        """The time to look up if there is no position: `EARLIEST_TIME`, `LATEST_TIME`, or None to fail instead."""
        self.fetch_offset = 0
        """The next offset to fetch. Undefined without a position."""
        self.poll_number = 0
        """Counts polls and seeks. An answer to an older number is dropped."""
        self.polled: Leader | None = None
        """The leader with an unanswered poll."""
        self.leader_epoch = 0
        """The epoch of the leader polled last."""
        self.is_paused = False
        self.is_withheld = False
        """Whether nothing is fetched or returned, because it is assigned and not announced, or being released."""
        self.is_outdated = False
        """Whether its topic was deleted and created again. It continues in the new topic when its buffered records were returned."""
        self.is_fenced = False
        """Whether a commit under its owner epoch was refused. Then it is also withheld."""
        self.processed: int | None = None
        """The next offset to commit, as `processed.py` describes. Only seeks change it here."""
        self.committed: int | None = None
        """The offset that the group has committed, as far as is known."""
        self.finished: Ranges = ()
        """The ranges that the group had finished beyond that offset when the partition was assigned."""
        self.note = ""
        """The note of the group's last commit when the partition was assigned."""
        self.must_ask_committed = False
        """Whether the group's committed offset must be looked up before `reset_time` is used."""
        self.owner_epoch = 0
        """The epoch under which the group's member owns it, or 0 without a membership."""
        self.error: RaftMQError | None = None
        """An error that the next read raises instead of returning records. It stays until a seek."""
        self.high_watermark = -1
        """One past the last committed offset, as the leader last reported. -1: not reported yet."""
        self.not_before = 0.0
        self.failures = 0
        self.buffered_bytes = 0
        self._batches: deque[FetchedBatch] = deque()
        self._records: Sequence[Record] = ()
        self._next = 0

    # --------------------------------------------------------------------------------------------------------- fetching

    @property
    def is_unprepared(self) -> bool:
        """Return whether its topic or its position must be looked up."""
        return self.error is None and (not self.topic_id or self.position is None)

    def wants_poll(self, now: float) -> bool:
        """Return whether to poll now, if there is room for an answer."""
        return (
            self.polled is None
            and self.position is not None
            and self.error is None
            and not self.is_paused
            and not self.is_withheld
            and not self.is_outdated
            and now >= self.not_before
        )

    def begin_poll(self, leader: Leader) -> int:
        """Record that a poll was sent. Return its number."""
        self.poll_number += 1
        self.polled = leader
        self.leader_epoch = leader.leader_epoch
        return self.poll_number

    def end_poll(self, number: int) -> bool:
        """Record that a poll was answered or failed. Return whether its answer is still wanted."""
        if number != self.poll_number or self.polled is None:
            return False
        self.polled = None
        return True

    def forget_poll(self) -> None:
        """Ignore the answer of the poll in flight."""
        self.poll_number += 1
        self.polled = None

    def add(self, base_offsets: Sequence[int], batches: Sequence[bytes]) -> int:
        """Add fetched batches, and return their bytes. Batches that lie wholly before the position are skipped."""
        added = 0
        for base_offset, data in zip(base_offsets, batches, strict=True):
            end = base_offset + _record_count(data)
            if end <= self.fetch_offset or base_offset > self.fetch_offset:
                continue  # seen before, or after a gap, in which the next poll must begin
            self._batches.append(FetchedBatch(base_offset, data))
            added += len(data)
            self.fetch_offset = end
        self.buffered_bytes += added
        self._counters.bytes_total += added
        return added

    def seek(self, offset: int | None, reset_time: int | None, read_group_id: int = 0) -> int:
        """Continue at `offset` (None: look it up at `reset_time`), a position in `read_group_id`. Return the number of bytes dropped from the buffer."""
        dropped = self.buffered_bytes
        self._batches.clear()
        self.buffered_bytes = 0
        self._records, self._next = (), 0
        self.position = self.processed = offset
        self.fetch_offset = offset or 0
        self.read_group_id = read_group_id
        self.reset_time = reset_time
        self.error = None
        self.not_before = 0.0
        self.failures = 0
        self.forget_poll()
        return dropped

    def begin_topic(self, topic_id: int, reset_time: int | None) -> None:
        """Continue in another incarnation of the topic, at a position that is yet to be looked up."""
        self.seek(None, reset_time)
        self.topic_id, self.group_id = topic_id, 0
        self.is_outdated = False
        self.committed = None
        self.high_watermark = -1
        self.leader_epoch = 0

    # --------------------------------------------------------------------------------------------------------- reading

    @property
    def has_records(self) -> bool:
        """Return whether a read can return records now, or raise an error."""
        return not self.is_paused and not self.is_withheld and (self.error is not None or self.has_buffered)

    @property
    def has_buffered(self) -> bool:
        """Return whether there are fetched records that were not returned."""
        return self._next < len(self._records) or bool(self._batches)

    def raise_error(self) -> None:
        """Raise the error that stopped the partition, if there is one."""
        if self.error is not None:
            raise fresh_copy(self.error) from self.error.__cause__

    def take(self, count_max: int) -> Sequence[Record]:
        """Return the next records, at most `count_max` and at most the rest of one batch. Empty if there are none.

        Raises:
            CorruptBatchError: the next batch cannot be decoded. Reading again fetches it again.
            RaftMQError: the error that stopped the partition.
        """
        if self._next >= len(self._records):
            self._decode_next()
        start = self._next
        end = min(start + count_max, len(self._records))
        if start == end:
            return ()
        self._next = end
        taken = self._records if start == 0 and end == len(self._records) else self._records[start:end]
        self.position = taken[-1].offset + 1
        if end == len(self._records):
            self._records, self._next = (), 0
        return taken

    def give_back(self, records: Sequence[Record]) -> None:
        """Put back the last records taken, because they were not returned. The next read returns them. Not allowed after a seek."""
        self._records = [*records, *self._records[self._next :]]
        self._next = 0
        self.position = records[0].offset

    def take_one(self) -> Record | None:
        """Return the next record. Raises as `take` does."""
        if self._next >= len(self._records):
            self._decode_next()
            if not self._records:
                return None
        record = self._records[self._next]
        self._next += 1
        self.position = record.offset + 1
        return record

    def _decode_next(self) -> None:
        self._records, self._next = (), 0
        while self._batches and not self._records:
            fetched = self._batches[0]
            records = self._decode(fetched)
            self._batches.popleft()
            self.buffered_bytes -= len(fetched.data)
            self._counters.batches_total += 1
            self._counters.records_total += len(records)
            position = self.position or 0
            self._records = records[position - fetched.base_offset :] if position > fetched.base_offset else records
        if not self._records:
            self.raise_error()

    def _decode(self, fetched: FetchedBatch) -> list[Record]:
        topic, partition = self.topic_partition
        try:
            header = validate(fetched.data, settings.MESSAGE_BYTES_MAX)
            return decode_records(fetched.data, header, topic, partition, fetched.base_offset)
        except (BatchFormatError, UnsupportedCompressionError) as error:
            next_offset = fetched.base_offset + _record_count(fetched.data)
            position, processed = self.position, self.processed
            self.seek(position, self.reset_time, self.read_group_id)
            self.processed = processed  # the records returned before are as unprocessed as they were
            # Reading again fetches the batch again, because the network may have damaged it.
            raise CorruptBatchError(topic, partition, fetched.base_offset, next_offset, str(error)) from error


def _record_count(data: bytes) -> int:
    """Return the number of records that a batch claims, or 1 if that cannot be read, so that the next offset is after it."""
    if len(data) < HEADER_BYTES:
        return 1
    try:
        return max(1, parse_header(data).record_count)
    except BatchFormatError:
        return max(1, int.from_bytes(data[8:12], "little"))
