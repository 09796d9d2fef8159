"""Propose the commands of one queue partition, many in an entry.

Each command is checked before it is queued. Whatever waits when a pass of the engine begins travels in few entries, and is committed with the
messages that were proposed before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, TypeVar

from raftmq.broker.base.request_error import RequestError, expired, timed_out
from raftmq.broker.partitions.queue.clock import QueueClock
from raftmq.broker.replica.gathered_commands import GatheredCommands, GatheringLimits
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.commands import Commands, Item, Lease, bytes_bound, encode_commands, validate_item, work_of
from raftmq.fsm.queue.limits import ITEMS_WORK_MAX
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import ItemResult, Refused, Results
from raftmq.proto import queue_pb2 as pb

ENTRY_BYTES_MAX: Final = 512 * 1024
"""Commands in one entry, not counting the first: as much as one append carries to a follower. The largest command has about 1 MiB, 500
settlements with an error of 1 KiB and a progress of 1 KiB each."""
GATHERING: Final = GatheringLimits(
    waiting_max=10_000,
    entry_commands_max=ITEMS_WORK_MAX,
    entry_bytes_max=ENTRY_BYTES_MAX,
    entries_in_flight_max=4,
    entry_work_max=ITEMS_WORK_MAX,
)
"""The work of a command is the number of messages that it may touch."""

ResultT = TypeVar("ResultT", bound=ItemResult)


class QueueCommands:
    """The commands of one partition, on its leader."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica: Replica[QueuePartition],
        clock: QueueClock,
        lease_ms: Callable[[], int],
        draw_seed: Callable[[], int],
        due_max: Callable[[], int],
        lease_numbers_after: Callable[[], int],
        on_more_due: Callable[[], None],
    ) -> None:
        """Take the sources of the facts that each entry carries.

        Args:
            loop: The node's event loop.
            replica: The partition's replica.
            clock: The partition's clock.
            lease_ms: Returns the usual length of a lease.
            draw_seed: Returns a random number of 64 bits, for the jitter of back-offs.
            due_max: Returns how many due messages an entry may promote, as `Commands.due_max`.
            lease_numbers_after: Returns the number after which leases are numbered, as `Commands.lease_numbers_after`.
            on_more_due: Called when an entry left something due, so that another should follow.
        """
        self._loop = loop
        self._replica = replica
        self._clock = clock
        self.lease_ms = lease_ms
        self._draw_seed = draw_seed
        self._due_max = due_max
        self._lease_numbers_after = lease_numbers_after
        self._on_more_due = on_more_due
        self._keys = count()
        self._gathered = GatheredCommands[int, Item](loop, replica, self._encode, self._split, GATHERING, _yields)

    def submit(self, item: Item) -> asyncio.Future[object]:
        """Queue a command. The future returns its `ItemResult`. Cancelling it undoes nothing.

        Raises:
            RequestError: INVALID_ARGUMENT, NOT_LEADER, NOT_READY before the clock runs, THROTTLED. Nothing was queued.
        """
        reason, work = validate_item(item), work_of(item)
        if reason is None and work > ITEMS_WORK_MAX:
            reason = f"a command names at most {ITEMS_WORK_MAX} messages: use several"
        if reason is not None:
            raise RequestError(pb.INVALID_ARGUMENT, reason)
        self._replica.require_leader()
        self.require_clock()
        return self._gathered.submit(next(self._keys), item, bytes_bound(item), work)

    def require_clock(self) -> None:
        """Raise RequestError NOT_READY unless the clock may stamp entries."""
        refusal = self._clock.unreadiness()
        if refusal is not None:
            raise refusal

    async def execute(self, item: Item, result_type: type[ResultT], deadline: float) -> ResultT | Refused:
        """Propose a command and wait until it is applied, at most until `deadline` (loop time). Cancelling undoes nothing.

        Raises:
            RequestError: As `submit`; REQUEST_TIMED_OUT before it was queued (nothing was done). LEADERSHIP_LOST or
                REQUEST_TIMED_OUT afterwards (it may have been done).
        """
        if self._loop.time() >= deadline:
            raise expired()
        future = self.submit(item)
        await asyncio.wait((future,), timeout=max(0.0, deadline - self._loop.time()))
        if not future.done():
            raise timed_out()
        result = future.result()
        assert isinstance(result, (result_type, Refused))
        return result

    def _encode(self, items: Sequence[Item]) -> bytes:
        # while an entry is half applied this number may be its own or that of the entry before it, and both will do
        ended_through = self._replica.state_machine.state.scalars.leases_ended_through
        expire_before = self._clock.expire_before(self.lease_ms(), ended_through)
        return encode_commands(
            Commands(
                tuple(items),
                expire_before,
                self._draw_seed(),
                self._clock.spared_through_ms,
                self._due_max(),
                self._lease_numbers_after(),
            )
        )

    def _split(self, result: object, _count: int) -> Sequence[object]:
        assert isinstance(result, Results)
        if result.has_more_due:
            self._on_more_due()
        return result.items


def _yields(item: Item) -> bool:
    """Return whether an item comes last in its entry: a lease removes expired messages, as many as the items before it left work for."""
    return isinstance(item, Lease)
