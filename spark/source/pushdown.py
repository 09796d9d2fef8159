"""Derive bounds on partitions, offsets and times from filters, so that a batch read fetches less.

Must not decide which rows a query sees. Spark applies every filter again, so bounds here are inclusive even where the filter's are
not. Filters are recognized by the name of their class, because Spark before 4.1 has no classes to import. Invariant: a record that
passes all filters is never left out.
Source: ``pyspark.sql.datasource.Filter``. The filters of one query are AND-ed and never hold an OR.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from raftmq.batch_header import BatchHeader
from raftmq.spark.source.planning import OffsetRange

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LOWER: Final = frozenset({"EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"})
"""Filters whose value is a lower bound."""
UPPER: Final = frozenset({"EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"})
"""Filters whose value is an upper bound."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """Hold bounds by column. Every record that can match lies within them. A missing column has no bound."""

    allowed: Mapping[str, frozenset[object]] = field(default_factory=dict)
    """Possible values of ``topic`` and ``partition``."""
    least: Mapping[str, int] = field(default_factory=dict)
    """Lower bounds, inclusive, of ``offset`` and of ``timestamp`` in milliseconds."""
    most: Mapping[str, int] = field(default_factory=dict)
    """Upper bounds, inclusive, of the same columns."""

    def cut(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges without the offsets that cannot match."""
        kept = []
        for range_ in ranges:
            start = max(range_.start, self.least.get("offset", range_.start))
            end = min(range_.end, self.most.get("offset", range_.end - 1) + 1)
            if start < end and self._allows("topic", range_.topic) and self._allows("partition", range_.partition):
                kept.append(replace(range_, start=start, end=end))
        return kept

    def may_match_times(self, header: BatchHeader) -> bool:
        """Return whether a batch may hold a record within the bounds of time. If not, it need not be decoded."""
        least = self.least.get("timestamp", header.max_timestamp_ms)
        most = self.most.get("timestamp", header.base_timestamp_ms)
        return least <= header.max_timestamp_ms and header.base_timestamp_ms <= most

    def _allows(self, column: str, value: object) -> bool:
        return column not in self.allowed or value in self.allowed[column]


NOTHING_PUSHED: Final = Pushed()


def pushed_from(filters: Sequence[object]) -> Pushed:
    """Return the bounds of all filters together, ignoring filters that give no bound."""
    allowed: dict[str, frozenset[object]] = {}
    least: dict[str, int] = {}
    most: dict[str, int] = {}
    for filter_ in filters:
        kind, value = type(filter_).__name__, getattr(filter_, "value", None)
        path: tuple[str, ...] = getattr(filter_, "attribute", ())
        column = path[0] if len(path) == 1 else ""
        if column in ("topic", "partition"):
            values = _values(kind, value)
            if values is not None:
                allowed[column] = allowed.get(column, values) & values
        elif column in ("offset", "timestamp"):
            number = _number(value)
            if number is not None and kind in LOWER:
                least[column] = max(least.get(column, number), number)
            if number is not None and kind in UPPER:
                most[column] = min(most.get(column, number), number)
    return Pushed(allowed, least, most)


def _values(kind: str, value: object) -> frozenset[object] | None:
    if kind in ("EqualTo", "EqualNullSafe") and value is not None:
        return frozenset([value])
    return frozenset(value) if kind == "In" and isinstance(value, Iterable) else None


def _number(value: object) -> int | None:
    """Return an offset, or a time in milliseconds rounded down, because records have no finer times.

    A time without a zone gives no number, because it names no moment.
    """
    if isinstance(value, datetime):
        return None if value.tzinfo is None else (value - EPOCH) // timedelta(milliseconds=1)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
