"""The decisions about copies of dead messages."""

from __future__ import annotations

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.copy_plan import (
    ADDED_BYTES_MAX,
    Copied,
    CopyRun,
    Restart,
    after_answer,
    first_run,
    is_aimed_at,
    run_of,
    target_of,
)
from raftmq.fsm.metadata_views import TopicView
from raftmq.fsm.queue.message import DEAD, Message
from raftmq.fsm.queue.state import QueueScalars
from raftmq.proto import queue_pb2 as pb

RUN = CopyRun(epoch=3, first_sequence=4, first_number=14, last_number=18)


def dead(*numbers: int, size: int = 10) -> list[Message]:
    return [
        Message(100 - number, DEAD, tenant=1, priority=0, due=0, enqueued_at=0, body_bytes=size, dead_number=number)
        for number in numbers
    ]


def topic(topic_id: int = 7, partitions: int = 3, kind: str = "queue", **config: str) -> TopicView:
    return TopicView(
        topic_id=topic_id, revision=1, name="letters", kind=kind, replication_factor=1, config=config,
        group_ids=tuple(range(20, 20 + partitions)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "count_max", "taken"),
    [
        ((), 9, []),
        ((5,), 9, [5]),
        ((5, 6, 7), 9, [5, 6, 7]),
        ((5, 6, 8, 9), 9, [5, 6]),
        ((5, 6, 7), 2, [5, 6]),
    ],
)
def test_a_run_has_neighboring_numbers(numbers: tuple[int, ...], count_max: int, taken: list[int]) -> None:
    assert [m.dead_number for m in first_run(dead(*numbers), count_max, 1 << 20)] == taken


def test_a_run_fits_into_its_bytes_and_has_at_least_one_message() -> None:
    size = 1_000 + ADDED_BYTES_MAX
    assert len(first_run(dead(1, 2, 3, size=1_000), 9, 2 * size)) == 2
    assert len(first_run(dead(1, 2, 3, size=1_000), 9, 2 * size - 1)) == 1
    assert len(first_run(dead(1, 2, size=1_000), 9, 1)) == 1


def test_the_sequence_of_a_copy_follows_from_its_number() -> None:
    scalars = QueueScalars(copy_epoch=3, copy_first=10, copied_dead=12)
    assert run_of(dead(14, 15, 16), scalars) == CopyRun(3, 4, 14, 16)


def test_an_acknowledged_run_is_copied_whole() -> None:
    assert after_answer(RUN, None) == Copied(18)


@pytest.mark.parametrize(("last_sequence", "through"), [(4, 14), (6, 16), (0, 14), (99, 18)])
def test_an_overlap_tells_how_much_is_copied(last_sequence: int, through: int) -> None:
    error = RequestError(pb.SEQUENCE_OVERLAP, "", last_sequence=last_sequence)
    assert after_answer(RUN, error) == Copied(through)


def test_a_target_that_cannot_continue_restarts_before_the_run() -> None:
    assert after_answer(RUN, RequestError(pb.OUT_OF_ORDER_SEQUENCE, "")) == Restart(13)


@pytest.mark.parametrize(
    "code", [pb.QUEUE_FULL, pb.TENANT_FULL, pb.THROTTLED, pb.NOT_LEADER, pb.REQUEST_TIMED_OUT, pb.PRODUCER_FENCED]
)
def test_any_other_refusal_changes_nothing(code: pb.ErrorCode) -> None:
    with pytest.raises(RequestError) as raised:
        after_answer(RUN, RequestError(code, "no"))
    assert raised.value.code == code


def test_a_first_target_is_chosen_by_the_number_of_the_partition() -> None:
    scalars = QueueScalars()
    chosen = target_of("letters", topic(**{"max.message.bytes": "500"}), 5, scalars)
    assert (chosen.topic_id, chosen.partition, chosen.message_bytes_max) == (7, 2, 500)
    assert not is_aimed_at(chosen, scalars)


def test_a_target_that_was_chosen_stays_when_its_topic_grows() -> None:
    scalars = QueueScalars(copy_epoch=1, copy_topic=7, copy_partition=2)
    chosen = target_of("letters", topic(partitions=8), 5, scalars)
    assert chosen.partition == 2
    assert is_aimed_at(chosen, scalars)


def test_a_topic_that_was_created_again_is_another_target() -> None:
    scalars = QueueScalars(copy_epoch=1, copy_topic=7, copy_partition=2)
    chosen = target_of("letters", topic(topic_id=9), 3, scalars)
    assert chosen.partition == 0
    assert not is_aimed_at(chosen, scalars)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (None, pb.UNKNOWN_TOPIC),
        (topic(kind="log"), pb.TOPIC_KIND_MISMATCH),
        (topic(**{"ordered.by.key": "true"}), pb.INVALID_CONFIG),
    ],
    ids=["gone", "log", "keys of several partitions"],
)
def test_without_a_queue_topic_there_is_no_target(found: TopicView | None, code: pb.ErrorCode) -> None:
    with pytest.raises(RequestError) as raised:
        target_of("letters", found, 0, QueueScalars())
    assert raised.value.code == code


def test_a_target_with_one_partition_may_be_ordered_by_key() -> None:
    assert target_of("letters", topic(partitions=1, **{"ordered.by.key": "true"}), 5, QueueScalars()).partition == 0
