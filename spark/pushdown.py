"""What filters say about partitions, offsets and times, so that a batch read asks brokers for less.

Must not decide which rows a query sees: Spark applies every filter again. Filters are known by their class's name, as Spark before
4.1 has none to import. Invariant: a record that all filters let through is never left out.
Source: ``pyspark.sql.datasource.Filter``; filters of one query are AND-ed, and never hold an OR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from raftmq.batch_header import BatchHeader
from raftmq.spark.planning import OffsetRange


@dataclass(frozen=True, slots=True)
class Pushed:
    """Bounds that every record wanted lies within; None where there is none. All inclusive."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int | None = None
    offset_max: int | None = None
    time_min_ms: int | None = None
    time_max_ms: int | None = None

    def cut(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """The ranges without what cannot match."""
        kept = []
        for range_ in ranges:
            if self.topics is not None and range_.topic not in self.topics:
                continue
            if self.partitions is not None and range_.partition not in self.partitions:
                continue
            start = range_.start if self.offset_min is None else max(range_.start, self.offset_min)
            end = range_.end if self.offset_max is None else min(range_.end, self.offset_max + 1)
            if start < end:
                kept.append(replace(range_, start=start, end=end))
        return kept

    def may_match_times(self, header: BatchHeader) -> bool:
        """Whether a batch may hold a record in the time wanted; if not, it need not be decoded."""
        if self.time_min_ms is not None and header.max_timestamp_ms < self.time_min_ms:
            return False
        return self.time_max_ms is None or header.base_timestamp_ms <= self.time_max_ms


NOTHING_PUSHED = Pushed()


def pushed_from(filters: Sequence[object]) -> Pushed:
    """What the filters say together; those that say nothing of use are passed over."""
    pushed = NOTHING_PUSHED
    for filter_ in filters:
        attribute = getattr(filter_, "attribute", None)
        values = getattr(filter_, "value", None)
        rule = _RULES.get((attribute[0], type(filter_).__name__)) if attribute and len(attribute) == 1 else None
        if rule is not None and values is not None:
            pushed = rule(pushed, values)
    return pushed


Rule = Callable[[Pushed, object], Pushed]


def _one(pushed: Pushed, name: str, values: frozenset[object]) -> Pushed:
    known = getattr(pushed, name)
    return replace(pushed, **{name: values if known is None else known & values})


def _at_least(pushed: Pushed, name: str, value: int) -> Pushed:
    known = getattr(pushed, name)
    return replace(pushed, **{name: value if known is None else max(known, value)})


def _at_most(pushed: Pushed, name: str, value: int) -> Pushed:
    known = getattr(pushed, name)
    return replace(pushed, **{name: value if known is None else min(known, value)})


def _between(name: str, convert: Callable[[object], int | None], filter_name: str) -> Rule:
    low, high = name.replace("*", "min"), name.replace("*", "max")

    def rule(pushed: Pushed, value: object) -> Pushed:
        number = convert(value)
        if number is None:
            return pushed
        if filter_name in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"):
            pushed = _at_least(pushed, low, number)
        if filter_name in ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"):
            pushed = _at_most(pushed, high, number)
        return pushed  # strict ones are taken as inclusive: Spark looks again

    return rule


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _millis(value: object) -> int | None:
    """Milliseconds, rounded down: a record's time has no finer part. Without a zone it is not known which moment is meant."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND


_MILLISECOND = datetime(1970, 1, 1, 0, 0, 0, 1000) - datetime(1970, 1, 1)  # noqa: DTZ001 - a difference has no zone
_COMPARISONS = ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")
_RULES: dict[tuple[str, str], Rule] = {
    **{("offset", name): _between("offset_*", _whole, name) for name in _COMPARISONS},
    **{("timestamp", name): _between("time_*_ms", _millis, name) for name in _COMPARISONS},
    ("partition", "EqualTo"): lambda pushed, value: _one(pushed, "partitions", frozenset([value])),
    ("partition", "In"): lambda pushed, values: _one(pushed, "partitions", frozenset(values)),  # type: ignore[call-overload]
    ("topic", "EqualTo"): lambda pushed, value: _one(pushed, "topics", frozenset([value])),
    ("topic", "In"): lambda pushed, values: _one(pushed, "topics", frozenset(values)),  # type: ignore[call-overload]
}
