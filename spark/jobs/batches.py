"""List the open batches of a topic, and abandon the batch of a writer that never comes back. Needs no Spark session."""

from __future__ import annotations

from raftmq.spark.atomic.batch_marks import OpenBatch, abandon_batch, read_marks
from raftmq.spark.atomic.mark_calls import run_marks
from raftmq.spark.base.options import OptionReader, read_client_options
from raftmq.spark.cluster.cluster import cluster_of
from raftmq.spark.jobs.running import EXIT_OK, EXIT_USAGE, say


def batches(servers: str, topic: str, abandoned: str | None) -> int:
    """Report each open batch of the topic, after the batch of the writer `abandoned` was abandoned. Return the exit code.

    Raises:
        InvalidOptionError: several writers are called `abandoned`.
    """
    options = read_client_options(OptionReader({"bootstrap.servers": servers}))
    cluster = cluster_of(options)
    seconds = options.request_timeout_ms / 1000
    topic_id = cluster.run(lambda: cluster.resolver.topic(topic, seconds, is_fresh=True)).topic_id
    if abandoned is not None:
        batch = run_marks(cluster, topic, topic_id, abandon_batch(abandoned), seconds)
        if batch is None:
            say("failed", message=f"{topic} has no open batch of a writer {abandoned!r}")
            return EXIT_USAGE
        _say("abandoned", topic, batch)
    for batch in run_marks(cluster, topic, topic_id, read_marks(), seconds).open:
        _say("open", topic, batch)
    return EXIT_OK


def _say(event: str, topic: str, batch: OpenBatch) -> None:
    writer = batch.writer
    say(event, topic=topic, writer=writer.shown, key=writer.key.hex(), batch=batch.epoch, since_ms=batch.since_ms)
