"""Count the messages of a queue partition and their events on its leader, for the metrics and for `QueueStats`."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from raftmq.broker.base.histogram import Histogram
from raftmq.broker.partitions.queue.clock import QueueClock
from raftmq.broker.partitions.queue.leases import QueueLeases
from raftmq.broker.partitions.queue.views import QueueViews
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Leased, Results
from raftmq.fsm.queue.tallies import Tallies
from raftmq.fsm.queue.tenants import Tenant
from raftmq.raft.entry import Entry
from raftmq.raft.ready import Role, RoleChange

DWELL_SECONDS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86_400.0)
"""Bounds from one commit to a day."""
WINDOWS_LOOKED_MAX: Final = 1_000
"""Tenants of which the oldest ready message is looked for, those first that were not leased from for the longest time."""
PAUSED_SHOWN_MAX: Final = 1_000


class Counts(NamedTuple):
    """Messages by state."""

    ready: int
    delayed: int
    leased: int
    dead: int
    blocked: int


class QueueStatistics:
    """The numbers of one partition."""

    def __init__(self, replica: Replica[QueuePartition], clock: QueueClock, leases: QueueLeases) -> None:
        self._replica = replica
        self._clock = clock
        self._leases = leases
        self.dwell_seconds = Histogram(DWELL_SECONDS)
        """Time from when a message could be leased to its lease, of the first message of each run of leases."""
        self.oldest_on_disk: int | None = None
        """Due time of the oldest ready message that is not in memory, as it was measured last. Written by `measure`."""
        self._before = Tallies()
        self._dead_before = 0
        replica.role_listeners.append(self._on_role)
        replica.applier.listeners.append(self._on_applied)

    def _on_role(self, change: RoleChange) -> None:
        if change.role is Role.LEADER:
            state = self._replica.state_machine.state
            self._before, self._dead_before = copy(state.tallies), state.scalars.next_dead

    def _on_applied(self, _entry: Entry, result: object) -> None:
        if isinstance(result, Results) and self._replica.is_leader:
            for item in result.items:
                if isinstance(item, Leased):
                    self._observe(item)

    def _observe(self, leased: Leased) -> None:
        state = self._replica.state_machine.state
        for sequence in leased.first_sequences:
            message = state.store.messages.get(sequence)
            if message is not None:
                self.dwell_seconds.observe(max(0, state.scalars.now - message.due) / 1000)

    # ------------------------------------------------------------------------------------------------------------ reading

    @property
    def totals(self) -> Tallies:
        """Return the counts of events since this replica leads."""
        now, before = self._replica.state_machine.state.tallies, self._before
        return Tallies(
            now.enqueued - before.enqueued,
            now.leased - before.leased,
            now.redelivered - before.redelivered,
            now.accepted - before.accepted,
            now.released - before.released,
            now.expired_leases - before.expired_leases,
        )

    @property
    def dead_total(self) -> int:
        """Return how many messages died since this replica leads."""
        return self._replica.state_machine.state.scalars.next_dead - self._dead_before

    def dwell(self) -> Histogram:
        """Return how long messages could be leased before they were, in seconds."""
        return self.dwell_seconds

    def counts(self) -> Counts:
        """Return the messages by state."""
        machine = self._replica.state_machine
        scalars, leased = machine.state.scalars, machine.state.store.leased_count
        others = machine.ready_count + scalars.delayed_count + leased + scalars.dead_count
        return Counts(
            machine.ready_count, scalars.delayed_count, leased, scalars.dead_count, machine.message_count - others
        )

    async def measure(self, views: QueueViews) -> None:
        """Look on disk for the oldest ready message. Raises as `QueueViews.page`."""
        self.oldest_on_disk = await views.oldest_unread_due()

    def oldest_ready_ms(self) -> int:
        """Return how long the oldest ready message has been ready, or 0 without one. See `measure` for those on disk.

        Of a tenant's messages only the next one is looked at. With several priorities an older one may wait behind it.
        """
        state = self._replica.state_machine.state
        heads = (window.first() for window in islice(state.store.ready.values(), WINDOWS_LOOKED_MAX))
        dues = [head[1] for head in heads if head is not None]
        if self.oldest_on_disk is not None:
            dues.append(self.oldest_on_disk)
        oldest = min(dues, default=None)
        is_empty = not self._replica.state_machine.ready_count
        return 0 if oldest is None or is_empty else max(1, self._clock.read_ms() - oldest)

    def busiest(self, count_max: int) -> list[Tenant]:
        """Return copies of the tenants with the most messages."""
        tenants = self._replica.state_machine.state.tenants.living()
        return [copy(tenant) for tenant in nlargest(count_max, tenants, key=attrgetter("total")) if tenant.total]

    def paused(self) -> list[tuple[str, int]]:
        """Return the paused tenants and the queue times at which their pauses end."""
        state = self._replica.state_machine.state
        return list(islice(state.tenants.paused(state.scalars.now), PAUSED_SHOWN_MAX))

    def samples(self) -> Iterable[tuple[str, float | Histogram]]:
        """Yield the metrics of a partition that is led here."""
        if not self._replica.is_leader:
            return
        counts, totals, machine = self.counts(), self.totals, self._replica.state_machine
        yield "raftmq_queue_ready_messages", counts.ready
        yield "raftmq_queue_delayed_messages", counts.delayed
        yield "raftmq_queue_leased_messages", counts.leased
        yield "raftmq_queue_dead_messages", counts.dead
        yield "raftmq_queue_blocked_messages", counts.blocked
        yield "raftmq_queue_message_bytes", machine.byte_count
        yield "raftmq_queue_oldest_ready_seconds", self.oldest_ready_ms() / 1000
        yield "raftmq_queue_enqueued_total", totals.enqueued
        yield "raftmq_queue_leased_total", totals.leased
        yield "raftmq_queue_redelivered_total", totals.redelivered
        yield "raftmq_queue_accepted_total", totals.accepted
        yield "raftmq_queue_released_total", totals.released
        yield "raftmq_queue_expired_leases_total", totals.expired_leases
        yield "raftmq_queue_dead_total", self.dead_total
        yield "raftmq_queue_dwell_seconds", self.dwell_seconds.copy()
        yield "raftmq_queue_waiting_consumers", self._leases.consumers
        yield "raftmq_queue_jobs", len(machine.jobs.by_key)
        yield "raftmq_queue_schedules", len(machine.schedules.table.by_key)
        difference_ms = self._clock.difference_ms
        if difference_ms is not None:
            yield "raftmq_queue_clock_difference_seconds", difference_ms / 1000
