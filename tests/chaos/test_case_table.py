"""Check that `cases.md` names existing tests and lists every test of `test_cases.py` and `test_own_failures.py`."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("cases.md")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
WITHOUT_TEST = ("there are no transactions",)
"""The endings of rows without a test, since RaftMQ lacks the feature. A phrase leaves this list when its feature is added."""


def rows(text: str) -> list[str]:
    """Return the rows of the table without its head."""
    return [line for line in text.splitlines() if line.startswith("|")][2:]


def named_tests(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    tree = ast.parse(path.read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def problems_of(text: str) -> list[str]:
    """Return the rows without a test, and the named tests that do not exist."""
    problems = []
    for row in rows(text):
        named = NAMED.findall(row)
        if not named and not row.rstrip("| ").endswith(WITHOUT_TEST):
            problems.append(f"no test: {row}")
        problems += [f"{path}::{name}" for path, name in named if name not in named_tests(ROOT / path)]
    return problems


def test_every_case_has_a_test_that_exists() -> None:
    assert len(rows(TABLE.read_text())) > 25
    assert problems_of(TABLE.read_text()) == []


def test_each_phrase_for_a_missing_feature_is_used_once() -> None:
    without = [row.rstrip("| ").rpartition("| ")[2] for row in rows(TABLE.read_text()) if not NAMED.search(row)]
    assert sorted(without) == sorted(WITHOUT_TEST)


def test_every_test_of_a_case_is_in_the_table() -> None:
    for file in ("test_cases.py", "test_own_failures.py"):
        named = {name for path, name in NAMED.findall(TABLE.read_text()) if path == f"tests/chaos/{file}"}
        assert named_tests(Path(__file__).with_name(file)) == named


def test_a_row_without_a_test_and_a_removed_test_are_reported() -> None:
    text = (
        "| class | who | test |\n|---|---|---|\n| a | b | nothing |\n| c | d | `tests/chaos/test_cases.py::test_gone` |"
    )
    assert problems_of(text) == ["no test: | a | b | nothing |", "tests/chaos/test_cases.py::test_gone"]
