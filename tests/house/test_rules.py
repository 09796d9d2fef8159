"""Check the rules of one replica in docs/internals/consensus.md: each name exists in its file, and no assertion of the core is missing."""

import ast
from collections.abc import Iterator

import pytest

from tests.house.test_internals import ROOT, table

COLUMNS = ("rule", "what it says", "by", "name", "in", "thesis")
ROWS = table("consensus.md", "The rules of one replica", *COLUMNS)
RULES = {f"L{number}" for number in range(1, 19)}


def quoted(cell: str) -> list[str]:
    """Return a cell's names, which stand in code quotes with commas between them."""
    names = [name.strip() for name in cell.split(",")]
    assert all(name[0] == name[-1] == "`" for name in names), cell
    return [name.strip("`") for name in names]


NAME_ARGUMENTS = {"invariant": 1, "violated": 0}
"""The functions that assert an invariant, each with the position of the invariant's name among its arguments."""


def asserted_in(source: str) -> set[str]:
    """Return the names of the invariants that a module asserts."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAME_ARGUMENTS:
            name = node.args[NAME_ARGUMENTS[node.func.id]]
            assert isinstance(name, ast.Constant)
            names.add(str(name.value))
    return names


def defined_in(source: str) -> set[str]:
    """Return the classes, functions and methods of a module."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{prefix}{node.name}.")

    return set(walk(ast.parse(source).body, ""))


def demanded_in(source: str) -> set[str]:
    """Return the names that a module of the simulation reports."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {str(argument.value) for call in calls for argument in call.args if isinstance(argument, ast.Constant)}


NAMES_OF = {"assert": asserted_in, "construction": defined_in, "simulation": demanded_in}


def missing(row: dict[str, str], sources: dict[str, str]) -> list[str]:
    """Return a row's names that none of its files has, and its files that have none of its names."""
    names = quoted(row["name"])
    found = {path: NAMES_OF[row["by"]](source) for path, source in sources.items()}
    gone = [name for name in names if not any(name in there for there in found.values())]
    return gone + [path for path, there in found.items() if not there & set(names)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['rule']} {row['what it says']}")
def test_each_name_of_a_rule_is_in_its_file(row: dict[str, str]) -> None:
    assert row["thesis"]
    assert missing(row, {path: (ROOT / path).read_text() for path in quoted(row["in"])}) == []


def test_the_page_has_every_rule() -> None:
    assert {row["rule"] for row in ROWS} == RULES | {"–"}


def test_the_page_has_every_assertion_of_the_core_with_its_file() -> None:
    listed = {
        (name, path)
        for row in ROWS
        if row["by"] == "assert"
        for path in quoted(row["in"])
        for name in quoted(row["name"])
    }
    asserts = {
        (name, f"raft/{path.name}") for path in (ROOT / "raft").glob("*.py") for name in asserted_in(path.read_text())
    }
    assert len(asserts) > 25
    assert asserts - listed == set()


@pytest.mark.parametrize("by", NAMES_OF)
def test_a_missing_name_and_a_file_without_any_name_are_reported(by: str) -> None:
    source = "class A:\n    def f(self):\n        violated('A.f')\n        demand(True, 'A.f', '')\n"
    row = {"by": by, "name": "`A.f`, `A.g`"}
    assert missing(row, {"one.py": source, "two.py": "invariant(True, 'x')"}) == ["A.g", "two.py"]
