"""Define the services that a partition needs from its node. Partitions import this module, never the node."""

from __future__ import annotations

import asyncio
from typing import Protocol

from raftmq.broker.base.limits import Timing
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.metadata import Metadata


class PartitionHost(Protocol):
    """A node as its partitions see it."""

    timing: Timing
    loop: asyncio.AbstractEventLoop

    @property
    def metadata(self) -> Replica[Metadata]:
        """Return this node's metadata replica. Raises RequestError NOT_FORMED or NOT_READY."""
        ...

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch, or the majority's clock if this node's differs from it."""
        ...

    @property
    def is_clock_trusted(self) -> bool:
        """Return whether this node's clock agrees with the majority's. If not, no record may be treated as too old."""
        ...
