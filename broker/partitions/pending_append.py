"""Hold one partition's part of an append that is under way: the outcome of each batch, or the proposal that it waits for.

It holds no protocol state: `PartitionAppends` adds outcomes in the order of the batches, and reads them after the waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from raftmq.broker.base.request_error import RequestError, timed_out
from raftmq.proto import queue_pb2 as pb

Applied = asyncio.Future[list[object]]
"""Done once the entries of one proposal are applied. It is shared by all waiters, and no waiter may cancel it."""


class PendingAppend:
    """The outcomes of one partition's batches.

    Invariant: `outcomes` describes a prefix of `batches`; batches after the first error in it were not tried.
    """

    __slots__ = (
        "append_time_ms", "batches", "gap_position", "leader_epoch", "outcomes", "repeated", "runs", "uninformed_position",
    )  # fmt: skip

    def __init__(self, batches: Sequence[bytes]) -> None:
        self.batches = batches
        self.outcomes: list[tuple[int | RequestError, Applied | None]] = []
        """Base offset or error of each batch. It becomes valid when the future, if any, is done without an error."""
        self.runs: list[tuple[int, Applied]] = []
        """Batches that were proposed together: the number of the first, and the results of all."""
        self.repeated: list[int] = []
        """Batches that were proposed by an earlier request."""
        self.gap_position: int | None = None
        """The batch that may be answered only after a read confirmation, because sequences before it are missing here."""
        self.uninformed_position: int | None = None
        """The batch that may be validated only after this node's metadata is confirmed, because its producer may be replaced.

        Invariant: this or `gap_position` is None.
        """
        self.leader_epoch = 0
        self.append_time_ms = 0

    @property
    def is_undecided(self) -> bool:
        """Return whether a batch must be validated again: see `PartitionAppends.finish`."""
        return self.gap_position is not None or self.uninformed_position is not None

    @property
    def has_failed(self) -> bool:
        """Return whether a batch was refused, so that none after it may be tried."""
        return bool(self.outcomes) and isinstance(self.outcomes[-1][0], RequestError)

    def refuse(self, error: RequestError, after: Applied | None = None) -> None:
        """Refuse the next batch as soon as `after` is done."""
        self.outcomes.append((error, after))

    def pending(self) -> list[Applied]:
        """Return the proposals that are still under way, each once."""
        waiting: list[Applied] = []
        for _, future in self.outcomes:
            if future is not None and not future.done() and (not waiting or waiting[-1] is not future):
                waiting.append(future)
        return waiting

    def result(self, log_start_offset: int) -> pb.PartitionAppendResult:
        """Return the answer as of now. Batches that are still pending are reported as timed out."""
        result = pb.PartitionAppendResult(
            leader_epoch=self.leader_epoch, log_start_offset=log_start_offset, append_time_ms=self.append_time_ms
        )
        for outcome, future in self.outcomes:
            error = _failure(future)
            if error is None and isinstance(outcome, RequestError):
                error = outcome
            if error is not None:
                result.error.CopyFrom(error.detail)
                return result
            assert isinstance(outcome, int)
            result.base_offsets.append(outcome)
        return result


def _failure(future: Applied | None) -> RequestError | None:
    if future is None:
        return None
    if not future.done():
        return timed_out()
    error = future.exception()
    if error is None or isinstance(error, RequestError):
        return error
    raise error
