"""Sizes and rates in bytes have units."""

from __future__ import annotations

import pytest
import typer
from raftmq.cli.sizes import format_byte_rate, format_bytes, parse_byte_rate


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (5 << 30, "5 GiB"), (3 << 40, "3 TiB")],
)
def test_a_size_has_a_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("50MiB/s", 50 << 20),
        ("1.5 GiB/s", 3 << 29),
        ("800kB/s", 800_000),
        ("2MB/s", 2_000_000),
        ("512B/s", 512),
        ("unlimited", 0),
    ],
)
def test_a_rate_has_a_unit_and_a_second(text: str, bytes_per_second: int) -> None:
    assert parse_byte_rate(text) == bytes_per_second


@pytest.mark.parametrize("text", ["50", "50MiB", "50MiB/m", "-1MiB/s", "0MiB/s", "0.0001B/s", "1TiB/s", "fast", ""])
def test_a_rate_that_is_not_clear_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="such as 50MiB/s, 800kB/s or unlimited"):
        parse_byte_rate(text)


def test_a_rate_of_0_is_unlimited() -> None:
    assert [format_byte_rate(rate) for rate in (0, 50 << 20)] == ["unlimited", "50 MiB/s"]
