"""Define the checks of a batch that depend on the kind of its topic. `PartitionAppends` makes all others."""

from __future__ import annotations

from typing import Protocol

from raftmq.batch_header import BatchHeader, validate
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.pending_append import Applied, PendingAppend
from raftmq.proto import queue_pb2 as pb


class AppendGate(Protocol):
    """The checks of one partition. They are made in the order of the batches, without an `await` in between."""

    def check(self, batch: bytes, bytes_max: int) -> BatchHeader:
        """Check a batch by itself. Raises `BatchFormatError`."""
        ...

    def admit(self, header: BatchHeader, batch: bytes) -> RequestError | None:
        """Return why the partition does not accept a batch now, which was checked last and is new. None: it is reserved."""
        ...

    def on_proposed(self, applied: Applied) -> None:
        """Handle the proposal of all batches that were admitted since the last call of this or of `on_refused`."""
        ...

    def on_refused(self) -> None:
        """Release the batches that were admitted and will not be proposed."""
        ...

    def start_term(self) -> None:
        """Forget the batches that were proposed in an earlier term."""
        ...

    def describe(self, ticket: PendingAppend, result: pb.PartitionAppendResult) -> None:
        """Add to an answer what applying the batches has told about their messages."""
        ...


class LogGate:
    """The checks of a log partition, which accepts every batch that is whole."""

    def check(self, batch: bytes, bytes_max: int) -> BatchHeader:
        """See `AppendGate`."""
        return validate(batch, bytes_max)

    def admit(self, header: BatchHeader, batch: bytes) -> RequestError | None:
        """See `AppendGate`."""

    def on_proposed(self, applied: Applied) -> None:
        """See `AppendGate`."""

    def on_refused(self) -> None:
        """See `AppendGate`."""

    def start_term(self) -> None:
        """See `AppendGate`."""

    def describe(self, ticket: PendingAppend, result: pb.PartitionAppendResult) -> None:
        """See `AppendGate`."""
