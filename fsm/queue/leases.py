"""Lease messages: choose a tenant, take its next message, and so on.

The tree of turns chooses the tenant (`fairness`), and within a tenant the smallest (priority, due, sequence) is next. If only one tenant
can be chosen, it gets many turns together, which makes the same choice as one turn after the other.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from raftmq.fsm.queue import key_lines
from raftmq.fsm.queue.commands import Lease
from raftmq.fsm.queue.fairness import ancestors
from raftmq.fsm.queue.housekeeping import due_bound, expire
from raftmq.fsm.queue.jobs import is_in_subtrees
from raftmq.fsm.queue.key_lines import line_of
from raftmq.fsm.queue.limits import FILTERS_MAX, WINDOWS_TOGETHER_MAX
from raftmq.fsm.queue.message import LEASED, READY, Message
from raftmq.fsm.queue.point_table import UNREAD
from raftmq.fsm.queue.results import Leased
from raftmq.fsm.queue.state import QueueState
from raftmq.fsm.queue.store import Reading
from raftmq.fsm.queue.tenants import Tenant
from raftmq.fsm.queue.windows import Window

_NO_BOUND: Final = 1 << 62
LEASE_NUMBER_MAX: Final = (1 << 32) - 1


class LeaseRuns:
    """Gather leased messages as runs of neighbouring sequences with equal lease numbers."""

    __slots__ = ("bytes_left", "counts", "dwells_ms", "first_sequences", "is_over", "lease_numbers", "total")

    def __init__(self, bytes_max: int) -> None:
        """Begin without messages. `bytes_max` bounds their bodies; 0: nothing does."""
        self.bytes_left = bytes_max or _NO_BOUND
        self.is_over = False
        """Whether the next message did not fit."""
        self.first_sequences: list[int] = []
        self.counts: list[int] = []
        self.lease_numbers: list[int] = []
        self.dwells_ms: list[int] = []
        """For how long the first message of each run had been ready."""
        self.total = 0

    def add(self, first_sequence: int, count: int, lease_number: int, dwell_ms: int) -> None:
        """Add leased messages with neighbouring sequences, the first of which had been ready for `dwell_ms`."""
        counts = self.counts
        self.total += count
        if (
            counts
            and self.first_sequences[-1] + counts[-1] == first_sequence
            and self.lease_numbers[-1] == lease_number
        ):
            counts[-1] += count
        else:
            self.first_sequences.append(first_sequence)
            counts.append(count)
            self.lease_numbers.append(lease_number)
            self.dwells_ms.append(dwell_ms)

    def result(self, deadline: int, *, has_more: bool) -> Leased:
        """Return the result of the command."""
        return Leased(tuple(self.first_sequences), tuple(self.counts), tuple(self.lease_numbers), deadline, has_more)


def lease(state: QueueState, command: Lease, work_max: int) -> Reading[tuple[Leased, int]]:
    """Lease messages for a consumer. Return the result and the number of messages touched, at most `work_max`.

    A message whose time to live has passed is never leased. Where it is next, it is removed instead, or buried.
    """
    deadline = state.later(min(command.lease_ms, state.settings.lease_ms_max))
    runs = LeaseRuns(command.bytes_max)
    if command.key:
        expired = yield from _lease_head(state, command, deadline, runs, work_max)
        state.dwells_ms += runs.dwells_ms
        return runs.result(deadline, has_more=False), runs.total + expired
    expired = 0
    subtrees = command.tenants[:FILTERS_MAX] or None
    while not runs.is_over and not is_full(state):
        wanted = min(command.messages_max - runs.total, work_max - runs.total - expired)
        if wanted <= 0:
            break
        state.tenants.refresh(state.scalars.now)
        if state.tenants.has_unread_heads:
            yield from state.tenants.resolve_heads()
        number = state.tenants.tree.choose(subtrees)
        if number is None:
            break
        tenant = state.tenants.by_number[number]
        window = state.store.ready_window(number, tenant.ready)
        if window.is_unread():
            yield from state.tenants.fill_together(_unread_windows(state, number, subtrees))
            continue
        state.store.use_window(number, window)
        first = _first_in(state, window)
        if first is not None and state.is_expired(first):
            yield from _expire_one(state, first)
            expired += 1
            continue
        taken = _take(state, window, _turns(state, tenant, wanted), deadline, command.session, runs)
        if taken:
            _charge(state, tenant, taken)
    state.dwells_ms += runs.dwells_ms
    is_cut = runs.total + expired == work_max and runs.total < command.messages_max
    has_more = is_cut and is_leasable(state, command.tenants)
    return runs.result(deadline, has_more=has_more), runs.total + expired


def _first_in(state: QueueState, window: Window) -> Message | None:
    """Return the next message of a window that is in memory. `_take` leaves out keys that are not valid as well."""
    key = window.first()
    return None if key is None else state.store.messages[key[-1]]


def _expire_one(state: QueueState, m: Message) -> Reading[None]:
    """Remove a ready message whose time to live has passed, or bury it."""
    yield from key_lines.prepare(state, [m])
    expire(state, m)
    yield from key_lines.advance(state)


def _unread_windows(state: QueueState, number: int, subtrees: tuple[str, ...] | None) -> list[Window]:
    """Return the window of the chosen tenant, and those of the tenants after it that must be read, too.

    With thousands of tenants each turn would otherwise cost a read of its own.
    """
    store, by_number = state.store, state.tenants.by_number
    others = (other for other in state.tenants.tree.upcoming(WINDOWS_TOGETHER_MAX, subtrees) if other != number)
    windows = [store.ready_window(other, by_number[other].ready) for other in (number, *others)]
    return [window for window in windows if window.is_unread()]


def is_full(state: QueueState) -> bool:
    """Return whether the partition may lease nothing now: it is paused or being purged, or has its maximum of leases."""
    if state.is_purging:
        return True
    if state.tenants.root.paused_until > state.scalars.now:
        return True
    return 0 < state.settings.leased_max <= state.store.leased_count


def is_leasable(state: QueueState, subtrees: tuple[str, ...]) -> bool:
    """Return whether a lease with this filter would find a message among those that are ready.

    The message may have expired since then. The lease then removes it.
    """
    state.tenants.refresh(state.scalars.now)
    return not is_full(state) and state.tenants.tree.has_leasable(subtrees or None)


def leasable_count(state: QueueState, subtrees: tuple[str, ...]) -> int:
    """Return how many messages leases with this filter would find among those that are ready, at most, and 0 only if there are none."""
    if not is_leasable(state, subtrees):
        return 0
    tenants, settings = state.tenants, state.settings
    count = tenants.leasable_of(subtrees) if subtrees else tenants.leasable_count
    if settings.leased_max:
        count = min(count, settings.leased_max - state.store.leased_count)
    return max(1, count)


def is_open_to(state: QueueState, path: str) -> bool:
    """Return whether a message of this tenant could be leased now if it became ready. A tenant without messages may have paused ancestors."""
    if is_full(state):
        return False
    tenants, now = state.tenants, state.scalars.now
    tenant = tenants.by_path.get(path)
    if tenant is not None:
        return tenants.may_lease(tenant, now)
    known = filter(None, map(tenants.by_path.get, ancestors(path)))
    return not any(one.paused_until > now for one in known)


def due_by(
    state: QueueState, time: int, subtrees: tuple[str, ...], key: bytes, count_max: int, due_max: int = 0
) -> int:
    """Return how many messages an entry of this time and `due_max` would promote that a lease in the same entry could find, at most `count_max`.

    Only messages in memory count, and no more than the entry promotes are looked at. The answer decides about proposals, and never about a result.
    """
    window = state.store.delayed
    if count_max <= 0 or not window.may_be_due(time) or is_full(state):
        return 0
    if state.settings.leased_max:
        count_max = min(count_max, state.settings.leased_max - state.store.leased_count)
    rooms: dict[int, int] = {}
    lines: set[bytes] = set()
    found = 0
    for place in dict.fromkeys(window.keys_until(time, due_bound(due_max))):  # a key may be there twice
        if found >= count_max:
            break
        if not window.is_valid(place):
            continue
        m = state.store.messages[place[1]]
        if (key and m.key != key) or 0 < m.expires_at <= time:
            continue
        room = rooms.get(m.tenant)
        if room is None:
            room = _room_of_due(state, m.tenant, subtrees)
        rooms[m.tenant] = room
        if room > 0 and (not m.line or _may_be_head(state, m, lines)):
            rooms[m.tenant] -= 1
            found += 1
    return found


def _room_of_due(state: QueueState, number: int, subtrees: tuple[str, ...]) -> int:
    """Return how many messages of a tenant a lease with this filter may take besides those that are ready."""
    tenants, tenant = state.tenants, state.tenants.by_number[number]
    if (subtrees and not is_in_subtrees(tenant.path, subtrees)) or not tenants.may_lease(tenant, state.scalars.now):
        return 0
    room = tenants.tree.lease_room(number)
    return _NO_BOUND if room is None else room - tenant.ready


def _may_be_head(state: QueueState, m: Message, lines: set[bytes]) -> bool:
    """Return whether a message that is promoted may be ready, and not stand in line. Only one message of each line may."""
    if m.line in lines:
        return False
    lines.add(m.line)
    head = state.heads.get(m.line)
    return head is None or head is UNREAD or head.holder == m.sequence


def is_key_leasable(state: QueueState, path: str, key: bytes) -> bool | None:
    """Return whether a lease of this key would find its head ready, or None if that must be read first."""
    tenant = state.tenants.by_path.get(path)
    state.tenants.refresh(state.scalars.now)
    if tenant is None or not tenant.ready or is_full(state) or not state.tenants.may_lease(tenant, state.scalars.now):
        return False
    head = state.heads.get(line_of(path, key))
    if head is None:
        return False
    holder = None if head is UNREAD else state.store.find(head.holder)
    return None if holder is None else holder.state == READY


def _turns(state: QueueState, tenant: Tenant, wanted: int) -> int:
    """Return how many messages of the chosen tenant are leased before the next choice."""
    number = tenant.number
    if wanted == 1 or not state.tenants.tree.is_only_choice(number):
        return 1
    rooms = (
        state.tenants.tree.lease_room(number),
        state.tenants.rates.available(number, state.scalars.now),
        state.settings.leased_max - state.store.leased_count if state.settings.leased_max else None,
    )
    return min([wanted, *(room for room in rooms if room is not None)])


def _take(state: QueueState, window: Window, count: int, deadline: int, session: int, runs: LeaseRuns) -> int:
    """Lease the next messages of a tenant that are in memory, up to one that has expired. Return how many there were, at least one."""
    messages, leases, dirty = state.store.messages, state.store.leases, state.store.dirty
    heap, now, numbers_after = window.heap, state.scalars.now, state.lease_numbers_after
    taken = 0
    first = following = run_number = dwell_ms = 0  # the run that the next message may continue
    while heap and taken < count:
        priority, due, sequence = heappop(heap)
        m = messages.get(sequence)
        if m is None or m.state != READY or m.due != due or m.priority != priority:
            continue
        if 0 < m.expires_at <= now:
            heappush(heap, (priority, due, sequence))
            break
        if m.body_bytes > runs.bytes_left and (runs.total or taken):
            heappush(heap, (priority, due, sequence))
            runs.is_over = True
            break
        runs.bytes_left -= m.body_bytes
        number = (m.lease_number if m.lease_number > numbers_after else numbers_after) + 1
        if sequence != following or number != run_number:
            if following:
                runs.add(first, following - first, run_number, dwell_ms)
            first, run_number, dwell_ms = sequence, number, now - m.ready_since
        following = sequence + 1
        m.state = LEASED
        m.deadline = deadline
        m.leased_at = now
        m.session = session
        m.attempts += 1
        m.version += 1
        m.lease_number = number
        heappush(leases, (deadline, sequence))
        dirty.add(sequence)
        taken += 1
    if following:
        runs.add(first, following - first, run_number, dwell_ms)
    return taken


def _charge(state: QueueState, tenant: Tenant, count: int) -> None:
    tenant.ready -= count
    tenant.leased += count
    state.store.leased_count += count
    state.tenants.on_leased(tenant)
    state.tenants.tree.charge(tenant.number, count)
    state.tenants.rates.take(tenant.number, count, state.scalars.now)


def _lease_head(state: QueueState, command: Lease, deadline: int, runs: LeaseRuns, work_max: int) -> Reading[int]:
    """Lease the head of one key, if it is ready and its tenant may lease. Return how many expired heads were removed before."""
    tenant = state.tenants.by_path.get(command.tenants[0]) if command.tenants else None
    expired = 0
    if tenant is None:
        return expired
    line = line_of(tenant.path, command.key)
    while expired < work_max and not is_full(state):
        yield from state.heads.fetch((line,))
        head = state.heads.read(line)
        if head is None:
            break
        yield from state.store.fetch((head.holder,))
        m = state.store.find(head.holder)
        state.tenants.refresh(state.scalars.now)  # a tenant that became ready in this entry enters before it is charged
        if m is None or m.state != READY or not state.tenants.may_lease(tenant, state.scalars.now):
            break
        if state.is_expired(m):
            yield from _expire_one(state, m)
            expired += 1
            continue
        dwell_ms = state.scalars.now - m.ready_since
        _take_one(state, m, deadline, command.session)
        runs.add(m.sequence, 1, m.lease_number, dwell_ms)
        _charge(state, tenant, 1)
        break
    return expired


def _take_one(state: QueueState, m: Message, deadline: int, session: int) -> None:
    """Lease one message. Its key in the window of its tenant is not valid any more."""
    m.state = LEASED
    m.deadline = deadline
    m.leased_at = state.scalars.now
    m.session = session
    m.attempts += 1
    m.version += 1
    m.lease_number = max(m.lease_number, state.lease_numbers_after) + 1
    heappush(state.store.leases, (deadline, m.sequence))
    state.store.dirty.add(m.sequence)
