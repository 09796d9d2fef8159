"""The state of a queue topic as text, without a cluster."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace

from raftmq.cli.queue.stats_text import Sample, format_rate, json_of, rates, text_of
from raftmq.client.queue.dwell_times import DwellTimes
from raftmq.client.queue.views import MessageCounts, QueueStats

EMPTY = QueueStats(
    **{field.name: 0 for field in fields(QueueStats) if field.default is MISSING and field.default_factory is MISSING}
)


def test_rates_are_differences_per_second() -> None:
    earlier = Sample(replace(EMPTY, enqueued_total=100, accepted_total=5), 10.0)
    later = Sample(replace(EMPTY, enqueued_total=150, accepted_total=5), 12.0)
    found = rates(earlier, later)
    assert (found["enqueued"], found["accepted"]) == (25.0, 0.0)


def test_a_rate_is_unknown_without_an_earlier_state_and_after_a_change_of_leader() -> None:
    assert set(rates(None, Sample(EMPTY, 1.0)).values()) == {None}
    assert rates(Sample(replace(EMPTY, leased_total=9), 1.0), Sample(EMPTY, 2.0))["leased"] is None


def test_the_busiest_tenants_come_first_and_paused_ones_are_marked() -> None:
    stats = replace(
        EMPTY,
        ready=4,
        oldest_ready_seconds=90.0,
        waiting_bytes=1536,
        tenants={"b": MessageCounts(ready=1), "a": MessageCounts(ready=1), "": MessageCounts(ready=2)},
        paused={"": 30.0, "a": None, "other": 5.0},
    )
    lines = text_of("jobs", None, Sample(stats, 0.0), with_rates=True).splitlines()
    assert lines[0] == "topic jobs, paused for 30s: oldest ready 1m30s, waiting 1.5 KiB, consumers 0"
    assert [line.split()[0] for line in lines if line.startswith(("(none)", "a ", "b "))] == ["(none)", "a", "b"]
    assert any(line.startswith("a ") and line.endswith("paused until resumed") for line in lines)
    assert [line.split() for line in lines[-2:]] == [["paused", "tenant", "time"], ["other", "for", "5s"]]
    assert any(line.split() == ["enqueued", "-", "0"] for line in lines)


def test_the_dwell_time_and_the_clock_are_shown() -> None:
    dwell = DwellTimes((0.01, 1.0, 60.0), (50, 49, 1, 0), 80.0)
    stats = replace(EMPTY, dwell=dwell, clock_difference_seconds=-7200.0)
    lines = text_of("jobs", None, Sample(stats, 0.0), with_rates=False).splitlines()
    assert lines[1] == "ready until leased: p50 10ms, p99 1s, clock difference -2h"
    found = json_of("jobs", stats)
    assert found["clock_difference_seconds"] == -7200.0
    assert found["dwell"] == {
        "count": 100, "mean_seconds": 0.8, "p50_seconds": 0.01, "p99_seconds": 1.0, "bounds_seconds": [0.01, 1.0, 60.0],
        "counts": [50, 49, 1, 0],
    }  # fmt: skip
    unknown = text_of("jobs", None, Sample(EMPTY, 0.0), with_rates=False).splitlines()[1]
    assert unknown == "ready until leased: none yet, clock difference 0s"


def test_a_tenant_cannot_write_to_the_terminal() -> None:
    stats = replace(EMPTY, tenants={"a\x1b[2J": MessageCounts(ready=1)})
    assert "\x1b" not in text_of("jobs", None, Sample(stats, 0.0), with_rates=False)


def test_a_rate_has_three_digits() -> None:
    assert [format_rate(rate) for rate in (None, 0.0, 12.34, 5000.4)] == ["-", "0.0", "12.3", "5000"]
