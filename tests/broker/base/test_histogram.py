"""Counting by size, as Prometheus reads it."""

from raftmq.broker.base.histogram import Histogram
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.metric_catalog import CATALOG, SECTIONS


def test_a_value_that_equals_a_bound_is_not_above_it():
    histogram = Histogram((1, 2, 5))
    for value in (0.5, 1, 1.5, 2, 5, 6, 100):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1, 2]
    assert (histogram.count, histogram.total) == (7, 116)


def test_a_copy_stays_as_it_was():
    histogram = Histogram((1,))
    histogram.observe(0)
    copy = histogram.copy()
    histogram.observe(3)
    assert (copy.counts, copy.total) == ([1, 0], 0)


def test_the_names_of_metrics_follow_prometheus():
    """Base units; counters and only they end with _total; a name is used once."""
    names = [metric.name for metrics in SECTIONS.values() for metric in metrics]
    assert len(names) == len(CATALOG)
    for name, metric in CATALOG.items():
        assert name.startswith("raftmq_")
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert not {"ms", "millis", "kb", "mb", "percent", "count"} & set(name.split("_")), name
        assert metric.text[0].isupper() or metric.text[0].isdigit(), name
        assert not metric.text.endswith("."), name
        assert not {"client", "client_id", "producer", "connection", "address", "follower"} & {*metric.labels}, name


def test_what_lasts_is_said_once_per_interval_and_what_comes_again_at_once():
    now = 0.0
    pace = LogThrottle(60, clock=lambda: now)
    assert [pace.is_due("a"), pace.is_due("b"), pace.is_due("a")] == [True, True, False]
    now = 59.9
    assert not pace.is_due("a")
    now = 60.0
    assert pace.is_due("a")
    pace.forget("a")
    assert pace.is_due("a")


def test_a_pace_forgets_the_oldest_of_too_many():
    pace = LogThrottle(60, clock=lambda: 0.0)
    assert all(pace.is_due(number) for number in range(1000))
    assert pace.is_due(0)
    assert not pace.is_due(999)
