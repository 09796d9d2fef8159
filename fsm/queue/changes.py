"""Change messages that nobody leases: move, cancel, redrive. A version says which state of the message the asker knows."""

from __future__ import annotations

from raftmq.fsm.queue import key_lines
from raftmq.fsm.queue.commands import ANY_VERSION, Change, ChangeItem, ChangeOperation, clamped_priority
from raftmq.fsm.queue.limits import QUEUE_TIME_MAX
from raftmq.fsm.queue.message import DEAD, DELAYED, LEASED, Message
from raftmq.fsm.queue.results import Changed, Code
from raftmq.fsm.queue.state import QueueState
from raftmq.fsm.queue.store import Reading


def change(state: QueueState, command: Change, work_max: int) -> Reading[Changed]:
    """Execute the items in order, at most `work_max` of them."""
    items = command.items[:work_max]
    yield from state.ids.fetch(item.id for item in items if item.id)
    sequences = [_sequence_of(state, item) for item in items]
    yield from state.store.fetch(one for one in sequences if 0 <= one < state.scalars.next_sequence)
    codes, versions = [], []
    for item in items:
        # Items before this one may have finished its message or given its id free.
        m = state.store.find(_sequence_of(state, item))
        code = Code.NO_SUCH_MESSAGE if m is None else (yield from _change_one(state, m, item))
        codes.append(int(code))
        versions.append(0 if m is None else m.version)
    missing = len(command.items) - len(items)
    return Changed((*codes, *(Code.OVER_LIMIT,) * missing), (*versions, *(0,) * missing))


def _sequence_of(state: QueueState, item: ChangeItem) -> int:
    """Return the sequence that an item names, or -1 if its id is not known."""
    if not item.id:
        return item.sequence
    row = state.ids.find(item.id, state.scalars.now)
    return -1 if row is None or row.is_finished else row.sequence


def _change_one(state: QueueState, m: Message, item: ChangeItem) -> Reading[Code]:
    if item.version not in (ANY_VERSION, m.version):
        return Code.VERSION_CONFLICT
    if item.operation not in (ChangeOperation.MOVE, ChangeOperation.CANCEL, ChangeOperation.REDRIVE):
        return Code.INVALID
    if m.state == LEASED:
        return Code.MESSAGE_LEASED
    if item.operation != ChangeOperation.CANCEL and (m.state == DEAD) is not (
        item.operation == ChangeOperation.REDRIVE
    ):
        return Code.WRONG_STATE
    yield from key_lines.prepare_joins(state, [m])
    m.version += 1
    if item.operation == ChangeOperation.CANCEL:
        state.finish(m)
    elif item.operation == ChangeOperation.REDRIVE:
        redrive(state, m)
    else:
        _move(state, m, item)
    yield from key_lines.advance(state)
    return Code.OK


def redrive(state: QueueState, m: Message) -> None:
    """Make a dead message ready, with all attempts again. Its line and the line's holder must be in memory."""
    state.leave(m)
    m.dead_number = m.dead_at = m.dead_reason = 0
    m.attempts = 0
    m.due = state.scalars.now
    state.admit(m)


def _move(state: QueueState, m: Message, item: ChangeItem) -> None:
    """Give a waiting message another due time or priority. One that is moved into the future lets go of its line."""
    now = state.scalars.now
    is_rescheduled = item.delay_ms >= 0 or item.due >= 0
    state.leave(m)
    if is_rescheduled:
        m.due = state.later(item.delay_ms) if item.delay_ms >= 0 else min(item.due, QUEUE_TIME_MAX)
        if m.line and m.due > now:
            key_lines.let_go(state, m)
    if item.priority is not None:
        m.priority = clamped_priority(item.priority)
    if m.due <= now and m.state != DELAYED:
        state.enter(m, m.state)  # it keeps its place in its line
    else:
        state.admit(m)
