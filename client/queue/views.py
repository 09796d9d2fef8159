"""The values that describe the messages and the state of a queue topic, made from the brokers' answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from raftmq.batch_header import BatchFormatError
from raftmq.client.codec.batch import Headers
from raftmq.client.codec.queue_batch import ReceivedMessage, decode_message
from raftmq.client.queue.dwell_times import DwellTimes, read_dwell
from raftmq.errors import InvalidArgumentError
from raftmq.message_block import MessageBlock
from raftmq.message_headers import decode_headers
from raftmq.proto import queue_pb2 as pb

MessageStateName = Literal["ready", "delayed", "leased", "dead", "blocked"]
"""``ready``: it may be leased now. ``delayed``: not before its time. ``leased``: with a consumer. ``dead``: given up, and kept.
``blocked``: ready, and behind an unfinished message of its key."""
_STATES: Final[dict[str, pb.MessageState]] = {
    "ready": pb.READY,
    "delayed": pb.DELAYED,
    "leased": pb.LEASED,
    "dead": pb.DEAD,
    "blocked": pb.BLOCKED,
}
_NAMES: Final[dict[int, MessageStateName]] = {
    pb.READY: "ready",
    pb.DELAYED: "delayed",
    pb.LEASED: "leased",
    pb.DEAD: "dead",
    pb.BLOCKED: "blocked",
}


def state_number(name: str | None) -> pb.MessageState:
    """Return the protocol's number of a state. None: any state. Raises `InvalidArgumentError`."""
    if name is None:
        return pb.ANY_STATE
    if name not in _STATES:
        raise InvalidArgumentError(f"state {name!r}: use one of {', '.join(_STATES)}")
    return _STATES[name]


def state_name(number: int) -> MessageStateName:
    """Return the name of a state. A state that only a newer broker knows counts as blocked, because nobody can lease the message."""
    return _NAMES.get(number, "blocked")


@dataclass(frozen=True, slots=True)
class BrowsedMessage:
    """A message as `Queue.browse` shows it, without a lease. It may have changed since."""

    partition: int
    sequence: int
    id: str | None
    tenant: str
    key: bytes | None
    priority: int
    state: MessageStateName
    version: int
    """Rises with every lease, settlement and change. `Queue.move` and its like change only this version if they get it."""
    attempts: int
    enqueued_ms: int
    """Milliseconds since 1970."""
    due_in_ms: int
    """Time until it may be leased. Negative: since then."""
    lease_left_ms: int
    expires_in_ms: int | None
    error: str
    """The error of the last attempt, or empty."""
    progress: str
    """The text of the last renewal, or empty."""
    dead_reason: str
    """``rejected``, ``exhausted``, ``expired``, or empty."""
    dead_since_ms: int
    """Milliseconds since 1970, or 0."""
    headers: Headers
    """Empty if the values were not requested."""
    value: bytes | None
    """The body as it was put, before any deserializer. None: it was not requested, or it is damaged."""


def read_browsed(
    partition: int, block: MessageBlock, at: int, status: pb.MessageStatus, *, with_value: bool
) -> BrowsedMessage:
    """Return a message of a page. Its body is looked at only `with_value`."""
    name = block.ids[at] if block.ids is not None else None
    headers = block.headers[at] if block.headers is not None else None
    found = decode_message(block, at) if with_value else None
    return BrowsedMessage(
        partition=partition,
        sequence=block.sequences[at],
        id=None if name is None else name.decode(errors="replace"),
        tenant=block.tenants[at].decode(errors="replace") if block.tenants is not None else "",
        key=block.keys[at] if block.keys is not None else None,
        priority=block.priorities[at] if block.priorities is not None else 0,
        state=state_name(status.state),
        version=status.version,
        attempts=block.attempts[at],
        enqueued_ms=block.enqueued_ms[at],
        due_in_ms=status.due_in_ms,
        lease_left_ms=status.lease_left_ms,
        expires_in_ms=status.expires_in_ms or None,
        error=status.error,
        progress=status.progress,
        dead_reason=status.dead_reason,
        dead_since_ms=status.dead_since_ms,
        headers=() if headers is None else _headers_of(headers),
        value=found.value if isinstance(found, ReceivedMessage) else None,
    )


def _headers_of(encoded: bytes) -> Headers:
    try:
        return decode_headers(encoded)
    except BatchFormatError:
        return ()  # another program's mistake must not hide the message


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """The number of messages in each state."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    blocked: int = 0

    def __add__(self, other: MessageCounts) -> MessageCounts:
        return MessageCounts(
            self.ready + other.ready,
            self.delayed + other.delayed,
            self.leased + other.leased,
            self.dead + other.dead,
            self.blocked + other.blocked,
        )


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The state of a queue topic, summed over its partitions. Totals count since each partition got its present leader."""

    ready: int
    delayed: int
    leased: int
    dead: int
    blocked: int
    """Messages that are ready, and behind an unfinished message of their key."""
    oldest_ready_seconds: float
    """Time for which the longest waiting message has been ready, without earlier leases and the wait for its key. 0: none is ready."""
    waiting_bytes: int
    enqueued_total: int
    leased_total: int
    accepted_total: int
    released_total: int
    expired_leases_total: int
    dead_total: int
    consumers: int
    """Consumers that wait or hold leases, counted once for each partition."""
    tenants: dict[str, MessageCounts] = field(default_factory=dict)
    """The tenants with the most messages."""
    paused: dict[str, float | None] = field(default_factory=dict)
    """Paused tenants (the empty one is the whole topic), and the seconds that are left. None: until they are resumed."""
    dwell: DwellTimes = field(default_factory=DwellTimes)
    """How long messages could be leased before they were: `dwell.quantile(0.99)`. Of leases since each broker serves its partitions."""
    clock_difference_seconds: float = 0.0
    """How far the queue clock is ahead of its leader's clock (negative: behind), in the partition where it differs most."""


def read_stats(partitions: Iterable[pb.PartitionQueueStats]) -> QueueStats:
    """Return the sum of the partitions' numbers."""
    found = list(partitions)
    total = sum((_counts(stats.counts) for stats in found), MessageCounts())
    tenants: dict[str, MessageCounts] = {}
    paused: dict[str, float | None] = {}
    for stats in found:
        for tenant in stats.tenants:
            tenants[tenant.tenant] = tenants.get(tenant.tenant, MessageCounts()) + _counts(tenant.counts)
        for pause in stats.paused:
            paused[pause.tenant] = None if pause.left_ms < 0 else pause.left_ms / 1000
    return QueueStats(
        ready=total.ready,
        delayed=total.delayed,
        leased=total.leased,
        dead=total.dead,
        blocked=total.blocked,
        oldest_ready_seconds=max((stats.oldest_ready_age_ms for stats in found), default=0) / 1000,
        waiting_bytes=sum(stats.waiting_bytes for stats in found),
        enqueued_total=sum(stats.enqueued_total for stats in found),
        leased_total=sum(stats.leased_total for stats in found),
        accepted_total=sum(stats.accepted_total for stats in found),
        released_total=sum(stats.released_total for stats in found),
        expired_leases_total=sum(stats.expired_leases_total for stats in found),
        dead_total=sum(stats.dead_total for stats in found),
        consumers=sum(stats.consumers for stats in found),
        tenants=tenants,
        paused=paused,
        dwell=read_dwell(stats.dwell for stats in found),
        clock_difference_seconds=max((stats.clock_difference_ms for stats in found), key=abs, default=0) / 1000,
    )


def _counts(counts: pb.StateCounts) -> MessageCounts:
    return MessageCounts(counts.ready, counts.delayed, counts.leased, counts.dead, counts.blocked)
