"""The work of a broker for one call of a client, between the request and the answer."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from raftmq.broker.base.request_error import RequestError, timed_out
from raftmq.broker.partitions.queue.chains import ChainAnswer
from raftmq.broker.partitions.queue.leases import Filter, QueueLeases
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.fsm.queue.commands import Chain, Item, Lease
from raftmq.fsm.queue.results import Enqueued, Leased, QueueResult, Refused

_LEASE_BYTES = 1 << 20


class PutAnswer(NamedTuple):
    """The answer for a batch."""

    first_sequence: int
    append_ms: int
    enqueued: Enqueued | None
    """None: the batch is a repeat, whose exceptions are not known any more."""


class LeaseAnswer(NamedTuple):
    """Leased messages with their bodies. Messages whose leases ended in the meantime are missing."""

    leased: Leased
    messages: tuple[tuple[int, int, bytes], ...]
    """(sequence, lease number, body)."""


async def put(partition: PartitionQueue, batch: bytes, deadline: float) -> PutAnswer:
    """Append a batch. Raises RequestError."""
    ticket = partition.appends.begin([batch], deadline)
    await partition.appends.finish(ticket, deadline)
    result = ticket.result(0)
    if result.HasField("error"):
        error = RequestError(result.error.code, result.error.message)
        error.detail.CopyFrom(result.error)
        raise error
    (base_offset,) = result.base_offsets
    applied = ticket.outcomes[0][1]
    if not result.append_time_ms or applied is None:
        return PutAnswer(base_offset, 0, None)
    (enqueued,) = applied.result()
    assert isinstance(enqueued, Enqueued)
    return PutAnswer(base_offset, result.append_time_ms, enqueued)


async def execute(partition: PartitionQueue, item: Item, deadline: float) -> QueueResult:
    """Execute a command."""
    return await partition.commands.execute(item, QueueResult, deadline)  # type: ignore[type-var]  # whatever it answers


async def chain(partition: PartitionQueue, command: Chain, batch: bytes, deadline: float) -> ChainAnswer:
    """Accept messages, and put others with them. Raises RequestError."""
    future = partition.chains.submit(command, batch)
    await asyncio.wait((future,), timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
    if not future.done():
        raise timed_out()
    answer = future.result()
    assert isinstance(answer, ChainAnswer)
    return answer


async def count(partition: PartitionQueue, _deadline: float) -> dict[str, int]:
    """Return the numbers of messages by state, after everything that is committed."""
    await partition.replica.read_index()
    tenants = partition.replica.state_machine.state.tenants.by_number.values()
    return {
        state: sum(getattr(tenant, state) for tenant in tenants)
        for state in ("ready", "delayed", "leased", "lined", "dead")
    }


async def uncopied(partition: PartitionQueue, _deadline: float) -> int:
    """Return how many dead messages wait for their copy, after everything that is committed."""
    await partition.replica.read_index()
    return partition.copies.left


class WaitingConsumer:
    """A consumer that waits at a broker for one lease."""

    def __init__(self, messages_max: int, lease_ms: int, wanted: Filter) -> None:
        self.filter = wanted
        self.lease_ms = lease_ms
        self.is_gone = False
        self.leased: asyncio.Future[Leased] = asyncio.get_running_loop().create_future()
        self._credit = messages_max

    def reserve(self, leases: QueueLeases, messages_max: int) -> tuple[int, int]:
        """See `Consumer`. All credit goes to one lease."""
        if self.is_gone:
            return 0, 0
        reserved, self._credit = min(self._credit, messages_max), 0
        return (reserved, _LEASE_BYTES) if reserved else (0, 0)

    def on_refused(self, leases: QueueLeases, reserved: tuple[int, int]) -> None:
        """See `Consumer`."""
        self._credit = reserved[0]

    def on_leased(self, leases: QueueLeases, reserved: tuple[int, int], leased: Leased | None) -> None:
        """See `Consumer`."""
        if leased is None or not leased.counts:
            self._credit = reserved[0]
        elif self.is_gone or self.leased.done():
            leases.give_back(leased)
        else:
            self.leased.set_result(leased)


async def wait_for_lease(
    partition: PartitionQueue, messages_max: int, lease_ms: int, wanted: Filter, seconds: float
) -> LeaseAnswer | None:
    """Wait until something is leased, and return it with its bodies. None: there was nothing."""
    partition.replica.require_leader()
    consumer = WaitingConsumer(messages_max, lease_ms, wanted)
    partition.leases.add(consumer)
    try:
        await asyncio.wait((consumer.leased,), timeout=seconds)
    finally:
        consumer.is_gone = not consumer.leased.done()
        partition.leases.remove(consumer)
    return await _with_bodies(partition, consumer.leased.result()) if consumer.leased.done() else None


async def lease(partition: PartitionQueue, item: Lease, deadline: float) -> LeaseAnswer | Refused | None:
    """Lease by a command of a session."""
    result = await partition.commands.execute(item, Leased, deadline)
    if isinstance(result, Refused):
        return result
    return await _with_bodies(partition, result)


async def _with_bodies(partition: PartitionQueue, leased: Leased) -> LeaseAnswer | None:
    facts = partition.leased_facts(leased)
    if facts is None:
        return None
    bodies = await partition.read_bodies(facts.sequences)
    return LeaseAnswer(
        leased,
        tuple(
            (sequence, number, bytes(body.body))
            for sequence, number, body in zip(facts.sequences, facts.lease_numbers, bodies, strict=True)
            if body is not None
        ),
    )
