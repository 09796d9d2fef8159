"""docs/internals/earlier-queues.md has a row for each known defect, and names tests that exist or a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/internals/earlier-queues.md"
COUNTS = {"B": 18, "Q": 9, "Z": 9, "D": 13}
"""The defects of each system, by the letter that begins their numbers."""
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
REASON = "does not apply: "


def names_of(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {function.name for function in functions if function.name.startswith("test_")}


def problems_of(text: str) -> list[str]:
    """Return the rows with neither a test nor a reason, and the named tests that do not exist."""
    problems = []
    for number, _, cell in ROW.findall(text):
        named = NAMED.findall(cell)
        if not named and not (cell.startswith(REASON) and len(cell) > len(REASON) + 20):
            problems.append(f"{number}: no test and no reason")
        problems += [f"{path}::{name}" for path, name in named if name not in names_of(ROOT / path)]
    return problems


def test_every_defect_is_listed_once() -> None:
    expected = [f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)]
    assert [number for number, _, _ in ROW.findall(PAGE.read_text())] == expected


def test_every_defect_has_a_test_that_exists_or_a_reason() -> None:
    assert problems_of(PAGE.read_text()) == []


def test_a_missing_test_and_a_missing_reason_are_reported() -> None:
    text = "| B1 | slow | `tests/house/test_earlier_queues.py::test_gone` |\n| B2 | wrong | does not apply: no |\n"
    assert problems_of(text) == ["tests/house/test_earlier_queues.py::test_gone", "B2: no test and no reason"]
