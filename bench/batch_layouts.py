"""Compare column layouts of a batch body. ADR 0002 uses this measurement.

Run: ``python bench/batch_layouts.py`` (``--csv`` for machines). Figures are nanoseconds per record, best of many runs, values only.
Every layout starts from a list of bytes and ends in the same list or the same Arrow array. The results are compared first.
"""

from __future__ import annotations

import argparse
import io
import random
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from operator import sub
from typing import Any

import cramjam
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from raftmq.batch_header import parse_header
from raftmq.client.codec.arrow import binary_array
from raftmq.client.codec.batch import decode_columns, decode_records, encode_body

REPETITIONS = 30


@dataclass(frozen=True)
class Layout:
    name: str
    encode: Callable[[list[bytes]], bytes]
    to_list: Callable[[bytes, int], list[bytes]]
    to_arrow: Callable[[bytes, int], pa.Array]


def _repeated_bytes_message() -> type:
    file = descriptor_pb2.FileDescriptorProto(name="bench_layouts.proto", package="bench", syntax="proto3")
    message = file.message_type.add(name="Values")
    message.field.add(name="values", number=1, type=12, label=3)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Values"))


VALUES: Any = _repeated_bytes_message()  # a class made at run time


def protobuf_layout() -> Layout:
    def to_arrow(data: bytes, count: int) -> pa.Array:
        return pa.array(VALUES.FromString(data).values, type=pa.binary())

    return Layout(
        "protobuf repeated bytes",
        lambda values: VALUES(values=values).SerializeToString(),
        lambda data, count: list(VALUES.FromString(data).values),
        to_arrow,
    )


def lengths_layout() -> Layout:
    def to_list(data: bytes, count: int) -> list[bytes]:
        lengths = memoryview(data)[: 4 * count].cast("I")
        reader = io.BytesIO(data)
        reader.seek(4 * count)
        return list(map(reader.read, lengths))

    def to_arrow(data: bytes, count: int) -> pa.Array:
        buffer = pa.py_buffer(data)
        lengths = pa.Array.from_buffers(pa.int32(), count, [None, buffer.slice(0, 4 * count)])
        ends = pc.cumulative_sum(lengths)  # pyright: ignore[reportAttributeAccessIssue] -- made at run time
        offsets = pa.py_buffer(b"\0\0\0\0" + memoryview(ends.buffers()[1])[: 4 * count])
        return pa.Array.from_buffers(pa.binary(), count, [None, offsets, buffer.slice(4 * count)])

    return Layout(
        "blob + u32 lengths",
        lambda values: b"".join((array("I", map(len, values)).tobytes(), b"".join(values))),
        to_list,
        to_arrow,
    )


def offsets_layout(reads: bool) -> Layout:
    def to_list(data: bytes, count: int) -> list[bytes]:
        offsets = memoryview(data)[: 4 * count + 4].cast("I")
        if reads:
            reader = io.BytesIO(data)
            reader.seek(4 * count + 4)
            return list(map(reader.read, map(sub, offsets[1:], offsets)))
        blob = data[4 * count + 4 :]
        return [blob[start:end] for start, end in pairwise(offsets)]

    def to_arrow(data: bytes, count: int) -> pa.Array:
        buffer = pa.py_buffer(data)
        head = 4 * count + 4
        return pa.Array.from_buffers(pa.binary(), count, [None, buffer.slice(0, head), buffer.slice(head)])

    return Layout(
        "blob + u32 offsets" + (", read" if reads else ", sliced"),
        lambda values: b"".join((array("I", accumulate(map(len, values), initial=0)).tobytes(), b"".join(values))),
        to_list,
        to_arrow,
    )


def nanoseconds(function: Callable[[], object], count: int) -> float:
    """Return the best of many runs, per record. The best counts because the machine's other work only adds time."""
    best = float("inf")
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - started)
    return best / count * 1e9


def sample(count: int, size: int) -> list[bytes]:
    """Return records of about `size` bytes with varying lengths, half random and half repetitive, which compression needs."""
    rng = random.Random(1)
    return [rng.randbytes(size // 2) + b"x" * rng.randrange(size // 4, size * 3 // 4) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", action="store_true")
    separator = "," if parser.parse_args().csv else "  "
    columns = ("size", "layout", "encode", "to_list", "to_arrow", "lz4_bytes")
    print(separator.join(f"{name:>24}" for name in columns))
    for count, size in ((5000, 100), (500, 1024)):
        values = sample(count, size)
        for layout in (protobuf_layout(), lengths_layout(), offsets_layout(reads=False), offsets_layout(reads=True)):
            data = layout.encode(values)
            assert layout.to_list(data, count) == values, layout.name
            assert layout.to_arrow(data, count).to_pylist() == values, layout.name
            row = (
                str(size),
                layout.name,
                f"{nanoseconds(partial(layout.encode, values), count):.0f}",
                f"{nanoseconds(partial(layout.to_list, data, count), count):.0f}",
                f"{nanoseconds(partial(layout.to_arrow, data, count), count):.0f}",
                str(len(cramjam.lz4.compress_block(data))),
            )
            print(separator.join(f"{cell:>24}" for cell in row))
        _print_product(values, size, separator)


def _print_product(values: list[bytes], size: int, separator: str) -> None:
    """Print the product's codec. `encode` includes seal and CRC, the others presence, bounds or whole `Record`s."""
    count = len(values)
    batch = encode_body(values, None, 0).seal()
    header = parse_header(batch)
    figures = (
        ("product: whole batch", lambda: encode_body(values, None, 0).seal()),
        ("product: column list", lambda: decode_columns(batch, header).values.to_list()),
        ("product: Arrow column", lambda: binary_array(decode_columns(batch, header).values)),
        ("product: Records", lambda: decode_records(batch, header, "t", 0, 0)),
    )
    for name, function in figures:
        print(separator.join(f"{cell:>24}" for cell in (str(size), name, f"{nanoseconds(function, count):.0f}")))


if __name__ == "__main__":
    main()
