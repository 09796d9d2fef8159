"""The names and texts of the metrics."""

from raftmq.broker.base.metric_catalog import CATALOG, SECTIONS


def test_the_names_of_metrics_follow_prometheus():
    """Names use base units, only counters end with _total, and no name is used twice."""
    names = [metric.name for metrics in SECTIONS.values() for metric in metrics]
    assert len(names) == len(CATALOG)
    for name, metric in CATALOG.items():
        assert name.startswith("raftmq_")
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert not {"ms", "millis", "kb", "mb", "percent", "count"} & set(name.split("_")), name
        assert metric.text[0].isupper() or metric.text[0].isdigit(), name
        assert not metric.text.endswith("."), name
        assert not {"client", "client_id", "producer", "connection", "address", "follower"} & {*metric.labels}, name
