"""Find records by time at one leader: it names batches by their headers, and the record is found in the batch.

Brokers do not look into batches. A batch that a leader names may have no record at or after the time: its last records were trimmed,
or its producer wrote a wrong header. Then the leader is asked for the next batch.

Source: KIP-79 (the first record whose timestamp is at or after a time).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from raftmq.batch_header import BatchFormatError, BatchHeader, parse_header
from raftmq.client.base import settings
from raftmq.client.base.error_details import error_from_detail
from raftmq.client.codec.batch import decode_columns
from raftmq.client.connection.transport import Connection
from raftmq.errors import (
    OffsetOutOfRangeError,
    ProtocolError,
    RaftMQError,
    RequestTimedOutError,
    UnsupportedCompressionError,
)
from raftmq.methods import LIST_OFFSETS, POLL
from raftmq.proto import queue_pb2 as pb

POLL_WAIT_MS = 500
"""How long a broker holds a poll. The batch exists, so that only a leader that lost its leadership has none."""


class OffsetAndTimestamp(NamedTuple):
    """A record's offset and its timestamp (milliseconds since the epoch)."""

    offset: int
    timestamp: int


class WantedTime(NamedTuple):
    """A time to look for in one partition."""

    topic_id: int
    partition: int
    name: str
    """The partition's name, for messages."""
    time_ms: int
    """-1 and -2 are the ends of the log."""
    time_kind: pb.TimeKind


class TimeSearch:
    """One call to one leader for the offsets of several partitions."""

    def __init__(
        self, connection: Connection, metadata_revision: int, wanted: list[WantedTime], timeout_seconds: float
    ) -> None:
        self._connection = connection
        self._metadata_revision = metadata_revision
        self._wanted = wanted
        self._timeout_seconds = timeout_seconds
        self._results: dict[WantedTime, OffsetAndTimestamp | RaftMQError] = {}

    async def run(self) -> list[OffsetAndTimestamp | RaftMQError]:
        """Return an offset or an error for each partition, in their order. Raises `RaftMQError` if the leader does not answer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_seconds
        open_ = dict.fromkeys(self._wanted, 0)
        while open_:
            seconds = deadline - loop.time()
            if seconds <= 0:
                late = RequestTimedOutError("the batches were not read in time")
                return [self._results.get(wanted, late) for wanted in self._wanted]
            named = await self._name_batches(open_, seconds)
            open_ = await self._read_batches(named, open_, max(deadline - loop.time(), 0.001))
        return [self._results[wanted] for wanted in self._wanted]

    async def _name_batches(self, from_offsets: Mapping[WantedTime, int], seconds: float) -> dict[WantedTime, int]:
        """Ask for the batches, and return the offsets of those that must be read."""
        request = pb.ListOffsetsRequest(
            metadata_revision=self._metadata_revision,
            partitions=[
                pb.PartitionTime(
                    topic_id=wanted.topic_id,
                    partition=wanted.partition,
                    time_ms=wanted.time_ms,
                    time_kind=wanted.time_kind,
                    from_offset=from_offset,
                )
                for wanted, from_offset in from_offsets.items()
            ],
        )
        response = await self._connection.call(LIST_OFFSETS, request, seconds)
        answers = {(answer.topic_id, answer.partition): answer for answer in response.partitions}
        named: dict[WantedTime, int] = {}
        for wanted in from_offsets:
            answer = answers.get((wanted.topic_id, wanted.partition))
            if answer is None:
                self._results[wanted] = ProtocolError(
                    f"{wanted.name}: the leader omitted the partition from its answer"
                )
            elif answer.HasField("error"):
                self._results[wanted] = error_from_detail(answer.error, wanted.name)
            elif answer.time_kind == pb.TIMESTAMP and answer.offset >= 0:
                named[wanted] = answer.offset
            else:
                self._results[wanted] = OffsetAndTimestamp(answer.offset, answer.append_time_ms)
        return named

    async def _read_batches(
        self, named: Mapping[WantedTime, int], from_offsets: Mapping[WantedTime, int], seconds: float
    ) -> dict[WantedTime, int]:
        """Look for the records in their batches. Return where the search must continue in the partitions without one."""
        if not named:
            return {}
        response = await self._connection.call(POLL, self._poll_request(named), seconds)
        polled = {(answer.topic_id, answer.partition): answer for answer in response.partitions}
        left: dict[WantedTime, int] = {}
        for wanted, offset in named.items():
            answer = polled.get((wanted.topic_id, wanted.partition))
            if answer is not None and answer.HasField("error"):
                error = error_from_detail(answer.error, wanted.name)
                if isinstance(error, OffsetOutOfRangeError):  # trimmed since
                    left[wanted] = from_offsets[wanted]
                else:
                    self._results[wanted] = error
            elif answer is None or not answer.batches:
                left[wanted] = from_offsets[wanted]  # the answer was full of the other partitions' batches
            else:
                base_offset, batch = answer.base_offsets[0], answer.batches[0]
                try:
                    header = parse_header(batch)
                except BatchFormatError as error:
                    self._results[wanted] = ProtocolError(f"{wanted.name}: the batch at offset {base_offset}: {error}")
                    continue
                found = find_record(batch, header, base_offset, offset, wanted.time_ms)
                if found is None:
                    left[wanted] = base_offset + header.record_count
                else:
                    self._results[wanted] = found
        return left

    def _poll_request(self, named: Mapping[WantedTime, int]) -> pb.PollRequest:
        return pb.PollRequest(
            metadata_revision=self._metadata_revision,
            max_wait_ms=POLL_WAIT_MS,
            min_bytes=1,
            max_bytes=settings.FETCH_MESSAGE_BYTES_MAX,
            partitions=[
                pb.PartitionPoll(topic_id=wanted.topic_id, partition=wanted.partition, offset=offset, max_bytes=1)
                for wanted, offset in named.items()
            ],
        )


def find_record(
    batch: bytes, header: BatchHeader, base_offset: int, first_offset: int, time_ms: int
) -> OffsetAndTimestamp | None:
    """Return the first record of a batch at or after an offset and a time, or None.

    Of a batch that cannot be decoded the first record is returned: who reads from there gets the error, and misses nothing.
    """
    skipped = max(0, first_offset - base_offset)
    try:
        columns = decode_columns(batch, header)
    except (BatchFormatError, UnsupportedCompressionError):
        return OffsetAndTimestamp(base_offset + skipped, header.max_timestamp_ms)
    timestamps = columns.timestamps()
    position = next((at for at in range(skipped, len(timestamps)) if timestamps[at] >= time_ms), None)
    return None if position is None else OffsetAndTimestamp(base_offset + position, timestamps[position])
