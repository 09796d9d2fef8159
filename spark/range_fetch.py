"""Fetches one range of a partition from its leader, on the executor: raw batches in order, one answer ahead of the reader.

Must not decode bodies. Invariants: batches come without a gap, or the gap is reported as loss; at most two answers (3.5 MiB each, or
one batch that is larger) are held.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import Future
from typing import Final, NamedTuple

from raftmq.batch_header import BatchFormatError, BatchHeader, validate
from raftmq.client.base.settings import MESSAGE_BYTES_MAX
from raftmq.errors import CorruptBatchError, OffsetOutOfRangeError, ProtocolError, UnknownTopicError
from raftmq.spark.cluster import Cluster
from raftmq.spark.leader_poll import Polled
from raftmq.spark.planning import OffsetRange
from raftmq.spark.range_plan import report_loss

USELESS_ANSWERS_MAX: Final = 10
"""Answers in a row with records, but not those asked for. A broker that does so has a defect; asking for ever would hide it."""


class FetchedBatch(NamedTuple):
    """A batch whose frame and checksum were checked, and which of its records belong to the range."""

    base_offset: int
    header: BatchHeader
    data: bytes
    first: int
    """The first record wanted, counted from the batch's first."""
    end: int
    """One past the last."""


def fetch_range(
    cluster: Cluster, range_: OffsetRange, *, timeout_ms: int, fail_on_data_loss: bool
) -> Generator[FetchedBatch, None, None]:
    """All batches of a range; closing it early leaves no poll behind.

    Raises:
        RecordsLostError: records were trimmed, or the topic deleted, and `fail_on_data_loss`; otherwise it warns and goes on.
        CorruptBatchError: a batch fails its checks.
        RequestTimedOutError: no record came in `timeout_ms`.
    """
    name = f"{range_.topic}/{range_.partition}"
    offset = range_.start
    useless = 0

    def ask(at: int) -> Future[Polled]:
        return cluster.start(
            lambda: cluster.poll(range_.topic, range_.topic_id, range_.partition, at, timeout_ms / 1000)
        )

    pending: Future[Polled] | None = ask(offset) if range_.count else None
    try:
        while pending is not None:
            try:
                answer = pending.result()
            except OffsetOutOfRangeError as error:
                lost_to = min(error.log_start_offset, range_.end)
                if lost_to <= offset:
                    raise  # above the end: planned offsets are committed, so this is no trim
                report_loss(
                    f"{name}: offsets {offset} to {lost_to - 1} were deleted before they were read", fail_on_data_loss
                )
                offset = lost_to
                pending = ask(offset) if offset < range_.end else None
                continue
            except UnknownTopicError:
                report_loss(
                    f"{name}: offsets {offset} to {range_.end - 1} are gone with their topic", fail_on_data_loss
                )
                return
            batches = list(_wanted(answer, range_, offset))
            useless = 0 if batches else useless + 1
            if useless == USELESS_ANSWERS_MAX:
                raise ProtocolError(f"{name}: what the broker sends does not continue at offset {offset}")
            if batches:
                offset = batches[-1].base_offset + batches[-1].end
            pending = ask(offset) if offset < range_.end else None
            yield from batches
    finally:
        if pending is not None:
            pending.cancel()


def _wanted(answer: Polled, range_: OffsetRange, offset: int) -> Iterator[FetchedBatch]:
    """The batches of an answer that continue at `offset`, checked."""
    for base_offset, data in zip(answer.base_offsets, answer.batches, strict=True):
        try:
            header = validate(data, MESSAGE_BYTES_MAX)
        except BatchFormatError as error:
            raise CorruptBatchError(range_.topic, range_.partition, base_offset, base_offset + 1, str(error)) from error
        next_offset = base_offset + header.record_count
        if base_offset > offset or offset >= range_.end:
            return  # a hole, which the next poll must not begin behind; or the range is done
        if next_offset > offset:
            end = min(next_offset, range_.end)
            yield FetchedBatch(base_offset, header, data, offset - base_offset, end - base_offset)
            offset = end
