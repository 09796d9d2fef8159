"""One partition's records on their way out: order, sequences, retries. Pure bookkeeping, no `await`, no network.

A batch moves `open` → `ready` → `pipeline` → outcome. The pipeline holds at most five batches in sequence order, each either sent
(unanswered) or unsent (to be sent again).

Order. New batches join the pipeline only while all of it is sent. When a batch in it must be sent again, nothing is sent until
every sent one is answered; then all unsent ones go out in order in one request. So a later batch that was refused because an
earlier one was missing (`OUT_OF_ORDER_SEQUENCE`) is simply repeated behind it.

Broken sequence. When a batch with a sequence is given up (delivery timeout, a definite refusal), the broker would refuse all
that follow. So the queue is marked broken: what is under way is repeated under its old sequences until each outcome is definite,
then the partition continues under the next producer epoch from sequence 0, with the batches that are definitely not applied.
The new epoch fences copies of the old batches that may still be travelling. `Deviation:` Kafka's client does the same for all
partitions at once (KIP-360); here only the partition concerned pays.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from raftmq.client.base import settings
from raftmq.client.connection.resolver import Leader
from raftmq.client.producer.batch import ProducerBatch
from raftmq.errors import RaftMQError


@dataclass(slots=True)
class ProducerIdentity:
    """Under which name and sequence a partition's batches go out."""

    producer_id: int
    """0: not idempotent; epoch and sequence then mean nothing."""
    epoch: int
    next_sequence: int = 0


class Attempt(NamedTuple):
    """A batch as one request carries it."""

    batch: ProducerBatch
    number: int


class PartitionQueue:
    """See the module. All times are the event loop's."""

    def __init__(self, topic: str, topic_id: int, partition: int, group_id: int, identity: ProducerIdentity) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.group_id = group_id
        self.identity = identity
        self.batch_bytes_max = settings.TOPIC_BATCH_BYTES_MAX
        """A batch with more than one record has at most so many bytes of them (written by the producer)."""
        self.open: ProducerBatch | None = None
        self.ready: deque[ProducerBatch] = deque()
        self.pipeline: deque[ProducerBatch] = deque()
        self.sent_to: Leader | None = None
        """Whom the unanswered batches were sent to."""
        self.not_before = 0.0
        """No retry before this time."""
        self.failures = 0
        """Retriable failures since the last success; sets the pace."""
        self.last_error: RaftMQError | None = None
        """The last of those failures; None after a success (written by the dispatcher, for messages)."""
        self.is_broken = False
        """A sequence was given up; see the module."""
        self.is_scheduled = False
        """Some sender has it on its list (written by the senders)."""
        self.is_flushing = False
        """Do not linger."""

    # ----------------------------------------------------------------------------------------------------------- asking

    @property
    def is_idle(self) -> bool:
        """Nothing buffered and nothing under way."""
        return self.open is None and not self.ready and not self.pipeline

    @property
    def has_unanswered(self) -> bool:
        """Some batch is sent and not answered."""
        return any(batch.is_sent for batch in self.pipeline)

    def batches(self) -> list[ProducerBatch]:
        """Everything whose outcome is open, in order."""
        rest = [self.open] if self.open is not None else []
        return [*self.pipeline, *self.ready, *rest]

    # ---------------------------------------------------------------------------------------------------------- sending

    def close_open(self, codec: int) -> None:
        """The open batch takes no more records."""
        if self.open is not None:
            self.open.encode(codec)
            self.ready.append(self.open)
            self.open = None

    def take(self, now: float, bytes_max: int, codec: int, *, may_send_small: bool, is_first: bool) -> list[Attempt]:
        """The batches to send now, in order, marked as sent; at most `bytes_max`, but one at least if `is_first`.

        `may_send_small`: an unfilled batch may go too, if it lingered long enough.
        """
        if now < self.not_before:
            return []
        if self.is_broken and not self._mend():
            return self._take_unsent(bytes_max, is_first)
        if any(not batch.is_sent for batch in self.pipeline):
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

    def _send(self, batch: ProducerBatch) -> Attempt:
        batch.is_sent = True
        batch.attempt += 1
        return Attempt(batch, batch.attempt)

    def _assign_sequence(self, batch: ProducerBatch) -> None:
        identity = self.identity
        if identity.producer_id:
            batch.seal(identity.producer_id, identity.epoch, identity.next_sequence)
            identity.next_sequence += batch.count
        else:
            batch.seal(0, 0, 0)

    def _mend(self) -> bool:
        """Leave the broken state if every outcome is definite; False if some is not."""
        if any(batch.is_sent or batch.may_be_applied for batch in self.pipeline):
            return False
        self.is_broken = False
        if self.identity.producer_id:
            self.identity = ProducerIdentity(self.identity.producer_id, self.identity.epoch + 1)
        for batch in self.pipeline:
            self._assign_sequence(batch)
        return True

    # ---------------------------------------------------------------------------------------------------------- answers

    def finish(self, batch: ProducerBatch) -> None:
        """The batch's outcome is known; its place in line is free."""
        if batch in self.pipeline:
            self.pipeline.remove(batch)
        elif batch in self.ready:
            self.ready.remove(batch)
        elif batch is self.open:
            self.open = None

    def retry(self, attempts: list[Attempt], *, is_outcome_unknown: bool) -> None:
        """These attempts failed and are to be repeated; those that a newer attempt replaced are none of our business."""
        for batch, number in attempts:
            if not batch.is_done and batch.attempt == number and batch.is_sent:
                batch.is_sent = False
                batch.may_be_applied |= is_outcome_unknown

    def abandon_sent(self) -> None:
        """Another leader took over: everything unanswered goes to it."""
        unanswered = [Attempt(batch, batch.attempt) for batch in self.pipeline if batch.is_sent]
        self.retry(unanswered, is_outcome_unknown=True)

    def is_head(self, batch: ProducerBatch) -> bool:
        """Whether no earlier batch is still under way."""
        return bool(self.pipeline) and self.pipeline[0] is batch

    def expired(self, now: float) -> list[ProducerBatch]:
        """Batches whose delivery timeout has passed, in order."""
        return [batch for batch in self.batches() if batch.deadline <= now]
