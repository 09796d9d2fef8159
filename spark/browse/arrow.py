"""Convert pages of browsed messages to Arrow record batches, column by column. Only the columns of the schema are built. Must not fetch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from raftmq.batch_header import CODEC_NONE, BatchFormatError
from raftmq.client.codec.queue_batch import decompress_body
from raftmq.client.queue.lease_token import LeaseToken
from raftmq.client.queue.views import state_name
from raftmq.message_headers import decode_headers
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import check_body
from raftmq.spark.browse.pages import Browsed, Page
from raftmq.spark.errors import RaftMQSparkWarning
from raftmq.spark.source.arrow_batches import micros

Cells = Sequence[object]
Builder = Callable[[Page, Browsed], Cells]


def browsed_batches(pages: Iterable[Page], browsed: Browsed, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield one record batch for each page. A message whose body is damaged has a null value, with a warning."""
    for page in pages:
        arrays = [pa.array(_BUILDERS[field.name](page, browsed), field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _values(page: Page, browsed: Browsed) -> Cells:
    return [_value(page, at, browsed) for at in range(len(page.block.sequences))]


def _value(page: Page, at: int, browsed: Browsed) -> bytes | None:
    block = page.block
    try:
        check_body(block.bodies[at], block.body_positions[at], block.body_checksums[at])
        return decompress_body(block.bodies[at], block.codecs[at] if block.codecs is not None else CODEC_NONE)
    except BatchFormatError as error:
        warnings.warn(
            f"raftmq: the body of message {block.sequences[at]} of {browsed.topic}/{browsed.partition} is damaged, so its"
            f" value is null: {error.reason}",
            RaftMQSparkWarning,
            stacklevel=2,
        )
        return None


def _headers(page: Page, _: Browsed) -> Cells:
    encoded = page.block.headers
    return [None] * len(page.block.sequences) if encoded is None else list(map(_pairs, encoded))


def _pairs(encoded: bytes | None) -> list[dict[str, object]] | None:
    if not encoded:
        return None
    try:
        return [{"key": name, "value": value} for name, value in decode_headers(encoded)]
    except BatchFormatError:
        return None  # another program's mistake must not hide the message


def _texts(cells: Sequence[bytes | None] | None, count: int, missing: str | None) -> Cells:
    if cells is None:
        return [missing] * count
    return [missing if cell is None else cell.decode(errors="replace") for cell in cells]


def _tokens(page: Page, browsed: Browsed) -> Cells:
    pairs = zip(page.block.sequences, page.block.lease_numbers, strict=True)
    return [str(LeaseToken(browsed.topic_id, browsed.partition, *pair)) for pair in pairs]


def _due_times(page: Page, _: Browsed) -> Cells:
    return [None if s.state == pb.DEAD else micros(page.read_ms + s.due_in_ms) for s in page.statuses]


def _expiry_times(page: Page, _: Browsed) -> Cells:
    return [micros(page.read_ms + s.expires_in_ms) if s.expires_in_ms else None for s in page.statuses]


_BUILDERS: Final[Mapping[str, Builder]] = {
    "topic": lambda page, browsed: [browsed.topic] * len(page.block.sequences),
    "partition": lambda page, browsed: [browsed.partition] * len(page.block.sequences),
    "sequence": lambda page, _: page.block.sequences,
    "token": lambda page, browsed: _tokens(page, browsed),
    "state": lambda page, _: [state_name(status.state) for status in page.statuses],
    "tenant": lambda page, _: _texts(page.block.tenants, len(page.block.sequences), ""),
    "key": lambda page, _: page.block.keys or [None] * len(page.block.sequences),
    "id": lambda page, _: _texts(page.block.ids, len(page.block.sequences), None),
    "priority": lambda page, _: page.block.priorities or [0] * len(page.block.sequences),
    "attempts": lambda page, _: page.block.attempts,
    "version": lambda page, _: [status.version for status in page.statuses],
    "enqueued_at": lambda page, _: list(map(micros, page.block.enqueued_ms)),
    "due_at": _due_times,
    "lease_left_ms": lambda page, _: [s.lease_left_ms if s.state == pb.LEASED else None for s in page.statuses],
    "expires_at": _expiry_times,
    "error": lambda page, _: [status.error or None for status in page.statuses],
    "progress": lambda page, _: [status.progress or None for status in page.statuses],
    "dead_reason": lambda page, _: [status.dead_reason or None for status in page.statuses],
    "dead_since": lambda page, _: [micros(s.dead_since_ms) if s.dead_since_ms else None for s in page.statuses],
    "headers": _headers,
    "value": _values,
}
"""The cells of each column of `schema.BROWSE_COLUMNS` and `schema.LEASED_COLUMNS`. Those of leased messages need no status."""
