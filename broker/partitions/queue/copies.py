"""Keep the copies of the dead of one queue partition: what is left to copy, the next batch, and the record of what was copied.

It reads the partition and proposes commands. `services/queue/dead_letters.py` sends the batches. The progress is part of the partition's
state, so the next leader continues, under the same epoch and sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import pause_after
from raftmq.broker.partitions.host import PartitionHost
from raftmq.broker.partitions.queue.bodies import StoredBody
from raftmq.broker.partitions.queue.commands import QueueCommands
from raftmq.broker.partitions.queue.config import QueueConfig
from raftmq.broker.partitions.queue.copy_batch import Source, encode_copies
from raftmq.broker.partitions.queue.copy_plan import (
    COPY_BYTES_MAX,
    COPY_MESSAGES_MAX,
    CopyRun,
    CopyTarget,
    Restart,
    first_run,
    is_aimed_at,
    run_of,
    target_of,
)
from raftmq.broker.partitions.queue.views import QueueViews, Wanted
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.commands import AimCopies, CopyDead
from raftmq.fsm.queue.message import DEAD, Message
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Done
from raftmq.fsm.queue.state import QueueScalars
from raftmq.fsm.topic_config import BATCH_OVERHEAD_BYTES
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.ready import Role, RoleChange

RETRY_SECONDS_MIN: Final = 0.2
RETRY_SECONDS_MAX: Final = 10.0
"""The longest pause after refusals: copies go on soon after a full target has room."""
_SMALLER_HELPS: Final = frozenset({pb.QUEUE_FULL, pb.TENANT_FULL, pb.RECORD_TOO_LARGE})
"""Refusals after which a smaller batch may be accepted."""


class CopiedPartition(Protocol):
    """A queue partition as its copies see it."""

    replica: Replica[QueuePartition]
    commands: QueueCommands
    upkeep_views: QueueViews
    """Not those of requests, so that no number of them keeps the broker from its own work."""

    def config(self) -> QueueConfig:
        """Return the topic's settings in force."""
        ...

    def tenant_names(self, messages: list[Message]) -> list[str]:
        """Return the tenant of each message."""
        ...

    async def read_bodies(self, sequences: list[int]) -> list[StoredBody | None]:
        """Return the bodies of messages, None for those that were finished in the meantime."""
        ...


class Copy(NamedTuple):
    """Dead messages as of one moment, ready to be encoded."""

    run: CopyRun
    messages: list[Message]
    tenants: list[str]
    bodies: list[StoredBody]

    def encode(self, source: Source, target: CopyTarget, producer_id: int) -> bytes:
        """Return the batch. Raises as `encode_copies`."""
        return encode_copies(source, target, self.run, producer_id, self.messages, self.tenants, self.bodies)


class _Found(NamedTuple):
    """The dead that come next, and the number up to which there are no others."""

    messages: list[Message]
    through_number: int


class QueueCopies:
    """The copies of one partition, while this replica leads it."""

    def __init__(self, partition: CopiedPartition, host: PartitionHost) -> None:
        self._partition = partition
        self._host = host
        self._retry_at = 0.0
        """Loop time of the next attempt."""
        self._failures = 0
        """Refusals since the last success."""
        self._count_max = COPY_MESSAGES_MAX
        """Messages of the next batch: fewer while the target has little room."""
        self._sent_count = 0
        """Messages of the last batch."""
        self.begun_at = 0.0
        """Loop time of the last turn. Partitions take turns."""
        self.copied_total = 0
        """Messages copied since this replica leads."""
        self.refused_total = 0
        """Attempts that the target refused since this replica leads."""
        self.producer_id = 0
        """The id of the producer's name. 0: it is asked for."""
        self.claimed_at = 0.0
        """Loop time at which the name was used last."""
        partition.replica.role_listeners.append(self._on_role)

    def _on_role(self, change: RoleChange) -> None:
        self._retry_at, self._failures, self._count_max = 0.0, 0, COPY_MESSAGES_MAX
        self.producer_id = 0
        if change.role is Role.LEADER:
            self.copied_total = self.refused_total = 0

    @property
    def _scalars(self) -> QueueScalars:
        return self._partition.replica.state_machine.state.scalars

    # ------------------------------------------------------------------------------------------------ the state

    @property
    def left(self) -> int:
        """Return how many dead messages wait for their copy, those included that were redriven or removed. 0 without a target."""
        if not self._partition.config().dead_letter_topic:
            return 0
        return self._scalars.next_dead - 1 - self._scalars.copied_dead

    def is_due(self, now: float) -> bool:
        """Return whether the next copy may be attempted."""
        replica = self._partition.replica
        return replica.is_leader and not replica.applier.is_suspended and now >= self._retry_at and self.left > 0

    def target(self) -> CopyTarget:
        """Return the target according to this node's metadata. Raises as `target_of`, and UNKNOWN_TOPIC after the partition's end."""
        metadata = self._host.metadata.state_machine
        name = self._partition.config().dead_letter_topic
        return target_of(name, metadata.topic_by_name(name), self.source().partition, self._scalars)

    def is_aimed_at(self, target: CopyTarget) -> bool:
        """Return whether copies go to this target already."""
        return is_aimed_at(target, self._scalars)

    def source(self) -> Source:
        """Return the name of the partition."""
        metadata, group_id = self._host.metadata.state_machine, self._partition.replica.group_id
        view = metadata.partition(group_id)
        topic = metadata.topic(view.topic_id) if view is not None else None
        if topic is None:
            raise RequestError(pb.UNKNOWN_TOPIC, f"metadata has no partition with group {group_id} any more")
        return Source(topic.name, topic.group_ids.index(group_id))

    def samples(self) -> Iterator[tuple[str, float]]:
        """Yield the metrics of a partition that is led here."""
        if self._partition.replica.is_leader:
            yield "raftmq_queue_uncopied_dead_messages", self.left
            yield "raftmq_queue_copied_dead_total", self.copied_total
            yield "raftmq_queue_refused_copies_total", self.refused_total

    # ------------------------------------------------------------------------------------------------ reading

    async def next_copy(self, target: CopyTarget, deadline: float) -> Copy | None:
        """Return the next messages with their bodies. None: there was none at this moment, or they changed during the read.

        If none is left, that is recorded. Raises RequestError. The caller bounds the time.
        """
        scalars = self._scalars
        epoch = scalars.copy_epoch
        found = await self._find_dead()
        if not found.messages:
            await self._record(found.through_number, epoch, deadline)
            return None
        bytes_max = min(COPY_BYTES_MAX, target.batch_bytes_max - BATCH_OVERHEAD_BYTES)
        messages = first_run(found.messages, self._count_max, bytes_max)
        self._sent_count = len(messages)
        tenants = self._partition.tenant_names(messages)
        run = run_of(messages, self._scalars)
        stored = await self._partition.read_bodies([message.sequence for message in messages])
        bodies = [body for body in stored if body is not None]
        if len(bodies) < len(stored) or self._scalars.copy_epoch != epoch:
            return None
        return Copy(run, messages, tenants, bodies)

    async def _find_dead(self) -> _Found:
        """Return the dead that come next. Raises as `QueueViews.page`."""
        scalars = self._scalars
        through, cursor = scalars.next_dead - 1, keys.dead_key(scalars.generation, scalars.copied_dead)
        page = await self._partition.upkeep_views.page(Wanted((DEAD,)), keys.location_value(cursor), self._count_max)
        if not page.messages and page.cursor:  # nothing but rows of messages that have moved on
            through = min(through, keys.number_of_dead(keys.key_of_location(scalars.generation, page.cursor)))
        return _Found(list(page.messages), through)

    # ------------------------------------------------------------------------------------------------ recording

    async def aim(self, target: CopyTarget, deadline: float) -> None:
        """Copy to this target from now on. Raises as `QueueCommands.execute`."""
        command = AimCopies(target.topic_id, target.partition, self._scalars.copy_epoch + 1)
        await self._partition.commands.execute(command, Done, deadline)

    async def on_copied(self, run: CopyRun, through_number: int, deadline: float) -> None:
        """Record that the target has the dead up to a number. Raises as `QueueCommands.execute`."""
        await self._record(through_number, run.epoch, deadline)
        self.copied_total += through_number - run.first_number + 1
        self._failures, self._count_max = 0, min(2 * self._count_max, COPY_MESSAGES_MAX)

    async def restart(self, run: CopyRun, restart: Restart, target: CopyTarget, deadline: float) -> None:
        """Let the sequences begin again with a run that the target could not take. Raises as `QueueCommands.execute`."""
        await self._record(restart.through_number, run.epoch, deadline)
        command = AimCopies(target.topic_id, target.partition, run.epoch + 1)
        await self._partition.commands.execute(command, Done, deadline)
        self._failures += 1
        if self._failures > 1:
            self._pause()  # nothing was copied since the last restart

    def on_refused(self, error: RequestError) -> None:
        """Wait before the next attempt, and try fewer messages if that may help. Only a single one is tried less often each time."""
        self.refused_total += 1
        if error.code in _SMALLER_HELPS:
            is_single, self._count_max = self._sent_count <= 1, max(1, self._sent_count // 2)
            if not is_single:
                self._retry_at = self._host.loop.time() + RETRY_SECONDS_MIN
                return
        self.pause()

    def pause(self) -> None:
        """Wait before the next attempt, longer after each failure in a row."""
        self._failures += 1
        self._pause()

    def _pause(self) -> None:
        self._retry_at = self._host.loop.time() + pause_after(self._failures, RETRY_SECONDS_MIN, RETRY_SECONDS_MAX)

    async def _record(self, through_number: int, epoch: int, deadline: float) -> None:
        if through_number > self._scalars.copied_dead:
            await self._partition.commands.execute(CopyDead(through_number, epoch), Done, deadline)
