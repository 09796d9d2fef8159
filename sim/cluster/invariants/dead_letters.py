"""`CopiesAreDeaths`, `CopiedOnce`, `RecordedAfterCopied`: each dead message is in the dead letter topic once, in order, before that is recorded.

Deaths and copies are taken from the entries that replicas apply. A copy is known by the headers that the broker adds to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from raftmq.batch_header import QUEUE_BATCH_MAGIC, magic_of, parse_header
from raftmq.fsm.queue.enqueued import read_messages
from raftmq.fsm.queue.message import DEAD, Message
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.state import QueueState
from raftmq.message_headers import DEAD_LETTER_PREFIX, decode_headers
from raftmq.queue_batch import QueueBodies
from raftmq.raft.entry import Entry, EntryKind

from sim.core.invariants.violation import demand

GroupOf = Callable[[str, int], int]
"""Returns the group of a topic's partition."""


class _Death(NamedTuple):
    sequence: int
    dead_at: int


class _Source:
    """What is known of a partition whose messages die."""

    def __init__(self) -> None:
        self.deaths: dict[int, _Death] = {}
        """By dead number."""
        self.revived: set[int] = set()
        """Numbers of messages that are not dead any more."""
        self.bodies: dict[int, bytes] = {}
        self.firsts: dict[int, int] = {}
        """Epoch of copies -> the dead number that has sequence 0."""
        self.copied: list[int] = []
        """The numbers of the copies, in the order of the dead letter topic."""
        self.recorded = 0
        self.generation = 0


class DeadLetters:
    """The deaths and copies of one run."""

    def __init__(self) -> None:
        self._sources: dict[int, _Source] = defaultdict(_Source)
        self._seen: set[tuple[int, int]] = set()
        """(group, index) of the DATA entries that were looked at."""
        self.copies = 0
        self.restarts = 0

    def on_applied(self, group_id: int, entry: Entry, machine: QueuePartition, group_of: GroupOf) -> None:
        """Look at an entry that a replica applied."""
        self._look_at_state(group_id, machine.state)
        if entry.kind is EntryKind.DATA and (group_id, entry.index) not in self._seen:
            self._seen.add((group_id, entry.index))
            self._look_at_messages(group_id, entry, group_of)

    def _look_at_state(self, group_id: int, state: QueueState) -> None:
        source, scalars, changed = self._sources[group_id], state.scalars, vars(state)
        source.deaths.update(changed.pop("deaths", {}))
        source.revived |= changed.pop("revived", set())
        self.restarts += scalars.copy_epoch > 1 and scalars.copy_epoch not in source.firsts
        source.firsts.setdefault(scalars.copy_epoch, scalars.copy_first)
        if scalars.generation > source.generation:
            source.generation = scalars.generation
            source.revived.update(source.deaths)
        if scalars.copied_dead > source.recorded:
            missing = set(range(source.recorded + 1, scalars.copied_dead + 1)) - set(source.copied) - source.revived
            source.recorded = scalars.copied_dead
            demand(
                not missing, "RecordedAfterCopied", f"g{group_id} records {sorted(missing)} as copied, which are not"
            )

    def _look_at_messages(self, group_id: int, entry: Entry, group_of: GroupOf) -> None:
        payload, fields = read_messages(entry.payload)
        bodies = QueueBodies(payload)
        for position in range(bodies.count):
            self._sources[group_id].bodies[entry.base_offset + position] = bytes(bodies.body(position))
        said = [_said_in(headers) for headers in fields.headers or ()]
        if magic_of(payload) == QUEUE_BATCH_MAGIC and any(said):
            header = parse_header(payload, QUEUE_BATCH_MAGIC)
            for position, origin in enumerate(said):
                source = self._sources[group_of(origin["topic"], int(origin["partition"]))]
                number = header.first_sequence + position + source.firsts.get(header.producer_epoch, 0)
                self._check_copy(source, number, origin, bytes(bodies.body(position)))

    def _check_copy(self, source: _Source, number: int, origin: dict[str, str], body: bytes) -> None:
        death = _Death(int(origin["sequence"]), int(origin["time"]))
        known = source.deaths.get(number)
        demand(death == known, "CopiesAreDeaths", f"the copy with the number {number} is of {death}, not of {known}")
        demand(body == source.bodies[death.sequence], "CopiesAreDeaths", f"the copy {number} has another body")
        last = source.copied[-1] if source.copied else 0
        demand(number > last, "CopiedOnce", f"after the copy {last} comes {number}")
        source.copied.append(number)
        self.copies += 1


def _said_in(headers: bytes | None) -> dict[str, str]:
    return {
        name.removeprefix(DEAD_LETTER_PREFIX): (value or b"").decode()
        for name, value in decode_headers(headers or b"")
        if name.startswith(DEAD_LETTER_PREFIX)
    }


def watch_deaths() -> Callable[[], None]:
    """Let machines remember the deaths of each entry, and which messages are dead no longer. Return a function that ends it."""
    bury, leave = QueueState.bury, QueueState.leave

    def watched_bury(self: Any, m: Message, reason: int) -> None:  # noqa: ANN401 -- the product's method
        bury(self, m, reason)
        vars(self).setdefault("deaths", {})[m.dead_number] = _Death(m.sequence, m.dead_at)

    def watched_leave(self: Any, m: Message) -> None:  # noqa: ANN401 -- the product's method
        if m.state == DEAD:
            vars(self).setdefault("revived", set()).add(m.dead_number)
        leave(self, m)

    QueueState.bury, QueueState.leave = watched_bury, watched_leave  # type: ignore[method-assign]

    def undo() -> None:
        QueueState.bury, QueueState.leave = bury, leave  # type: ignore[method-assign]

    return undo
