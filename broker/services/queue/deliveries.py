"""Turn leased messages into blocks: their fields as of the lease, and their bodies from memory or from the disk.

With `auto_accept` the messages are accepted as well, and a message is delivered only after that is on disk: at most once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Work
from raftmq.broker.partitions.queue.blocks import MessageFacts
from raftmq.broker.partitions.queue.bodies import StoredBody
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.services.host import ServiceHost
from raftmq.fsm.queue.commands import Operation, Settle
from raftmq.fsm.queue.results import Code, Leased, Settled

_COLD_READS_MAX: Final = 8
"""Simultaneous reads of bodies from the disk. Each may hold `LEASE_BYTES_MAX`."""
_ACCEPT_SECONDS: Final = 30.0


class ServedPartition(NamedTuple):
    """A partition of a queue topic with a replica on this broker."""

    topic_id: int
    number: int
    queue: PartitionQueue


class Delivery(NamedTuple):
    """Leased messages in the form in which a consumer receives them."""

    partition: ServedPartition
    leased: Leased
    messages: int
    block: bytes

    def give_back(self) -> None:
        """Release the messages uncounted, because nobody received them."""
        self.partition.queue.leases.give_back(self.leased)


OnDelivered = Callable[[Delivery | None], None]
"""Takes the delivery. None: no message of the lease can be delivered."""


class Deliveries:
    """Makes the deliveries of one broker."""

    def __init__(self, host: ServiceHost) -> None:
        self._host = host
        self._cold_slots = asyncio.Semaphore(_COLD_READS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    def deliver(
        self, partition: ServedPartition, leased: Leased, on_delivered: OnDelivered, *, auto_accept: bool = False
    ) -> None:
        """Make a delivery of messages whose lease was just applied. `on_delivered` may be called before this returns."""
        delivery = None
        try:
            facts = partition.queue.leased_facts(leased)
            bodies = None if facts is None or auto_accept else partition.queue.bodies.in_memory(facts.sequences)
            if facts is not None and bodies is None:
                running = self._run(partition, leased, facts, on_delivered, auto_accept=auto_accept)
                task = self._host.loop.create_task(running)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return
            if facts is not None and bodies is not None:
                delivery = Delivery(partition, leased, len(bodies), facts.block(bodies))
        except Exception as error:  # noqa: BLE001 -- the consumer waits for this delivery before all later ones
            self._host.supervisor.record_failure(Work.CALLBACK, error)
            partition.queue.leases.give_back(leased)
        on_delivered(delivery)

    async def _run(
        self,
        partition: ServedPartition,
        leased: Leased,
        facts: MessageFacts,
        on_delivered: OnDelivered,
        *,
        auto_accept: bool,
    ) -> None:
        delivery, is_accepting = None, False
        try:
            async with self._cold_slots:
                bodies = await partition.queue.read_bodies(facts.sequences)
            is_accepting = auto_accept
            accepted = await self._accept(partition, leased) if auto_accept else None
            delivery = _delivery(partition, leased, facts, bodies, accepted)
        except Exception as error:  # noqa: BLE001 -- the root of a task
            if not isinstance(error, RequestError):
                self._host.supervisor.record_failure(Work.CALLBACK, error)
            if not is_accepting:  # else they may be accepted, and nobody may get them any more
                partition.queue.leases.give_back(leased)
        finally:
            on_delivered(delivery)

    async def _accept(self, partition: ServedPartition, leased: Leased) -> set[int]:
        """Accept leased messages. Return the sequences of those that were.

        Raises:
            RequestError: They may have been accepted.
        """
        runs = len(leased.counts)
        command = Settle(0, 0, (Operation.ACCEPT,) * runs, leased.first_sequences, leased.counts, leased.lease_numbers)
        commands = partition.queue.commands
        result = await commands.execute(command, Settled, self._host.loop.time() + _ACCEPT_SECONDS)
        if not isinstance(result, Settled):
            return set()
        codes = [code for code, count in zip(result.codes, result.counts, strict=True) for _ in range(count)]
        sequences = [
            sequence
            for first, count in zip(leased.first_sequences, leased.counts, strict=True)
            for sequence in range(first, first + count)
        ]
        return {sequence for sequence, code in zip(sequences, codes, strict=True) if code == Code.OK}


def _delivery(
    partition: ServedPartition,
    leased: Leased,
    facts: MessageFacts,
    bodies: Sequence[StoredBody | None],
    accepted: set[int] | None,
) -> Delivery | None:
    """Return the delivery of the messages that have a body: others were finished in the meantime."""
    places = [
        place
        for place, (sequence, body) in enumerate(zip(facts.sequences, bodies, strict=True))
        if body is not None and (accepted is None or sequence in accepted)
    ]
    if not places:
        return None
    found = [body for body in (bodies[place] for place in places) if body is not None]
    if len(places) < len(bodies):
        facts.keep(places)
    return Delivery(partition, leased, len(places), facts.block(found))
