"""The guide to the sink agrees with the code: its options, its programs, and the command lines of the jobs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raftmq.spark.base.options import OptionReader
from raftmq.spark.jobs.main import parser
from raftmq.spark.sink import options as sink_options

from tests.spark.conftest import begin
from tests.support.spark.reading import value_counts

GUIDE = (Path(__file__).resolve().parents[2] / "docs/guides/spark-sink.md").read_text()


def section(title: str) -> str:
    return GUIDE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_guide_lists_exactly_the_options_of_the_sink(monkeypatch):
    readers: list[OptionReader] = []

    def remember(options):
        readers.append(OptionReader(options))
        return readers[-1]

    monkeypatch.setattr(sink_options, "OptionReader", remember)
    sink_options.read_sink_options({"bootstrap.servers": "h:1"})
    rows = re.findall(r"^\| (`[^|]*)\|", section("Options"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(named) == sorted(readers[0].asked)


def test_the_guide_lists_every_job_with_a_valid_command_line():
    jobs = re.findall(r"^\| `(\w+)` \|", section("Jobs"), re.MULTILINE)
    (commands,) = re.findall(r"```sh\n(.*?)```", section("Jobs"), re.DOTALL)
    lines = [shlex.split(line) for line in commands.splitlines()]
    assert [line[:3] for line in lines] == [["python", "-m", "raftmq.spark"]] * len(jobs)
    assert sorted(parser().parse_args(line[3:]).job for line in lines) == sorted(jobs)


def program(number: int, servers: str, topic: str, checkpoint: str) -> str:
    text = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[number]
    for old, new in {"localhost:9400": servers, '"topic", "delays"': f'"topic", "{topic}"'}.items():
        assert old in text
        text = text.replace(old, new)
    return str(text.replace("checkpoints/delays", checkpoint))


def test_the_first_program_runs(spark: Any, servers: str, topic: Callable[..., str], tmp_path: Path, checkpoint: str):
    target = topic()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/carriers.txt").write_text("UA\nDL\n")
    delays = spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "carrier")
    values: dict[str, Any] = {"delays": delays}
    text = program(0, servers, target, checkpoint)

    def run() -> Any:
        exec(text, values)
        return values["query"]

    query = begin(run)
    query.processAllAvailable()
    query.stop()
    assert value_counts(servers, target) == {b'{"carrier":"UA"}': 1, b'{"carrier":"DL"}': 1}


def test_the_function_for_batches_writes_each_of_them_once(
    spark: Any, servers: str, topic: Callable[..., str], checkpoint: str
):
    target = topic()
    values: dict[str, Any] = {}
    exec(program(1, servers, target, checkpoint), values)
    for batch_id in (0, 0, 1):
        values["write"](spark.createDataFrame([(f"of batch {batch_id}",)], "value string"), batch_id)
    assert value_counts(servers, target) == {b"of batch 0": 1, b"of batch 1": 1}
