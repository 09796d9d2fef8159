"""Bugs of the SDK."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

from typing import Any

from sim.cluster.mutants.registry import mutant, replace_method


@mutant(
    "client",
    "a batch of unknown outcome is sent again under a new sequence",
    isolate=4,
    stall_disk=4,
    delivery_seconds=1.5,
    request_seconds=0.5,
    fault_every=0.5,
)
def retries_under_new_sequence() -> None:
    from raftmq.client.producer.partition_queue import PartitionQueue, ProducerIdentity

    retry = PartitionQueue.retry

    def anew(self: Any, attempts: Any, *, is_outcome_unknown: bool) -> bool:
        is_any_left: bool = retry(self, attempts, is_outcome_unknown=is_outcome_unknown)
        if is_outcome_unknown and self.identity.producer_id and not self.has_unanswered:
            self.identity = ProducerIdentity(self.identity.producer_id, self.identity.epoch + 1)
            for batch in self.pipeline:
                self._assign_sequence(batch)
        return is_any_left

    PartitionQueue.retry = anew  # type: ignore[method-assign]


@mutant("client", "a consumer skips one record after a failed poll")
def consumer_skips_a_record() -> None:
    from raftmq.client.consumer.fetcher import Fetcher

    pause = Fetcher._pause

    def skip(self: Any, partition: Any, error: Any) -> None:
        pause(self, partition, error)
        if partition.position is not None and not partition.has_records:
            partition.position += 1
            partition.fetch_offset = partition.position

    Fetcher._pause = skip  # type: ignore[method-assign]


@mutant(
    "client",
    "a delivery that timed out is reported as a definite failure",
    isolate=4,
    stall_disk=4,
    delivery_seconds=1.5,
    request_seconds=0.5,
    fault_every=0.5,
)
def delivery_timeout_called_failure() -> None:
    from raftmq.client.producer.dispatcher import Dispatcher
    from raftmq.errors import DeliveryExpiredError

    Dispatcher._expiry_error = lambda self, queue, batch: DeliveryExpiredError("too late")  # type: ignore[method-assign]


@mutant(
    "client",
    "a record that a deleted topic may have received is reported as a definite failure",
    admin_every=0.08,
    break_streams=0,
    reset_share=0.02,
    send_every=0.03,
)
def deleted_called_failure() -> None:
    from raftmq.client.producer import dispatcher

    replace_method(dispatcher, "with_doubt", lambda original: lambda error: error)


@mutant("client", "a batch gets the answer for another batch")
def answers_mixed_up() -> None:
    from raftmq.client.producer.dispatcher import Dispatcher

    on_answer = Dispatcher.on_answer

    def mixed(self: Any, sent: Any, response: Any, address: str) -> None:
        for _, attempts in sent:
            attempts.reverse()
        on_answer(self, sent, response, address)

    Dispatcher.on_answer = mixed  # type: ignore[method-assign]


@mutant(
    "client",
    "a consumer accepts batches that it has received before",
    delay_mean=0.03,  # the consumer fetches them endlessly, as fast as they arrive
    members=0,
    consumers=1,
)
def consumer_takes_batches_again() -> None:
    from raftmq.client.consumer.partition_fetch import FetchedBatch, PartitionFetch

    def add(self: Any, base_offsets: Any, batches: Any) -> int:
        added = 0
        for base_offset, data in zip(base_offsets, batches, strict=True):
            self._batches.append(FetchedBatch(base_offset, data))
            added += len(data)
        self.buffered_bytes += added
        return added

    PartitionFetch.add = add  # type: ignore[method-assign]


@mutant(
    "client",
    "a batch that a forgetful broker finds out of order is reported as not written, although an earlier attempt may have succeeded",
    is_forgetful=True,
    isolate=4,
    stall_disk=4,
    kill=4,
    fault_every=0.4,
    send_every=0.05,
    request_seconds=0.5,
    delivery_seconds=15.0,
)
def gap_called_failure() -> None:
    from raftmq.client.base import error_details
    from raftmq.errors import OutOfOrderSequenceError

    error_of_code = error_details._error_of_code

    def certain(detail: Any, context: str) -> Any:
        error = error_of_code(detail, context)
        if isinstance(error, OutOfOrderSequenceError):
            error.is_certain = True
        return error

    error_details._error_of_code = certain
