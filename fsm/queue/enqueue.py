"""Bring the messages of a DATA entry into the partition. Nothing is refused here but repeats: everything was checked before proposing.

The common batch has nothing but tenants, priorities and due times, and takes a short way. Messages with ids, keys or expiry take the
long one, which first reads the rows that they need.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heappush

from raftmq.fsm.queue import key_lines
from raftmq.fsm.queue.commands import validate_tenant
from raftmq.fsm.queue.limits import QUEUE_TIME_MAX
from raftmq.fsm.queue.message import DEAD, DELAYED, LEASED, READY, Message
from raftmq.fsm.queue.results import Enqueued
from raftmq.fsm.queue.state import QueueState
from raftmq.fsm.queue.store import Reading
from raftmq.fsm.queue.tenants import Tenant
from raftmq.fsm.queue.windows import Key
from raftmq.message_checks import TIME_AFTER, TIME_AT, Times
from raftmq.queue_batch import QueueFields


def enqueue(
    state: QueueState, fields: QueueFields, base_sequence: int, omitted: Collection[int] = ()
) -> Reading[Enqueued]:
    """Enqueue the messages of a batch, the first of which has `base_sequence`. The sequences at `omitted` positions stay empty."""
    tenants = _tenants(state, fields.tenants.names)
    special = (fields.ids, fields.keys, fields.expiry)
    if special == (None, None, None) and not state.settings.message_ttl_ms and not omitted:
        _enqueue_plain(state, fields, base_sequence, tenants)
        return Enqueued(len(fields.body_lengths))
    return (yield from _enqueue_fully(state, fields, base_sequence, tenants, omitted))


def _tenants(state: QueueState, names: Sequence[bytes]) -> list[Tenant]:
    """Return the tenants of these names, and add those that are new."""
    found = []
    for name in names:
        path = name.decode(errors="replace")
        if validate_tenant(path) is not None:
            path = ""  # a leader let it pass although it should have refused it; the message must not be lost
        found.append(state.tenant(path))
    return found


def _enqueue_plain(state: QueueState, fields: QueueFields, base_sequence: int, tenants: list[Tenant]) -> None:
    """Let messages wait that have no id, no key and no expiry."""
    store, now = state.store, state.scalars.now
    messages, sizes = store.messages, fields.sizes()
    windows = [store.ready_window(tenant.number, tenant.ready) for tenant in tenants]
    later, later_heap, later_fence = store.delayed, store.delayed.heap, store.delayed.fence
    priorities = fields.priorities or (0,) * len(sizes)
    dues = _times(fields.due, now, len(sizes), default=now)
    sequence = base_sequence
    key: Key
    for place, priority, due, size in zip(fields.tenants.places, priorities, dues, sizes, strict=True):
        tenant, window = tenants[place], windows[place]
        if due > now:
            messages[sequence] = Message(sequence, DELAYED, tenant.number, priority, due, now, size)
            key = (due, sequence)
            heappush(later_heap if key <= later_fence else later.beyond, key)
            tenant.delayed += 1
            state.scalars.delayed_count += 1
        else:
            messages[sequence] = Message(sequence, READY, tenant.number, priority, due, now, size)
            key = (priority, due, sequence)
            heappush(window.heap if key <= window.fence else window.beyond, key)
            tenant.ready += 1
        tenant.bytes += size
        sequence += 1
    store.dirty.update(range(base_sequence, sequence))
    store.check_size(later)
    for tenant, window in zip(tenants, windows, strict=True):
        state.tenants.touch(tenant)
        store.check_size(window)


def _enqueue_fully(
    state: QueueState, fields: QueueFields, base_sequence: int, tenants: list[Tenant], omitted: Collection[int]
) -> Reading[Enqueued]:
    """Enqueue message by message."""
    fresh = _messages(state, fields, base_sequence, tenants)
    if omitted:
        fresh = [m for m in fresh if m.sequence - base_sequence not in omitted]
    yield from _read_rows(state, fresh, fields.replaces)
    repeated: list[tuple[int, int]] = []
    replaced: list[tuple[int, int]] = []
    for m in fresh:
        position = m.sequence - base_sequence
        known = state.ids.find(m.id, state.scalars.now) if m.id else None
        if known is not None:
            old = (
                state.store.find(known.sequence) if fields.replaces is not None and fields.replaces[position] else None
            )
            if old is None or known.is_finished or old.state in (LEASED, DEAD):
                repeated.append((position, known.sequence))
                continue
            replaced.append((position, old.sequence))
            _replace(state, old, m)
            yield from key_lines.advance(state)
        _admit(state, m)
    return Enqueued(len(fresh) - len(repeated), tuple(repeated), tuple(replaced))


def _messages(state: QueueState, fields: QueueFields, base_sequence: int, tenants: list[Tenant]) -> list[Message]:
    now, sizes = state.scalars.now, fields.sizes()
    count = len(sizes)
    priorities = fields.priorities or (0,) * count
    dues = _times(fields.due, now, count, default=now)
    ttl = state.settings.message_ttl_ms
    expiries = _times(fields.expiry, now, count, default=state.later(ttl) if ttl else 0)
    fresh = [
        Message(base_sequence + position, READY, tenants[place].number, priority, due, now, size, expires_at)
        for position, (place, priority, due, size, expires_at) in enumerate(
            zip(fields.tenants.places, priorities, dues, sizes, expiries, strict=True)
        )
    ]
    if fields.ids is not None:
        until = state.later(state.settings.dedupe_window_ms)
        for m, id_ in zip(fresh, fields.ids, strict=True):
            if id_:
                m.id, m.id_until = id_, until
    if fields.keys is not None:
        _set_keys(state, fresh, fields.keys)
    return fresh


def _set_keys(state: QueueState, fresh: list[Message], keys: Sequence[bytes | None]) -> None:
    is_ordered = state.settings.is_ordered_by_key
    for m, key in zip(fresh, keys, strict=True):
        if key:
            m.key = key
            if is_ordered:
                m.line = key_lines.line_of(state.tenants.by_number[m.tenant].path, key)


def _times(column: Times | None, now: int, count: int, *, default: int) -> Sequence[int]:
    """Return the queue times of a column."""
    if column is None:
        return (default,) * count
    times = [
        now + value if kind == TIME_AFTER else value if kind == TIME_AT else default
        for kind, value in zip(column.kinds, column.values_ms, strict=True)
    ]
    if (
        min(times, default=0) < 0 or max(times, default=0) > QUEUE_TIME_MAX
    ):  # a leader let it pass although it should have refused it
        return [min(max(time, 0), QUEUE_TIME_MAX) for time in times]
    return times


def _read_rows(state: QueueState, fresh: list[Message], replaces: Sequence[int] | None) -> Reading[None]:
    """Read the ids and lines of new messages, and the messages that they replace."""
    yield from state.ids.fetch(m.id for m in fresh if m.id)
    yield from key_lines.prepare(state, fresh)
    if replaces is not None and any(replaces):
        known = [state.ids.find(m.id, state.scalars.now) for m in fresh if m.id]
        sequences = [row.sequence for row in known if row is not None]
        yield from state.store.fetch(sequences)
        yield from key_lines.prepare(state, [m for m in map(state.store.find, sequences) if m is not None])


def _replace(state: QueueState, old: Message, m: Message) -> None:
    """Remove a message whose id a new one takes. The new one is its next version."""
    m.version = old.version + 1
    state.finish(old)


def _admit(state: QueueState, m: Message) -> None:
    """Bring one new message into the partition."""
    state.store.messages[m.sequence] = m
    state.tenants.by_number[m.tenant].bytes += m.body_bytes
    if m.id:
        state.ids.claim(m.id, m.sequence, m.id_until)
    if m.expires_at:
        state.scalars.expiring_count += 1
        state.store.expiry.insert((m.expires_at, m.sequence))
    state.admit(m)
