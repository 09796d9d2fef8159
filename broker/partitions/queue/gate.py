"""Decide whether a queue partition accepts a batch of messages, before it is proposed.

Limits count the applied messages and those that are proposed. Applying refuses nothing, so a message that passes here is accepted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from raftmq.batch_header import BatchHeader
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.pending_append import Applied, PendingAppend
from raftmq.broker.partitions.queue.clock import QueueClock
from raftmq.broker.partitions.queue.config import QueueConfig
from raftmq.fsm.queue.jobs import is_in_subtrees
from raftmq.fsm.queue.limits import IDS_MAX, TENANTS_MAX
from raftmq.fsm.queue.message import Message
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Enqueued
from raftmq.message_checks import MESSAGE_BYTES_MAX, TIME_NONE, BatchLimits
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import QueueFields, validate_queue

_FULL_RETRY_MS: Final = 200
_LIMITS: Final = BatchLimits(message_bytes_max=MESSAGE_BYTES_MAX)
"""Of a batch that was checked before, perhaps under other limits of its topic."""
TENANTS_EXAMINED_MAX: Final = 16
"""Tenants of proposed messages that are compared with a consumer's filter. With more of them any consumer may be meant."""
_SETTINGS_RETRY_MS: Final = 10
"""About a commit: the settings are under way."""


class _Load:
    """Messages that were admitted together, and are not applied.

    All counts but `immediate` and `puts` are the growth of the partition: a chain takes as many messages away as it accepts.
    """

    __slots__ = ("bytes", "has_ids", "immediate", "messages", "puts", "tenant_bytes", "tenant_messages")

    def __init__(self) -> None:
        self.messages = 0
        self.immediate = 0
        """Messages without a due time: a consumer may lease them as soon as they are applied."""
        self.bytes = 0
        self.has_ids = False
        self.puts: Counter[bytes] = Counter()
        """All messages, by tenant."""
        self.tenant_messages: Counter[bytes] = Counter()
        self.tenant_bytes: Counter[bytes] = Counter()

    def add(self, other: _Load, sign: int = 1) -> None:
        self.messages += sign * other.messages
        self.immediate += sign * other.immediate
        self.bytes += sign * other.bytes
        for mine, its in (
            (self.puts, other.puts),
            (self.tenant_messages, other.tenant_messages),
            (self.tenant_bytes, other.tenant_bytes),
        ):
            for name, count in its.items():
                _count(mine, name, sign * count)


def _count(counter: Counter[bytes], name: bytes, change: int) -> None:
    left = counter[name] + change
    if left:
        counter[name] = left
    else:
        del counter[name]


class _Totals(NamedTuple):
    messages: int
    bytes: int


class QueueGate:
    """The checks of one queue partition. Implements `AppendGate`."""

    def __init__(
        self,
        machine: QueuePartition,
        config: Callable[[], QueueConfig],
        clock: QueueClock,
        on_enqueued: Callable[[], None],
        on_unconfigured: Callable[[], None],
    ) -> None:
        """Take the partition's parts, and functions to call.

        Args:
            machine: The partition's state machine.
            config: Returns the topic's settings in force.
            clock: The partition's clock.
            on_enqueued: Called when messages without a due time were proposed.
            on_unconfigured: Called when the partition does not apply these settings yet, so that it is told.
        """
        self._machine = machine
        self._config = config
        self._clock = clock
        self._on_enqueued = on_enqueued
        self._on_unconfigured = on_unconfigured
        self._fields: QueueFields | None = None
        """Of the batch that was checked last."""
        self._admitted = _Load()
        """Batches that are about to be proposed."""
        self._proposed = _Load()
        """The sum of `_in_flight`."""
        self._in_flight: deque[tuple[Applied, _Load]] = deque()
        self.full_refusals = 0
        """Batches refused with QUEUE_FULL since the term began."""

    @property
    def immediate(self) -> int:
        """Return the number of proposed messages that a consumer may lease as soon as they are applied."""
        self._forget_applied()
        return self._proposed.immediate

    def leasable(self, subtrees: tuple[str, ...], *, is_readable: bool) -> int:
        """Return how many proposed messages a lease may find as soon as they are applied.

        Args:
            subtrees: The tenants of the lease. Empty: all.
            is_readable: Whether the machine may be looked at, to leave out tenants that are paused or at their limit of leases.
        """
        self._forget_applied()
        immediate, names = self._proposed.immediate, self._proposed.puts
        if not immediate or len(names) > TENANTS_EXAMINED_MAX:
            return immediate
        found = 0
        for name, count in names.items():
            path = name.decode()
            if subtrees and not is_in_subtrees(path, subtrees):
                continue
            if not is_readable or self._machine.is_open_to(path):
                found += count
        return min(found, immediate)

    def check(self, batch: bytes, bytes_max: int) -> BatchHeader:
        """See `AppendGate`."""
        header, self._fields = validate_queue(batch, bytes_max, self._config().batch)
        return header

    def admit(self, header: BatchHeader, batch: bytes) -> RequestError | None:
        """See `AppendGate`."""
        fields = self._fields
        assert fields is not None, "check comes first"
        return self.admit_messages(fields)

    def admit_messages(self, fields: QueueFields) -> RequestError | None:
        """Admit messages that were checked before, as `admit` does: those of a schedule."""
        return self._admit(_load_of(fields))

    def admit_chain(self, accepted: Sequence[Message | None], put_counts: Sequence[int]) -> RequestError | None:
        """Admit the messages of a chain whose batch was checked last, as `admit` does.

        A chain is judged by its growth: messages that it accepts leave the partition in the same entry, so that a full one can be worked off.
        Those that belong to a message whose lease has ended by then are not put.

        Args:
            accepted: The messages that it accepts, None for one that is not known to be leased.
            put_counts: The messages of the batch that belong to each.
        """
        fields = self._fields
        assert fields is not None, "check comes first"
        by_number = self._machine.state.tenants.by_number
        freed = [None if m is None else (by_number[m.tenant].path.encode(), m.body_bytes) for m in accepted]
        return self._admit(_load_of_chain(fields, freed, put_counts))

    def _admit(self, load: _Load) -> RequestError | None:
        self._forget_applied()
        refusal = self._unreadiness() or self._refusal(load)
        if refusal is None:
            self._admitted.add(load)
        elif refusal.code == pb.QUEUE_FULL:
            self.full_refusals += 1
        return refusal

    def _unreadiness(self) -> RequestError | None:
        """Return why the partition takes no messages yet.

        A message is enqueued under the settings and at the time of its entry. Under earlier settings it would be out of the order of its key
        forever, or its id would be forgotten. At the time before a stop a delay would begin in the past.
        """
        refusal = self._clock.unreadiness()
        if refusal is None and self._config().machine != self._machine.state.settings:
            self._on_unconfigured()
            refusal = RequestError(
                pb.NOT_READY,
                "the partition does not apply the topic's settings yet; try again",
                retry_after_ms=_SETTINGS_RETRY_MS,
            )
        return refusal

    def _refusal(self, load: _Load) -> RequestError | None:
        config, tenants = self._config(), self._machine.state.tenants
        there = self._totals()
        if load.messages and config.messages_max and there.messages + load.messages > config.messages_max:
            return _full(
                pb.QUEUE_FULL,
                f"the partition holds {there.messages} of at most {config.messages_max} messages (partition.max.messages)",
            )
        if load.bytes and config.bytes_max and there.bytes + load.bytes > config.bytes_max:
            return _full(
                pb.QUEUE_FULL,
                f"the partition holds {there.bytes} of at most {config.bytes_max} bytes (partition.max.bytes)",
            )
        if load.has_ids and self._machine.state.ids.ending_count >= IDS_MAX:
            return _full(
                pb.QUEUE_FULL,
                f"the partition remembers {IDS_MAX} ids of finished messages: put messages without ids, or lower dedupe.window.ms",
            )
        new: set[bytes] = set()
        for name in load.puts:
            count, bytes_more = load.tenant_messages[name], load.tenant_bytes[name]
            path = name.decode()
            tenant = tenants.by_path.get(path)
            if tenant is None:
                new.add(name)
            elif tenants.is_void(tenant):
                tenant = None
            messages = self._pending(name, bytes_too=False) + (tenant.total if tenant is not None else 0)
            if count and config.tenant_messages_max and messages + count > config.tenant_messages_max:
                return _full(
                    pb.TENANT_FULL,
                    f"tenant {path!r} has {messages} of at most {config.tenant_messages_max} messages in the partition (partition.tenant.max.messages)",
                )
            size = self._pending(name, bytes_too=True) + (tenant.bytes if tenant is not None else 0)
            if bytes_more and config.tenant_bytes_max and size + bytes_more > config.tenant_bytes_max:
                return _full(
                    pb.TENANT_FULL,
                    f"tenant {path!r} has {size} of at most {config.tenant_bytes_max} bytes in the partition (partition.tenant.max.bytes)",
                )
        if new and self._has_too_many_tenants(new):
            return RequestError(
                pb.TOO_MANY_TENANTS, f"the partition has {len(tenants.by_path)} of at most {TENANTS_MAX} tenants"
            )
        return None

    def _has_too_many_tenants(self, new: set[bytes]) -> bool:
        """Return whether these tenants are too many, together with those that are known and those that are under way."""
        by_path = self._machine.state.tenants.by_path
        admitted, proposed = self._admitted.puts, self._proposed.puts
        if len(by_path) + len(admitted) + len(proposed) + len(new) <= TENANTS_MAX:
            return False  # the common case, without a look at each name
        coming = new | {name for name in (*admitted, *proposed) if name.decode() not in by_path}
        return len(by_path) + len(coming) > TENANTS_MAX

    def _pending(self, name: bytes, *, bytes_too: bool) -> int:
        if bytes_too:
            return self._admitted.tenant_bytes[name] + self._proposed.tenant_bytes[name]
        return self._admitted.tenant_messages[name] + self._proposed.tenant_messages[name]

    def _totals(self) -> _Totals:
        machine = self._machine
        return _Totals(
            machine.message_count + self._admitted.messages + self._proposed.messages,
            machine.byte_count + self._admitted.bytes + self._proposed.bytes,
        )

    def on_proposed(self, applied: Applied) -> None:
        """See `AppendGate`."""
        load, self._admitted = self._admitted, _Load()
        if load.puts:
            self._in_flight.append((applied, load))
            self._proposed.add(load)
            if load.immediate:
                self._on_enqueued()

    def on_refused(self) -> None:
        """See `AppendGate`."""
        self._admitted = _Load()

    def start_term(self) -> None:
        """See `AppendGate`."""
        self._admitted, self._proposed = _Load(), _Load()
        self._in_flight.clear()
        self.full_refusals = 0

    def describe(self, ticket: PendingAppend, result: pb.PartitionAppendResult) -> None:
        """See `AppendGate`: name the messages whose id was known."""
        committed = len(result.base_offsets)
        for first, applied in ticket.runs:
            if first >= committed:
                break
            for number, enqueued in enumerate(applied.result(), first):
                if not isinstance(enqueued, Enqueued):
                    continue
                for position, sequence in enqueued.repeated:
                    result.known_messages.add(batch=number, position=position, sequence=sequence)
                for position, sequence in enqueued.replaced:
                    result.known_messages.add(batch=number, position=position, sequence=sequence, is_replaced=True)
        for number in ticket.repeated:
            if number < committed:
                self._describe_repeat(number, ticket.batches[number], result)

    def _describe_repeat(self, number: int, batch: bytes, result: pb.PartitionAppendResult) -> None:
        """Tell from the ids in memory about the messages of a batch that was applied before.

        Where they do not tell, the sequences of the whole batch are reported as unknown.
        """
        base = result.base_offsets[number]
        if base < 0:
            return
        _, fields = validate_queue(batch, len(batch), _LIMITS)
        recalled = self._machine.recall(fields, base)
        for position, sequence in recalled.repeated:
            result.known_messages.add(batch=number, position=position, sequence=sequence)
        if recalled.unknown:
            result.base_offsets[number] = -1

    def _forget_applied(self) -> None:
        in_flight = self._in_flight
        while in_flight and in_flight[0][0].done():
            self._proposed.add(in_flight.popleft()[1], -1)


def _load_of(fields: QueueFields) -> _Load:
    load = _Load()
    load.messages = fields.message_count
    sizes = fields.sizes()
    load.bytes = sum(sizes)
    load.has_ids = fields.ids is not None
    load.immediate = load.messages if fields.due is None else sum(kind == TIME_NONE for kind in fields.due.kinds)
    names, places = fields.tenants.names, fields.tenants.places
    if len(names) == 1:
        load.puts[names[0]] = load.tenant_messages[names[0]] = load.messages
        load.tenant_bytes[names[0]] = load.bytes
        return load
    for place, size in zip(places, sizes, strict=True):
        load.puts[names[place]] += 1
        load.tenant_messages[names[place]] += 1
        load.tenant_bytes[names[place]] += size
    return load


def _load_of_chain(fields: QueueFields, freed: Sequence[tuple[bytes, int] | None], put_counts: Sequence[int]) -> _Load:
    """Return the growth by a chain.

    Each acceptance is compared with its own messages only: if its lease is lost, neither happens.

    Args:
        fields: Those of the messages to put.
        freed: The tenant and the size of each accepted message. None: it may free nothing.
        put_counts: The messages that belong to each.
    """
    load = _load_of(fields)
    load.messages = load.bytes = 0
    load.tenant_messages.clear()
    load.tenant_bytes.clear()
    names, places, sizes = fields.tenants.names, fields.tenants.places, fields.sizes()
    first = 0
    for leaving, count in zip(freed, put_counts, strict=True):
        messages: Counter[bytes] = Counter()
        size: Counter[bytes] = Counter()
        for place, one in zip(places[first : first + count], sizes[first : first + count], strict=True):
            messages[names[place]] += 1
            size[names[place]] += one
        first += count
        if leaving is not None:
            messages[leaving[0]] -= 1
            size[leaving[0]] -= leaving[1]
        load.messages += max(0, messages.total())
        load.bytes += max(0, size.total())
        load.tenant_messages += +messages  # leaves out what is not positive
        load.tenant_bytes += +size
    return load


def _full(code: pb.ErrorCode, text: str) -> RequestError:
    return RequestError(code, f"{text}: try again after some are finished", retry_after_ms=_FULL_RETRY_MS)
