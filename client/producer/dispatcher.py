"""Delivers each batch of a producer: sends it to the leader of its partition, with retries, until it is acknowledged or expires.

Takes queues with batches to send and finishes the batches. Must not know records, topic names or calls of users. Invariants: a batch's
outcome is reported once. A batch whose outcome is unknown is repeated only under the same sequence. Without idempotence, a batch is
repeated only when its last attempt was answered or its stream has ended.

Source: KIP-98 (idempotent producer), KIP-360 (epoch bump by the client).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff, cancel_and_wait, spawn
from raftmq.client.base.error_details import error_from_detail, name_of, with_address, with_doubt
from raftmq.client.base.logs import log
from raftmq.client.base.metrics import ProducerCounters
from raftmq.client.connection.resolver import Resolver
from raftmq.client.producer.batch import PendingBatch
from raftmq.client.producer.broker_sender import BrokerSender, SentPartition
from raftmq.client.producer.byte_budget import ByteBudget
from raftmq.client.producer.partition_queue import AnyPartitionQueue, Attempt
from raftmq.errors import (
    ClosedClientError,
    ClosedInFlightError,
    DeliveryExpiredError,
    DeliveryTimeoutError,
    NotLeaderError,
    Outcome,
    OutOfOrderSequenceError,
    ProducerFencedError,
    ProtocolError,
    QueueFullError,
    RaftMQError,
    TenantFullError,
    UnknownPartitionError,
    UnknownProducerError,
    UnknownTopicError,
)
from raftmq.proto import queue_pb2 as pb


class Dispatcher:
    """Delivers the batches of one producer, from `start` to `close`, on one event loop."""

    def __init__(
        self,
        resolver: Resolver,
        budget: ByteBudget,
        *,
        codec: int,
        request_timeout_seconds: float,
        delivery_timeout_seconds: float,
        rng: random.Random,
        has_name: bool = False,
    ) -> None:
        self.active: dict[AnyPartitionQueue, None] = {}
        """Queues with unfinished batches."""
        self.senders: dict[str, BrokerSender] = {}
        self.counters = ProducerCounters()
        self.failure: BaseException | None = None
        """The error that ended it: a defect, the resolver's failure, or a `ProducerFencedError`. Nothing is sent after it."""
        self._resolver = resolver
        self._budget = budget
        self._codec = codec
        self._request_timeout_seconds = request_timeout_seconds
        self._delivery_timeout_seconds = delivery_timeout_seconds
        self._rng = rng
        self._has_name = has_name
        self._leaderless: dict[AnyPartitionQueue, None] = {}
        self._unobserved: list[PendingBatch] = []
        """Failed batches that nobody had awaited when they failed. At most `UNOBSERVED_FAILURES_MAX`, including the first."""
        self._ticker: asyncio.Task[None] | None = None
        self._tick_needed = asyncio.Event()
        self._is_closed = False

    def start(self) -> None:
        """Start. The resolver must be started."""
        self._resolver.subscribe(self._on_topology)
        self._ticker = spawn(self._tick_forever(), "raftmq-producer-clock", self.on_crash)

    async def drain(self) -> None:
        """Send all batches without lingering, and wait for every outcome, within the delivery timeout. Raises an unobserved failure."""
        outstanding = []
        for queue in list(self.active):
            queue.is_flushing = True
            outstanding += queue.batches()
            self.reschedule(queue)
        for batch in outstanding:
            await batch.wait_done()
        await asyncio.sleep(0)  # lets callbacks of batches that were finished before this call run
        self.raise_unobserved()

    def raise_unobserved(self) -> None:
        """Raise the first failure that nobody awaited, once. A note gives the number of other failures."""
        failed = [batch for batch in self._unobserved if not batch.is_observed]
        self._unobserved = []
        if not failed:
            return
        try:
            failed[0].raise_error()
        except RaftMQError as error:
            if len(failed) > 1:
                count = sum(batch.count for batch in failed)
                error.add_note(f"other records failed, too: at least {count} records in {len(failed)} batches")
            raise

    async def close(self) -> None:
        """Fail all unfinished batches and stop every task. Waits only for their end."""
        self._is_closed = True
        try:
            await cancel_and_wait(self._ticker)
        finally:
            for sender in self.senders.values():
                sender.drop()
            self.senders.clear()
            self._fail_all(
                ClosedClientError("the producer was closed"),
                ClosedInFlightError("the producer was closed, and the batch may have been written"),
            )
            await asyncio.sleep(0)  # lets their callbacks run

    # -------------------------------------------------------------------------------------------------------- scheduling

    def on_active(self, queue: AnyPartitionQueue) -> None:
        """Add a queue with unfinished batches."""
        self.active[queue] = None
        self._tick_needed.set()

    def reschedule(self, queue: AnyPartitionQueue) -> None:
        """Assign the queue to the sender of its partition's current leader."""
        leader = self._resolver.leader(queue.group_id)
        if leader is None or self._is_closed or self.failure is not None:
            self._leaderless[queue] = None
            queue.is_scheduled = True  # the next change of the topology schedules it again
            return
        address = self._resolver.address(leader)
        sender = self.senders.get(address)
        if sender is None:
            sender = self.senders[address] = BrokerSender(
                address,
                self._resolver,
                self,
                codec=self._codec,
                request_timeout_seconds=self._request_timeout_seconds,
                counters=self.counters,
                on_crash=self.on_crash,
            )
        sender.schedule(queue)

    def _on_topology(self) -> None:
        if self._is_closed or self.failure is not None:
            return
        if self._resolver.failure is not None:
            self.on_crash(self._resolver.failure)
            return
        leaderless, self._leaderless = self._leaderless, {}
        for queue in leaderless:
            queue.is_scheduled = False
            self.reschedule(queue)
        for queue in list(self.active):
            leader = self._resolver.leader(queue.group_id)
            if leader is None or queue.sent_to is None or leader.leader_epoch <= queue.sent_to.leader_epoch:
                continue
            log.info(
                "leader_changed topic=%s partition=%d broker_id=%d leader_epoch=%d",
                queue.topic,
                queue.partition,
                leader.broker_id,
                leader.leader_epoch,
            )
            queue.sent_to = leader
            if queue.identity.producer_id:
                # A frozen leader answers nothing: its successor gets the batches immediately, under the same sequences. Without sequences
                # that could write them twice, so the old leader's answer, or the end of its stream, must come first.
                queue.abandon_sent()
            queue.not_before = 0.0
            self.reschedule(queue)

    # ----------------------------------------------------------------------------------------------------------- answers

    def on_answer(self, sent: list[SentPartition], response: pb.AppendResponse, address: str) -> None:
        """Handle the answer to a request for each of its partitions. Called by the senders."""
        whole = error_from_detail(response.error) if response.HasField("error") else None
        if whole is None and len(response.partitions) != len(sent):
            whole = ProtocolError(
                f"the broker answered for {len(response.partitions)} partitions instead of {len(sent)}"
            )
        for number, (queue, attempts) in enumerate(sent):
            acknowledged: Sequence[int] = ()
            error = whole
            if whole is None:
                result = response.partitions[number]
                acknowledged = result.base_offsets
                _record_known(attempts, result)
                if result.HasField("error"):
                    error = error_from_detail(result.error, f"{queue.topic}/{queue.partition}")
            for attempt, base_offset in zip(attempts, acknowledged, strict=False):
                self._finish(queue, attempt.batch, base_offset, None)
            rest = attempts[len(acknowledged) :]
            if acknowledged:
                queue.failures = 0
                queue.last_error = None
            if rest:
                error = error or ProtocolError("the broker did not answer for every batch")
                self._on_refused(queue, rest, with_address(error, address))
            self._resume(queue)

    def on_fenced(self, error: ProducerFencedError) -> None:
        """Stop writing and fail all batches, because a newer producer has our name."""
        if self.failure is not None:
            return
        self.failure = error
        log.warning("producer_fenced error_code=%s", name_of(error))
        self._fail_all(error, with_doubt(error))

    def on_lost(self, sent: list[SentPartition], error: RaftMQError) -> None:
        """Repeat an unanswered request under the same sequences. Called by the senders."""
        self.counters.requests.record_error(error)
        for queue, attempts in sent:
            if queue.retry(attempts, is_outcome_unknown=error.outcome is Outcome.UNKNOWN):
                self._pause(queue, error)
            self._resume(queue)

    def _on_refused(self, queue: AnyPartitionQueue, attempts: list[Attempt], error: RaftMQError) -> None:
        """Handle a refusal of the first of these attempts. The broker did not try the others after it."""
        self.counters.requests.record_error(error)
        batch, number = attempts[0]
        is_current = not batch.is_done and batch.attempt == number and batch.is_sent
        queue.retry(attempts, is_outcome_unknown=error.outcome is Outcome.UNKNOWN)
        if not is_current:
            return
        if isinstance(error, UnknownTopicError | UnknownPartitionError) and not self._resolver.has_partition(
            queue.topic, queue.group_id
        ):
            doubtful = with_doubt(error)
            for waiting in queue.batches():
                self._finish(queue, waiting, -1, doubtful if waiting.is_sent or waiting.may_be_applied else error)
            return
        if isinstance(error, OutOfOrderSequenceError | UnknownProducerError):
            if isinstance(error, OutOfOrderSequenceError) and error.is_certain:
                # This holds for all copies of the batch that this leader could still accept. The next epoch fences older ones.
                queue.record_not_applied(batch)
            if queue.is_head(batch):
                if batch.may_be_applied:
                    # The broker has forgotten the batches of this producer: nobody can find out, and it must not be written again.
                    self._give_up(queue, batch, with_doubt(error))
                    return
                queue.is_broken = True  # no earlier batch is in flight: the missing one was given up, or has expired
            self._pause(queue, error)
        elif isinstance(error, NotLeaderError):
            has_better = self._resolver.on_not_leader(queue.group_id, error)
            self._pause(queue, error, is_first_free=has_better)
        elif isinstance(error, QueueFullError | TenantFullError):
            # Only consumers make room, perhaps much later: waiting here would delay the batches of other tenants.
            self._give_up(queue, batch, with_doubt(error) if batch.may_be_applied else error)
        elif error.retriable or isinstance(error, UnknownTopicError | UnknownPartitionError):
            self._pause(queue, error)
        elif isinstance(error, ProducerFencedError) and self._has_name:
            self.on_fenced(error)
        else:
            self._give_up(queue, batch, with_doubt(error) if batch.may_be_applied else error)

    def _pause(self, queue: AnyPartitionQueue, error: RaftMQError, *, is_first_free: bool = False) -> None:
        """Delay retries, with a backoff that grows with consecutive failures. The first retry after a better hint is immediate."""
        backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, self._rng)
        backoff.failures = queue.failures
        pause = backoff.next_seconds()
        if is_first_free and queue.failures == 0:
            pause = 0.0
        queue.failures += 1
        queue.last_error = error
        queue.not_before = asyncio.get_running_loop().time() + max(pause, error.retry_after_ms / 1000)
        data = (queue.topic, queue.partition, name_of(error), queue.failures)
        if queue.failures == settings.FAILURES_BEFORE_WARNING:
            log.warning("partition_unavailable topic=%s partition=%d error_code=%s failures=%d", *data)
        else:
            log.debug("append_retried topic=%s partition=%d error_code=%s failures=%d", *data)

    def _resume(self, queue: AnyPartitionQueue) -> None:
        if queue.is_idle:
            queue.is_flushing = False
            self.active.pop(queue, None)
        elif not queue.is_scheduled:
            self.reschedule(queue)

    def _give_up(self, queue: AnyPartitionQueue, batch: PendingBatch, error: RaftMQError) -> None:
        """Fail a batch. If it was sent with a sequence, later batches cannot follow it."""
        if batch.attempt > 0:
            queue.is_broken = True
        data = (queue.topic, queue.partition, batch.count, name_of(error))
        log.warning("batch_given_up topic=%s partition=%d records=%d error_code=%s", *data)
        self._finish(queue, batch, -1, error)

    def _finish(
        self, queue: AnyPartitionQueue, batch: PendingBatch, base_offset: int, error: RaftMQError | None
    ) -> None:
        if batch.is_done:
            return
        counters = self.counters
        if error is None:
            counters.records_total += batch.count
            counters.batches_total += 1
            counters.bytes_total += batch.sealed_bytes
        else:
            counters.failed_records_total += batch.count
            counters.failed_batches_total += 1
        queue.finish(batch)
        batch.finish(base_offset, error)
        self._budget.release(batch.reserved_bytes)
        if error is not None and not batch.is_observed:
            self._record_unobserved(batch)

    def _record_unobserved(self, batch: PendingBatch) -> None:
        """Remember a failure for `flush`. If there are too many, the first and the latest are kept, because others may still be awaited."""
        if len(self._unobserved) >= settings.UNOBSERVED_FAILURES_MAX:
            self._unobserved = [failed for failed in self._unobserved if not failed.is_observed]
            del self._unobserved[settings.UNOBSERVED_FAILURES_MAX - 1 :]
        self._unobserved.append(batch)

    # ------------------------------------------------------------------------------------------------------------- time

    async def _tick_forever(self) -> None:
        """Give up overdue batches. Sleeps without waking up while there are no unfinished batches."""
        while True:
            await self._tick_needed.wait()
            self._tick_needed.clear()
            while self.active:
                await asyncio.sleep(settings.TICK_SECONDS)
                self._expire(asyncio.get_running_loop().time())

    def _expire(self, now: float) -> None:
        for sender in self.senders.values():
            sender.check_late(now)
        for queue in list(self.active):
            for batch in queue.expired(now):
                self._give_up(queue, batch, self._expiry_error(queue, batch))
            self._resume(queue)

    def _expiry_error(self, queue: AnyPartitionQueue, batch: PendingBatch) -> RaftMQError:
        where = f"{batch.topic}/{batch.partition}: {batch.count} records"
        seconds = self._delivery_timeout_seconds
        if batch.is_sent or batch.may_be_applied:
            error: RaftMQError = DeliveryTimeoutError(
                f"{where} were not acknowledged within {seconds:g} s and may have been written{self._because(queue)}"
            )
        else:
            error = DeliveryExpiredError(f"{where} could not be written within {seconds:g} s{self._because(queue)}")
        error.__cause__ = queue.last_error
        leader = self._resolver.leader(queue.group_id)
        error.address = self._resolver.address(leader) if leader is not None else ""
        return error

    def _because(self, queue: AnyPartitionQueue) -> str:
        """Return what delayed the partition's batches, with the address that was asked."""
        leader = self._resolver.leader(queue.group_id)
        if leader is None:
            return ": the partition has no known leader"
        if queue.last_error is not None:
            return f" (the last error: {queue.last_error.args[0]})"
        return f" (no answer from its leader at {self._resolver.address(leader)})"

    # --------------------------------------------------------------------------------------------------------------- end

    def on_crash(self, error: BaseException) -> None:
        """Handle the end of a background task by a defect, or of the resolver. All waiters are woken, because nothing will be sent any more."""
        if self.failure is not None:
            return
        self.failure = error
        log.error("producer_stopped error_code=%s", name_of(error))
        why = str(error.args[0]) if isinstance(error, RaftMQError) else "an internal error"
        in_flight = ClosedInFlightError(f"the producer stopped ({why}), and the batch may have been written")
        in_flight.__cause__ = error
        self._fail_all(error if isinstance(error, RaftMQError) else in_flight, in_flight)

    def _fail_all(self, waiting: RaftMQError, in_flight: RaftMQError) -> None:
        """Fail all batches: those that may have been written with `in_flight`, the others with `waiting`."""
        for queue in list(self.active):
            for batch in queue.batches():
                self._finish(queue, batch, -1, in_flight if batch.is_sent or batch.may_be_applied else waiting)
        self.active.clear()
        self._budget.fail_waiters(waiting)


def _record_known(attempts: Sequence[Attempt], result: pb.PartitionAppendResult) -> None:
    """Tell the batches of a queue topic which of their ids were known."""
    for known in result.known_messages:
        if known.batch < len(attempts):
            batch = attempts[known.batch].batch
            batch.record_known(known.position, known.sequence, is_replaced=known.is_replaced)
