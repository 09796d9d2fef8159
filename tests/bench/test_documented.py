"""Check that docs/internals/performance.md has the targets and counts of the code."""

import re
from pathlib import Path

from bench import assignors, commits, groups, moves, partitions, plans, queue_workloads, write_back
from bench.queue_load_parts import FULL as FULL_LOADS
from bench.queue_loads import LOADS
from bench.queue_workloads import QUEUE_WORKLOADS
from bench.report import number
from bench.spark import runs as spark
from bench.workloads import FULL, PRODUCERS, SENDERS, WORKLOADS

PAGE = (Path(__file__).resolve().parents[2] / "docs/internals/performance.md").read_text()


def row(name: str) -> str:
    found = re.search(rf"^\| `{name}`.*$", PAGE, re.MULTILINE)
    assert found is not None, name
    return found[0]


def test_every_workload_has_a_row_with_its_targets() -> None:
    for name, workload in (WORKLOADS | QUEUE_WORKLOADS).items():
        target = row(name).rsplit("|", 2)[1]
        for figure in workload.figures:
            assert figure.target is not None
            sign = "≥" if figure.is_higher_better else "≤"
            text = f"{figure.target:g}" if figure.target < 100 else number(figure.target)
            assert re.search(rf"{sign} {re.escape(text)} {re.escape(figure.unit)}", target), (name, target)


def test_the_counts_are_those_of_the_full_scale() -> None:
    for name in (
        "produce_100b",
        "produce_1kib",
        "latency",
        "senders",
        "producers",
        "read_back",
        "read_back_group",
        "end_to_end",
    ):
        assert f"{getattr(FULL, name):,}" in row(name)
    assert f"{SENDERS} tasks" in row("senders")
    assert f"{PRODUCERS} producers" in row("producers")


def test_the_counts_of_queues_are_those_of_the_full_scale() -> None:
    assert f"{queue_workloads.WORKERS} tasks, each {FULL.queue_cycles} times" in row("queue_cycles")
    workers, batches = queue_workloads.BATCH_WORKERS, FULL.queue_batches
    assert f"{workers} tasks, each {batches} times {queue_workloads.BATCH} messages" in row("queue_batches")
    for name in ("queue_latency", "queue_due"):
        assert f"{FULL.queue_latency:,} messages" in row(name)


def test_every_figure_of_large_queues_is_explained() -> None:
    section = PAGE.split("### Large queues")[1].split("\n### ")[0]
    for name, load in LOADS.items():
        assert f"`{name}`" in section
        for figure in load.figures:
            assert f"`{figure.name}`" in section
            if figure.target is not None:
                assert f"{'≥' if figure.is_higher_better else '≤'} {number(figure.target)}" in section, figure.name


def test_the_durations_of_large_queues_are_those_of_the_full_scale() -> None:
    section = PAGE.split("### Large queues")[1].split("\n### ")[0]
    for seconds in (FULL_LOADS.due_watched_seconds, FULL_LOADS.file_seconds, FULL_LOADS.dwell_seconds):
        assert f"{seconds:.0f} s" in section
    for count in (FULL_LOADS.file_rate, FULL_LOADS.kept, FULL_LOADS.tenants):
        assert f"{count:,}" in section


def test_every_figure_of_groups_is_explained() -> None:
    section = PAGE.split("### Consumer groups")[1].split("\n### ")[0]
    for figure in (*assignors.figures(), *groups.figures()):
        assert f"`{figure.name}`" in section


def test_every_figure_of_plans_and_moves_is_explained() -> None:
    section = PAGE.split("### Plans and moves")[1].split("\n### ")[0]
    for figure in (*plans.figures(), *moves.figures()):
        assert f"`{figure.name}`" in section


def test_every_figure_of_commits_is_explained() -> None:
    section = PAGE.split("### Large transactions")[1].split("\n### ")[0]
    for figure in (*commits.figures(), *write_back.figures()):
        assert f"`{figure.name}`" in section


def test_every_figure_of_spark_is_explained() -> None:
    section = PAGE.split("## Spark")[1].split("\n## ")[0]
    for figure in spark.figures():
        assert f"`{figure.name}`" in section
        sign = "≥" if figure.is_higher_better else "≤"
        assert figure.target is None or f"{sign} {number(figure.target)} {figure.unit}" in section
    assert number(spark.RECORDS) in section


def test_every_figure_of_partitions_is_explained() -> None:
    section = PAGE.split("### Many partitions")[1].split("\n## ")[0]
    for figure in partitions.figures(1000):
        assert f"`{figure.name}`" in section
    for seconds in (partitions.FULL.settle_seconds, partitions.FULL.idle_seconds, partitions.FULL.aftermath_seconds):
        assert f"{seconds:.0f} s" in section
