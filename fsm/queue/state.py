"""The state of a queue partition, and the transitions that all commands share.

A message is in exactly one state. `leave` and `enter` keep the counters of its tenant, the index of its state and the set of changed
messages together, so that nothing is freed in one place and forgotten in another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappush

import msgspec
from raftmq.fsm.queue import key_lines
from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.ids import IdTable
from raftmq.fsm.queue.key_lines import KeyHead
from raftmq.fsm.queue.limits import QUEUE_TIME_MAX, MemoryBounds
from raftmq.fsm.queue.message import DEAD, DELAYED, LINED, READY, Message
from raftmq.fsm.queue.point_table import PointTable
from raftmq.fsm.queue.settings import QueueSettings, backoff_ms
from raftmq.fsm.queue.store import MessageStore
from raftmq.fsm.queue.tallies import Tallies
from raftmq.fsm.queue.tenants import PurgeProgress, Tenant, TenantTable
from raftmq.fsm.queue.windows import Window
from raftmq.fsm.row_decoders import row_decoder


class QueueScalars(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The row of the partition's numbers."""

    generation: int = 0
    """+1 with each purge of everything."""
    next_sequence: int = 0
    """The sequence after the last DATA entry's."""
    purged_sequence: int = 0
    """Messages below this sequence were purged with their generation."""
    now: int = 0
    """The queue time of the last entry."""
    next_tenant: int = 1
    next_session: int = 1
    next_job: int = 1
    next_schedule_version: int = 1
    next_dead: int = 1
    """Number of the next dead message."""
    copied_dead: int = 0
    """The dead up to this number are in the dead letter topic, or do not exist any more."""
    copy_epoch: int = 0
    """Epoch of the producer that copies the dead, +1 whenever its sequences begin again. 0: no target was chosen yet."""
    copy_first: int = 1
    """The dead number that has the producer's sequence 0 in this epoch."""
    copy_topic: int = 0
    """The topic of the target of copies, by its id."""
    copy_partition: int = 0
    delayed_count: int = 0
    dead_count: int = 0
    expiring_count: int = 0
    """Messages that have a time of expiry."""
    ending_ids: int = 0
    """Ids of finished messages that are still recognized."""
    forgotten_producer_id: int = 0
    forgotten_named_producer_id: int = 0
    purge_cursor: int = 0
    """While a purge of everything goes on: the first tenant whose counters it has not set to zero yet."""
    purge_end: int = 0
    """The tenants from this number on are younger than that purge. 0: none goes on."""
    dead_bytes: int = 0
    """The bytes of dead messages: their stored bodies."""
    leases_ended_through: int = 0
    """Leases with a deadline up to this time have ended, or were due to end: `expire_before` of the last entry of commands. The next leader
    spares those that ended later, while it is not known to their consumers."""


def restart_copies(scalars: QueueScalars) -> None:
    """Let the sequences of the producer that copies the dead begin again with the next dead message to copy, under a new epoch."""
    scalars.copy_epoch += 1
    scalars.copy_first = scalars.copied_dead + 1


decode_scalars = row_decoder(QueueScalars)


class QueueState:
    """Hold the state of one partition."""

    def __init__(self, bounds: MemoryBounds) -> None:
        self.bounds = bounds
        self.scalars = QueueScalars()
        self.settings = QueueSettings()
        self.store = MessageStore(bounds)
        self.tenants = TenantTable(self.store)
        self.tallies = Tallies()
        self.ids = IdTable(bounds)
        self.heads: PointTable[KeyHead] = PointTable(
            keys.KEY_HEADS, KeyHead, bounds.points_max, is_complete=not bounds.is_cold
        )
        self.freed_lines: dict[bytes, None] = {}
        """Lines whose holder is gone and whose next message was not made ready yet. Empty between items."""
        self.jitter_seed = 0
        """Of the entry that is applied."""
        self.lease_numbers_after = 0
        """Of the entry that is applied."""
        self.dwells_ms: list[int] = []
        """Of the entry that was applied last: for how long the first message of each run of leases had been ready. It influences nothing."""

    def tenant(self, path: str) -> Tenant:
        """Return a tenant, which is added if it is new. Its path must be valid."""
        if path not in self.tenants.by_path:
            self.scalars.next_tenant = self.tenants.add(path, self.scalars.next_tenant)
        tenant = self.tenants.by_path[path]
        if self.tenants.is_void(tenant):
            self.tenants.renew(tenant)
        return tenant

    # -------------------------------------------------------------------------------------------------------- transitions

    def enter(self, m: Message, state: int) -> None:
        """Bring a message that is in no state into one, with its counters and its index."""
        tenant = self.tenants.by_number[m.tenant]
        m.state = state
        head = self.heads.read(m.line) if state == LINED else None
        self.store.index(m, tenant.ready, 0 if head is None else head.waiting)
        if state == READY:
            tenant.ready += 1
        elif state == DELAYED:
            tenant.delayed += 1
            self.scalars.delayed_count += 1
        elif state == LINED:
            tenant.lined += 1
        elif state == DEAD:
            tenant.dead += 1
            self.scalars.dead_count += 1
            self.scalars.dead_bytes += m.body_bytes
        else:
            tenant.leased += 1
            self.store.leased_count += 1
            heappush(self.store.leases, (m.deadline, m.sequence))
        self.tenants.touch(tenant)

    def leave(self, m: Message) -> None:
        """Take a message out of its state. Its key stays in the index and is not valid any more."""
        tenant = self.tenants.by_number[m.tenant]
        state = m.state
        if state != READY:
            m.deadline = self.scalars.now
        if state == READY:
            tenant.ready -= 1
        elif state == DELAYED:
            tenant.delayed -= 1
            self.scalars.delayed_count -= 1
        elif state == LINED:
            tenant.lined -= 1
        elif state == DEAD:
            tenant.dead -= 1
            self.scalars.dead_count -= 1
            self.scalars.dead_bytes -= m.body_bytes
        else:
            m.leased_at = 0
            tenant.leased -= 1
            self.store.leased_count -= 1
            self.tenants.tree.free(m.tenant)
        self.tenants.touch(tenant)

    def finish(self, m: Message) -> None:
        """Remove a message: it was accepted, cancelled, purged or replaced, or it has expired. Its head must be in memory."""
        self.leave(m)
        if m.line:
            key_lines.let_go(self, m)
        self.forget(m)

    def forget(self, m: Message) -> None:
        """Free everything that a message holds besides its state: bytes, id and rows."""
        self.tenants.by_number[m.tenant].bytes -= m.body_bytes
        if m.expires_at:
            self.scalars.expiring_count -= 1
        if m.id:
            self.ids.release(m.id, m.sequence, m.id_until, self.scalars.now)
        self.store.remove(m)

    def bury(self, m: Message, reason: int) -> None:
        """Give a message up. Its head must be in memory."""
        self.leave(m)
        if m.line:
            key_lines.let_go(self, m)
        if m.expires_at:
            self.scalars.expiring_count -= 1
            m.expires_at = 0
        m.dead_number, m.dead_at, m.dead_reason = self.scalars.next_dead, self.scalars.now, reason
        self.scalars.next_dead += 1
        self.enter(m, DEAD)

    def give_back(self, m: Message) -> None:
        """Let a message whose lease ended wait again, until its due time. It still holds its line."""
        self.leave(m)
        self.enter(m, READY if m.due <= self.scalars.now else DELAYED)

    def admit(self, m: Message) -> None:
        """Let a message that is in no state wait: until it is due, in its line, or for a consumer."""
        if m.due > self.scalars.now:
            self.enter(m, DELAYED)
        elif m.line:
            key_lines.join(self, m)
        else:
            self.enter(m, READY)

    def promote(self, messages: Sequence[Message]) -> None:
        """Let delayed messages be ready, or join their lines. A million may be due together, so it counts for a tenant once."""
        store, by_number = self.store, self.tenants.by_number
        touched: dict[int, Window] = {}
        for m in messages:
            # A displaced holder is never one of these: it waits for its own time, and then joins like them.
            assert m.state == DELAYED
            if m.line:
                self.leave(m)
                self.admit(m)
                continue
            tenant = by_number[m.tenant]
            window = touched[m.tenant] = store.ready_window(m.tenant, tenant.ready)
            tenant.delayed -= 1
            tenant.ready += 1
            self.scalars.delayed_count -= 1
            m.state = READY
            window.insert((m.priority, m.due, m.sequence))
            store.dirty.add(m.sequence)
        for number, window in touched.items():
            self.tenants.touch(by_number[number])
            store.check_size(window)

    def later(self, delay_ms: int) -> int:
        """Return the queue time so long after now."""
        return min(self.scalars.now + max(delay_ms, 0), QUEUE_TIME_MAX)

    def retry_due(self, m: Message) -> int:
        """Return when a message whose attempt failed may be leased again."""
        delay = backoff_ms(self.settings, m.attempts, m.sequence, self.jitter_seed)
        return self.later(delay) if delay else m.due

    def is_exhausted(self, m: Message) -> bool:
        """Return whether a message has no attempt left."""
        return 0 < self.settings.attempts_max <= m.attempts

    def is_expired(self, m: Message) -> bool:
        """Return whether a message's time to live has passed."""
        return 0 < m.expires_at <= self.scalars.now

    # ------------------------------------------------------------------------------------------------------------- whole

    def purge(self) -> int:
        """Remove all messages by beginning a new generation. Return how many there were. `continue_purge` must follow."""
        scalars = self.scalars
        scalars.generation += 1
        count = self.tenants.begin_purge(scalars.generation)
        scalars.purge_cursor, scalars.purge_end = 0, scalars.next_tenant
        scalars.purged_sequence = scalars.next_sequence
        if scalars.copied_dead < scalars.next_dead - 1:
            scalars.copied_dead = scalars.next_dead - 1
            restart_copies(scalars)
        scalars.delayed_count = scalars.dead_count = scalars.dead_bytes = scalars.expiring_count = 0
        self.freed_lines.clear()
        self.store.purge()
        self.ids.reset(scalars.generation, 0, is_complete=True)
        self.heads.reset(scalars.generation, is_complete=True)
        return count

    @property
    def is_purging(self) -> bool:
        """Return whether a purge of everything goes on. All messages of before are gone, and nothing is leased until it ends."""
        return self.scalars.purge_end > 0

    def continue_purge(self) -> None:
        """Set the counters of the next tenants to zero, if a purge of everything goes on. Comes at the end of every command entry."""
        if self.is_purging:
            self.tenants.purge_slice()
            cursor = self.tenants.purge_cursor
            self.scalars.purge_cursor = cursor or 0
            if cursor is None:
                self.scalars.purge_end = 0

    def restore(self, leased: Iterable[Message]) -> None:
        """Complete the state after its scalars, settings and tenants were loaded."""
        scalars = self.scalars
        self.store.restore(
            scalars.generation,
            leased,
            has_delayed=scalars.delayed_count > 0,
            has_expiry=scalars.expiring_count > 0,
        )
        self.ids.reset(scalars.generation, scalars.ending_ids, is_complete=False)
        self.heads.reset(scalars.generation, is_complete=False)
        self.tenants.finish_loading(
            self.settings, scalars.now, PurgeProgress(scalars.generation, scalars.purge_cursor, scalars.purge_end)
        )
