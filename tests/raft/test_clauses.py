"""The list of clauses names existing tests."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROW = re.compile(r"^\| (?P<clause>[^|]+) \| (?P<section>[^|]+) \| `(?P<file>[^:`]+)::(?P<test>[^`]+)` \|$")


def rows() -> list[re.Match[str]]:
    lines = [line for line in (HERE / "clauses.md").read_text().splitlines() if line.startswith("| ")][1:]
    matches = [ROW.match(line) for line in lines]
    assert all(matches), [line for line, match in zip(lines, matches, strict=True) if not match]
    return [match for match in matches if match]


def names_in(name: str) -> set[str]:
    tree = ast.parse((HERE / name).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_there_are_at_least_forty_clauses_each_with_its_own_test() -> None:
    tests = [(row["file"], row["test"]) for row in rows()]
    assert len(tests) >= 40
    assert len(set(tests)) == len(tests)


def test_every_clause_names_an_existing_test() -> None:
    missing = [row["test"] for row in rows() if row["test"] not in names_in(row["file"])]
    assert missing == []


def test_every_required_section_of_the_thesis_is_covered() -> None:
    sections = {row["section"] for row in rows()}
    for required in ("3.2", "3.3", "3.4", "3.5", "3.6", "3.8", "3.10", "4.1", "4.2", "4.3", "6.4", "9.6", "10.2"):
        assert any(section == required or section.startswith(required + ".") for section in sections), required
