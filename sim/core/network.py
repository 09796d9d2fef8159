"""The simulated network: loss, delay, duplication, reordering, and links that are cut in one or both directions."""

from __future__ import annotations

import random
from collections.abc import Callable

from raftmq.raft.messages import InstallSnapshot, Message
from raftmq.types import ReplicaId

from sim.core.events import EventHeap
from sim.core.options import TICK, SwarmOptions


class SimNetwork:
    """Carries messages between replicas. It may lose, delay, repeat or reorder messages, but never changes one."""

    def __init__(
        self,
        events: EventHeap,
        random_: random.Random,
        options: SwarmOptions,
        deliver: Callable[[Message], None],
        report: Callable[[Message, bool], None],
    ) -> None:
        self._events = events
        self._random = random_
        self._options = options
        self._deliver = deliver
        self._report = report
        """Informs the sender about a message: True means delivered, False means known to be lost."""
        self._cut: dict[tuple[ReplicaId, ReplicaId], bool] = {}
        """Links (source, target) that are cut."""
        self._last_arrival: dict[tuple[ReplicaId, ReplicaId], int] = {}
        self.is_healed = False
        """Whether the second phase has begun, in which no message is lost, repeated or late."""

    def cut(self, source: ReplicaId, target: ReplicaId) -> None:
        """Cut the link: no message from `source` arrives at `target` any more, not even one under way."""
        self._cut[source, target] = True

    def mend(self) -> None:
        """Restore every link."""
        self._cut.clear()

    def send(self, message: Message) -> None:
        """Send a message. Its fate is random."""
        options, chance = self._options, self._random.random
        if (message.source, message.target) in self._cut:
            self._lost(message)
            return
        if self.is_healed:
            self._carry(message, options.delay_min + int(chance() * min(30, options.delay_max - options.delay_min)))
            return
        if options.loss and chance() < options.loss:
            self._lost(message)
            return
        delay = options.delay_min + int(chance() * (options.delay_max - options.delay_min))
        if options.late and chance() < options.late:
            delay += int(chance() * 4 * options.settings.election_ticks * TICK)
        self._carry(message, delay)
        if options.duplication and chance() < options.duplication:
            self._carry(message, delay + int(chance() * 3 * TICK))

    def _carry(self, message: Message, delay: int) -> None:
        if isinstance(message, InstallSnapshot):
            delay += int(self._random.random() * self._options.snapshot_delay_max)  # streamed on a channel of its own
        elif self._options.is_ordered:
            link = (message.source, message.target)
            arrival = max(self._events.now + delay, self._last_arrival.get(link, 0))
            self._last_arrival[link] = arrival
            delay = arrival - self._events.now
        self._events.after(delay, self._arrive, message)

    def _arrive(self, message: Message) -> None:
        if (message.source, message.target) in self._cut:
            self._lost(message)
            return
        self._deliver(message)
        if isinstance(message, InstallSnapshot):
            self._report(message, True)

    def _lost(self, message: Message) -> None:
        if isinstance(message, InstallSnapshot) or self._options.reports_unreachable:
            self._events.after(self._options.delay_min + 1, self._report, message, False)
