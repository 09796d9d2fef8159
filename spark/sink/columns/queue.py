"""Find the columns that a write to a queue topic accepts, and convert chunks of them to sortable rows.

Each row becomes a message. All of a row is checked here: later only a whole batch could be refused, after others were written.

Must not import Spark. Invariant: the result depends on a row's contents alone, so a row that is computed again goes to the same
partition and to the same place in the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import add
from typing import TYPE_CHECKING, Final
from zlib import crc32

from raftmq.batch_header import BatchFormatError
from raftmq.columns import distinct_names
from raftmq.errors import RecordTooLargeError
from raftmq.message_checks import (
    HEADERS_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    TIME_MAX_MS,
    check_ids,
    check_names,
    check_tenants,
)
from raftmq.message_headers import encode_headers
from raftmq.spark.errors import InvalidOptionError, InvalidSchemaError
from raftmq.spark.sink.columns.chunks import Chunk, bytes_of, header_of, int_or_0, order_of
from raftmq.spark.sink.columns.fields import (
    BYTES_IN_WORDS,
    TIME_IN_WORDS,
    TIMES,
    WHOLE,
    WHOLE_IN_WORDS,
    Field,
    FieldFinder,
    is_bytes,
    is_text,
)
from raftmq.spark.sink.columns.log import find_order

if TYPE_CHECKING:
    from raftmq.client.connection.resolver import TopicInfo
    from raftmq.spark.sink.options import SinkOptions

DUE_NOW: Final = -1

QueueRow = tuple[bytes, int, int, bytes, bytes, bytes, int, int, bytes, bytes]
"""A row that is sorted by its parts in this order. It is a plain tuple, for speed and for `marshal`.

- topic (UTF-8), partition
- place in the order column, or 0 without one
- key, id and tenant, each empty for none
- priority, and the time before which it is not delivered in milliseconds since 1970, or `DUE_NOW`
- value
- headers as they are enqueued, or empty for none
"""


@dataclass(frozen=True, slots=True)
class QueueColumns:
    """Hold the position of each column in the data. None means that the column is absent."""

    value: int
    key: int | None
    id: int | None
    tenant: int | None
    priority: int | None
    not_before: int | None
    headers: int | None
    order: int | None
    width: int
    """Number of all columns. Columns with other names are ignored, except ``partition``, which is refused."""

    @property
    def used(self) -> frozenset[int]:
        """Return the positions of the columns that are written."""
        others = (self.priority, self.not_before, self.headers, self.order)
        return self.as_bytes | {position for position in others if position is not None}

    @property
    def as_bytes(self) -> frozenset[int]:
        """Return the positions of the columns in which text is converted to bytes."""
        positions = (self.value, self.key, self.id, self.tenant)
        return frozenset(position for position in positions if position is not None)


def check_queue_schema(fields: Sequence[Field], options: SinkOptions) -> QueueColumns:
    """Find the columns for a queue topic.

    Raises:
        InvalidSchemaError: a column is missing, duplicated, of another type, or only for log topics.
        InvalidOptionError: an option is only for log topics.
    """
    if options.timestamp_column is not None:
        raise InvalidOptionError(
            f"timestampColumn is for log topics, and {options.topic!r} is a queue topic: the cluster stamps its messages"
        )
    if options.partitioner != "crc32":
        raise InvalidOptionError(
            f"partitioner={options.partitioner} is for log topics, and {options.topic!r} is a queue topic"
        )
    finder = FieldFinder(fields)
    if finder.find("partition", WHOLE_IN_WORDS, WHOLE.__contains__) is not None:
        raise InvalidSchemaError(
            f"the column 'partition' is for log topics, and {options.topic!r} is a queue topic, whose messages are divided by"
            " id or key: drop the column"
        )
    return QueueColumns(
        value=finder.value(),
        key=finder.find("key", BYTES_IN_WORDS, is_bytes),
        id=finder.find("id", "string", is_text),
        tenant=finder.find("tenant", "string", is_text),
        priority=finder.find("priority", WHOLE_IN_WORDS, WHOLE.__contains__),
        not_before=finder.find("not_before", TIME_IN_WORDS, TIMES.__contains__),
        headers=finder.headers(),
        order=find_order(finder, options.order_column),
        width=len(fields),
    )


class QueueRowBuilder:
    """Build sortable rows from chunks. Each task has one."""

    def __init__(
        self,
        columns: QueueColumns,
        topic: TopicInfo,
        partition_count: Callable[[str, int | None], int],
    ) -> None:
        """Create a builder of rows.

        Args:
            columns: The positions of the columns in a chunk.
            topic: The queue topic.
            partition_count: Returns the number of partitions of a topic. Its second argument is None.
        """
        self._columns = columns
        self._topic = topic
        self._partition_count = partition_count

    def rows(self, chunk: Chunk) -> tuple[list[QueueRow], int]:
        """Return all rows of a chunk, and the total bytes of their texts and bytes.

        Raises:
            InvalidSchemaError: a cell has a value that no message can have. The text names the column.
            RecordTooLargeError: a row is larger than the largest message of the topic.
        """
        columns = self._columns
        cells = chunk[columns.value]
        if None in cells:
            raise InvalidSchemaError(
                f"a row's value is null, but a message of the queue topic {self._topic.name!r} has one"
            )
        values = list(map(bytes_of, cells))
        keys = self._named(chunk, columns.key, "key")
        ids = self._named(chunk, columns.id, "id")
        tenants = self._tenants(chunk)
        headers = self._headers(chunk)
        self._check_sizes(values, headers)
        rows = zip(
            repeat(self._topic.name.encode()),
            self._partitions(keys, ids, values),
            repeat(0) if columns.order is None else map(order_of, chunk[columns.order]),
            keys,
            ids,
            tenants,
            self._priorities(chunk),
            self._due_times(chunk),
            values,
            headers,
            strict=False,  # some are endless
        )
        total = sum(sum(map(len, column)) for column in (values, keys, ids, tenants, headers))
        return list(rows), total

    def _named(self, chunk: Chunk, position: int | None, name: str) -> list[bytes]:
        """Return the keys or ids. Null means that the message has none."""
        if position is None:
            return [b""] * len(chunk[self._columns.value])
        names = [None if cell is None else bytes_of(cell) for cell in chunk[position]]
        try:
            if name == "id":
                check_ids(names)
            else:
                check_names(names, f"a {name}")
        except BatchFormatError as error:
            raise _wrong_cell(name, error) from error
        return [cell or b"" for cell in names]

    def _tenants(self, chunk: Chunk) -> list[bytes]:
        position = self._columns.tenant
        if position is None:
            return [b""] * len(chunk[self._columns.value])
        tenants = list(map(bytes_of, chunk[position]))
        try:
            check_tenants(*distinct_names(tenants))
        except BatchFormatError as error:
            raise _wrong_cell("tenant", error) from error
        return tenants

    def _priorities(self, chunk: Chunk) -> list[int]:
        position = self._columns.priority
        if position is None:
            return [0] * len(chunk[self._columns.value])
        priorities = list(map(int_or_0, chunk[position]))
        for number in (min(priorities, default=0), max(priorities, default=0)):
            if not PRIORITY_MIN <= number <= PRIORITY_MAX:
                raise InvalidSchemaError(
                    f"the column 'priority' has {number}, outside of {PRIORITY_MIN} to {PRIORITY_MAX}"
                )
        return priorities

    def _due_times(self, chunk: Chunk) -> list[int]:
        position = self._columns.not_before
        if position is None:
            return [DUE_NOW] * len(chunk[self._columns.value])
        # rounded up, because no message is delivered before its time
        times = [-(-cell // 1000) if isinstance(cell, int) else DUE_NOW for cell in chunk[position]]
        if any(isinstance(cell, int) and cell < 0 for cell in chunk[position]) or max(times, default=0) > TIME_MAX_MS:
            raise InvalidSchemaError("the column 'not_before' has a time outside of the years 1970 to 9999")
        return times

    def _headers(self, chunk: Chunk) -> list[bytes]:
        position = self._columns.headers
        if position is None:
            return [b""] * len(chunk[self._columns.value])
        return [_packed_headers(cell) for cell in chunk[position]]

    def _check_sizes(self, values: list[bytes], headers: list[bytes]) -> None:
        if (size := max(map(len, headers), default=0)) > HEADERS_BYTES_MAX:
            raise RecordTooLargeError(
                f"a message has {size} bytes of headers, but at most {HEADERS_BYTES_MAX} are allowed"
            )
        bytes_max = self._topic.message_bytes_max
        if (size := max(map(add, map(len, values), map(len, headers)), default=0)) > bytes_max:
            raise RecordTooLargeError(f"a message has {size} bytes, but at most {bytes_max} are allowed")

    def _partitions(self, keys: list[bytes], ids: list[bytes], values: list[bytes]) -> list[int]:
        """Return the partition of each message: by key if the topic is ordered by key, else by id.

        The others are divided by contents instead of one partition for a while: they must go to the same partitions when they are
        computed again.
        """
        count = self._partition_count(self._topic.name, None)
        if count == 1:
            return [0] * len(values)
        routes = zip(keys if self._topic.is_ordered_by_key else repeat(b""), ids, values, strict=False)
        return [crc32(key or name or value) % count for key, name, value in routes]


def _wrong_cell(column: str, error: BatchFormatError) -> InvalidSchemaError:
    return InvalidSchemaError(
        f"the column {column!r}: {error.reason} (the position is within the rows that Spark passed)"
    )


def _packed_headers(cell: object) -> bytes:
    """Return a row's headers as they are enqueued. Raises `InvalidSchemaError` for a header without a name."""
    if not cell:
        return b""
    assert isinstance(cell, Sequence)
    return encode_headers(tuple(map(header_of, cell))) or b""
