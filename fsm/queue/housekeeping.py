"""The steps before the items of every command entry: leases end, messages expire, and due messages are promoted, in this order.

Each step takes the earliest first, and all of them share a part of the entry's work. An entry that names its part (`due_max`) keeps half of it
for promotions, so that neither leases that end nor messages that expire can stop them. The rest of that half is not
used: how much is done must not depend on the content of the memory. For the same reason only messages count, never outdated keys.
"""

from __future__ import annotations

from heapq import heappop
from typing import Final, NamedTuple

from raftmq.fsm.queue import key_lines
from raftmq.fsm.queue.limits import HOUSEKEEPING_MAX
from raftmq.fsm.queue.message import LEASED, DeadReason, Message
from raftmq.fsm.queue.state import QueueState
from raftmq.fsm.queue.store import NOTHING_SPARED, Reading

IDS_SWEPT_MAX: Final = 100
"""Ids that one entry may forget, besides its messages."""


def due_bound(due_max: int) -> int:
    """Return how many messages the steps of an entry with this `due_max` may touch. It holds for every number."""
    return due_max if 0 < due_max < HOUSEKEEPING_MAX else HOUSEKEEPING_MAX


class HouseKept(NamedTuple):
    """Count the work of the three steps of an entry."""

    touched: int
    """Messages that they changed."""
    has_more_due: bool
    """Whether a step ended at its bound, so that more may be due."""


def keep_house(state: QueueState, expire_before: int, spared_through: int, due_max: int) -> Reading[HouseKept]:
    """Execute the three steps. Those before the promotions get all of the work if the entry names no `due_max`."""
    now, store, done = state.scalars.now, state.store, 0
    count_max = due_bound(due_max)
    ends_max = count_max - count_max // 2 if due_max else count_max
    before = min(expire_before, now)
    state.scalars.leases_ended_through = before
    store.spare_leases(spared_through if before < now else NOTHING_SPARED)
    if store.may_lease_have_ended(before, now):
        done = yield from _end_leases(state, before, ends_max)
    if store.expiry.may_be_due(now):
        done += yield from _expire(state, ends_max - done)
    has_more_due = done >= ends_max
    if store.delayed.may_be_due(now):
        done += yield from _promote(state, count_max - done)
    if state.ids.ends.may_be_due(now):
        yield from state.ids.sweep(now, IDS_SWEPT_MAX)
    return HouseKept(done, has_more_due or done >= count_max)


# ------------------------------------------------------------------------------------------------------------ leases


def _end_leases(state: QueueState, expire_before: int, count_max: int) -> Reading[int]:
    """End leases by (deadline, sequence): those that are spared up to `expire_before`, and the others up to now."""
    found: dict[int, Message] = {}  # a lease may be in a heap twice
    while len(found) < count_max:
        m = state.store.take_ended_lease(expire_before, state.scalars.now)
        if m is None:
            break
        found[m.sequence] = m
    ended = list(found.values())
    state.tallies.expired_leases += len(ended)
    yield from key_lines.prepare(state, ended)
    for m in ended:
        m.version += 1
        end_attempt(state, m)
    yield from key_lines.advance(state)
    return len(ended)


def end_attempt(state: QueueState, m: Message) -> bool:
    """Take a message whose attempt failed back. Return whether it died."""
    if state.is_exhausted(m):
        state.bury(m, DeadReason.EXHAUSTED)
        return True
    m.due = state.retry_due(m)
    return_message(state, m)
    return False


def return_message(state: QueueState, m: Message) -> None:
    """Let a message that is not leased any more wait, unless its time to live has passed in the meantime."""
    if state.is_expired(m):
        expire(state, m)
    else:
        state.give_back(m)


# ------------------------------------------------------------------------------------------------------------ expiry


def expire(state: QueueState, m: Message) -> None:
    """Remove a message whose time to live has passed, or keep it as a dead one."""
    if state.settings.is_expired_kept:
        m.version += 1
        state.bury(m, DeadReason.EXPIRED)
    else:
        state.tallies.expired += 1
        state.finish(m)


def _expire(state: QueueState, count_max: int) -> Reading[int]:
    """Expire messages by (time, sequence). A leased message finishes its lease first."""
    done = 0
    while done < count_max:
        sequences = yield from _take_expiring(state, count_max - done)
        if not sequences:
            break
        yield from state.store.fetch(sequences)
        found = [
            m for m in map(state.store.find, sequences) if m is not None and m.state != LEASED and state.is_expired(m)
        ]
        yield from key_lines.prepare(state, found)
        for m in found:
            expire(state, m)
        yield from key_lines.advance(state)
        done += len(found)
    return done


def _take_expiring(state: QueueState, count_max: int) -> Reading[list[int]]:
    """Return the sequences of the next keys that are due. Some of their messages may be gone or leased."""
    window, now = state.store.expiry, state.scalars.now
    sequences: dict[int, None] = {}
    while len(sequences) < count_max:
        if window.is_unread():
            yield from state.store.fill_expiry()
            continue
        key = window.first()
        if key is None or key[0] > now:
            break
        heappop(window.heap)
        sequences[key[1]] = None
    return list(sequences)


# ------------------------------------------------------------------------------------------------------------ promotion


def _promote(state: QueueState, count_max: int) -> Reading[int]:
    """Promote delayed messages by (due, sequence)."""
    window, now = state.store.delayed, state.scalars.now
    due: dict[int, Message] = {}
    while len(due) < count_max:
        if window.is_unread():
            yield from state.store.fill(window)
            continue
        key = window.first()
        if key is None or key[0] > now:
            break
        heappop(window.heap)
        due[key[1]] = state.store.messages[key[1]]
    messages = list(due.values())
    yield from key_lines.prepare_joins(state, messages)
    state.promote(messages)
    return len(messages)
