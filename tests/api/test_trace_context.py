"""Contexts of traces are packed into 25 bytes, and whatever a client sends is read."""

from __future__ import annotations

import pytest
from raftmq.trace_context import CONTEXT_BYTES, CONTEXTS_MAX, TraceContext, join_contexts, pack_context, unpack_contexts

ONE = TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 1)


def test_a_context_has_the_bytes_of_w3cs_traceparent_in_their_order() -> None:
    assert pack_context(ONE).hex() == "0af7651916cd43dd8448eb211c80319c" + "b7ad6b7169203331" + "01"
    assert unpack_contexts(pack_context(ONE)) == [ONE]


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 0),
        (pack_context(ONE)[:-1], 0),
        (pack_context(ONE) * 2 + b"x", 2),
        (bytes(CONTEXT_BYTES) + pack_context(ONE), 1),
        (pack_context(ONE) * (CONTEXTS_MAX + 1), CONTEXTS_MAX),
        (b"\xff" * 4_000_000, CONTEXTS_MAX),
    ],
)
def test_only_whole_and_valid_contexts_count_and_few_of_them(data: bytes, count: int) -> None:
    assert len(unpack_contexts(data)) == count


def test_contexts_that_are_not_sampled_take_no_space_of_sampled_ones() -> None:
    others = [pack_context(TraceContext(1, number, 0)) for number in range(1, 100)]
    assert join_contexts([b"", *others]) == others[0]
    assert unpack_contexts(join_contexts([*others, pack_context(ONE), pack_context(ONE)])) == [ONE]
    assert join_contexts([b""]) == b""
