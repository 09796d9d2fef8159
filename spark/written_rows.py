"""Read back the rows that earlier rounds of a task wrote, and leave them out of the rows that are written now.

A row is recognized by its contents: key, value, headers and, with a timestamp column, its time. Of equal rows as many are left out as were
written.

Must not fence the writers of the earlier rounds, which has to be done before. Invariant: a batch of a producer and epoch is found if the
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
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from raftmq.client.connection.resolver import TopicInfo
    from raftmq.spark.cluster import Cluster
    from raftmq.spark.sink_columns import SinkRow

CLOCKS_DIFFER_MS: Final = 30_000
"""Clocks of two brokers that append records differ by at most 20 s (docs/adr/0010-clocks.md)."""
KEYS_MAX: Final = 100_000
"""Keys of one partition that are remembered to notice that the order of one is lost."""
_HASH_BYTES: Final = 16


class WrittenRows:
    """Find the rows that some producers wrote in some epochs."""

    def __init__(
        self,
        cluster: Cluster,
        producer_ids: AbstractSet[int],
        epochs: range,
        since_ms: int,
        *,
        has_timestamps: bool,
        timeout_ms: int,
    ) -> None:
        """Create a reader.

        Args:
            cluster: The cluster.
            producer_ids: The producers.
            epochs: The epochs of their batches.
            since_ms: Time on a broker's clock before the first of these batches was written.
            has_timestamps: Whether the rows' times come from a column, so that they belong to the contents.
            timeout_ms: How long a read may stay without a record.
        """
        self._cluster = cluster
        self._producer_ids = producer_ids
        self._epochs = epochs
        self._since_ms = since_ms
        self._has_timestamps = has_timestamps
        self._timeout_ms = timeout_ms

    def count(self, topic: TopicInfo, partition: int) -> Counter[bytes]:
        """Return how often each row was written to the partition, by `hash_of`.

        Raises:
            RaftMQError: as `Cluster.offsets` and `fetch_range`.
        """
        place = TopicPartition(topic.name, partition)
        end = self._cluster.offsets({place: LATEST_TIME})[place]  # confirmed by a quorum
        start = self._cluster.offsets({place: max(self._since_ms - CLOCKS_DIFFER_MS, 0)})[place]
        start = max(start, self._cluster.offsets({place: EARLIEST_TIME})[place]) if start >= 0 else end
        range_ = OffsetRange(topic.name, topic.topic_id, partition, start, end)
        found: Counter[bytes] = Counter()
        next_sequences: dict[tuple[int, int], int] = {}
        for batch in fetch_range(self._cluster, range_, timeout_ms=self._timeout_ms, fail_on_data_loss=False):
            header = batch.header
            if header.producer_id not in self._producer_ids or header.producer_epoch not in self._epochs:
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
                packed = pack_pairs(pairs)
                found[_hash((key is not None, key or b"", value is not None, value or b"", packed, time_ms))] += 1
        return found


class Unwritten:
    """Iterate over sorted rows without those that were written before."""

    def __init__(
        self, rows: Iterable[SinkRow], no_time_ms: int, written_of: Callable[[str, int], Counter[bytes]]
    ) -> None:
        """Take the rows, the time of rows without one, and a function that returns the rows written to a partition of a topic."""
        self._rows = rows
        self._no_time_ms = no_time_ms
        self._written_of = written_of
        self.skipped: Counter[str] = Counter()
        """Number of rows left out so far, by topic."""

    def __iter__(self) -> Iterator[SinkRow]:
        for (topic_bytes, partition), rows in groupby(self._rows, key=itemgetter(0, 1)):
            topic = topic_bytes.decode()
            yield from self._left(topic, partition, rows)

    def _left(self, topic: str, partition: int, rows: Iterator[SinkRow]) -> Iterator[SinkRow]:
        written = self._written_of(topic, partition)
        passed_keys: set[bytes] = set()
        is_out_of_order = False
        for row in rows:
            if not written:
                yield row
                continue
            content = hash_of(row, self._no_time_ms)
            if written[content] > 0:
                written[content] -= 1
                if not written[content]:
                    del written[content]
                self.skipped[topic] += 1
                is_out_of_order |= row[4] in passed_keys
                continue
            if row[3] and len(passed_keys) < KEYS_MAX:
                passed_keys.add(row[4])
            yield row
        if is_out_of_order:
            warnings.warn(
                f"raftmq: {topic}/{partition}: a repeated task got its rows in another order, and rows of one key are written in neither"
                " order; give them one that repeats: the option orderColumn, or a sort within partitions before the write",
                RaftMQSparkWarning,
                stacklevel=2,
            )


def hash_of(row: SinkRow, no_time_ms: int) -> bytes:
    """Return a hash of the parts of a row that the record has."""
    return _hash(row[3:] if row[8] != NO_TIME else (*row[3:8], no_time_ms))


def _hash(content: tuple[bool, bytes, bool, bytes, bytes, int]) -> bytes:
    return blake2b(marshal.dumps(content, 2), digest_size=_HASH_BYTES).digest()
