"""Tell a program, the log and a consumer group how far streaming queries are behind their topics.

A data source in Python cannot give Spark a description or metrics of its own (PySpark 4.0 to 4.3). A query's progress has its offsets,
however, and Spark tells them to listeners, in a Connect client, too.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.streaming.listener import StreamingQueryListener
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import LogThrottle, log
from raftmq.errors import RaftMQError
from raftmq.spark.base.offsets import Position
from raftmq.spark.base.options import OptionReader, read_client_options
from raftmq.spark.cluster.cluster import Cluster, cluster_of
from raftmq.spark.source.lag import QueryLag, lag_at, least_advanced, lost_records, lost_topics, position_in_progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

REQUEST_TIMEOUT_MS: Final = 10_000
"""Spark calls its listeners one after the other, so a lookup must not take long. Spark reports an idle query as often."""
WARNING_SECONDS: Final = 60
T = TypeVar("T")
LOST_TOPICS_MAX: Final = 100
"""Names of lost topics that are kept for a query. A pattern may match any number of short-lived topics."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """Hold the facts of a running query that its last progress told."""

    name: str
    batch_id: int
    position: Position
    lost_records: int = 0
    lost_topics: tuple[str, ...] = ()


class LagListener(StreamingQueryListener):
    """Watch the lag of a session's streaming queries that read one cluster of RaftMQ.

    ::

        listener = LagListener("localhost:9400", group_prefix="spark-")
        spark.streams.addListener(listener)
        ...
        for lag in listener.lags():
            print(lag.query, lag.records, lag.lost_records)

    Spark calls it from threads of its own. An error of the cluster is logged and has no effect on the query.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        group_prefix: str | None = None,
        on_lag: Callable[[QueryLag], object] | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Create a listener for `spark.streams.addListener`. It connects when the first query reports progress.

        Args:
            bootstrap_servers: ``host:port[,host:port…]``, any brokers of the cluster that the queries read.
            group_prefix: Commit the offsets of each query after each batch to a consumer group, whose name is this prefix and the
                query's name (its id if it has none). None: commit nothing. The group must not have members.
            on_lag: Called after each batch, and every ten seconds for an idle query, in a thread of Spark's.
            request_timeout_ms: Limit for each request to the cluster.

        Raises:
            InvalidOptionError: an address or the timeout is malformed.
        """
        options = {"bootstrap.servers": bootstrap_servers, "request.timeout.ms": str(request_timeout_ms)}
        self._client = read_client_options(OptionReader(options))
        self._group_prefix = group_prefix
        self._on_lag = on_lag
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        """The running queries by id."""
        self._warnings = LogThrottle(WARNING_SECONDS)

    def lags(self) -> list[QueryLag]:
        """Ask the cluster, and return the lag of each running query that has reported progress. Raises `RaftMQError`.

        It is the lag at this moment, in the middle of a batch, too.
        """
        with self._lock:
            running = list(self._watched.values())
        return [_lag_of(watched, self._cluster) for watched in running]

    # -------------------------------------------------------------------------------------------------------- for Spark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names, here and below
        """Do nothing, because a query has no offsets before its first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Record the offsets of a batch that ended, and report the query's lag."""
        progress = event.progress
        # The attributes are not used: in a Connect client of earlier versions of Spark their offsets are not JSON.
        sources = [json.loads(source.json) for source in progress.sources]
        moves = [
            (position_in_progress(source["startOffset"]) or Position({}), end, source["numInputRows"])
            for source in sources
            if (end := position_in_progress(source["endOffset"])) is not None
        ]
        if not moves:
            return  # the query has no source of RaftMQ
        query_id = str(progress.id)
        before = self._watched.get(query_id)
        watched = _Watched(
            name=progress.name or query_id,
            batch_id=progress.batchId,
            position=least_advanced(end for _, end, _ in moves),
            lost_records=before.lost_records if before is not None else 0,
            lost_topics=before.lost_topics if before is not None else (),
        )
        gone = [topic for start, end, _ in moves for topic in lost_topics(start, end)]
        lost = self._asked(watched.name, lambda: sum(lost_records(self._cluster, *move) for move in moves)) or 0
        if gone or lost:
            log.warning(
                "query_lost_records query=%s batch_id=%s records=%s topics=%s",
                watched.name,
                watched.batch_id,
                lost,
                ",".join(gone),
            )
            topics = (*watched.lost_topics, *gone)[:LOST_TOPICS_MAX]
            watched = replace(watched, lost_records=watched.lost_records + lost, lost_topics=topics)
        with self._lock:
            self._watched[query_id] = watched
        self._report(watched)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Report the lag of a query that had nothing to do, or waits for its minimum of records."""
        watched = self._watched.get(str(event.id))
        if watched is not None:
            self._report(watched)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget the query. The offsets that were committed for it stay."""
        with self._lock:
            self._watched.pop(str(event.id), None)

    # -------------------------------------------------------------------------------------------------------- reporting

    @property
    def _cluster(self) -> Cluster:
        return cluster_of(self._client)

    def _report(self, watched: _Watched) -> None:
        if self._group_prefix is not None:
            self._commit(self._group_prefix + watched.name, watched)
        lag = self._asked(watched.name, lambda: _lag_of(watched, self._cluster))
        if lag is None:
            return
        log.info(
            "query_progressed query=%s batch_id=%s lag=%s lost=%s",
            lag.query,
            lag.batch_id,
            lag.records,
            lag.lost_records,
        )
        if self._on_lag is not None:
            self._on_lag(lag)

    def _commit(self, group: str, watched: _Watched) -> None:
        failures = self._asked(watched.name, lambda: self._cluster.commit(group, watched.position)) or {}
        for partition, error in failures.items():
            if self._warnings.is_due():
                log.warning(
                    "query_not_committed query=%s group=%s topic=%s partition=%s error_code=%s",
                    watched.name,
                    group,
                    partition.topic,
                    partition.partition,
                    name_of(error),
                )

    def _asked(self, query: str, ask: Callable[[], T]) -> T | None:
        """Return an answer of the cluster. Return None if there is none, and log why."""
        try:
            return ask()
        except RaftMQError as error:
            if self._warnings.is_due():
                log.warning("query_lag_unknown query=%s error_code=%s", query, name_of(error))
            return None


def _lag_of(watched: _Watched, cluster: Cluster) -> QueryLag:
    partitions = lag_at(cluster, watched.position)
    return QueryLag(watched.name, watched.batch_id, partitions, watched.lost_records, watched.lost_topics)
