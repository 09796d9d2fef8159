"""Rows of Spark 4.0 as Arrow batches. Later versions pass Arrow batches themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from raftmq.spark.sink.columns.chunks import batches_of_rows

from tests.support.spark.columns import fields


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def micros_of(kind: str, cell: datetime) -> int:
    (batch,) = batches_of_rows([(b"v", cell)], fields(f"value binary, at {kind}"))
    return int(batch.column(1).cast(pa.int64())[0].as_py())


@pytest.mark.usefixtures("new_york")
def test_a_time_without_a_zone_does_not_depend_on_that_of_the_worker():
    """Arrow has such a time as if it were UTC, and so have the batches of later versions of Spark."""
    at = datetime(2026, 11, 28, 12)  # noqa: DTZ001 - as Spark passes it
    assert micros_of("timestamp_ntz", at) == pa.scalar(at, pa.timestamp("us")).value
    assert micros_of("timestamp", at) == (at.replace(tzinfo=UTC).timestamp() + 5 * 3600) * 1_000_000


def test_a_late_time_keeps_its_microseconds():
    at = datetime(9999, 12, 31, 1, 2, 3, 123_001, tzinfo=UTC)
    assert micros_of("timestamp", at) == pa.scalar(at, pa.timestamp("us", tz="UTC")).value
