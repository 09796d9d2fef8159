"""Read the subset of PromQL that the project writes, and check it against the catalogue of metrics.

A query is refused that names a metric or a label that does not exist, takes the rate of a gauge, shows a counter or a bucket as it is, computes
a quantile from anything but buckets, or joins two sides whose labels never match. Prometheus itself accepts all of these, and shows nothing.

Source: https://prometheus.io/docs/prometheus/latest/querying/basics/
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from raftmq.broker.base.metric_catalog import CATALOG, Metric

SCRAPED: Final = {
    "up": "gauge",
    "process_open_fds": "gauge",
    "process_max_fds": "gauge",
    "process_resident_memory_bytes": "gauge",
    "process_start_time_seconds": "gauge",
    "process_cpu_seconds_total": "counter",
}
"""Metrics of Prometheus itself and of the process collector."""
TARGET: Final = frozenset({"job", "instance"})
"""Labels that Prometheus adds."""
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-z_]+)|(?P<text>\"[^\"]*\")|(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])"
    r"|(?P<sign>==|=~|!=|!~|>=|<=|[-+*/(){},=<>]))"
)
_AGGREGATIONS: Final = ("sum", "min", "max", "avg", "count", "topk")
_COMPARISONS: Final = ("==", "!=", ">", "<", ">=", "<=")
_LEVELS: Final = (("or",), ("and", "unless"), _COMPARISONS, ("+", "-"), ("*", "/"))
"""Binary operators, the loosest first."""
Kind = Literal["scalar", "gauge", "counter", "bucket", "counter range", "bucket range", "gauge range", "bucket rate"]


class QueryError(AssertionError):
    """Raised for a query that is wrong, or beyond the subset."""


class Value(NamedTuple):
    """The kind and the labels of a part of a query."""

    kind: Kind
    labels: frozenset[str] = frozenset()


def metric_of(name: str) -> Metric | None:
    """Return the metric of the catalogue that a series belongs to."""
    for suffix in ("_bucket", "_sum", "_count"):
        base = CATALOG.get(name.removesuffix(suffix))
        if name.endswith(suffix) and base is not None and base.kind == "histogram":
            return base
    found = CATALOG.get(name)
    return None if found is None or found.kind == "histogram" else found


def check(query: str) -> frozenset[str]:
    """Return the labels of a query's result. Raises QueryError."""
    return _Reader(query).result()


def metrics_in(query: str) -> set[str]:
    """Return the names in the catalogue of a query's metrics."""
    names = re.findall(r"\braftmq_\w+", query)
    return {found.name for name in names if (found := metric_of(name)) is not None}


def _tokens(query: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(query.rstrip()):
        found = _TOKEN.match(query, position)
        if found is None:
            raise QueryError(f"cannot read {query[position:]!r}")
        assert found.lastgroup is not None
        yield found.lastgroup, found[found.lastgroup]
        position = found.end()


class _Reader:
    """Reads one query."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._tokens = [*_tokens(query), ("end", "")]

    def result(self) -> frozenset[str]:
        value = self._shown(self._binary(0))
        self._take("")
        if value.kind == "scalar":
            raise self._error("a query of numbers alone")
        return value.labels

    # ------------------------------------------------------------------------------------------------ tokens

    def _error(self, reason: str) -> QueryError:
        return QueryError(f"{reason}: {self._query}")

    @property
    def _next(self) -> str:
        return self._tokens[0][1]

    def _take(self, expected: str | None = None) -> str:
        text = self._tokens.pop(0)[1]
        if expected is not None and text != expected:
            raise self._error(f"{expected!r} is expected, not {text!r}")
        return text

    def _takes(self, text: str) -> bool:
        if self._next == text:
            self._take()
            return True
        return False

    def _names(self) -> frozenset[str]:
        """Take a list of labels in parentheses."""
        self._take("(")
        names = {self._take()}
        while self._takes(","):
            names.add(self._take())
        self._take(")")
        return frozenset(names)

    # ------------------------------------------------------------------------------------------------ parts

    def _shown(self, value: Value) -> Value:
        """Refuse a value that means nothing by itself."""
        if value.kind not in ("scalar", "gauge"):
            raise self._error(f"a {value.kind} is shown as it is")
        return value

    def _binary(self, level: int) -> Value:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while self._next in _LEVELS[level]:
            operator = self._take()
            on = self._names() if self._takes("on") else None
            left = self._joined(operator, left, on, self._binary(level + 1))
        return left

    def _joined(self, operator: str, left: Value, on: frozenset[str] | None, right: Value) -> Value:
        self._shown(left)
        self._shown(right)
        if "scalar" in (left.kind, right.kind):
            return left if right.kind == "scalar" else right
        if operator == "or":
            return Value("gauge", left.labels | right.labels)
        if on is None and left.labels != right.labels:
            raise self._error(f"no series of the two sides match: {sorted(left.labels ^ right.labels)}")
        if on is not None and not on <= left.labels & right.labels:
            raise self._error(f"labels that a side lacks: {sorted(on - (left.labels & right.labels))}")
        return Value("gauge", on or left.labels)

    def _unary(self) -> Value:
        kind, text = self._tokens[0]
        if self._takes("("):
            value = self._binary(0)
            self._take(")")
            return value
        if kind == "number":
            self._take()
            return Value("scalar")
        if kind != "name":
            raise self._error(f"{text!r} is not expected")
        self._take()
        if text in _AGGREGATIONS:
            return self._aggregation(text)
        if self._next == "(":
            return self._function(text)
        return self._selector(text)

    def _aggregation(self, name: str) -> Value:
        by = self._names() if self._takes("by") else frozenset[str]()
        self._take("(")
        if name == "topk":
            self._binary(0)
            self._take(",")
        inner = self._binary(0)
        self._take(")")
        if not by <= inner.labels:
            raise self._error(f"labels that do not exist: {sorted(by - inner.labels)}")
        if name == "topk":
            return self._shown(inner)
        if inner.kind == "bucket rate" and name == "sum" and "le" in by:
            return Value("bucket rate", by)
        self._shown(inner)
        return Value("gauge", by)

    def _function(self, name: str) -> Value:
        self._take("(")
        arguments = [] if self._next == ")" else [self._binary(0)]
        while self._takes(","):
            arguments.append(self._binary(0))
        self._take(")")
        match name, [one.kind for one in arguments]:
            case "time", []:
                return Value("scalar")
            case "vector", ["scalar"]:
                return Value("gauge")
            case "abs", ["gauge"]:
                return arguments[0]
            case (("rate" | "increase"), ["counter range"]):
                return Value("gauge", arguments[0].labels)
            case "rate", ["bucket range"]:
                return Value("bucket rate", arguments[0].labels)
            case "deriv", ["gauge range"]:
                return Value("gauge", arguments[0].labels)
            case "histogram_quantile", ["scalar", "bucket rate"]:
                return Value("gauge", arguments[1].labels - {"le"})
            case _, kinds:
                raise self._error(f"{name} of {kinds}")

    def _selector(self, name: str) -> Value:
        kind, labels = self._series(name)
        if self._takes("{"):
            while not self._takes("}"):
                label = self._take()
                if label not in labels:
                    raise self._error(f"{name} has no label {label}")
                self._take()
                self._take()
                self._takes(",")
        if self._tokens[0][0] == "range":
            self._take()
            return Value(f"{kind} range", labels)
        return Value(kind, labels)

    def _series(self, name: str) -> tuple[Literal["gauge", "counter", "bucket"], frozenset[str]]:
        if name in SCRAPED:
            return "counter" if SCRAPED[name] == "counter" else "gauge", TARGET
        metric = metric_of(name)
        if metric is None:
            raise self._error(f"brokers do not export {name}")
        labels = TARGET | set(metric.labels)
        if name.endswith("_bucket"):
            return "bucket", labels | {"le"}
        return "counter" if metric.kind in ("counter", "histogram") else "gauge", labels
