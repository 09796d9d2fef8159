"""A batch is recorded by one more row, and the page about findings names tests that are there."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from sim.cluster.run import Outcome, Verdict
from sim.cluster.run_records import COLUMNS, TABLE, RunRecord, current_commit, read_records, write_record

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/internals/simulation-findings.md"
RECORD = RunRecord("abc", ["--queues"], 100, 2_000, (), 500_000, 34_200.0, 1_830.0, 1_790.0, 2)


def test_a_row_names_the_seeds_and_the_findings() -> None:
    assert ",".join(RECORD.row().values()) == "abc,--queues,100,2000,,500000,9.5,30,30,2,"
    assert dataclasses.replace(RECORD, options=["--queues", "--claims"]).row()["options"] == "--queues --claims"
    found = [Outcome(seed, Verdict.SAFETY, "X: y") for seed in range(7)]
    row = dataclasses.replace(RECORD, findings=found).row()
    assert row["findings"] == "0 safety; 1 safety; 2 safety; 3 safety; 4 safety; and 2 more"


def test_a_new_row_is_the_last_one(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(TABLE.read_text())
    write_record(RECORD, table)

    assert table.read_text().removesuffix("abc,--queues,100,2000,,500000,9.5,30,30,2,\n") == TABLE.read_text()
    assert read_records(table)[-1] == RECORD.row()


def test_the_table_has_whole_rows_and_no_seed_of_a_commit_twice() -> None:
    records = read_records()

    assert TABLE.read_text().splitlines()[0] == ",".join(COLUMNS)
    assert all(tuple(record) == COLUMNS and None not in record.values() for record in records)
    assert len({(record["commit"], record["options"], record["first"]) for record in records}) == len(records)


def test_each_finding_of_a_row_is_told() -> None:
    page = PAGE.read_text()
    seeds = {seed for record in read_records() for seed in re.findall(r"\d+(?= [a-z]+)", record["findings"])}

    assert len(seeds) >= 10
    assert [seed for seed in sorted(seeds) if seed not in page] == []


def test_each_test_that_keeps_a_finding_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE.read_text())

    assert len(named) >= 10
    for path, test in named:
        assert re.search(rf"def {test}\b", (ROOT / path).read_text()), (path, test)


def test_a_commit_is_named() -> None:
    assert current_commit()
