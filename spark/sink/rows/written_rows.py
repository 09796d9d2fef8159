"""Read back the rows that earlier runs of a batch wrote, and leave them out of the rows that are written now.

A row is recognized by its contents: key, value, headers and, with a timestamp column, its time. Of equal rows as many are left out as were
written.

Must not fence the earlier writers, which has to be done before (`earlier_writers`). Invariant: a batch of a producer and epoch is found if the
partition has it, because records appended after the ledger's `since_ms` by any clock that brokers tolerate are read.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute
from raftmq.client.codec.arrow import binary_array, timestamp_array
from raftmq.client.codec.batch import BatchColumns, decode_columns
from raftmq.client.connection.leader_calls import EARLIEST_TIME, LATEST_TIME
from raftmq.spark.errors import RaftMQSparkWarning
from raftmq.spark.sink.rows.hashes import content_hashes, pack_headers
from raftmq.spark.sink.rows.log_rows import HEADERS, HEADERS_TYPE, KEY, TIME, VALUE
from raftmq.spark.source.planning import OffsetRange
from raftmq.spark.source.range_fetch import fetch_range
from raftmq.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from raftmq.client.connection.resolver import TopicInfo
    from raftmq.spark.cluster.cluster import Cluster

pc: Any = pyarrow.compute  # Any: pyarrow creates its functions at run time, so no type checker sees them

CLOCKS_DIFFER_MS: Final = 30_000
"""Clocks of two brokers that append records differ by at most 20 s (docs/adr/0010-clocks.md)."""
KEYS_MAX: Final = 100_000
"""Keys of one partition that are remembered to notice that the order of one is lost."""


class WrittenRows:
    """Find the rows that some producers wrote in some epochs."""

    def __init__(
        self,
        cluster: Cluster,
        writers: Mapping[int, range],
        since_ms: int,
        *,
        has_timestamps: bool,
        timeout_ms: int,
    ) -> None:
        """Create a reader.

        Args:
            cluster: The cluster.
            writers: The epochs of the batches, by producer id.
            since_ms: Time on a broker's clock before the first of these batches was written.
            has_timestamps: Whether the rows' times come from a column, so that they belong to the contents.
            timeout_ms: How long a read may stay without a record.
        """
        self._cluster = cluster
        self._writers = writers
        self._since_ms = since_ms
        self._has_timestamps = has_timestamps
        self._timeout_ms = timeout_ms

    def count(self, topic: TopicInfo, partition: int) -> Counter[bytes]:
        """Return how often each row was written to the partition, by the hash of its contents. Raises as `rows`."""
        found: Counter[bytes] = Counter()
        for _, hashes in self.rows(topic, partition):
            found.update(hashes)
        return found

    def rows(self, topic: TopicInfo, partition: int) -> Iterator[tuple[pa.RecordBatch, list[bytes]]]:
        """Return the contents of the rows that were written to the partition, and their hashes, batch by batch.

        Raises:
            RaftMQError: as `Cluster.offsets` and `fetch_range`.
        """
        if not self._writers:
            return
        place = TopicPartition(topic.name, partition)
        end = self._cluster.offsets({place: LATEST_TIME})[place]  # confirmed by a quorum
        since_ms = max(self._since_ms - CLOCKS_DIFFER_MS, 0)
        start = self._cluster.offsets({place: since_ms}, by_append_time=True)[place]
        start = max(start, self._cluster.offsets({place: EARLIEST_TIME})[place]) if start >= 0 else end
        range_ = OffsetRange(topic.name, topic.topic_id, partition, start, end)
        next_sequences: dict[tuple[int, int], int] = {}
        for batch in fetch_range(self._cluster, range_, timeout_ms=self._timeout_ms, fail_on_data_loss=False):
            header = batch.header
            if header.producer_epoch not in self._writers.get(header.producer_id, ()):
                continue
            writer = (header.producer_id, header.producer_epoch)
            if header.first_sequence > next_sequences.get(writer, 0):
                warnings.warn(
                    f"raftmq: {topic.name}/{partition}: rows of an earlier run were deleted before they were read back; they are"
                    " written again",
                    RaftMQSparkWarning,
                    stacklevel=2,
                )
            next_sequences[writer] = header.last_sequence + 1
            rows = contents_of(decode_columns(batch.data, header), has_times=self._has_timestamps)
            yield rows, hashes_of(rows, 0)


def contents_of(columns: BatchColumns, *, has_times: bool) -> pa.RecordBatch:
    """Return the records of a batch as `log_rows` has the contents of rows."""
    arrays = {VALUE: binary_array(columns.values), KEY: binary_array(columns.keys)}
    counts = columns.header_counts
    if counts is not None and columns.header_names is not None and columns.header_values is not None:
        ends = pc.cumulative_sum(pa.array(counts, pa.int32()))
        pairs = [binary_array(columns.header_names), binary_array(columns.header_values)]
        starts = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        arrays[HEADERS] = pa.ListArray.from_arrays(
            starts, pa.StructArray.from_arrays(pairs, fields=list(HEADERS_TYPE.value_type))
        )
    if has_times:
        arrays[TIME] = timestamp_array(columns)
    return pa.RecordBatch.from_pydict(arrays)


def hashes_of(rows: pa.RecordBatch, no_time_ms: int) -> list[bytes]:
    """Return hashes of the parts of rows that their records have. Rows without a time have `no_time_ms`."""
    columns = {name: rows.column(name) for name in (VALUE, KEY, HEADERS, TIME) if name in rows.schema.names}
    hashes: list[bytes] = content_hashes(
        columns[VALUE],
        columns.get(KEY),
        pack_headers(columns[HEADERS]) if HEADERS in columns else None,
        columns[TIME].fill_null(no_time_ms) if TIME in columns else None,
    ).to_pylist()
    return hashes


class Unwritten:
    """Iterate over sorted rows without those that were written before."""

    def __init__(
        self,
        groups: Iterable[tuple[str, int, Iterator[pa.RecordBatch]]],
        no_time_ms: int,
        own_of: Callable[[str, int], Counter[bytes]],
        others_of: Callable[[str, int], Counter[bytes]],
    ) -> None:
        """Create an iterable, to be used once.

        Args:
            groups: The rows of each topic and partition.
            no_time_ms: The time of rows without one.
            own_of: Returns the rows that this task has written to a partition of a topic.
            others_of: Returns the rows that any task has written there in earlier generations.
        """
        self._groups = groups
        self._no_time_ms = no_time_ms
        self._own_of = own_of
        self._others_of = others_of
        self.skipped: Counter[str] = Counter()
        """Number of rows left out so far, by topic."""
        self.left_out: dict[tuple[str, int], bytes] = {}
        """The hashes of the rows that were left out because some task of an earlier generation wrote them, by topic and partition.

        Another task may have left out an equal row for the same record: `left_out` finds that.
        """

    def groups(self) -> Iterator[tuple[str, int, Iterator[pa.RecordBatch]]]:
        """Return each topic and partition with its other rows."""
        for topic, partition, rows in self._groups:
            yield topic, partition, self._left(topic, partition, rows)

    def _left(self, topic: str, partition: int, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        own, others = self._own_of(topic, partition), self._others_of(topic, partition)
        if not own and not others:
            yield from rows
            return
        passed_keys: set[bytes] = set()
        left_out: list[bytes] = []
        is_out_of_order = False
        for block in rows:
            keys = block.column(KEY).to_pylist() if KEY in block.schema.names else repeat(None)
            is_left: list[bool] = []
            for content, key in zip(hashes_of(block, self._no_time_ms), keys, strict=False):  # some are endless
                written = own if own[content] > 0 else others
                if written[content] <= 0:
                    if key is not None and len(passed_keys) < KEYS_MAX:
                        passed_keys.add(key)
                    is_left.append(True)
                    continue
                written[content] -= 1
                is_left.append(False)
                is_out_of_order |= key in passed_keys
                if written is others:
                    left_out.append(content)
            left = block.filter(pa.array(is_left, pa.bool_()))
            self.skipped[topic] += block.num_rows - left.num_rows
            if left.num_rows:
                yield left
        if left_out:
            self.left_out[topic, partition] = b"".join(left_out)
        if is_out_of_order:
            warnings.warn(
                f"raftmq: {topic}/{partition}: a repeated task got its rows in another order, and rows of one key are written in neither"
                " order; give them one that repeats: the option orderColumn, or a sort within partitions before the write",
                RaftMQSparkWarning,
                stacklevel=2,
            )
