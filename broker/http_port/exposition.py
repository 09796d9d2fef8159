"""Write values as Prometheus' text format, with the families of prometheus_client.

Values are counted in plain numbers and `Histogram`, not in the library's own metrics, which take a lock for each value. A value of
`Histogram` took 156 ns, one of the library's 870 ns. A scrape of 1,000 partitions takes 40 ms altogether. 30 ms of them are spent in a
thread, which formats the text.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from raftmq.broker.base.histogram import Histogram
from raftmq.broker.base.metric_catalog import CATALOG, Metric

disable_created_metrics()  # type: ignore[no-untyped-call]  # otherwise each counter gets a second sample with its creation time

Samples = Sequence[tuple[tuple[str, ...], float | Histogram]]
"""The samples of a metric with labels: the label values in the catalog's order, and the measured value."""
Value = float | Histogram | Samples


def page(values: Mapping[str, Value], others: CollectorRegistry) -> bytes:
    """Return the text of these values, by the catalog's names, and of what the others collect."""
    return generate_latest(_Values(values)) + generate_latest(others)


class _Values(Collector):
    """Supplies the values of one scrape to the library."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    def collect(self) -> Iterator[Family]:
        """Return the families in the order of the catalog. A metric without a value has none."""
        for name, metric in CATALOG.items():
            value = self._values.get(name)
            if value is not None:
                yield _family(metric, value if isinstance(value, Sequence) else [((), value)])


def _family(metric: Metric, samples: Samples) -> Family:
    text = f"{metric.text}."
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, text, labels=metric.labels)
        for labels, one in samples:
            assert isinstance(one, Histogram)
            histogram.add_metric(labels, one.buckets(), one.total)
        return histogram
    family = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
        metric.name, text, labels=metric.labels
    )
    for labels, one in samples:
        assert not isinstance(one, Histogram)
        family.add_metric(labels, one)
    return family
