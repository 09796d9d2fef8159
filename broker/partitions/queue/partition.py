"""Serve one queue partition on this node: appends, leases, settlements, and all other commands. Implements `Partition`.

It only connects the parts: `gate` (the admission of batches), `commands` (their entries), `leases` (the consumers that wait for messages),
`bodies` (the places of bodies) and `upkeep` (the unasked work of the leader).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.appends import PartitionAppends
from raftmq.broker.partitions.host import PartitionHost
from raftmq.broker.partitions.producer_fence import ProducerFence
from raftmq.broker.partitions.queue.blocks import MessageFacts
from raftmq.broker.partitions.queue.bodies import QueueBodiesReader, StoredBody
from raftmq.broker.partitions.queue.clock import QueueClock
from raftmq.broker.partitions.queue.commands import QueueCommands
from raftmq.broker.partitions.queue.config import QueueConfig, queue_config
from raftmq.broker.partitions.queue.gate import QueueGate
from raftmq.broker.partitions.queue.leases import QueueLeases
from raftmq.broker.partitions.queue.upkeep import QueueUpkeep
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.metadata_views import TopicView
from raftmq.fsm.producer_table import ProducerTable
from raftmq.fsm.queue.message import Message
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Leased
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.errors import ReplicaClosedError
from raftmq.storage.state_store import StateStore
from raftmq.types import LogIndex

_DEFAULT_CONFIG: Final = QueueConfig()


class PartitionQueue:
    """A queue partition as the services see it."""

    def __init__(self, replica: Replica[QueuePartition], host: PartitionHost, store: StateStore) -> None:
        self.replica = replica
        self._host = host
        self._store = store
        self._topic: TopicView | None = None
        self._config = _DEFAULT_CONFIG
        machine = replica.state_machine
        self.clock = QueueClock(host.median_ms, host.boottime_ns, replica.core.log.append_time_ms)
        replica.use_clock(self.clock)
        self.bodies = QueueBodiesReader(replica, store)
        self.gate = QueueGate(machine, self.config, self._on_enqueued)
        self.appends = PartitionAppends(
            host.loop, replica, lambda: self.config().batch_bytes_max, ProducerFence(lambda: host.metadata), self.gate
        )
        self.upkeep = QueueUpkeep(self, host, store)
        self.commands = QueueCommands(
            host.loop, replica, self.clock, lambda: self.config().lease_ms, host.draw_seed, self.upkeep.tick
        )
        self.leases = QueueLeases(host.loop, replica, self.commands, lambda: self.gate.immediate)
        replica.role_listeners.append(lambda _change: self.appends.start_term())
        replica.restored_listeners.append(self.bodies.clear)

    def _on_enqueued(self) -> None:
        self.leases.wake()

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
        try:
            return await self.replica.in_thread(self._store.file_bytes, self.replica.key)
        except ReplicaClosedError as error:
            raise self.replica.not_leader() from error

    async def maintain(self) -> None:
        """See `Partition`."""
        await self.upkeep.maintain()

    async def truncation_index(self) -> LogIndex | None:
        """See `Partition`."""
        return await self.upkeep.truncation_index()

    def samples(self) -> Iterable[tuple[str, float]]:
        """See `Partition`."""
        return self.upkeep.samples()

    def config(self) -> QueueConfig:
        """Return the topic's settings in force, according to this node's metadata."""
        metadata = self._host.metadata.state_machine
        partition = metadata.partition(self.replica.group_id)
        topic = metadata.topic(partition.topic_id) if partition is not None else None
        if topic is not self._topic:
            # views are replaced, never changed, so comparing identities is enough
            self._topic = topic
            self._config = queue_config(topic.config) if topic is not None else _DEFAULT_CONFIG
        return self._config

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

    async def read_bodies(self, sequences: Sequence[int]) -> list[StoredBody | None]:
        """Return the bodies of messages, None for those that were finished in the meantime.

        Raises:
            RequestError: The replica was closed or is damaged.
        """
        found = self.bodies.in_memory(sequences)
        if found is not None:
            return list(found)
        try:
            read = await self.replica.in_thread(self.bodies.read, sequences)
        except ReplicaClosedError as error:
            raise RequestError(pb.NOT_LEADER, f"group {self.replica.group_id} is not served here any more") from error
        return [read.get(sequence) for sequence in sequences]
