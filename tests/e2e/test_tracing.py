"""The programs of the page about tracing run against brokers that trace, and a collector gets the traces that the page shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq.testing import LocalCluster

from tests.support.e2e.collector import Collector, attributes_of
from tests.support.e2e.guide_programs import read_page

pytestmark = [pytest.mark.e2e]

PAGE = read_page(Path(__file__).resolve().parents[2] / "docs/guides/tracing.md")
UNTRACED = """
import sys
from raftmq.sync import Admin, Consumer, Producer
servers = sys.argv[1]
with Admin(bootstrap_servers=servers) as admin:
    admin.create_topic("untraced")
with Producer(bootstrap_servers=servers) as producer:
    producer.send_and_wait("untraced", b"coffee")
with Consumer("untraced", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
    next(consumer)
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def cluster(collector: Collector) -> Iterator[LocalCluster]:
    settings = (f"tracing_endpoint={collector.endpoint}", "slow_request_seconds=0.000001")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with LocalCluster(brokers=1, broker_arguments=[part for one in settings for part in ("--set", one)]) as running:
            yield running


def run(directory: Path, cluster: LocalCluster, collector: Collector, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"PYTHONWARNINGS": "error", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def programs(cluster: LocalCluster, collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Run the programs of the page, before others: a broker logs few slow requests in a while."""
    directory = tmp_path_factory.mktemp("programs")
    for name, text in PAGE.files.items():
        (directory / name).write_text(text.replace("localhost:9400", cluster.bootstrap_servers))
    programs = [command for command in PAGE.commands if command.line.startswith("python ")]
    assert [command.line.split()[1] for command in programs] == list(PAGE.files)
    for command in programs:
        said = run(directory, cluster, collector, sys.executable, *command.line.split()[1:])
        assert said == command.output


@pytest.mark.usefixtures("programs")
def test_the_programs_of_the_page_give_the_trace_that_it_shows(cluster: LocalCluster, collector: Collector) -> None:
    root = collector.named("order tea")
    sent, put = collector.named("send orders"), collector.named("send mails")
    assert {sent.parent_span_id, put.parent_span_id} == {root.span_id}
    processed = collector.named("process mails")
    assert processed.parent_span_id == put.span_id
    assert collector.named("smtp").parent_span_id == processed.span_id
    appended = [collector.named("Append", parent=one) for one in (sent, put)]
    settled = collector.named("Ack", parent=processed)
    assert {span.trace_id for span in (sent, put, processed, settled, *appended)} == {root.trace_id}
    found = attributes_of(appended[0])
    assert found["messaging.destination.name"] == "orders"
    phases = [found[f"raftmq.{phase}_seconds"] for phase in ("queued", "disk", "replication", "apply")]
    took = (appended[0].end_time_unix_nano - appended[0].start_time_unix_nano) / 1e9
    assert 0 < sum(map(float, phases)) <= took + 0.002, "the clocks of spans and phases differ"
    assert "raftmq-broker" in collector.services
    logged = [json.loads(line) for line in cluster.logs(1).splitlines() if line.startswith("{")]
    traced = [line for line in logged if line.get("trace_id") == root.trace_id.hex()]
    assert {(line["event"], line["span_id"]) for line in traced} >= {
        ("slow_request", span.span_id.hex()) for span in appended
    }


@pytest.mark.usefixtures("programs")
def test_a_program_that_does_not_trace_imports_nothing_of_opentelemetry(
    cluster: LocalCluster, collector: Collector, tmp_path: Path
) -> None:
    assert run(tmp_path, cluster, collector, sys.executable, "-c", UNTRACED, cluster.bootstrap_servers) == "[]\n"
