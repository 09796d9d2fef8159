"""Draw messages for the formats of queue topics, and predict their columns without bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from raftmq.batch_header import CODEC_NONE, CODEC_ZSTD
from raftmq.message_checks import (
    DELAY_MAX_MS,
    PRIORITY_MAX,
    PRIORITY_MIN,
    TIME_AFTER,
    TIME_AT,
    TIME_MAX_MS,
    TIME_NONE,
    Times,
)
from raftmq.queue_batch import MessageColumns

level = st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1, max_size=5)
tenant = st.lists(level, max_size=8).map(".".join)
names = st.binary(min_size=1, max_size=6) | st.just(b"n" * 249)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
TIMES = {
    TIME_NONE: st.just(0),
    TIME_AFTER: st.integers(0, DELAY_MAX_MS),
    TIME_AT: st.integers(0, TIME_MAX_MS),
}
"""The allowed values of each kind of time."""
times = st.sampled_from(sorted(TIMES)).flatmap(lambda kind: st.tuples(st.just(kind), TIMES[kind]))


@st.composite
def message_columns(draw: st.DrawFn, count_max: int = 12) -> MessageColumns:
    """Draw valid messages. Each column is left out, varies, or is the same for all messages."""
    count = draw(st.integers(1, count_max))

    def column(cell: st.SearchStrategy[Any]) -> Any:
        shape = draw(st.sampled_from(["none", "all", "varying"]))
        if shape == "none":
            return None
        return [draw(cell)] * count if shape == "all" else draw(st.lists(cell, min_size=count, max_size=count))

    def time_column() -> Times | None:
        cells: list[tuple[int, int]] | None = column(times)
        return None if cells is None else Times([kind for kind, _ in cells], [value for _, value in cells])

    bodies = draw(st.lists(st.binary(max_size=20), min_size=count, max_size=count))
    codecs = column(st.sampled_from([CODEC_NONE, CODEC_ZSTD]))
    if codecs is not None:  # a compressed body begins with its raw size
        bodies = [body if codec == CODEC_NONE else bytes(4) + body for body, codec in zip(bodies, codecs, strict=True)]
    ids = column(st.none() | texts.map(str.encode))
    has_id = [False] * count if ids is None else [name is not None for name in ids]
    flags = column(st.integers(0, 1))
    return MessageColumns(
        bodies,
        codecs,
        column(st.integers(PRIORITY_MIN, PRIORITY_MAX)),
        time_column(),
        time_column(),
        None if flags is None else [int(flag and found) for flag, found in zip(flags, has_id, strict=True)],
        column(tenant.map(str.encode)),
        ids,
        column(st.none() | names),
        column(st.none() | st.binary(min_size=1, max_size=30)),
    )


def filled(cells: Sequence[Any] | None, default: object, count: int) -> list[Any]:
    """Return a column with its default for every message if it is left out."""
    return [default] * count if cells is None else list(cells)


def filled_times(cells: Times | None, count: int) -> tuple[list[int], list[int]]:
    """Return kinds and values of a column of times, filled likewise."""
    kinds, values = cells or (None, None)
    return filled(kinds, TIME_NONE, count), filled(values, 0, count)
