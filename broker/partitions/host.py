"""Define what a partition asks of the node that it runs on. Partitions import this, never the node."""

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
        """The metadata group's replica here. Raises RequestError NOT_FORMED or NOT_READY."""
        ...

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch; the majority's, where this node's differs."""
        ...

    @property
    def is_clock_trusted(self) -> bool:
        """Whether this node's clock is the majority's: without that nothing may be called too old."""
        ...
