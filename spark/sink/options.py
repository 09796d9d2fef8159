"""Read the sink's options once on the driver. They are sent to the tasks. Must not import Spark or open anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raftmq.client.base import settings
from raftmq.client.codec.codecs import CODECS
from raftmq.client.producer.partitioner import PARTITIONERS
from raftmq.spark.base.options import ClientOptions, OptionReader, read_client_options
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.sink.ledger.batch_ledger import BATCH_EPOCH_MAX

BATCH_RECORDS: Final = 5000
"""With records of 100 bytes this gives the SDK's usual batch of 512 KiB."""
SORT_MEMORY_BYTES: Final = 64 * settings.MIB
"""Memory for the rows of one task, which is part of a Spark task's memory overhead of at least 384 MiB."""
DELIVERY_TIMEOUT_MS: Final = 120_000
REPLAY_TIMEOUT_MS: Final = 120_000
OPEN_BATCH_TIMEOUT_MS: Final = 120_000
WRITER_NAME_BYTES_MAX: Final = 200
EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
FINISH: Final = "finish"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Hold the checked options of one write."""

    client: ClientOptions
    topic: str | None
    """The topic of all rows. None: the column ``topic`` names it."""
    codec: int
    """Codec number of the batch header."""
    partitioner: str
    batch_records_max: int
    sort_memory_bytes: int
    delivery_timeout_seconds: float
    replay_timeout_seconds: float
    """How long a task of a batch that runs again waits for the tasks that wrote in an earlier run, while none of them comes back."""
    is_exactly_once: bool
    finishes: bool
    """Whether a batch that runs again reads back the rows of earlier runs, instead of demanding the same rows in the same tasks."""
    writer_name: str | None
    """Makes a write idempotent: the same name, epoch and rows are written once. None: a query has its id, a batch write is lent a name."""
    writer_epoch: int | None
    """The number of a batch write. A query has the numbers of its batches."""
    timestamp_column: str | None
    """The column of the records' timestamps. None: the time of writing."""
    is_atomic: bool
    """Whether readers with ``isolation=batch`` see each batch as a whole."""
    open_batch_timeout_ms: int
    """How old an open batch of another writer may be for the next atomic batch to wait for it."""
    order_column: str | None
    """The column that orders the rows of one task and partition. None: they keep the order in which they came."""


def read_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Read and check all options. Raises `InvalidOptionError`."""
    reader = OptionReader(options)
    client = read_client_options(reader)
    compression = (reader.setting("compression.type") or "none").lower()
    if compression not in CODECS:
        raise InvalidOptionError(f"compression.type is none, lz4, zstd, snappy or gzip, not {compression!r}")
    writer_name = reader.text("writerName")
    writer_epoch = reader.integer("writerEpoch", minimum=0)
    if writer_epoch is not None and writer_epoch > BATCH_EPOCH_MAX:
        raise InvalidOptionError(f"writerEpoch is at most {BATCH_EPOCH_MAX}, not {writer_epoch}")
    if writer_name is not None and len(writer_name.encode()) > WRITER_NAME_BYTES_MAX:
        raise InvalidOptionError(f"writerName has at most {WRITER_NAME_BYTES_MAX} bytes")
    delivery_timeout_ms = reader.setting_integer("delivery.timeout.ms", DELIVERY_TIMEOUT_MS)
    if delivery_timeout_ms > settings.DELIVERY_TIMEOUT_MS_MAX:
        raise InvalidOptionError(
            f"delivery.timeout.ms is at most {settings.DELIVERY_TIMEOUT_MS_MAX}, not {delivery_timeout_ms}"
        )
    delivery = reader.choice("delivery", EXACTLY_ONCE, (EXACTLY_ONCE, AT_LEAST_ONCE, FINISH))
    found = SinkOptions(
        client=client,
        topic=reader.text("topic"),
        codec=CODECS[compression],
        partitioner=reader.choice("partitioner", "crc32", tuple(PARTITIONERS)),
        batch_records_max=_whole(reader, "batchRecords", BATCH_RECORDS),
        sort_memory_bytes=_whole(reader, "sortMemoryBytes", SORT_MEMORY_BYTES),
        delivery_timeout_seconds=delivery_timeout_ms / 1000,
        replay_timeout_seconds=reader.milliseconds("replayTimeout", REPLAY_TIMEOUT_MS) / 1000,
        is_exactly_once=delivery != AT_LEAST_ONCE,
        finishes=delivery == FINISH,
        writer_name=writer_name,
        writer_epoch=writer_epoch,
        timestamp_column=reader.text("timestampColumn"),
        is_atomic=reader.boolean("atomicBatches", False),
        open_batch_timeout_ms=reader.milliseconds("openBatchTimeout", OPEN_BATCH_TIMEOUT_MS),
        order_column=reader.text("orderColumn"),
    )
    if found.is_atomic and not found.is_exactly_once:
        raise InvalidOptionError(
            "atomicBatches needs delivery=exactly-once or finish: other rows may still come when a batch is complete"
        )
    if found.is_atomic and found.topic is None:
        raise InvalidOptionError("atomicBatches needs the option topic: a batch is made visible in one topic")
    reader.finish()
    return found


def _whole(reader: OptionReader, name: str, default: int) -> int:
    number = reader.integer(name, default)
    assert number is not None
    return number
