"""The guide to queue topics in Spark agrees with the code, and its programs run, on model brokers and on real ones."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from raftmq import sync
from raftmq.spark.base.schema import BROWSE_COLUMNS, LEASED_COLUMNS
from raftmq.spark.browse.options import read_browse_options
from raftmq.spark.leases.options import OPTIONS_OF_LOGS, read_lease_options
from raftmq.spark.sink.columns.queue import QueueColumns

from tests.spark.conftest import HAS_ADMISSION_CONTROL
from tests.support.spark.model_brokers import model_brokers

GUIDE = (Path(__file__).resolve().parents[2] / "docs/guides/spark-queues.md").read_text()
MINUTE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d")


def section(title: str) -> str:
    return re.split(r"\n##+ ", GUIDE.partition(f"# {title}\n")[2])[0]


def programs() -> dict[str, str]:
    return {
        text.partition("\n")[0].removeprefix("# file: "): text
        for text in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    }


@pytest.fixture(params=["model", pytest.param("real", marks=pytest.mark.long)])
def jobs(request: pytest.FixtureRequest) -> Iterator[str]:
    """Create the topic of the page, and yield the address of its brokers."""
    if request.param == "real":
        servers: str = request.getfixturevalue("servers")
        with sync.Admin(bootstrap_servers=servers) as admin:
            admin.create_topic("jobs", kind="queue")
            yield servers
            admin.delete_topic("jobs")
        return
    with model_brokers() as brokers:
        brokers.create_queue("jobs")

        def set_clock(queue: Any) -> None:
            queue.offset_ms = time.time_ns() // 1_000_000 - queue.now_ms()

        brokers.change("jobs", 0, set_clock)
        yield brokers.bootstrap_servers


def test_the_programs_fill_a_queue_and_query_its_backlog(
    spark: Any, jobs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", jobs])
    exec(compile(programs()["fill.py"], "fill.py", "exec"), {})
    with sync.Queue("jobs", bootstrap_servers=jobs) as queue:
        assert {message.id for message in queue.browse()} == {"mail-1", "mail-2", "mail-3"}
        message = queue.get(tenants=["globex"])
        assert message is not None
        message.reject("no such address")
    capsys.readouterr()
    exec(compile(programs()["backlog.py"], "backlog.py", "exec"), {})
    [expected] = re.findall(r"```text\n(.*?)```", GUIDE, re.DOTALL)
    printed = capsys.readouterr().out
    assert MINUTE.sub("", printed) == MINUTE.sub("", expected)
    [since] = MINUTE.findall(printed)
    waiting = datetime.now(UTC) - datetime.strptime(since, "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
    assert timedelta(0) <= waiting < timedelta(hours=1)


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="before Spark 4.2 the query needs another trigger")
@pytest.mark.long
def test_the_program_works_on_the_messages(
    spark: Any, jobs: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], checkpoint: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", jobs, checkpoint])
    exec(compile(programs()["fill.py"], "fill.py", "exec"), {})
    with sync.Queue("jobs", bootstrap_servers=jobs) as queue:
        queue.put(b"mail carl@busy.example", id="mail-4")
        exec(compile(programs()["mails.py"], "mails.py", "exec"), {})
        left = {message.id: (message.state, message.error) for message in queue.browse()}
    assert left == {"mail-3": ("dead", "no such address"), "mail-4": ("delayed", "busy")}
    printed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("sent")]
    assert printed == ["sent mail ann@example.com attempt 1", "sent mail bob@example.com attempt 1"]


def names_in_first_column(text: str) -> list[str]:
    return [name for row in re.findall(r"^\| (`[^|]*)\|", text, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)]


def test_the_guide_lists_exactly_the_options_of_a_browse() -> None:
    reader = read_browse_options({"bootstrap.servers": "a:1", "browse": "q"})[1]
    options = set(reader.asked) - {"subscribe", "subscribePattern", "assign"}  # asked for to be refused
    assert sorted(names_in_first_column(section("Options of a browse"))) == sorted(options)


def test_the_guide_lists_exactly_the_options_of_a_stream() -> None:
    reader = read_lease_options({"bootstrap.servers": "a:1", "subscribe": "q", "kind": "queue"})[1]
    refused = {"browse", "subscribePattern", "assign", "maxOffsetsPerTrigger", *OPTIONS_OF_LOGS}
    assert sorted(names_in_first_column(section("Options of a stream"))) == sorted(set(reader.asked) - refused)


@pytest.mark.parametrize(
    ("title", "columns"), [("Columns of messages", BROWSE_COLUMNS), ("Columns of leased messages", LEASED_COLUMNS)]
)
def test_every_column_of_messages_is_in_the_guide_with_its_type(title: str, columns: Mapping[str, Any]) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section(title), re.MULTILINE))
    expected = {name: kind.simpleString().replace("bigint", "long") for name, kind in columns.items()}
    types = {name: text.replace("&lt;", "<").replace("&gt;", ">") for name, text in rows.items()}
    types["headers"] = types["headers"].replace("key ", "key:").replace("value ", "value:").replace(", ", ",")
    assert list(rows) == list(columns)
    assert types == expected


def test_every_column_of_the_sink_is_in_the_guide() -> None:
    columns = {field.name for field in fields(QueueColumns)} - {"order", "width"}
    assert set(names_in_first_column(section("Put the rows of a frame"))) == columns
