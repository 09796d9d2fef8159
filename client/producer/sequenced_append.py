"""Appends batches under a producer id, an epoch and sequences that the caller chooses, and repeats each until its outcome is known.

It is for writers whose identity comes from outside, such as a task of a job that runs again after a crash: the same records under the same
sequences are written once, however often and by whichever process they are sent. Ordinary programs use `Producer`, which chooses all three
itself.

Must not choose sequences, gather records or keep any of them. Invariants: a batch is repeated only under its own sequence. A batch that
overlaps with records written before is cut (`tail_of`), never renumbered.

Source: KIP-98 (idempotent producers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from raftmq.batch_header import BATCH_MAGIC, QUEUE_BATCH_MAGIC, BatchHeader, magic_of, parse_header
from raftmq.client.base import settings
from raftmq.client.base.background import Backoff
from raftmq.client.base.error_details import error_from_detail, with_doubt
from raftmq.client.codec.batch import decode_columns, encode_body
from raftmq.client.codec.queue_batch import tail_of_messages
from raftmq.client.connection.append_stream import SerializedAppend
from raftmq.client.connection.resolver import Resolver, TopicInfo
from raftmq.client.producer.append_request import PartitionBatches, serialize_append
from raftmq.errors import (
    DeliveryTimeoutError,
    InvalidArgumentError,
    NoLeaderError,
    NotLeaderError,
    Outcome,
    OutOfOrderSequenceError,
    ProtocolError,
    RaftMQError,
    SequenceOverlapError,
    UnknownPartitionError,
)
from raftmq.methods import INIT_PRODUCER
from raftmq.proto import queue_pb2 as pb

LEADER_WAIT_SECONDS: Final = 1.0
"""The wait for a change of the topology when there is no leader."""


class StampClaim(NamedTuple):
    """Ask for a stamp of an epoch of another name, as `SequencedAppender.claim` does."""

    name: str
    epoch: int
    stamp: bytes
    replaces: bytes | None = None
    shared_bytes: int = 0
    """If so many first bytes of `stamp` and of the present stamp are equal, the bits of the rest are added to it. 0: it is only replaced."""


class NamedEpoch(NamedTuple):
    """The cluster's answer about a producer name."""

    producer_id: int
    epoch: int
    stamp: bytes
    """The epoch's current stamp: the requested one, or one that another caller wrote before."""
    time_ms: int = 0
    """Milliseconds since 1970 by a broker's clock when it answered. Clocks of brokers differ by some seconds. 0: an older broker."""
    then: bytes | None = None
    """The current stamp of the second claim. None: it was not executed."""


class SequencedAppender:
    """Appends batches and claims names through one resolver. It keeps no state between calls, so any number of tasks may share it.

    Args:
        resolver: the started resolver of the cluster.
        delivery_timeout_seconds: time from a call of `append` until it gives up; at most an hour.
        request_timeout_seconds: time limit of one request to a broker, after which it is repeated.
    """

    def __init__(
        self, resolver: Resolver, *, delivery_timeout_seconds: float = 120.0, request_timeout_seconds: float = 10.0
    ) -> None:
        if delivery_timeout_seconds * 1000 > settings.DELIVERY_TIMEOUT_MS_MAX:
            raise InvalidArgumentError(
                f"delivery_timeout_seconds must be at most {settings.DELIVERY_TIMEOUT_MS_MAX / 1000:g}, not {delivery_timeout_seconds:g}"
            )
        self._resolver = resolver
        self._delivery_timeout_seconds = delivery_timeout_seconds
        self._request_timeout_seconds = request_timeout_seconds

    async def anonymous_id(self) -> int:
        """Get a producer id that nobody else has. Its epoch is 0."""
        request = pb.InitProducerRequest(metadata_revision=self._resolver.metadata_revision)
        answer = await self._resolver.call_any(
            INIT_PRODUCER, request, self._delivery_timeout_seconds, is_read=True, prefers_metadata_leader=True
        )
        return answer.producer_id

    async def claim(
        self,
        name: str,
        epoch: int,
        stamp: bytes = b"",
        replaces: bytes | None = None,
        *,
        then: StampClaim | None = None,
    ) -> NamedEpoch:
        """Join an epoch of a name, and agree on its stamp with all other callers that join it.

        The first caller writes the stamp. After that it changes only for a caller whose `replaces` equals the current stamp. So the `stamp`
        of the answer is the caller's own if it was the first, if its replacement succeeded, or if another caller wrote the same bytes. The
        call may be repeated without harm.

        If the answer's stamp is the caller's own, `then` is claimed in the same step. Brokers before 2026-11-27 do not claim it.

        Raises:
            ProducerFencedError: the name, or the one of `then`, is at a later epoch. In the second case the first stamp was claimed.
            TooManyProducersError: the cluster already has the maximum number of names.
            RaftMQError: as for `Resolver.call_any`. The stamp may have been written.
        """
        request = pb.InitProducerRequest(
            name=name, epoch=epoch, metadata_revision=self._resolver.metadata_revision, stamp=stamp, replaces=replaces
        )
        if then is not None:
            second = pb.StampClaim(**then._asdict())
            request.then.CopyFrom(second)
        answer = await self._resolver.call_any(
            INIT_PRODUCER, request, self._delivery_timeout_seconds, is_read=True, prefers_metadata_leader=True
        )
        # A stamp may describe topics. A later lookup on a broker that lags behind the stamp waits for this revision.
        self._resolver.record_revision(answer.metadata_revision)
        if answer.then.HasField("error"):
            raise error_from_detail(answer.then.error)
        claimed = answer.then.stamp if answer.HasField("then") else None
        return NamedEpoch(answer.producer_id, answer.epoch, answer.stamp, answer.time_ms, claimed)

    async def append(self, topic: TopicInfo, partition: int, batches: Sequence[bytes]) -> list[int]:
        """Append sealed batches of one producer to a partition, in order. Returns when all are on disk on a majority.

        The batches must have consecutive sequences. If the beginning of a batch was written before, the batch is cut and its rest appended.
        Together the batches must fit into a request (`settings.REQUEST_BYTES_MAX`).

        Returns:
            The offset of each batch's first new record; -1 for a batch that was written before and whose offset is forgotten.

        Raises:
            ProducerFencedError: a later epoch has written here. Nothing more was appended.
            OutOfOrderSequenceError: records before the first batch are missing.
            DeliveryTimeoutError: the batches were not acknowledged in time. They may have been written.
            UnknownPartitionError: the partition does not exist.
            RaftMQError: another refusal. The error's `outcome` says whether the refused batch may have been written by an earlier
                attempt that was not answered.

        After any error or a cancellation, batches before the refused one may have been written.
        """
        if not 0 <= partition < topic.partition_count:
            raise UnknownPartitionError(
                f"{topic.name} has partitions 0 to {topic.partition_count - 1}, not {partition}"
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._delivery_timeout_seconds
        backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, self._resolver.rng)
        open_ = list(batches)
        offsets: list[int] = []
        may_be_applied = False
        while open_:
            acknowledged, error = await self._try(topic, partition, open_, deadline - loop.time())
            offsets += acknowledged
            del open_[: len(acknowledged)]
            if acknowledged:
                backoff.reset()
            if error is None:
                continue
            if isinstance(error, SequenceOverlapError):
                open_[0] = tail_of(open_[0], error.last_sequence + 1)
                continue
            may_be_applied |= error.outcome is Outcome.UNKNOWN
            is_certain = isinstance(error, OutOfOrderSequenceError) and error.is_certain
            if may_be_applied and not is_certain and error.outcome is not Outcome.UNKNOWN and not error.retriable:
                raise with_doubt(error)
            pause = self._pause(topic.group_ids[partition], error, backoff)
            if loop.time() + pause >= deadline:
                raise DeliveryTimeoutError(
                    f"{topic.name}/{partition}: {len(open_)} batches were not acknowledged within"
                    f" {self._delivery_timeout_seconds:g} s and may have been written (the last error: {error})"
                ) from error
            if isinstance(error, NoLeaderError):
                await self._resolver.wait_change(pause)
            else:
                await asyncio.sleep(pause)
        return offsets

    async def _try(
        self, topic: TopicInfo, partition: int, batches: Sequence[bytes], remaining: float
    ) -> tuple[Sequence[int], RaftMQError | None]:
        """Send one request. Return the offsets of the committed batches, and the error of the next one, if any."""
        self._resolver.check()
        leader = self._resolver.leader(topic.group_ids[partition])
        if leader is None:
            return (), NoLeaderError(f"{topic.name}/{partition} has no leader")
        address = self._resolver.address(leader)
        seconds = max(min(remaining, self._request_timeout_seconds), settings.LAST_TRY_SECONDS)
        timeout_ms = max(1, int(seconds * 1000))
        parts = [PartitionBatches(topic.topic_id, partition, batches)]
        body = serialize_append(0, self._resolver.metadata_revision, timeout_ms, parts)
        request = SerializedAppend(0, timeout_ms, body)
        try:
            response = await self._resolver.connection(address).append(request, seconds + settings.CLOSE_GRACE_SECONDS)
        except RaftMQError as error:
            if error.outcome is Outcome.UNKNOWN or error.retriable:
                self._resolver.mark_suspect(address)
            return (), error
        if len(response.partitions) != 1:
            return (), ProtocolError(f"the broker answered for {len(response.partitions)} partitions instead of 1")
        result = response.partitions[0]
        if result.HasField("error"):
            return result.base_offsets, error_from_detail(result.error, f"{topic.name}/{partition}")
        if len(result.base_offsets) != len(batches):
            return result.base_offsets, ProtocolError("the broker did not answer for every batch")
        return result.base_offsets, None

    def _pause(self, group_id: int, error: RaftMQError, backoff: Backoff) -> float:
        """Return the wait before the next attempt. Raises errors that retries cannot cure."""
        if isinstance(error, NotLeaderError):
            has_better = self._resolver.on_not_leader(group_id, error)
            return 0.0 if has_better and backoff.failures == 0 else backoff.next_seconds()
        if not error.retriable and error.outcome is not Outcome.UNKNOWN:
            raise error
        pause = LEADER_WAIT_SECONDS if isinstance(error, NoLeaderError) else backoff.next_seconds()
        return max(pause, error.retry_after_ms / 1000)


def tail_of(batch: bytes, first_sequence: int) -> bytes:
    """Return the batch's records or messages from `first_sequence` on, as a batch of the same producer, epoch, flags and codec.

    Raises `ProtocolError` when the batch does not contain that sequence.
    """
    has_messages = magic_of(batch) == QUEUE_BATCH_MAGIC
    header = parse_header(batch, QUEUE_BATCH_MAGIC if has_messages else BATCH_MAGIC)
    skipped = first_sequence - header.first_sequence
    if not 0 < skipped < header.record_count:
        raise ProtocolError(
            f"sequences {header.first_sequence} to {header.last_sequence} cannot overlap with records that end before {first_sequence}"
        )
    return tail_of_messages(batch, skipped) if has_messages else _sliced(batch, header, skipped)


def _sliced(batch: bytes, header: BatchHeader, skipped: int) -> bytes:
    columns = decode_columns(batch, header)
    headers = columns.headers
    body = encode_body(
        columns.values.to_list()[skipped:],
        columns.keys.to_list()[skipped:],
        columns.timestamps()[skipped:],
        headers[skipped:] if headers is not None else None,
        header.codec,
    )
    return body.seal(header.producer_id, header.producer_epoch, header.first_sequence + skipped, header.flags)
