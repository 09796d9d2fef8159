"""Find the columns of a write by the kind of its topic. Must not import Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raftmq.client.base.settings import LOG_KIND, QUEUE_KIND
from raftmq.errors import TopicKindMismatchError
from raftmq.spark.cluster.cluster import cluster_of
from raftmq.spark.sink.columns.log import SinkColumns, check_schema
from raftmq.spark.sink.columns.queue import QueueColumns, check_queue_schema

if TYPE_CHECKING:
    from raftmq.client.connection.resolver import TopicInfo
    from raftmq.spark.sink.columns.fields import Field
    from raftmq.spark.sink.options import SinkOptions


def find_columns(fields: Sequence[Field], options: SinkOptions) -> SinkColumns | QueueColumns:
    """Find the columns for the topic that the option names, or for log topics if the rows name theirs. Runs in a task.

    The driver does not know the kind: to ask the cluster would delay the planning of every write.

    Raises:
        InvalidSchemaError, InvalidOptionError: the topic's kind does not accept the columns or options.
        UnknownTopicError: the topic does not exist.
        TopicKindMismatchError: this version cannot write to topics of its kind.
    """
    if options.topic is None:
        return check_schema(fields, options)
    topic = _topic(options, options.topic)
    if topic.kind == QUEUE_KIND:
        return check_queue_schema(fields, options)
    require_log(topic)
    return check_schema(fields, options)


def require_log(topic: TopicInfo) -> None:
    """Raise `TopicKindMismatchError` unless the topic is a log."""
    if topic.kind == QUEUE_KIND:
        raise TopicKindMismatchError(
            f"{topic.name!r} is a queue topic: name it with the option topic, because a column 'topic' is for log topics"
        )
    if topic.kind != LOG_KIND:
        raise TopicKindMismatchError(
            f"{topic.name!r} is a topic of kind {topic.kind!r}, to which this version cannot write"
        )


def _topic(options: SinkOptions, name: str) -> TopicInfo:
    cluster = cluster_of(options.client)
    timeout_seconds = options.client.request_timeout_ms / 1000
    return cluster.run(lambda: cluster.resolver.topic(name, timeout_seconds))
