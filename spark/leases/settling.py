"""Release and reject messages of a streaming query from its ``foreachBatch`` function.

A message that was settled here is not settled again by the commit of its batch, because its lease has ended. The rows travel to no other
place: each task settles those that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from raftmq.client.queue.lease import cut_error
from raftmq.client.queue.lease_token import parse_token
from raftmq.client.queue.new_message import check_duration
from raftmq.errors import InvalidArgumentError
from raftmq.proto import queue_pb2 as pb
from raftmq.spark.base.options import OptionReader, read_client_options
from raftmq.spark.cluster.cluster import Cluster, cluster_of
from raftmq.spark.leases.calls import settle
from raftmq.spark.leases.offsets import LeaseRun, PartitionName, joined_runs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

ROWS_MAX: Final = 5_000
"""Rows that a task holds before it settles them."""


def release(
    rows: DataFrame, bootstrap_servers: str, *, delay_ms: int | Column | None = None, error: str | Column | None = None
) -> None:
    """Give messages back, to be delivered again. After its last attempt a message is dead.

    Args:
        rows: rows of the batch with its columns ``topic`` and ``token``. Messages whose leases have ended are left as they are.
        bootstrap_servers: ``"host:port[,host:port...]"``, which the executors must reach.
        delay_ms: the time until a message may be leased again, for all rows or as a column. None or null: the topic's back-off.
        error: the reason, for all rows or as a column. It is kept with the message.

    Raises:
        The error of a task of Spark. Some messages may be released then.
    """
    _settle_rows(rows, bootstrap_servers, pb.RELEASE, delay_ms, error)


def reject(rows: DataFrame, bootstrap_servers: str, *, error: str | Column | None = None) -> None:
    """Give messages up: they are dead, and kept with the reason. Arguments and errors are those of `release`."""
    _settle_rows(rows, bootstrap_servers, pb.REJECT, None, error)


def _settle_rows(
    rows: DataFrame,
    bootstrap_servers: str,
    operation: pb.AckOperation,
    delay_ms: int | Column | None,
    error: str | Column | None,
) -> None:
    from pyspark.sql.functions import lit

    if isinstance(delay_ms, int):
        check_duration("delay_ms", delay_ms)
    chosen = rows.select(
        "topic",
        "token",
        lit(delay_ms).cast("long").alias("delay_ms"),
        lit(error).cast("string").alias("error"),
    )
    chosen.foreachPartition(_Settling(bootstrap_servers, operation))


class _Settling:
    """Settle the rows of one task. Travels to executors."""

    def __init__(self, bootstrap_servers: str, operation: pb.AckOperation) -> None:
        self._client = read_client_options(OptionReader({"bootstrap.servers": bootstrap_servers}))
        self._operation = operation

    def __call__(self, rows: Iterator[Row]) -> None:
        cluster: Cluster | None = None
        while some := list(islice(rows, ROWS_MAX)):
            cluster = cluster or cluster_of(self._client)
            self._settle(cluster, some)

    def _settle(self, cluster: Cluster, rows: Iterable[Row]) -> None:
        groups: dict[bytes, dict[PartitionName, list[tuple[int, int]]]] = {}
        for row in rows:
            if row.topic is None or row.token is None:
                raise InvalidArgumentError("a row without a topic or a token names no message")
            token = parse_token(row.token)
            encoded = _detail_of(row).SerializeToString(deterministic=True)
            name = PartitionName(row.topic, token.topic_id, token.partition)
            groups.setdefault(encoded, {}).setdefault(name, []).append((token.sequence, token.lease_number))
        for encoded, named in groups.items():
            leases = {name: joined_runs(tokens) for name, tokens in named.items()}
            cluster.run(partial(self._settle_alike, cluster, leases, pb.AckDetail.FromString(encoded)))

    async def _settle_alike(
        self, cluster: Cluster, leases: Mapping[PartitionName, Sequence[LeaseRun]], detail: pb.AckDetail
    ) -> None:
        timeout_seconds = self._client.request_timeout_ms / 1000
        await settle(cluster.resolver, leases, self._operation, detail, timeout_seconds)


def _detail_of(row: Row) -> pb.AckDetail:
    detail = pb.AckDetail(error=cut_error(row.error or ""))
    if row.delay_ms is not None:
        detail.delay_ms = check_duration("delay_ms", row.delay_ms)
    return detail
