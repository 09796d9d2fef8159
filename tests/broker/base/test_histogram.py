"""Histograms count values by size, as Prometheus expects."""

from raftmq.broker.base.histogram import Histogram


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


def test_buckets_count_what_is_up_to_each_bound():
    histogram = Histogram((1, 2.5))
    for value in (1, 2, 3):
        histogram.observe(value)
    assert histogram.buckets() == [("1", 1), ("2.5", 2), ("+Inf", 3)]
