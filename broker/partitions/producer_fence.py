"""Whether a named producer's batch may still be appended here: a newer producer of the name shuts the older ones out everywhere.

The name's epoch is in the metadata, which every node has. A leader that looks at its own copy may look at an old one: so it takes
batches of named producers only while its copy is at most `METADATA_AGE_SECONDS_MAX` old, confirmed by a quorum. A new producer asks
every broker for the epoch it was given (`Log.FenceProducer`), and where it gets no answer it waits until that time is over: then
such a broker has learned of it, or takes nothing under any name. Anonymous producers have no successors, and are not held up.

Must not decide about sequences: that is the validator's (`fsm/sequence_validator.py`). Source: KIP-98 (fencing by epoch); ADR 0006.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from raftmq.batch_header import BatchHeader
from raftmq.broker.base.request_error import RequestError, expired
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.producer_ids import NAMED_PRODUCER_BIT
from raftmq.proto import queue_pb2 as pb

METADATA_AGE_SECONDS_MAX: Final = 2.5
"""More than a change of the metadata leader takes whose process died, so that it holds nobody up. The SDK waits 1.6 times as long
(`client/base/settings.py` PREDECESSOR_SECONDS): a shorter wait there, or a longer time here, would open a gap."""


class ProducerFence:
    """See the module. One per partition; what it knows is the node's."""

    def __init__(self, metadata: Callable[[], Replica[Metadata]]) -> None:
        """`metadata` gives this node's replica of the metadata; it raises RequestError while there is none."""
        self._metadata = metadata

    def is_informed(self, header: BatchHeader) -> bool:
        """Whether `check` may be believed; False: wait for `inform` and judge again. Always True without a name."""
        return header.producer_id < NAMED_PRODUCER_BIT or self._metadata().reads.is_confirmed_within(
            METADATA_AGE_SECONDS_MAX
        )

    def check(self, header: BatchHeader) -> RequestError | None:
        """PRODUCER_FENCED if a newer producer of the name was started than the one that sent this."""
        if header.producer_id < NAMED_PRODUCER_BIT:
            return None
        epoch_min = self._metadata().state_machine.batch_epoch_min(header.producer_id)
        return fenced(epoch_min) if header.producer_epoch < epoch_min else None

    async def inform(self, deadline: float) -> None:
        """Wait until the metadata here is recent. Raises RequestError, retriable: a quorum did not confirm it in time."""
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(self._metadata().reads.refresh())
        except TimeoutError:
            raise expired() from None
        except RequestError as error:
            raise RequestError(
                pb.NOT_READY,
                "this broker cannot tell whether the producer was replaced: it could not confirm its metadata just now"
                f" ({error})",
                retry_after_ms=200,
            ) from error


def fenced(epoch: int) -> RequestError:
    """A newer producer of the name has `epoch`."""
    return RequestError(pb.PRODUCER_FENCED, f"this producer's epoch is {epoch} now: another one took over")
