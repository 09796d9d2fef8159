"""Refuse queue topics where records of a log are written or read, in words that name the right client. Pure."""

from __future__ import annotations

from raftmq.client.base.settings import QUEUE_KIND
from raftmq.client.connection.resolver import TopicInfo
from raftmq.errors import TopicKindMismatchError


def require_writable_log(topic: TopicInfo) -> None:
    """Raise `TopicKindMismatchError` for a queue topic. Brokers refuse other kinds that this version does not know."""
    if topic.kind == QUEUE_KIND:
        raise TopicKindMismatchError(
            f"{topic.name!r} is a queue topic: put messages with raftmq.Queue (in the shell: raftmq queue put)"
        )


def require_readable_log(topic: TopicInfo) -> None:
    """Raise `TopicKindMismatchError` for a queue topic, as `require_writable_log`."""
    if topic.kind == QUEUE_KIND:
        raise TopicKindMismatchError(
            f"{topic.name!r} is a queue topic, which has no offsets: get messages with raftmq.Queue, or with raftmq.Worker without a "
            "group_id (in the shell: raftmq queue get)"
        )
