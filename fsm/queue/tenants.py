"""The tenants of a partition: their counters, their pauses, and whose turn it is.

Counters are stored with the tenants and never recounted. A tenant whose counters changed is reported to the tree of turns (`fairness`)
before the next choice, and not with each message.

Invariants: every count equals the number of messages in that state. A tenant's ancestors exist. A tenant without messages is forgotten
after a while, when its turns and its rate allow it, by queue time alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from struct import Struct
from typing import Final, NamedTuple

import msgspec
from raftmq.fsm.queue.fairness import (
    ROOT_TENANT,
    Fairness,
    FairnessTree,
    HeadKey,
    Strategy,
    TenantRow,
    TenantTurns,
    ancestors,
)
from raftmq.fsm.queue.limits import TENANT_IDLE_MS, TENANTS_FORGOTTEN_MAX, TENANTS_RESET_MAX, WINDOWS_TOGETHER_MAX
from raftmq.fsm.queue.rates import BucketRow, Rate, TenantRates
from raftmq.fsm.queue.rows import TENANTS
from raftmq.fsm.queue.settings import QueueSettings
from raftmq.fsm.queue.store import MessageStore, Reading
from raftmq.fsm.queue.tenant_weights import TenantWeights
from raftmq.fsm.queue.windows import Window
from raftmq.fsm.row_decoders import row_decoder
from raftmq.fsm.tables import DirtyRow, Row, encode_value

PAUSED_FOREVER: Final = 1 << 62
_UNKNOWN_HEAD: Final[HeadKey] = (-(1 << 31), 0, 0)
"""The smallest head. It stands for a head that must be read before anything is chosen."""
_GARBAGE_MIN: Final = 64
_KEY = Struct(">BI")


class Tenant(msgspec.Struct, gc=False):
    """Count the messages of one tenant, those of its children not included."""

    number: int
    path: str
    ready: int = 0
    delayed: int = 0
    lined: int = 0
    """Ready, and behind the heads of their keys."""
    leased: int = 0
    dead: int = 0
    bytes: int = 0
    """Stored bodies of all its messages."""
    paused_until: int = 0
    """End of its own pause."""
    idle_since: int = 0
    """The time since which it has no messages; 0 while it has some."""
    purged_in: int = 0
    """The generation of the last purge of everything in which its counters were set to zero. It matters while that goes on."""
    seen_ready: int = 0
    """`ready`, as the totals of the partition have it. Not in its row, as the next two."""
    seen_total: int = 0
    seen_bytes: int = 0
    seen_leasable: int = 0
    """Ready messages that its pauses, its rate and its limit let be leased, as the total of the partition has it. Not in its row."""

    @property
    def total(self) -> int:
        """Return the number of its messages."""
        return self.ready + self.delayed + self.lined + self.leased + self.dead


class StoredTenant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A tenant's row."""

    path: str
    ready: int
    delayed: int
    lined: int
    leased: int
    dead: int
    bytes: int
    paused_until: int
    idle_since: int
    purged_in: int
    turns: TenantTurns
    bucket: BucketRow | None


class PurgeProgress(NamedTuple):
    """A purge of everything that goes on."""

    generation: int
    """The generation that it began."""
    cursor: int
    """The first tenant that it has to visit yet."""
    end: int
    """The tenants from this number on are younger. 0: no purge goes on."""


_decode_row = row_decoder(StoredTenant)


class TenantTable:
    """Hold the tenants of one partition. All of them are in memory."""

    def __init__(self, store: MessageStore) -> None:
        self.tag = TENANTS
        self._store = store
        self.clear()

    def clear(self) -> None:
        """Forget all tenants and settings, as `RowSource` demands."""
        self.tree = FairnessTree()
        self.rates = TenantRates()
        self.root = Tenant(ROOT_TENANT, "")
        self.by_number: dict[int, Tenant] = {ROOT_TENANT: self.root}
        self.by_path: dict[str, Tenant] = {"": self.root}
        self.ready_count = 0
        """Ready messages of all tenants, as of the last entry."""
        self.message_count = 0
        """Messages of all tenants, in any state, as of the last entry."""
        self.byte_count = 0
        """Their stored bodies."""
        self.leasable_count = 0
        """Ready messages that pauses, rates and limits of their tenants let be leased, as of the last entry. Rates count as open or blocked."""
        self._touched: dict[int, Tenant] = {}
        """Tenants to be reported to the tree."""
        self._uncounted: dict[int, Tenant] = {}
        """Tenants whose counters are not in those of the partition."""
        self._unmeasured: dict[int, Tenant] = {}
        """Tenants whose leasable messages must be counted although their counters are the same."""
        self._unheaded: dict[int, Tenant] = {}
        """Tenants whose next message must be read before anything is chosen. Only with the strategy `none`."""
        self._dirty: set[int] = set()
        self._pause_ends: list[tuple[int, int]] = []
        """A heap of (end, tenant), with outdated entries."""
        self._idle: list[tuple[int, int]] = []
        """A heap of (idle since, tenant), with outdated entries."""
        self._loaded: list[TenantRow] = []
        self._buckets: dict[int, BucketRow | None] = {}
        self._unpurged: deque[int] = deque()
        """While a purge of everything goes on: the tenants that it has not visited yet, by number."""
        self._generation = 0
        """Of that purge."""

    # ----------------------------------------------------------------------------------------------------------- settings

    def configure(self, settings: QueueSettings, now: int) -> None:
        """Take the settings that concern tenants."""
        if self.tree.configure(fairness_of(settings)):
            for tenant in self.by_number.values():
                self.touch(tenant)
            self._unheaded.clear()
        rate = rate_of(settings)
        if rate != self.rates.rate:
            for number in self.rates.configure(rate, now):
                self.touch(self.by_number[number])
        self._unmeasured.update(self.by_number)  # a limit may have changed

    # ------------------------------------------------------------------------------------------------------------ tenants

    def add(self, path: str, next_number: int) -> int:
        """Add a tenant and the ancestors that are missing, with numbers from `next_number` on. Return the next free number."""
        for one in (*ancestors(path), path):
            if one not in self.by_path:
                tenant = Tenant(next_number, one)
                self.by_path[one] = self.by_number[next_number] = tenant
                self.tree.add(next_number, one)
                self.touch(tenant)
                next_number += 1
        return next_number

    def touch(self, tenant: Tenant) -> None:
        """Remember that a tenant's counters or pauses changed."""
        self._touched[tenant.number] = tenant
        self.count(tenant)

    def count(self, tenant: Tenant) -> None:
        """Remember that a tenant's counters changed, but neither its next message nor whether it has one."""
        self._uncounted[tenant.number] = tenant
        self._dirty.add(tenant.number)

    def on_leased(self, tenant: Tenant) -> None:
        """Remember that messages of a tenant were leased. The tree counts its turns itself while it has another one."""
        if tenant.ready and self.rates.rate is None and self.tree.settings.strategy is not Strategy.NONE:
            self.count(tenant)
        else:
            self.touch(tenant)

    def pause(self, tenant: Tenant, until: int) -> None:
        """Pause a subtree until a time. 0 ends the pause. Only the row of its top changes."""
        tenant.paused_until = until
        if until:
            heappush(self._pause_ends, (until, tenant.number))
            if len(self._pause_ends) > 2 * len(self.by_number) + _GARBAGE_MIN:
                self._rebuild_pause_ends()
        self.touch(tenant)
        if not self.tree.has_children(tenant.number):
            return  # a look at all tenants is slow, and many pauses may end in one entry
        prefix = f"{tenant.path}."
        below = {one.number: one for path, one in self.by_path.items() if path.startswith(prefix)}
        self._touched |= below
        self._unmeasured |= below

    def _rebuild_pause_ends(self) -> None:
        self._pause_ends = [(one.paused_until, one.number) for one in self.by_number.values() if one.paused_until]
        heapify(self._pause_ends)

    def is_paused(self, now: int) -> bool:
        """Return whether the whole partition is paused."""
        return self.root.paused_until > now

    def paused(self, now: int) -> Iterator[tuple[str, int]]:
        """Yield the paths of tenants with a pause of their own, each with its end."""
        for number in dict.fromkeys(number for _, number in self._pause_ends):
            tenant = self.by_number.get(number)
            if tenant is not None and tenant.paused_until > now:
                yield tenant.path, tenant.paused_until

    # --------------------------------------------------------------------------------------------------------------- time

    def advance(self, now: int) -> None:
        """End pauses, free tenants that their rate blocked, and forget tenants that were idle for long."""
        ends = self._pause_ends
        while ends and ends[0][0] <= now:
            until, number = heappop(ends)
            tenant = self.by_number.get(number)
            if tenant is not None and tenant.paused_until == until:
                self.pause(tenant, 0)
        if self.rates.rate is not None:
            for number in self.rates.take_unblocked(now, TENANTS_FORGOTTEN_MAX):
                self.touch(self.by_number[number])
        if self._idle and not self._unpurged:
            self._forget_idle(now)

    def next_deadline(self) -> int | None:
        """Return the time at which a pause or a rate next lets something be leased, or None."""
        ends = [end for end in (self._next_pause_end(), self.rates.next_at()) if end is not None]
        return min(ends, default=None)

    def _next_pause_end(self) -> int | None:
        ends = self._pause_ends
        while ends:
            until, number = ends[0]
            tenant = self.by_number.get(number)
            if tenant is not None and tenant.paused_until == until:
                return until if until < PAUSED_FOREVER else None
            heappop(ends)
        return None

    def _forget_idle(self, now: int) -> None:
        idle, forgotten = self._idle, 0
        while idle and idle[0][0] + TENANT_IDLE_MS <= now and forgotten < TENANTS_FORGOTTEN_MAX:
            since, number = heappop(idle)
            tenant = self.by_number.get(number)
            if tenant is None or tenant.idle_since != since:
                continue
            forgotten += 1
            if tenant.paused_until or not self.tree.is_forgettable(number) or not self.rates.is_full(number, now):
                tenant.idle_since = now
                heappush(idle, (now, number))
                self._dirty.add(number)
            else:
                self._forget(tenant)
        if len(idle) > 2 * len(self.by_number) + _GARBAGE_MIN:
            self._rebuild_idle()

    def _forget(self, tenant: Tenant) -> None:
        number = tenant.number
        del self.by_number[number], self.by_path[tenant.path]
        self._touched.pop(number, None)
        self._uncounted.pop(number, None)
        self._unmeasured.pop(number, None)
        self._unheaded.pop(number, None)
        self.tree.remove(number)
        self.rates.forget(number)
        self._store.ready.pop(number, None)
        self._dirty.add(number)

    def _rebuild_idle(self) -> None:
        self._idle = [(one.idle_since, one.number) for one in self.by_number.values() if one.idle_since]
        heapify(self._idle)

    # -------------------------------------------------------------------------------------------------------------- purge

    def begin_purge(self, generation: int) -> int:
        """Let all counters be void, and return how many messages there were. `purge_slice` sets them to zero, a few in an entry.

        In the meantime nothing may be leased, because the tree still has the turns of tenants that are void.
        """
        for tenant in self._uncounted.values():
            self._count(tenant)
        count = self.message_count
        self.ready_count = self.message_count = self.byte_count = self.leasable_count = 0
        self._generation = generation
        self._unpurged = deque(self.by_number)  # numbers rise, so they are in their order
        return count

    @property
    def purge_cursor(self) -> int | None:
        """Return the first tenant that a purge has to visit yet. None: no purge goes on."""
        return self._unpurged[0] if self._unpurged else None

    def purge_slice(self) -> None:
        """Visit the next tenants of a purge, at most `TENANTS_RESET_MAX`."""
        unpurged = self._unpurged
        for _ in range(min(TENANTS_RESET_MAX, len(unpurged))):
            tenant = self.by_number[unpurged[0]]
            if self.is_void(tenant):
                self.renew(tenant)
            unpurged.popleft()

    def is_void(self, tenant: Tenant) -> bool:
        """Return whether the counters of a tenant are those of messages that were purged: it has none."""
        unpurged = self._unpurged
        return bool(unpurged) and unpurged[0] <= tenant.number <= unpurged[-1] and tenant.purged_in != self._generation

    def renew(self, tenant: Tenant) -> None:
        """Set the counters of a tenant that is void to zero. The totals of the partition do not contain them any more."""
        tenant.purged_in = self._generation
        tenant.seen_leasable = 0
        if tenant.leased:
            self.tree.free(tenant.number, tenant.leased)
        if tenant.total or tenant.bytes:
            tenant.ready = tenant.delayed = tenant.lined = tenant.leased = tenant.dead = tenant.bytes = 0
            tenant.seen_ready = tenant.seen_total = tenant.seen_bytes = 0
            self.touch(tenant)
        self._dirty.add(tenant.number)

    def living(self) -> Iterator[Tenant]:
        """Yield the tenants whose counters count."""
        return (tenant for tenant in self.by_number.values() if not self.is_void(tenant))

    # -------------------------------------------------------------------------------------------------------------- turns

    def refresh(self, now: int) -> None:
        """Report the touched tenants to the tree. Comes before every choice.

        Those that have something leasable come first. If `a.x` is emptied and `a.y` is filled together, `a` then has something all the
        time and keeps its pass, so that the order in which tenants were touched has no effect.
        """
        touched = self._touched
        if touched:
            self._touched = {}
            emptied = [number for number, tenant in touched.items() if not self._report(tenant, now)]
            for number in emptied:
                self.tree.set_leasable(number, is_leasable=False)

    def finish_entry(self, now: int) -> None:
        """Report the touched tenants to the tree and count them. Comes at the end of every entry."""
        self.refresh(now)
        for tenant in self._uncounted.values():
            self._count(tenant)
            self._count_leasable(tenant, now)
            self._follow_idleness(tenant, now)
        self._uncounted.clear()
        for tenant in self._unmeasured.values():
            self._count_leasable(tenant, now)
        self._unmeasured.clear()

    def may_lease(self, tenant: Tenant, now: int) -> bool:
        """Return whether one more message of a tenant may be leased, if it has one."""
        return not self._is_held(tenant, now) and self.tree.lease_room(tenant.number) != 0

    @property
    def has_unread_heads(self) -> bool:
        """Return whether `resolve_heads` must come before a choice."""
        return bool(self._unheaded)

    def resolve_heads(self) -> Reading[None]:
        """Read the heads without which the strategy `none` cannot choose."""
        tenants = list(self._unheaded.values())
        self._unheaded.clear()
        for first in range(0, len(tenants), WINDOWS_TOGETHER_MAX):
            together = tenants[first : first + WINDOWS_TOGETHER_MAX]
            windows = [self._store.ready_window(tenant.number, tenant.ready) for tenant in together]
            while unread := [window for window in windows if window.is_unread()]:
                yield from self.fill_together(unread)
            for tenant, window in zip(together, windows, strict=True):
                self.tree.set_leasable(tenant.number, is_leasable=True, head=window.first() or _UNKNOWN_HEAD)

    def fill_together(self, windows: Sequence[Window]) -> Reading[None]:
        """Read the next rows of some tenants' windows in one read."""
        return self._store.fill_together(windows, self._store.rows_of_each(len(windows), len(self.by_number)))

    def _count(self, tenant: Tenant) -> None:
        """Bring a tenant's counters into those of the partition."""
        total = tenant.total
        self.ready_count += tenant.ready - tenant.seen_ready
        self.message_count += total - tenant.seen_total
        self.byte_count += tenant.bytes - tenant.seen_bytes
        tenant.seen_ready, tenant.seen_total, tenant.seen_bytes = tenant.ready, total, tenant.bytes

    def _count_leasable(self, tenant: Tenant, now: int) -> None:
        """Bring the leasable messages of a tenant into those of the partition. Those of a purged tenant are not in it."""
        if self.is_void(tenant):
            return
        count = 0
        if tenant.ready and not self._is_held(tenant, now):
            room = self.tree.lease_room(tenant.number)
            count = tenant.ready if room is None else min(tenant.ready, room)
        self.leasable_count += count - tenant.seen_leasable
        tenant.seen_leasable = count

    def leasable_of(self, subtrees: Sequence[str]) -> int:
        """Return how many leasable messages are in subtrees, at most. It is exact where no tenant has children."""
        found = 0
        for path in dict.fromkeys(subtrees):
            tenant = self.by_path.get(path)
            if tenant is not None and self.tree.has_children(tenant.number):
                return self.leasable_count
            found += 0 if tenant is None or self.is_void(tenant) else tenant.seen_leasable
        return found

    def _report(self, tenant: Tenant, now: int) -> bool:
        """Report a tenant to the tree if it has something leasable. Return whether it has."""
        number = tenant.number
        self._unheaded.pop(number, None)
        if not tenant.ready or self._is_held(tenant, now):
            return False
        head = None
        if self.tree.settings.strategy is Strategy.NONE and not self.is_void(tenant):
            head = self._store.ready_window(number, tenant.ready).first()
            if head is None:
                self._unheaded[number] = tenant
        self.tree.set_leasable(number, is_leasable=True, head=head or _UNKNOWN_HEAD)
        return True

    def _follow_idleness(self, tenant: Tenant, now: int) -> None:
        if tenant.number == ROOT_TENANT:
            return
        if tenant.total:
            tenant.idle_since = 0
        elif not tenant.idle_since:
            tenant.idle_since = max(now, 1)
            heappush(self._idle, (tenant.idle_since, tenant.number))

    def _is_held(self, tenant: Tenant, now: int) -> bool:
        """Return whether a pause or the rate forbids leasing from a tenant. The pause of the partition is not its own."""
        if self.rates.rate is not None and self.rates.is_blocked(tenant.number):
            return True
        if not self._pause_ends:
            return False
        paths = (*ancestors(tenant.path), tenant.path) if tenant.path else ()
        return any(self.by_path[path].paused_until > now for path in paths)

    # --------------------------------------------------------------------------------------------------------------- rows

    @property
    def dirty_count(self) -> int:
        """Return the number of tenants that changed, without those that changed in the tree alone."""
        return len(self._dirty)

    def take_dirty(self) -> Iterator[DirtyRow]:
        """Return the rows changed since the last call."""
        dirty, self._dirty = self._dirty, set()
        dirty |= self.tree.take_changed()
        dirty |= self.rates.take_changed()
        for number in dirty:
            tenant = self.by_number.get(number)
            yield _KEY.pack(self.tag, number), None if tenant is None else self._encode(tenant)

    def rows(self) -> Iterator[Row]:
        """Return all rows by number."""
        for number in sorted(self.by_number):
            yield _KEY.pack(self.tag, number), self._encode(self.by_number[number])

    def load(self, key: bytes, value: bytes) -> None:
        """Load a row. `finish_loading` must follow."""
        (_, number), row = _KEY.unpack(key), _decode_row(value)
        tenant = Tenant(number, *(getattr(row, name) for name in row.__struct_fields__[:-2]))
        if number == ROOT_TENANT:
            self.root = tenant
        self.by_number[number] = self.by_path[row.path] = tenant
        self._loaded.append(TenantRow(number, row.path, row.turns, row.leased))
        self._buckets[number] = row.bucket

    def finish_loading(self, settings: QueueSettings, now: int, purge: PurgeProgress) -> None:
        """Build turns, rates and pauses from the loaded rows."""
        self._generation = purge.generation
        self._unpurged = deque(number for number in sorted(self.by_number) if purge.cursor <= number < purge.end)
        self.tree = FairnessTree(fairness_of(settings))
        self.tree.load(self._loaded)
        self.rates = TenantRates(rate_of(settings))
        for number, tenant in self.by_number.items():
            self.rates.load(number, self._buckets.get(number))
            if self.is_void(tenant):
                tenant.seen_ready, tenant.seen_total, tenant.seen_bytes = tenant.ready, tenant.total, tenant.bytes
            else:
                self._count(tenant)
            if tenant.paused_until:
                heappush(self._pause_ends, (tenant.paused_until, number))
        for tenant in self.by_number.values():
            self._count_leasable(tenant, now)
        self._rebuild_idle()
        if self.tree.settings.strategy is Strategy.NONE:
            for tenant in self.by_number.values():
                self._report(tenant, now)
        self._loaded.clear()
        self._buckets.clear()
        self.rates.take_changed()

    def _encode(self, t: Tenant) -> bytes:
        bucket = self.rates.row(t.number)
        return encode_value(
            StoredTenant(
                t.path, t.ready, t.delayed, t.lined, t.leased, t.dead, t.bytes, t.paused_until, t.idle_since, t.purged_in,
                self.tree.turns(t.number), bucket,
            )
        )  # fmt: skip


def fairness_of(settings: QueueSettings) -> Fairness:
    """Return the settings of the tree of turns."""
    return Fairness(Strategy(settings.fairness), TenantWeights(settings.tenant_weights), settings.leased_per_tenant_max)


def rate_of(settings: QueueSettings) -> Rate | None:
    """Return the rate of each tenant, or None without one."""
    if not settings.tenant_rate_per_second:
        return None
    return Rate(settings.tenant_rate_per_second, max(1, settings.tenant_rate_burst))
