"""The guide to the sink says what the code does: its options, and the jobs' command lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from raftmq.spark import sink_options
from raftmq.spark.jobs.main import parser
from raftmq.spark.options import OptionReader

GUIDE = (Path(__file__).resolve().parents[2] / "docs/guides/spark-sink.md").read_text()


def section(title: str) -> str:
    return GUIDE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_option_of_the_sink_is_in_the_guide_and_no_other(monkeypatch):
    readers: list[OptionReader] = []

    def remember(options):
        readers.append(OptionReader(options))
        return readers[-1]

    monkeypatch.setattr(sink_options, "OptionReader", remember)
    sink_options.read_sink_options({"bootstrap.servers": "h:1"})
    rows = re.findall(r"^\| (`[^|]*)\|", section("Options"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(named) == sorted(readers[0].asked)


def test_the_jobs_in_the_guide_are_those_there_are_and_their_command_lines_are_understood():
    jobs = re.findall(r"^\| `(\w+)` \|", section("Jobs"), re.MULTILINE)
    (commands,) = re.findall(r"```sh\n(.*?)```", section("Jobs"), re.DOTALL)
    lines = [shlex.split(line) for line in commands.splitlines()]
    assert [line[:3] for line in lines] == [["python", "-m", "raftmq.spark"]] * len(jobs)
    assert sorted(parser().parse_args(line[3:]).job for line in lines) == sorted(jobs)
