"""Read back the rows that earlier runs of a batch wrote, and leave them out of the rows that are written now.

A row is recognized by its contents: key, value, headers and, with a timestamp column, its time. Of equal rows as many are left out as were
written.

Must not fence the earlier writers, which has to be done before (`earlier_writers`). Invariant: a batch of a producer and epoch is found if the
partition has it, because records appended after the ledger's `since_ms` by any clock that brokers tolerate are read.
"""

from __future__ import annotations

import marshal
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import groupby, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from raftmq.client.codec.batch import decode_columns
from raftmq.client.connection.leader_calls import EARLIEST_TIME, LATEST_TIME
from raftmq.spark.errors import RaftMQSparkWarning
from raftmq.spark.planning import OffsetRange
from raftmq.spark.range_fetch import fetch_range
from raftmq.spark.sink_columns import NO_TIME, pack_pairs
from raftmq.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from raftmq.client.connection.resolver import TopicInfo
    from raftmq.spark.cluster import Cluster
    from raftmq.spark.sink_columns import SinkRow

CLOCKS_DIFFER_MS: Final = 30_000
"""Clocks of two brokers that append records differ by at most 20 s (docs/adr/0010-clocks.md)."""
KEYS_MAX: Final = 100_000
"""Keys of one partition that are remembered to notice that the order of one is lost."""
HASH_BYTES: Final = 16

Content = tuple[bool, bytes, bool, bytes, bytes, int]
"""The parts of a `SinkRow` from the key on."""


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
        """Return how often each row was written to the partition, by `hash_of`. Raises as `rows`."""
        return Counter(content_hash(content) for content in self.rows(topic, partition))

    def rows(self, topic: TopicInfo, partition: int) -> Iterator[Content]:
        """Return the contents of the rows that were written to the partition.

        Raises:
            RaftMQError: as `Cluster.offsets` and `fetch_range`.
        """
        if not self._writers:
            return
        place = TopicPartition(topic.name, partition)
        end = self._cluster.offsets({place: LATEST_TIME})[place]  # confirmed by a quorum
        start = self._cluster.offsets({place: max(self._since_ms - CLOCKS_DIFFER_MS, 0)})[place]
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
            columns = decode_columns(batch.data, header)
            values, keys = columns.values.to_list(), columns.keys.to_list()
            headers = columns.headers if columns.headers is not None else repeat(())
            times = columns.timestamps() if self._has_timestamps else repeat(0)
            for value, key, pairs, time_ms in zip(values, keys, headers, times, strict=False):  # some are endless
                yield key is not None, key or b"", value is not None, value or b"", pack_pairs(pairs), time_ms


class Unwritten:
    """Iterate over sorted rows without those that were written before."""

    def __init__(
        self,
        rows: Iterable[SinkRow],
        no_time_ms: int,
        own_of: Callable[[str, int], Counter[bytes]],
        others_of: Callable[[str, int], Counter[bytes]],
    ) -> None:
        """Create an iterable, to be used once.

        Args:
            rows: The rows, sorted by topic and partition.
            no_time_ms: The time of rows without one.
            own_of: Returns the rows that this task has written to a partition of a topic.
            others_of: Returns the rows that any task has written there in earlier generations.
        """
        self._rows = rows
        self._no_time_ms = no_time_ms
        self._own_of = own_of
        self._others_of = others_of
        self.skipped: Counter[str] = Counter()
        """Number of rows left out so far, by topic."""
        self.left_out: dict[tuple[str, int], bytes] = {}
        """The hashes of the rows that were left out because some task of an earlier generation wrote them, by topic and partition.

        Another task may have left out an equal row for the same record: `left_out` finds that.
        """

    def __iter__(self) -> Iterator[SinkRow]:
        for (topic_bytes, partition), rows in groupby(self._rows, key=itemgetter(0, 1)):
            topic = topic_bytes.decode()
            yield from self._left(topic, partition, rows)

    def _left(self, topic: str, partition: int, rows: Iterator[SinkRow]) -> Iterator[SinkRow]:
        own, others = self._own_of(topic, partition), self._others_of(topic, partition)
        passed_keys: set[bytes] = set()
        left_out: list[bytes] = []
        is_out_of_order = False
        for row in rows:
            content = hash_of(row, self._no_time_ms) if own or others else b""
            for written in (own, others):
                if written[content] > 0:
                    written[content] -= 1
                    break
            else:
                if row[3] and len(passed_keys) < KEYS_MAX and content:
                    passed_keys.add(row[4])
                yield row
                continue
            self.skipped[topic] += 1
            is_out_of_order |= row[4] in passed_keys
            if written is others:
                left_out.append(content)
        if left_out:
            self.left_out[topic, partition] = b"".join(left_out)
        if is_out_of_order:
            warnings.warn(
                f"raftmq: {topic}/{partition}: a repeated task got its rows in another order, and rows of one key are written in neither"
                " order; give them one that repeats: the option orderColumn, or a sort within partitions before the write",
                RaftMQSparkWarning,
                stacklevel=2,
            )


def hash_of(row: SinkRow, no_time_ms: int) -> bytes:
    """Return a hash of the parts of a row that the record has."""
    return content_hash(row[3:] if row[8] != NO_TIME else (*row[3:8], no_time_ms))


def content_hash(content: Content) -> bytes:
    """Return a hash of the parts of a row that the record has."""
    return blake2b(marshal.dumps(content, 2), digest_size=HASH_BYTES).digest()
