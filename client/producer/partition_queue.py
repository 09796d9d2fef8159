"""The unsent and unacknowledged batches of one partition: order, sequences, retries. Pure bookkeeping: no `await`, no network.

A batch moves `open` → `ready` → `pipeline` → outcome. The pipeline holds at most five batches in sequence order. Each of them is either sent
(unanswered) or unsent (to be sent again).

Order. New batches enter the pipeline only while all of its batches are sent. When one of them must be sent again, nothing is sent until every
sent one is answered. Then all unsent ones are sent in order in one request. So a later batch that was refused because an earlier one was
missing (`OUT_OF_ORDER_SEQUENCE`) is simply repeated after it.

Broken sequence. When a batch with a sequence is given up (delivery timeout or a definite refusal), the broker would refuse all later ones.
So the queue is marked broken. Sent batches are repeated under their old sequences until each outcome is definite. Then the partition continues
under the next producer epoch from sequence 0, with the batches that are definitely not applied. The new epoch fences copies of the old batches
that may still be on their way. `Deviation:` Kafka's client does this for all partitions together (KIP-360), here only for the one concerned.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from raftmq.client.base import settings
from raftmq.client.connection.resolver import Leader
from raftmq.client.producer.batch import PendingBatch
from raftmq.errors import RaftMQError

BatchT = TypeVar("BatchT", bound=PendingBatch)


@dataclass(slots=True)
class ProducerIdentity:
    """The producer id, epoch and sequence of a partition's next batch."""

    producer_id: int
    """0: not idempotent, and epoch and sequence have no meaning."""
    epoch: int
    next_sequence: int = 0


class Attempt(NamedTuple):
    """A batch in one request, with the number of the attempt."""

    batch: PendingBatch
    number: int


class PartitionQueue(Generic[BatchT]):
    """Queue of one partition's batches, of records or of messages. All times are the event loop's."""

    def __init__(self, topic: str, topic_id: int, partition: int, group_id: int, identity: ProducerIdentity) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.group_id = group_id
        self.identity = identity
        self.batch_bytes_max = settings.TOPIC_BATCH_BYTES_MAX
        """The maximum bytes of records in a batch with more than one record (written by the producer)."""
        self.open: BatchT | None = None
        self.ready: deque[PendingBatch] = deque()
        self.pipeline: deque[PendingBatch] = deque()
        self.sent_to: Leader | None = None
        """The leader to which the unanswered batches were sent."""
        self.not_before = 0.0
        """The time before which nothing is retried."""
        self.failures = 0
        """Retriable failures since the last success. They determine the backoff."""
        self.last_error: RaftMQError | None = None
        """The last of those failures, or None after a success (written by the dispatcher, for messages)."""
        self.is_broken = False
        """Whether a sequence was given up, as the module describes."""
        self.is_scheduled = False
        """Whether it is on the list of a sender (written by the senders)."""
        self.is_flushing = False
        """Whether to send without lingering."""

    # ----------------------------------------------------------------------------------------------------------- asking

    @property
    def is_idle(self) -> bool:
        """Return whether no batch is buffered or in flight."""
        return self.open is None and not self.ready and not self.pipeline

    @property
    def has_unanswered(self) -> bool:
        """Return whether a batch is sent and not answered."""
        return any(batch.is_sent for batch in self.pipeline)

    def batches(self) -> list[PendingBatch]:
        """Return all batches whose outcome is not known, in order."""
        rest: list[PendingBatch] = [self.open] if self.open is not None else []
        return [*self.pipeline, *self.ready, *rest]

    # ---------------------------------------------------------------------------------------------------------- sending

    def close_open(self, codec: int) -> None:
        """Close the open batch: it accepts no more records."""
        if self.open is not None:
            self.open.encode(codec)
            self.ready.append(self.open)
            self.open = None

    def take(self, now: float, bytes_max: int, codec: int, *, may_send_small: bool, is_first: bool) -> list[Attempt]:
        """Return the batches to send now, in order, marked as sent.

        Args:
            now: The current time.
            bytes_max: The maximum size of the batches together.
            codec: The compression of a batch that is closed here.
            may_send_small: Whether an unfilled batch may be sent if it has lingered long enough.
            is_first: Whether one batch is returned even if it exceeds `bytes_max`.
        """
        if now < self.not_before:
            return []
        if self.is_broken and not self._mend():
            return self._take_unsent(bytes_max, is_first)
        if any(not batch.is_sent for batch in self.pipeline):
            # A batch must be repeated: new ones would overtake it.
            return self._take_unsent(bytes_max, is_first)
        has_lingered = self.open is not None and (self.is_flushing or now >= self.open.linger_until)
        if has_lingered and may_send_small and not self.ready:
            self.close_open(codec)
        taken: list[Attempt] = []
        while self.ready and len(self.pipeline) < settings.BATCHES_IN_FLIGHT_MAX:
            batch = self.ready[0]
            if batch.sealed_bytes > bytes_max and (taken or not is_first):
                break
            self.ready.popleft()
            self._assign_sequence(batch)
            self.pipeline.append(batch)
            taken.append(self._send(batch))
            bytes_max -= batch.sealed_bytes
        return taken

    def _take_unsent(self, bytes_max: int, is_first: bool) -> list[Attempt]:
        if self.has_unanswered:
            return []
        taken: list[Attempt] = []
        for batch in self.pipeline:
            if batch.sealed_bytes > bytes_max and (taken or not is_first):
                break  # the rest follows when these are answered
            taken.append(self._send(batch))
            bytes_max -= batch.sealed_bytes
        return taken

    def _send(self, batch: PendingBatch) -> Attempt:
        batch.is_sent = True
        batch.attempt += 1
        return Attempt(batch, batch.attempt)

    def _assign_sequence(self, batch: PendingBatch) -> None:
        identity = self.identity
        if identity.producer_id:
            batch.seal(identity.producer_id, identity.epoch, identity.next_sequence)
            identity.next_sequence += batch.count
        else:
            batch.seal(0, 0, 0)

    def _mend(self) -> bool:
        """Leave the broken state if every outcome is definite. Return whether that succeeded."""
        if any(batch.is_sent or batch.may_be_applied for batch in self.pipeline):
            return False
        self.is_broken = False
        if self.identity.producer_id:
            self.identity = ProducerIdentity(self.identity.producer_id, self.identity.epoch + 1)
        for batch in self.pipeline:
            self._assign_sequence(batch)
        return True

    # ---------------------------------------------------------------------------------------------------------- answers

    def finish(self, batch: PendingBatch) -> None:
        """Remove a batch whose outcome is known."""
        if batch in self.pipeline:
            self.pipeline.remove(batch)
        elif batch in self.ready:
            self.ready.remove(batch)
        elif batch is self.open:
            self.open = None

    def retry(self, attempts: list[Attempt], *, is_outcome_unknown: bool) -> bool:
        """Mark failed attempts for repetition. Attempts that a newer one replaced are ignored. Return whether any was left."""
        is_any_left = False
        for batch, number in attempts:
            if not batch.is_done and batch.attempt == number and batch.is_sent:
                batch.is_sent = False
                batch.may_be_applied |= is_outcome_unknown
                is_any_left = True
        return is_any_left

    def abandon_sent(self) -> None:
        """Mark all unanswered batches for repetition, because another leader took over."""
        unanswered = [Attempt(batch, batch.attempt) for batch in self.pipeline if batch.is_sent]
        self.retry(unanswered, is_outcome_unknown=True)

    def record_not_applied(self, batch: PendingBatch) -> None:
        """Record that a broker knows that this batch was not applied. Nor were those after it: none is applied before its predecessor.

        The outcome of a sent one comes with its own answer.
        """
        batch.may_be_applied = False
        for later in islice(self.pipeline, self.pipeline.index(batch) + 1, None):
            later.may_be_applied &= later.is_sent

    def is_head(self, batch: PendingBatch) -> bool:
        """Return whether no earlier batch is in flight."""
        return bool(self.pipeline) and self.pipeline[0] is batch

    def expired(self, now: float) -> list[PendingBatch]:
        """Return the batches whose delivery timeout has passed, in order."""
        return [batch for batch in self.batches() if batch.deadline <= now]


AnyPartitionQueue = PartitionQueue[Any]  # Any: those who deliver batches do not look into them
