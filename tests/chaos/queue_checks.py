"""Judge facts of a queue run that no history has: the copies of the dead, the firings of the schedule, and ids that were enqueued twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from raftmq import Admin, BrowsedMessage, ScheduleDescription
from raftmq.client.queue.views import MessageStateName

from sim.history.queues.operations import Operation, Outcome, Put
from tests.chaos.queue_journal import FIRING

COPIED_SECONDS = 60.0
"""The time for the copies after healing. The longest pause after a refusal is ten seconds."""
_ORIGIN = "raftmq.dead_letter."


class Browsed(Protocol):
    """A queue as `Copies` sees it."""

    def browse(
        self, state: MessageStateName | None = None, *, with_values: bool = False
    ) -> AsyncIterator[BrowsedMessage]:
        """Iterate over messages."""
        ...


class Copies:
    """The dead messages of one topic and their copies in another one, while nobody takes either.

    Each message died at most once, because none was redriven. A message that is cancelled after its death leaves its copy.
    """

    def __init__(self, source: Browsed, target: Browsed, seconds: float = COPIED_SECONDS) -> None:
        self._source = source
        self._target = target
        self._seconds = seconds
        self.count = 0

    async def compare(self) -> list[str]:
        """Wait for the copies, and return a finding for each that is missing or doubled, and for each of a message that nobody gave up."""
        deadline = time.monotonic() + self._seconds
        while True:
            dead = {(one.partition, one.sequence) async for one in self._source.browse("dead")}
            copied = Counter([_origin(one.headers) async for one in self._target.browse(with_values=True)])
            missing = dead - copied.keys()
            if not missing or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.2)
        self.count = copied.total()
        # some may have expired since, and are dead by now
        living = {(one.partition, one.sequence) async for one in self._source.browse() if one.state != "dead"}
        return [
            *(f"the dead message {place} has no copy after {self._seconds:.0f} s" for place in sorted(missing)),
            *(f"the dead message {place} was copied {count} times" for place, count in copied.items() if count > 1),
            *(f"message {place} was copied, and is not dead" for place in sorted(living & copied.keys())),
        ]


def _origin(headers: Iterable[tuple[str, bytes]]) -> tuple[int, int]:
    found = dict(headers)
    return int(found[f"{_ORIGIN}partition"]), int(found[f"{_ORIGIN}sequence"])


class Firings:
    """The schedule of a run, from its creation to its end: as many messages as due times."""

    def __init__(self, topic: str, first: ScheduleDescription) -> None:
        self._topic = topic
        self._first = first
        self.last = first

    async def end(self, admin: Admin) -> ScheduleDescription:
        """Pause the schedule and return its final state."""
        await admin.pause_schedule(self._topic, FIRING)
        (last,) = await admin.list_schedules(self._topic)
        return last

    def compare(self, found: int) -> list[str]:
        """Compare the number of messages with that of the due times that were neither left nor skipped."""
        assert self._first.next_due_ms is not None
        if self.last.last_fired_ms is None:
            return ["the schedule never fired"]
        due = (self.last.last_fired_ms - self._first.next_due_ms) // self._first.every_ms + 1 - self.last.skipped
        return [] if due == found else [f"the schedule had {due} due times and made {found} messages"]


def ids_enqueued_twice(history: Iterable[Operation]) -> list[str]:
    """Return a finding for each id under which several messages were enqueued, although it was never forgotten."""
    sequences: dict[str, set[tuple[int, int]]] = {}
    for one in history:
        if not isinstance(one, Put) or one.outcome is not Outcome.OK or one.repeated or one.first_sequence < 0:
            continue
        if one.messages[0].id:
            sequences.setdefault(one.messages[0].id, set()).add((one.partition, one.first_sequence))
    return [f"id {name} was enqueued at {sorted(found)}" for name, found in sequences.items() if len(found) > 1]
