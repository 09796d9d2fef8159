"""Requests of one client to one partition, repeated after lost answers as a client would repeat them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.fsm.queue.commands import Item

from sim.cluster.queues import services
from sim.cluster.queues.ledger import Ledger
from sim.cluster.queues.port import Answered, CallFailedError, QueuePort, Service
from sim.history.queues.operations import Outcome

ATTEMPTS_MAX = 6
_RETRY_SECONDS = 0.05


class Attempt(NamedTuple):
    """One of the times that a request was sent. Each may have been done, whatever the others did."""

    began: float
    ended: float
    outcome: Outcome
    answered: Answered | None


class Requests:
    """The requests of one client of one partition."""

    def __init__(self, process: str, ledger: Ledger, port: QueuePort, group_id: int) -> None:
        self.process = process
        self.ledger = ledger
        self.group_id = group_id
        self._port = port

    async def execute(self, item: Item, on_attempt: Callable[[Attempt], None] = lambda _: None) -> Answered | None:
        """Execute a command, as `send` does."""
        return await self.send(type(item).__name__, partial(_execute, item), on_attempt)

    async def send(
        self, name: str, service: Service[Any], on_attempt: Callable[[Attempt], None] = lambda _: None
    ) -> Answered | None:
        """Send a request until it is answered, or a repeat would not help. Return the answer, or None.

        Args:
            name: The request, in the counts of the run.
            service: The work of the broker.
            on_attempt: Called after each attempt.
        """
        ledger = self.ledger
        for _ in range(ATTEMPTS_MAX):
            began = ledger.now
            ledger.counts[f"queue sent {name}"] += 1
            try:
                answered = await self._port.call(self.group_id, service)
            except CallFailedError as error:
                outcome = Outcome.FAILED if error.is_definite else Outcome.UNKNOWN
                on_attempt(Attempt(began, ledger.ended(is_answered=error.is_definite), outcome, None))
                if error.is_final:
                    return None
                if not error.is_definite:
                    ledger.counts[f"queue unanswered {name}"] += 1
                await asyncio.sleep(ledger.rng.expovariate(1 / _RETRY_SECONDS))
            else:
                ledger.see(self.group_id, answered.before_ms)
                ledger.counts[f"queue answered {name}"] += 1
                on_attempt(Attempt(began, ledger.now, Outcome.OK, answered))
                return answered
        return None


async def _execute(item: Item, partition: PartitionQueue, deadline: float) -> object:
    return await services.execute(partition, item, deadline)
