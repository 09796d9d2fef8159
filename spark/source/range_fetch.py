"""Fetch the raw batches of ranges in order from the partitions' leaders, on the executor, one answer ahead of the reader.

Must not decode bodies. Invariants: batches come without a gap, or the gap is reported as loss. Of a range at most two answers (3.5 MiB each, or
one larger batch) are held, and one of each of the next `RANGES_AHEAD` ranges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

from raftmq.batch_header import BatchFormatError, BatchHeader, validate
from raftmq.client.base.settings import MESSAGE_BYTES_MAX
from raftmq.errors import CorruptBatchError, OffsetOutOfRangeError, ProtocolError, UnknownTopicError
from raftmq.spark.cluster.cluster import Cluster
from raftmq.spark.cluster.leader_poll import Polled
from raftmq.spark.source.planning import OffsetRange
from raftmq.spark.source.range_plan import report_loss

USELESS_ANSWERS_MAX: Final = 10
"""Consecutive answers without a wanted record. A broker that sends them has a defect, which endless polling would hide."""


RANGES_AHEAD: Final = 3
"""Ranges of a task whose first poll runs while an earlier one is read. Tasks of several ranges have few records in each."""


class FetchedBatch(NamedTuple):
    """Hold a batch whose frame and checksum were checked, and the part of it that belongs to the range."""

    base_offset: int
    header: BatchHeader
    data: bytes
    first: int
    """The first record of the range, counted from the batch's first record."""
    end: int
    """One past the last record of the range, counted likewise."""
    append_time_ms: int
    """When the leader appended the batch."""


def fetch_ranges(
    cluster: Cluster, ranges: Sequence[OffsetRange], *, timeout_ms: int, fail_on_data_loss: bool
) -> Generator[tuple[OffsetRange, Iterator[FetchedBatch]], None, None]:
    """Yield each range with its batches, which must be read before the next range. Raises as `fetch_range` while they are read."""
    polls: deque[Future[Polled]] = deque()
    try:
        for number, range_ in enumerate(ranges):
            for next_ in ranges[number + len(polls) : number + 1 + RANGES_AHEAD]:
                polls.append(_poll(cluster, next_, next_.start, timeout_ms, next_.group_id))
            first = polls.popleft()
            batches = fetch_range(
                cluster, range_, timeout_ms=timeout_ms, fail_on_data_loss=fail_on_data_loss, first=first
            )
            yield range_, batches
    finally:
        for poll in polls:
            poll.cancel()


def fetch_range(
    cluster: Cluster,
    range_: OffsetRange,
    *,
    timeout_ms: int,
    fail_on_data_loss: bool,
    first: Future[Polled] | None = None,
) -> Generator[FetchedBatch, None, None]:
    """Yield all batches of a range. Closing the generator early cancels its poll. `first` is the poll of the range's start if it runs already.

    Raises:
        RecordsLostError: records were trimmed or lost in a recovery, or the topic was deleted, and `fail_on_data_loss` is set. Without it, a warning is
            issued and the fetch continues.
        CorruptBatchError: a batch fails its checks.
        RequestTimedOutError: no record came in `timeout_ms`.
        ProtocolError: the broker's answers did not continue the range, `USELESS_ANSWERS_MAX` times in a row.
    """
    name = f"{range_.topic}/{range_.partition}"
    offset, group_id = range_.start, range_.group_id
    useless = 0
    pending = first
    if pending is None and range_.count:
        pending = _poll(cluster, range_, offset, timeout_ms, group_id)
    try:
        while pending is not None:
            try:
                answer = pending.result()
            except OffsetOutOfRangeError as error:
                if error.kept_end_offset is not None:
                    # The next trigger goes back to the kept end, because the end of this batch names the former group.
                    report_loss(
                        f"{name}: records from offset {error.kept_end_offset} on were lost when the partition was recovered, and a batch"
                        f" that reads to {range_.end} is at {offset}",
                        fail_on_data_loss,
                    )
                    group_id = 0
                    pending = _poll(cluster, range_, offset, timeout_ms, group_id)
                    continue
                lost_to = min(error.log_start_offset, range_.end)
                if lost_to <= offset:
                    raise  # above the log's end. Planned offsets are committed, so this is no trim.
                report_loss(
                    f"{name}: offsets {offset} to {lost_to - 1} were deleted before they were read", fail_on_data_loss
                )
                offset = lost_to
                pending = _poll(cluster, range_, offset, timeout_ms, group_id) if offset < range_.end else None
                continue
            except UnknownTopicError:
                report_loss(
                    f"{name}: offsets {offset} to {range_.end - 1} are gone with their topic", fail_on_data_loss
                )
                return
            batches = list(_wanted(answer, range_, offset))
            useless = 0 if batches else useless + 1
            if useless == USELESS_ANSWERS_MAX:
                raise ProtocolError(f"{name}: the broker's answer does not continue at offset {offset}")
            if batches:
                offset = batches[-1].base_offset + batches[-1].end
            group_id = answer.group_id or group_id
            pending = _poll(cluster, range_, offset, timeout_ms, group_id) if offset < range_.end else None
            yield from batches
    finally:
        if pending is not None:
            pending.cancel()


def _poll(cluster: Cluster, range_: OffsetRange, offset: int, timeout_ms: int, group_id: int) -> Future[Polled]:
    return cluster.start(
        lambda: cluster.poll(range_.topic, range_.topic_id, range_.partition, offset, timeout_ms / 1000, group_id)
    )


def _wanted(answer: Polled, range_: OffsetRange, offset: int) -> Iterator[FetchedBatch]:
    """Check and yield the batches of an answer that continue at `offset`."""
    answered = zip(answer.base_offsets, answer.batches, answer.append_times_ms, strict=True)
    for base_offset, data, append_time_ms in answered:
        try:
            header = validate(data, MESSAGE_BYTES_MAX)
        except BatchFormatError as error:
            raise CorruptBatchError(range_.topic, range_.partition, base_offset, base_offset + 1, str(error)) from error
        next_offset = base_offset + header.record_count
        if base_offset > offset or offset >= range_.end:
            return  # a gap, after which the next poll must not begin, or the end of the range
        if next_offset > offset:
            end = min(next_offset, range_.end)
            yield FetchedBatch(base_offset, header, data, offset - base_offset, end - base_offset, append_time_ms)
            offset = end
