"""Define the services that a partition needs from its node. Partitions import this module, never the node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from raftmq.broker.base.limits import Timing
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.metadata import Metadata

T = TypeVar("T")


class PartitionHost(Protocol):
    """A node as its partitions see it."""

    timing: Timing
    loop: asyncio.AbstractEventLoop

    @property
    def metadata(self) -> Replica[Metadata]:
        """Return this node's metadata replica. Raises RequestError NOT_FORMED or NOT_READY."""
        ...

    @property
    def known_metadata(self) -> Metadata:
        """Return the metadata that this node had last, also while it is being replaced. It has every partition that is served here."""
        ...

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch, or the majority's clock if this node's differs from it."""
        ...

    def median_ms(self) -> int | None:
        """Return the median of a quorum's wall clocks in milliseconds since the epoch, or None while too few are known."""
        ...

    @property
    def is_clock_agreed(self) -> bool:
        """Return whether the wall clocks of a majority agree with the median."""
        ...

    def boottime_ns(self) -> int:
        """Return a time that never jumps, and counts the time in which the machine was suspended."""
        ...

    def draw_seed(self) -> int:
        """Return a random number of 64 bits."""
        ...

    async def in_write_back(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a change of a state file on the thread that writes states back."""
        ...

    @property
    def is_clock_trusted(self) -> bool:
        """Return whether this node's clock agrees with the majority's. If not, no record may be treated as too old."""
        ...
