"""Decide how the dead are copied to another topic: the target, the next run of messages, and the meaning of the target's answer. Pure.

Each dead message has a number, and its copy the producer's sequence `number - copy_first` in the epoch `copy_epoch`. So the target
recognizes a message that a deposed leader or an earlier attempt copied, and what is missing there decides when the sequences begin again.
A gap between dead numbers (a message was redriven or removed before it was copied) is not judged here: the copies after it may have been
written before the gap existed, which only the target knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.config import queue_config
from raftmq.fsm.metadata_views import TopicView
from raftmq.fsm.queue.message import Message
from raftmq.fsm.queue.state import QueueScalars
from raftmq.fsm.queue.topic_config import reason_against_copies
from raftmq.fsm.topic_kinds import QUEUE
from raftmq.proto import queue_pb2 as pb

COPY_MESSAGES_MAX: Final = 100
"""Messages of one copy: enough that a commit of both partitions costs little per message, and few beside the work of an entry."""
COPY_BYTES_MAX: Final = 1 << 20
"""Bytes of one copy, unless its only message is larger. One copy of a partition is under way at a time."""
ADDED_BYTES_MAX: Final = 3 << 10
"""Bytes that a copy of a message has beside the stored ones: an error of 1 KiB, names of 249 bytes and their lengths."""


class CopyTarget(NamedTuple):
    """The partition that gets the copies, and the limits of its topic."""

    topic: str
    topic_id: int
    partition: int
    message_bytes_max: int
    batch_bytes_max: int


class CopyRun(NamedTuple):
    """Dead messages with neighboring numbers that are copied in one batch, and their place in the producer's sequences."""

    epoch: int
    first_sequence: int
    first_number: int
    last_number: int


class Copied(NamedTuple):
    """The target has the dead up to a number."""

    through_number: int


class Restart(NamedTuple):
    """The target cannot continue the sequences. They begin again after this number."""

    through_number: int


def target_of(name: str, topic: TopicView | None, source_partition: int, scalars: QueueScalars) -> CopyTarget:
    """Return the target of copies according to metadata.

    Args:
        name: The topic in the setting `dead.letter.topic`.
        topic: The topic that has this name now.
        source_partition: The number of the partition whose dead are copied.
        scalars: Its numbers. They name the partition of the target once there were copies to it.

    Raises:
        RequestError: UNKNOWN_TOPIC, TOPIC_KIND_MISMATCH, INVALID_CONFIG. The dead wait.
    """
    if topic is None:
        raise RequestError(pb.UNKNOWN_TOPIC, f"there is no topic {name!r}: create it, or change dead.letter.topic")
    if topic.kind != QUEUE:
        raise RequestError(
            pb.TOPIC_KIND_MISMATCH, f"topic {name} is of kind {topic.kind!r}: dead.letter.topic needs a queue topic"
        )
    reason = reason_against_copies(topic.config, len(topic.group_ids))
    if reason:
        raise RequestError(pb.INVALID_CONFIG, f"topic {name} cannot take dead messages: {reason}")
    is_aimed = scalars.copy_epoch > 0 and scalars.copy_topic == topic.topic_id
    partition = scalars.copy_partition if is_aimed else source_partition % len(topic.group_ids)
    config = queue_config(topic.config)
    return CopyTarget(name, topic.topic_id, partition, config.batch.message_bytes_max, config.batch_bytes_max)


def is_aimed_at(target: CopyTarget, scalars: QueueScalars) -> bool:
    """Return whether copies go to this target already."""
    place = (scalars.copy_topic, scalars.copy_partition)
    return scalars.copy_epoch > 0 and place == (target.topic_id, target.partition)


def first_run(messages: Sequence[Message], count_max: int, bytes_max: int) -> list[Message]:
    """Return the first messages that have neighboring numbers and fit into a batch: at least one, if there is any."""
    run: list[Message] = []
    size = 0
    for message in messages[:count_max]:
        size += message.body_bytes + ADDED_BYTES_MAX
        if run and (message.dead_number != run[-1].dead_number + 1 or size > bytes_max):
            break
        run.append(message)
    return run


def run_of(messages: Sequence[Message], scalars: QueueScalars) -> CopyRun:
    """Return the place of neighboring messages in the producer's sequences."""
    first, last = messages[0].dead_number, messages[-1].dead_number
    return CopyRun(scalars.copy_epoch, first - scalars.copy_first, first, last)


def after_answer(run: CopyRun, error: RequestError | None) -> Copied | Restart:
    """Return the consequence of the target's answer to a run. None: it acknowledged the run.

    Raises:
        RequestError: The target refused, or its answer was lost. The same run is sent again later.
    """
    if error is None:
        return Copied(run.last_number)
    if error.code == pb.SEQUENCE_OVERLAP:
        known = error.detail.last_sequence - run.first_sequence
        return Copied(run.first_number + min(max(known, 0), run.last_number - run.first_number))
    # PRODUCER_FENCED is a refusal: at the epoch that the target knows, other messages may have these sequences
    if error.code == pb.OUT_OF_ORDER_SEQUENCE:
        return Restart(run.first_number - 1)
    raise error
