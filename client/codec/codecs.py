"""Name the codecs of batches. Must stay light: Spark's sink reads its options in a new process for every batch."""

from __future__ import annotations

from typing import Final

from raftmq import batch_header

CODECS: Final[dict[str | None, int]] = {
    None: batch_header.CODEC_NONE,
    "none": batch_header.CODEC_NONE,
    "lz4": batch_header.CODEC_LZ4,
    "zstd": batch_header.CODEC_ZSTD,
    "snappy": batch_header.CODEC_SNAPPY,
    "gzip": batch_header.CODEC_GZIP,
}
"""Codec numbers of the batch header by the ``compression_type`` of a producer."""
