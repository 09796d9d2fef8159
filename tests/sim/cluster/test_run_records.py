"""A batch is recorded by one more row, and nothing else of the page changes."""

from __future__ import annotations

import dataclasses
import re

import pytest

from sim.cluster.run import Outcome, Verdict
from sim.cluster.run_records import PAGE, RunRecord, current_commit, with_row

RECORD = RunRecord("`abc`", 100, 2_000, (), 500_000, 34_200.0, 1_830.0, 1_790.0, 2)


def test_a_row_names_the_seeds_and_the_findings() -> None:
    assert RECORD.row() == "| `abc` | 100–2099 | 2,000 | nothing | 500,000 | 9.5 | 30 | 30 | 2 |\n"
    found = [Outcome(seed, Verdict.SAFETY, "X: y") for seed in range(7)]
    row = dataclasses.replace(RECORD, findings=found).row()
    assert "| 7: 0 safety, 1 safety, 2 safety, 3 safety, 4 safety, and 2 more |" in row


def test_a_new_row_is_the_last_one() -> None:
    page = PAGE.read_text()
    changed = with_row(with_row(page, "| one |\n"), "| two |\n")

    assert changed.replace("| one |\n| two |\n", "") == page
    with pytest.raises(ValueError, match="no table"):
        with_row("nothing here", "| one |\n")


def test_each_test_that_keeps_a_finding_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE.read_text())

    assert len(named) >= 10
    for path, test in named:
        assert re.search(rf"def {test}\b", (PAGE.parents[2] / path).read_text()), (path, test)


def test_a_commit_is_named() -> None:
    assert current_commit()
