"""The order of messages with equal keys: one of them is leased at a time, and the others wait in line by sequence.

All messages of a tenant with the same key make a **line**. One message of a line **holds** it: it is ready or leased, or released and
waiting for its next attempt. The others that are due stand in the line. When the holder is finished, the message with the smallest
sequence in the line becomes the holder.

A message that was delayed from the beginning joins when it is due, at the place of its sequence: before a holder with a larger sequence
that is ready. If that holder is leased or waits for its next attempt, its work has begun, and it is finished first. A holder that a user
moves into the future lets go.

Only messages that were enqueued while the topic was ordered by key take part.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from raftmq.fsm.queue.message import LINED, READY, Message
from raftmq.fsm.queue.point_table import PointTable
from raftmq.fsm.queue.store import MessageStore, Reading

LINE_BYTES: Final = 16
"""Size of a line's name. Two keys share a line by chance with a probability of one in 10^19 for a billion keys: they then wait for each
other, and nothing else happens."""
_NOBODY: Final = -1


class KeyHead(NamedTuple):
    """The row of a line."""

    holder: int
    """Sequence of the message that holds the line."""
    waiting: int
    """Messages that stand in the line."""


class Lines(Protocol):
    """The state of a partition, as lines see it."""

    store: MessageStore
    heads: PointTable[KeyHead]
    freed_lines: dict[bytes, None]
    """Lines whose holder is gone and whose next message was not made ready yet."""

    def enter(self, m: Message, state: int) -> None:
        """Bring a message that is in no state into one."""
        ...

    def leave(self, m: Message) -> None:
        """Take a message out of its state."""
        ...


def line_of(tenant: str, key: bytes) -> bytes:
    """Return the name of the line of a tenant's key."""
    return blake2b(b"%s\0%s" % (tenant.encode(), key), digest_size=LINE_BYTES).digest()


def prepare(state: Lines, messages: list[Message]) -> Reading[None]:
    """Read the rows without which the lines of these messages cannot change."""
    lines = [m.line for m in messages if m.line]
    if lines:
        yield from state.heads.fetch(lines)


def prepare_joins(state: Lines, messages: list[Message]) -> Reading[None]:
    """Read the rows and the holders without which these messages cannot join their lines."""
    yield from prepare(state, messages)
    holders = []
    for m in messages:
        head = state.heads.read(m.line) if m.line else None
        if head is not None and head.holder > m.sequence:
            holders.append(head.holder)
    yield from state.store.fetch(holders)


def join(state: Lines, m: Message) -> None:
    """Let a message that is due become ready, or stand in its line. It is in no state at present."""
    head = state.heads.read(m.line)
    if head is None or head.holder == m.sequence:
        state.heads.put(m.line, KeyHead(m.sequence, 0 if head is None else head.waiting))
        state.enter(m, READY)
        return
    holder = state.store.find(head.holder) if m.sequence < head.holder else None
    if holder is None or holder.state != READY:
        state.enter(m, LINED)
        state.heads.put(m.line, KeyHead(head.holder, head.waiting + 1))
        return
    state.leave(holder)
    state.enter(holder, LINED)
    state.heads.put(m.line, KeyHead(m.sequence, head.waiting + 1))
    state.enter(m, READY)


def let_go(state: Lines, m: Message) -> None:
    """Take a message out of its line. It has left its state. `advance` must follow before anything joins or is leased."""
    head = state.heads.read(m.line)
    if head is None:
        return
    if head.holder == m.sequence:
        head = KeyHead(_NOBODY, head.waiting)
    elif m.state == LINED:
        head = KeyHead(head.holder, head.waiting - 1)
    else:
        return
    if head.holder == _NOBODY and head.waiting == 0:
        state.heads.delete(m.line)
        state.store.lines.pop(m.line, None)
        return
    state.heads.put(m.line, head)
    if head.holder == _NOBODY:
        state.freed_lines[m.line] = None


def advance(state: Lines) -> Reading[None]:
    """Make the next message of each line without a holder ready."""
    while state.freed_lines:
        line = next(iter(state.freed_lines))
        head = state.heads.read(line)
        if head is not None and head.holder == _NOBODY:
            window = state.store.line_window(line, head.waiting)
            while window.is_unread():
                yield from state.store.fill(window)
            first = window.first()
            assert first is not None, "a line counts more messages than it has"
            m = state.store.messages[first[0]]
            state.leave(m)
            state.heads.put(line, KeyHead(m.sequence, head.waiting - 1))
            state.enter(m, READY)
            if head.waiting == 1:
                state.store.lines.pop(line, None)
        del state.freed_lines[line]
