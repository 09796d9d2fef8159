"""Decide whether a named producer's batch may still be appended: a newer producer of the name fences older ones everywhere.

The name's epoch is in the metadata, which every node has. A leader's own copy may be outdated. It therefore accepts batches of
named producers only while its copy was confirmed by a quorum within the last `METADATA_AGE_SECONDS_MAX`. A new producer asks every
broker to acknowledge its epoch (`Log.FenceProducer`). If a broker does not answer, the producer waits until that time has passed:
by then the broker has learned of the epoch, or accepts no named producers. Anonymous producers have no successors, and never wait.

This module must not decide about sequences: `fsm/sequence_validator.py` does. Source: KIP-98 (fencing by epoch); ADR 0006.
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
"""Longer than a failover of the metadata leader after its process died, so that a failover delays no producer. The SDK waits 1.6
times as long (`client/base/settings.py` PREDECESSOR_SECONDS). A shorter wait there, or a longer time here, would open a gap."""


class ProducerFence:
    """Fences the named producers of one partition by the node's metadata."""

    def __init__(self, metadata: Callable[[], Replica[Metadata]]) -> None:
        """Take `metadata`, which returns this node's metadata replica. It raises RequestError while there is none."""
        self._metadata = metadata

    def is_informed(self, header: BatchHeader) -> bool:
        """Return whether `check` is reliable. If not, call `inform` and validate again. Always True without a name."""
        return header.producer_id < NAMED_PRODUCER_BIT or self._metadata().reads.is_confirmed_within(
            METADATA_AGE_SECONDS_MAX
        )

    def check(self, header: BatchHeader) -> RequestError | None:
        """Return PRODUCER_FENCED if a newer producer of the name was started than the sender of this batch."""
        if header.producer_id < NAMED_PRODUCER_BIT:
            return None
        epoch_min = self._metadata().state_machine.batch_epoch_min(header.producer_id)
        return fenced(epoch_min) if header.producer_epoch < epoch_min else None

    async def inform(self, deadline: float) -> None:
        """Wait until the metadata here is recent. Raises a retriable RequestError if a quorum did not confirm it in time."""
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
    """Return the error that tells a producer of the newer producer's epoch."""
    return RequestError(pb.PRODUCER_FENCED, f"this producer's epoch is {epoch} now: another one took over")
