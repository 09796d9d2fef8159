"""The guide to the source agrees with the code: its options, its columns and its first program."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raftmq import sync
from raftmq.spark import LagListener
from raftmq.spark.base.schema import COLUMNS
from raftmq.spark.source.options import read_source_options

from tests.spark.conftest import begin

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/spark.md"


class StreamingQueries:
    """Collects listeners, as a session's `streams` does."""

    def __init__(self) -> None:
        self.listeners: list[object] = []

    def addListener(self, listener: object) -> None:  # noqa: N802 - Spark's name
        self.listeners.append(listener)


def section(title: str) -> str:
    _, _, rest = GUIDE.read_text().partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def names_in_first_column(text: str) -> list[str]:
    return [name for row in re.findall(r"^\| (`[^|]*)\|", text, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)]


def test_the_guide_lists_exactly_the_options_of_the_source() -> None:
    reader = read_source_options({"bootstrap.servers": "a:1", "subscribe": "t"}, is_streaming=False)[1]
    assert sorted(names_in_first_column(section("Options of the source"))) == sorted(reader.asked)


def test_every_column_is_in_the_guide_with_its_type() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section("Columns"), re.MULTILINE))
    types = {
        name: text.replace("&lt;", "<").replace("&gt;", ">").replace("key ", "key:") for name, text in rows.items()
    }
    expected = {name: kind.simpleString().replace("bigint", "long") for name, kind in COLUMNS.items()}
    assert {name: text.replace("value ", "value:").replace(", ", ",") for name, text in types.items()} == expected


def test_the_listener_of_the_guide_can_be_added() -> None:
    [program] = re.findall(r"```python\n(.*?)```", section("Guarantees for a query"), re.DOTALL)
    streams = StreamingQueries()
    exec(compile(program, str(GUIDE), "exec"), {"spark": SimpleNamespace(streams=streams)})
    [listener] = streams.listeners
    assert isinstance(listener, LagListener)


def test_the_first_program_runs(
    spark: Any, servers: str, producer: sync.Producer, topic: Callable[..., str], checkpoint: str
) -> None:
    name = topic()
    producer.send_many(name, [(b"UA", b"flight %d" % number) for number in range(3)]).result()
    [program, *_] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    for old, new in {"localhost:9400": servers, '"flights"': repr(name), "checkpoints/flights": checkpoint}.items():
        assert old in program
        program = program.replace(old, new)
    program, _, waiting = program.partition("query.awaitTermination()")
    assert waiting == "\n"
    values: dict[str, Any] = {}

    def run() -> Any:
        exec(compile(program, str(GUIDE), "exec"), values)
        return values["query"]

    query = begin(run)
    query.awaitTermination()
    assert sum(batch["numInputRows"] for batch in query.recentProgress) == 3
