"""Serve one queue partition on this node: appends, leases, settlements, and all other commands. Implements `Partition`.

It only connects the parts: `gate` (the admission of batches), `commands` (their entries), `chains` (acceptances that put messages), `leases` (the
consumers that wait for messages), `bodies` (the places of bodies), `jobs`, `schedules`, `copies` and `upkeep` (the unasked work of the leader),
`views`, `finishes` and `statistics` (the answers about its messages).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar
from zlib import crc32

from raftmq.broker.base.histogram import Histogram
from raftmq.broker.partitions.appends import PartitionAppends
from raftmq.broker.partitions.host import PartitionHost
from raftmq.broker.partitions.producer_fence import ProducerFence
from raftmq.broker.partitions.queue.blocks import MessageFacts
from raftmq.broker.partitions.queue.bodies import QueueBodiesReader, StoredBody
from raftmq.broker.partitions.queue.chains import QueueChains
from raftmq.broker.partitions.queue.clock import QueueClock
from raftmq.broker.partitions.queue.commands import QueueCommands
from raftmq.broker.partitions.queue.config import QueueConfig, queue_config
from raftmq.broker.partitions.queue.copies import QueueCopies
from raftmq.broker.partitions.queue.due_pace import DuePace
from raftmq.broker.partitions.queue.finishes import FinishWatches
from raftmq.broker.partitions.queue.gate import QueueGate
from raftmq.broker.partitions.queue.jobs import QueueJobs
from raftmq.broker.partitions.queue.leases import Filter, QueueLeases
from raftmq.broker.partitions.queue.schedules import QueueSchedules
from raftmq.broker.partitions.queue.statistics import QueueStatistics
from raftmq.broker.partitions.queue.upkeep import QueueUpkeep
from raftmq.broker.partitions.queue.views import QueueViews
from raftmq.broker.partitions.store_reads import read_in_thread
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.metadata_views import TopicView
from raftmq.fsm.producer_table import ProducerTable
from raftmq.fsm.queue.commands import LEASE_NUMBERS_AFTER_MAX
from raftmq.fsm.queue.levels import LEASE_NUMBERS_LEVEL
from raftmq.fsm.queue.message import Message
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Leased
from raftmq.storage.state_store import StateStore
from raftmq.types import LogIndex

T = TypeVar("T")

_DEFAULT_CONFIG: Final = QueueConfig()
LEASE_NUMBERS_PER_TERM: Final = 1 << 12
"""More leases than a message had that a recovery lost, and few enough that the numbers suffice for half a million terms."""


class PartitionQueue:
    """A queue partition as the services see it."""

    def __init__(
        self,
        replica: Replica[QueuePartition],
        host: PartitionHost,
        store: StateStore,
        on_damage: Callable[[Replica[QueuePartition], Exception], None] | None = None,
    ) -> None:
        """Take `on_damage`, which is called when a row failed its check and must make the replica silent."""
        self.replica = replica
        self._on_damage = on_damage
        self._host = host
        self._store = store
        self._topic: TopicView | None = None
        self._config = _DEFAULT_CONFIG
        self._number = 0
        machine = replica.state_machine
        self.clock = QueueClock(
            host.median_ms, lambda: host.is_clock_agreed, host.boottime_ns, replica.core.log.append_time_ms
        )
        replica.use_clock(self.clock)
        self.bodies = QueueBodiesReader(replica, store)
        self.gate = QueueGate(machine, self.config, self.clock, self._on_enqueued, self._on_unconfigured)
        self.appends = PartitionAppends(
            host.loop, replica, lambda: self.config().batch_bytes_max, ProducerFence(lambda: host.metadata), self.gate
        )
        replica.applier.time_entries(host.boottime_ns)
        self.due_pace = DuePace(replica)
        self.upkeep = QueueUpkeep(self, host, store)
        self.commands = QueueCommands(
            host.loop,
            replica,
            self.clock,
            lambda: self.config().lease_ms,
            host.draw_seed,
            self.due_pace.due_max,
            self._lease_numbers_after,
            self.upkeep.tick,
        )
        self.chains = QueueChains(host.loop, replica, self.gate, self.appends, lambda: self.config().batch_bytes_max)
        self.leases = QueueLeases(
            host.loop, replica, self.commands, self._enqueued, lambda: self.config().is_single_active, self._coming
        )
        self.jobs = QueueJobs(host.loop, replica, self.commands)
        self.schedules = QueueSchedules(host.loop, self)
        self.views = QueueViews(replica)
        self.upkeep_views = QueueViews(replica)
        self.finishes = FinishWatches(replica)
        self.copies = QueueCopies(self, host)
        self.statistics = QueueStatistics(replica, self.clock, self.leases)
        replica.role_listeners.append(lambda _change: self.appends.start_term())
        replica.restored_listeners.append(self.bodies.clear)

    def _lease_numbers_after(self) -> int:
        """Return the number after which leases are numbered.

        A recovery may have lost leases. Their holders must not settle messages of others, so no group gives the numbers of an earlier one: they
        begin with the term that the recovery chose, which is later than all before. Leases that were kept remain valid.
        """
        if self.replica.cluster_level() < LEASE_NUMBERS_LEVEL:
            return 0
        recovery = self._host.known_metadata.recovery(self.replica.group_id)
        return 0 if recovery is None else min(recovery.term * LEASE_NUMBERS_PER_TERM, LEASE_NUMBERS_AFTER_MAX)

    def _enqueued(self, subtrees: tuple[str, ...]) -> int:
        return self.gate.leasable(subtrees, is_readable=not self.replica.applier.is_suspended)

    def _coming(self, wanted: Filter, count_max: int) -> int:
        now_ms, due_max = self.clock.read_ms(), self.due_pace.due_max()
        return self.replica.state_machine.due_by(now_ms, wanted.tenants, wanted.key, count_max, due_max)

    def _on_enqueued(self) -> None:
        self.leases.wake()

    def _on_unconfigured(self) -> None:
        self.upkeep.configure()

    # ------------------------------------------------------------------------------------------------ as any partition

    @property
    def log_start_offset(self) -> int:
        """See `Partition`. A queue has no readable log: this is the sequence from which its entries are kept."""
        return self.replica.log_start.next_offset

    @property
    def high_watermark(self) -> int:
        """See `Partition`: the sequence after the last applied message."""
        return self.replica.state_machine.state.scalars.next_sequence

    @property
    def producers(self) -> ProducerTable:
        """See `Partition`."""
        return self.replica.state_machine.producers

    @property
    def expiry_now_ms(self) -> int:
        """See `Partition`."""
        return self.replica.state_machine.expiry.now_ms

    async def settle_producer(self, producer_id: int, epoch_min: int, deadline: float) -> None:
        """See `Partition`."""
        await self.appends.settle(producer_id, epoch_min, deadline)

    async def file_bytes(self) -> int:
        """See `Partition`."""
        return await self.in_thread(self._store.file_bytes, self.replica.key)

    async def maintain(self) -> None:
        """See `Partition`."""
        await self.upkeep.maintain()

    async def truncation_index(self) -> LogIndex | None:
        """See `Partition`."""
        return await self.upkeep.truncation_index()

    def samples(self) -> Iterable[tuple[str, float | Histogram]]:
        """See `Partition`."""
        yield from self.statistics.samples()
        yield from self.copies.samples()
        if self.replica.is_leader:
            yield "raftmq_queue_full_refusals_total", self.gate.full_refusals

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking read of the store on the reader threads. Translate the store's errors to RequestError."""
        return await read_in_thread(self.replica, self._on_damage, function, *arguments)

    def config(self) -> QueueConfig:
        """Return the topic's settings in force, according to this node's metadata. While it is being replaced, they are the last known ones."""
        metadata = self._host.known_metadata
        partition = metadata.partition(self.replica.group_id)
        topic = metadata.topic(partition.topic_id) if partition is not None else None
        if topic is not self._topic:
            # views are replaced, never changed, so comparing identities is enough
            self._topic = topic
            self._number = 0 if partition is None else partition.partition
            self._config = queue_config(topic.config) if topic is not None else _DEFAULT_CONFIG
        return self._config

    def home_of(self, key: bytes) -> int:
        """Return the partition into which producers put the messages of a key, if the topic keeps their order. Otherwise this one.

        It follows this node's metadata, and changes with the number of partitions.
        """
        if not self.config().machine.is_ordered_by_key or self._topic is None:
            return self.number
        return crc32(key) % len(self._topic.group_ids)

    @property
    def number(self) -> int:
        """Return the number of this partition in its topic."""
        self.config()
        return self._number

    @property
    def recovered_group(self) -> int:
        """Return the Raft group if a recovery created it, else 0."""
        group_id = self.replica.group_id
        return group_id if self._host.metadata.state_machine.recovery(group_id) is not None else 0

    def kept_end(self, group_id: int) -> int | None:
        """Return the first sequence that may have been lost, and given again, since `group_id` led the partition. None: there is none."""
        return self._host.metadata.state_machine.kept_end_offset(self.replica.group_id, group_id)

    # ------------------------------------------------------------------------------------------------ messages

    def leased_facts(self, leased: Leased) -> MessageFacts | None:
        """Return the fields of messages that were just leased, as far as their leases are still valid. None: no lease is."""
        store = self.replica.state_machine.state.store
        messages = [
            store.messages[sequence]
            for first, count, number in zip(leased.first_sequences, leased.counts, leased.lease_numbers, strict=True)
            for sequence in range(first, first + count)
            if store.is_leased(sequence, number)  # an entry after the lease may have ended it
        ]
        return MessageFacts(messages, self.tenant_names(messages), self.clock.read_ms()) if messages else None

    def tenant_names(self, messages: Iterable[Message]) -> list[str]:
        """Return the tenant of each message."""
        by_number = self.replica.state_machine.state.tenants.by_number
        return [by_number[message.tenant].path for message in messages]

    async def read_bodies_within(self, sequences: Sequence[int], bytes_max: int) -> list[StoredBody | None]:
        """Return copies of the first bodies, up to the one that exceeds `bytes_max`, as `read_bodies` does."""
        return await self.in_thread(self.bodies.read, sequences, bytes_max)

    async def read_bodies(self, sequences: Sequence[int]) -> list[StoredBody | None]:
        """Return the bodies of messages, None for those that were finished in the meantime.

        Raises:
            RequestError: as `in_thread`.
        """
        found = self.bodies.in_memory(sequences)
        if found is not None:
            return list(found)
        return await self.in_thread(self.bodies.read, sequences)
