from __future__ import annotations

import pytest
from raftmq.client.base import settings
from raftmq.client.producer.batch import ProducerBatch
from raftmq.client.producer.partition_queue import AnyPartitionQueue, Attempt, PartitionQueue, ProducerIdentity

PLENTY = 1 << 30


def filled(queue: AnyPartitionQueue, count: int) -> list[ProducerBatch]:
    batches = []
    for number in range(count):
        batch = ProducerBatch("t", 0, 1000, 0.0, 60.0)
        batch.append(b"%d" % number, None, 1000, (), 20)
        queue.open = batch
        queue.close_open(0)
        batches.append(batch)
    return batches


def take(queue: AnyPartitionQueue) -> list[Attempt]:
    return queue.take(0.0, PLENTY, 0, may_send_small=True, is_first=True)


@pytest.mark.parametrize("producer_id", [0, 7], ids=["not idempotent", "idempotent"])
@pytest.mark.parametrize("is_outcome_unknown", [False, True])
def test_a_retry_waits_until_every_sent_batch_is_answered(producer_id: int, is_outcome_unknown: bool):
    queue = PartitionQueue("t", 1, 0, 5, ProducerIdentity(producer_id, 0))
    first, second, third, fourth = filled(queue, 4)
    queue.ready.remove(fourth)
    sent = take(queue)
    assert [attempt.batch for attempt in sent] == [first, second, third]
    queue.ready.append(fourth)
    bytes_before = [batch.sealed for batch in (first, second)]

    queue.retry(sent[:1], is_outcome_unknown=is_outcome_unknown)
    assert take(queue) == [], "two are unanswered: neither the refused one nor a new one goes out"
    queue.retry(sent[1:2], is_outcome_unknown=False)
    assert take(queue) == []
    queue.finish(third)
    third.finish(2, None)

    again = take(queue)
    assert [(attempt.batch, attempt.number) for attempt in again] == [(first, 2), (second, 2)]
    assert [batch.sealed for batch in (first, second)] == bytes_before, "the same bytes, the same sequences"
    assert [attempt.batch for attempt in take(queue)] == [fourth]


def test_a_given_up_batch_without_idempotence_blocks_no_other():
    queue = PartitionQueue("t", 1, 0, 5, ProducerIdentity(0, 0))
    first, second = filled(queue, 2)
    take(queue)
    queue.is_broken = True
    queue.finish(first)
    first.finish(-1, None)
    queue.retry([Attempt(second, 1)], is_outcome_unknown=True)
    assert [attempt.batch for attempt in take(queue)] == [second]
    queue.finish(second)
    (third,) = filled(queue, 1)
    assert [attempt.batch for attempt in take(queue)] == [third]
    assert queue.identity == ProducerIdentity(0, 0)


def test_at_most_five_batches_are_in_flight():
    queue = PartitionQueue("t", 1, 0, 5, ProducerIdentity(7, 0))
    filled(queue, 9)
    assert len(take(queue)) == settings.BATCHES_IN_FLIGHT_MAX
    assert take(queue) == []
