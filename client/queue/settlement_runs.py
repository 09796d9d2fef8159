"""Settlements of one partition as the columns of a `PartitionAck`, and the results as one code for each. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from raftmq.client.base import settings
from raftmq.client.queue.lease import Lease
from raftmq.client.queue.new_message import CheckedMessage
from raftmq.client.queue.put_batch import encode_checked
from raftmq.client.queue.topic import QueuePartition
from raftmq.errors import ErrorCode
from raftmq.proto import queue_pb2 as pb


class Settlement(msgspec.Struct, frozen=True):
    """One operation on one lease."""

    lease: Lease
    operation: pb.AckOperation
    detail: pb.AckDetail | None
    """The arguments of the operation. None: it has none."""
    puts: tuple[CheckedMessage, ...] = ()
    """Messages that are put in the same entry, with an acceptance."""
    trace_context: bytes = b""
    """Of the span that settles. Empty: there is none."""

    @property
    def work(self) -> int:
        """Return the messages that it touches."""
        return 1 + len(self.puts)

    @property
    def put_bytes(self) -> int:
        """Return the bytes of the messages that it puts, with overhead."""
        return sum(message.size for message in self.puts)


def share_of(settlements: Sequence[Settlement], put_bytes_max: int) -> int:
    """Return how many of these settlements, from the first, one request can carry.

    Those that put messages travel apart from the others: they are refused together while the partition is full, and the others free it.
    """
    has_puts = bool(settlements[0].puts)
    work = size = 0
    for count, settlement in enumerate(settlements):
        work += settlement.work
        size += settlement.put_bytes
        is_over = work > settings.ACK_MESSAGES_MAX or size > put_bytes_max
        if bool(settlement.puts) != has_puts or (count and is_over):
            return count
    return len(settlements)


def build_chain(partition: QueuePartition, settlements: Sequence[Settlement], codec: int) -> pb.PartitionAck:
    """Return a request with acceptances and the messages that each puts, in this order."""
    count = len(settlements)
    return pb.PartitionAck(
        topic_id=partition.topic_id,
        partition=partition.partition,
        group_id=partition.group_id,
        operations=[pb.ACCEPT] * count,
        first_sequences=[one.lease.sequence for one in settlements],
        counts=[1] * count,
        lease_numbers=[one.lease.lease_number for one in settlements],
        put=encode_checked([message for one in settlements for message in one.puts], codec).seal(),
        put_counts=[len(one.puts) for one in settlements],
    )


def build_ack(
    partition: QueuePartition, settlements: Sequence[Settlement], session: int = 0, request: int = 0
) -> pb.PartitionAck:
    """Return a request with one item for each run of neighbouring messages that are settled in the same way.

    Results follow the order of `settlements`. Runs are long when they are in the order of their sequences.
    """
    ack = pb.PartitionAck(
        topic_id=partition.topic_id,
        partition=partition.partition,
        session=session,
        request=request,
        group_id=partition.group_id,
    )
    places: dict[bytes, int] = {}
    run: tuple[int, int, int] | None = None
    following = -1
    for settlement in settlements:
        lease, operation, detail = settlement.lease, settlement.operation, settlement.detail
        place = 0 if detail is None else _place_of(detail, ack, places)
        this = (operation, lease.lease_number, place)
        if this == run and lease.sequence == following:
            ack.counts[-1] += 1
        else:
            run = this
            ack.operations.append(operation)
            ack.first_sequences.append(lease.sequence)
            ack.counts.append(1)
            ack.lease_numbers.append(lease.lease_number)
            ack.detail_numbers.append(place)
        following = lease.sequence + 1
    if not ack.details:
        del ack.detail_numbers[:]
    return ack


def _place_of(detail: pb.AckDetail, ack: pb.PartitionAck, places: dict[bytes, int]) -> int:
    """Return the place of a detail, from 1. Equal details share one."""
    encoded = detail.SerializeToString(deterministic=True)
    place = places.get(encoded)
    if place is None:
        ack.details.append(detail)
        place = places[encoded] = len(ack.details)
    return place


def codes_of(result: pb.PartitionAckResult, count: int) -> list[int]:
    """Return the code of each of `count` messages, in the order of the request. Codes that the broker omitted are unknown outcomes."""
    codes: list[int] = []
    for code, run in zip(result.codes, result.counts, strict=False):
        codes += [code] * min(run, count - len(codes))
    return codes + [ErrorCode.LEASE_UNKNOWN] * (count - len(codes))


def granted_of(ack: pb.PartitionAck, result: pb.PartitionAckResult) -> list[int]:
    """Return the milliseconds that each message of a request may stay leased, in its order, as the answer says. 0: it does not say."""
    granted: list[int] = []
    for place, count in enumerate(ack.counts):
        granted += [result.granted_ms[place] if place < len(result.granted_ms) else 0] * count
    return granted
