"""Count the messages of a queue partition and their events on its leader, for the metrics and for `QueueStats`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from raftmq.fsm.queue.results import Results
from raftmq.fsm.queue.tallies import Tallies
from raftmq.fsm.queue.tenants import Tenant
from raftmq.fsm.queue.windows import Key, Window
from raftmq.raft.entry import Entry
from raftmq.raft.ready import Role, RoleChange

DWELL_SECONDS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86_400.0)
"""Bounds from one commit to a day."""
WINDOWS_LOOKED_MAX: Final = 1_000
"""Tenants of which the oldest ready message is looked for, those first that were not leased from for the longest time."""
MESSAGES_SAMPLED: Final = 32
"""Messages of a tenant that are looked at when its next one has just become ready again, for older ones after it."""
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
        """Time from when a message became ready to its lease, of the first message of each run of leases."""
        self.oldest_on_disk: int | None = None
        """Since when the oldest message on disk alone has been ready, as it was measured last. Written by `measure`."""
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
            for dwell_ms in self._replica.state_machine.state.dwells_ms:
                self.dwell_seconds.observe(dwell_ms / 1000)

    # ------------------------------------------------------------------------------------------------------------ reading

    @property
    def totals(self) -> Tallies:
        """Return the counts of events since this replica leads."""
        return self._replica.state_machine.state.tallies.since(self._before)

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
        self.oldest_on_disk = await views.oldest_unread()

    def oldest_ready_ms(self) -> int:
        """Return how long the oldest ready message has been ready, or 0 without one. See `measure` for those on disk.

        It is never more, and may be less. Of a tenant's messages only the next one is looked at, and a sample of the others if that one
        was leased or blocked before. An older one may have a lower priority, or be on disk.
        """
        state = self._replica.state_machine.state
        windows = list(islice(state.store.ready.values(), WINDOWS_LOOKED_MAX))
        times = [since for window in windows for since in self._ready_since(window)]
        if self.oldest_on_disk is not None:
            times.append(self.oldest_on_disk)
        oldest = min(times, default=None)
        is_empty = not self._replica.state_machine.ready_count
        return 0 if oldest is None or is_empty else max(1, self._clock.read_ms() - oldest)

    def _ready_since(self, window: Window) -> Iterator[int]:
        """Yield since when some messages of a tenant are ready: the next one, and those that may have been ready before it."""
        head = window.first()
        if head is None:
            return
        messages = self._replica.state_machine.state.store.messages
        first = messages[head[-1]]
        yield first.ready_since
        if first.ready_since > first.due:
            sample = _sample(window.heap) + _sample(window.beyond)
            yield from (messages[key[-1]].ready_since for key in sample if window.is_valid(key))

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
        yield "raftmq_queue_expired_total", totals.expired
        yield "raftmq_queue_dead_total", self.dead_total
        yield "raftmq_queue_removed_dead_total", totals.removed_dead
        yield "raftmq_queue_dwell_seconds", self.dwell_seconds.copy()
        yield "raftmq_queue_waiting_consumers", self._leases.consumers
        yield "raftmq_queue_jobs", len(machine.jobs.by_key)
        yield "raftmq_queue_schedules", len(machine.schedules.table.by_key)
        yield "raftmq_queue_skipped_firings_total", totals.skipped_firings
        yield "raftmq_queue_clock_stepped_seconds_total", self._clock.stepped_ms / 1000
        difference_ms = self._clock.difference_ms
        if difference_ms is not None:
            yield "raftmq_queue_clock_difference_seconds", difference_ms / 1000


def _sample(heap: list[Key]) -> list[Key]:
    """Return keys from all places of a heap."""
    return heap[:: len(heap) // MESSAGES_SAMPLED + 1]
