"""docs/internals/history-format.md agrees with the code."""

import ast
import importlib
import json
import re
from pathlib import Path
from typing import get_args

import pytest

from sim.history import __main__ as command
from sim.history.checker import ANOMALIES
from sim.history.events import Event, Kind, Operation, Start, decode_event
from tests.house.test_internals import table

ROOT = Path(__file__).resolve().parents[3]
PAGE = "history-format.md"
TYPES = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def text() -> str:
    return (ROOT / "docs/internals" / PAGE).read_text()


def names(heading: str, *columns: str) -> list[str]:
    return [row[columns[0]].strip("`") for row in table(PAGE, heading, *columns)]


def test_fields() -> None:
    assert tuple(names("Fields of an event", "field", "type", "holds")) == Event.__struct_fields__


def test_types_of_the_fields() -> None:
    """Each field accepts a value of the stated type and refuses a value of another type."""
    examples: dict[str, object] = {
        "kind": "ok",
        "operation": "poll",
        "start": "latest",
        "records": [["t", 0, [1], ["v"]]],
        "assignment": [["t", 0]],
        "ends": [["t", 0, 1]],
        "unset": ["x"],
        "config": {"x": "1"},
        "is_unconfirmed": True,
    }
    base = {"process": "p", "time": 1, "kind": "ok", "operation": "poll", "id": 1}
    for row in table(PAGE, "Fields of an event", "field", "type", "holds"):
        name, kind = row["field"].strip("`"), TYPES[row["type"]]
        value = examples.get(name, "text" if kind is str else 7)
        assert isinstance(value, kind), name
        assert getattr(decode_event(json.dumps({**base, name: value}).encode()), name) is not None
        with pytest.raises(ValueError, match=re.escape(f"$.{name}")):
            decode_event(json.dumps({**base, name: 7 if kind is str else "text"}).encode())


def test_kinds() -> None:
    assert tuple(names("Kinds", "kind", "says")) == get_args(Kind)


def test_operations_and_their_fields() -> None:
    rows = table(PAGE, "Operations", "operation", "invocation has", "ok has", "meaning")
    assert tuple(row["operation"].strip("`") for row in rows) == get_args(Operation)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row["invocation has"] + row["ok has"])}
    assert named <= set(Event.__struct_fields__)


def test_an_invocation_has_the_fields_that_are_written() -> None:
    """This checks every recorded operation. Fields that are collected elsewhere are not found."""
    written: dict[str, set[str]] = {}
    for path in [*ROOT.glob("sim/**/*.py"), *ROOT.glob("tests/**/e2e/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="invoke"), args=[_, ast.Constant(value=str(operation))], keywords=keywords
                ):
                    names_here = {keyword.arg for keyword in keywords if keyword.arg is not None}
                    if len(names_here) == len(keywords):
                        written.setdefault(operation, set()).update(names_here)
    rows = table(PAGE, "Operations", "operation", "invocation has", "ok has", "meaning")
    stated = {row["operation"].strip("`"): set(re.findall(r"`(\w+)`", row["invocation has"])) for row in rows}
    assert stated.keys() - written.keys() == {"committed"}
    assert {operation: stated[operation] for operation in written} == written


def test_starts() -> None:
    assert set(get_args(Start)) == {"earliest", "latest"}
    assert "`earliest` or `latest`" in text()


def test_anomalies() -> None:
    assert tuple(names("Anomalies", "anomaly", "found when")) == ANOMALIES
    modules = {path.stem for path in (ROOT / "sim/history/anomalies").glob("[a-z]*.py")}
    assert modules == set(ANOMALIES)
    for name in ANOMALIES:
        assert name == importlib.import_module(f"sim.history.anomalies.{name}").NAME


def test_exit_codes() -> None:
    codes = [int(code) for code in names("Exit codes", "code", "meaning")]
    assert codes == [command.CLEAN, command.FOUND, command.UNREADABLE]


def test_the_example_is_a_history() -> None:
    block = re.search(r"```json\n(.*?)```", text(), re.DOTALL)
    assert block is not None
    events = [decode_event(line.encode()) for line in block[1].splitlines()]
    assert [event.kind for event in events] == ["invoke", "ok", "invoke", "ok"]
    assert events[3].records is not None
    assert events[3].records[0].offsets == [8, 9]
