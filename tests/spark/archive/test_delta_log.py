"""The log of a Delta table: its state, commits of several programs, checkpoints and their readers."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from raftmq.spark.archive.delta_log import DeltaLog, checkpoint_bytes, read_checkpoint
from raftmq.spark.archive.delta_table import Action, DataFile, Table, protocol, transaction
from raftmq.spark.archive.table import instant
from raftmq.spark.errors import InvalidOptionError

Spark = Any  # a SparkSession; pyspark is imported once Java is there


def file(name: str, records: int = 1) -> DataFile:
    return DataFile(name, {"topic": "t", "date": None}, 10, 1000, json.dumps({"numRecords": records}))


def begun() -> list[Action]:
    metadata = {
        "id": "m",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": "{}",
        "partitionColumns": ["topic", "date"],
        "configuration": {"delta.appendOnly": "true"},
        "createdTime": 1,
    }
    return [protocol(), {"metaData": metadata}]


def test_a_state_has_the_files_that_were_added_and_not_removed() -> None:
    table = Table()
    table.apply(0, [*begun(), transaction("q", 0), file("a").add(is_change=True), file("b", 5).add(is_change=True)])
    table.apply(1, [transaction("q", 1), file("a").remove(77), file("c", 6).add(is_change=False), {"commitInfo": {}}])
    assert (table.version, table.transactions) == (1, {"q": 1})
    assert {path: known.records for path, known in table.files.items()} == {"b": 5, "c": 6}
    assert table.removed["a"].removed_ms == 77


def test_a_checkpoint_leads_to_the_same_state() -> None:
    table = Table()
    table.apply(7, [*begun(), transaction("q", 3), file("a").add(is_change=True), file("b").add(is_change=True)])
    table.apply(8, [file("a").remove(5)])
    copy = Table()
    copy.apply(8, read_checkpoint(checkpoint_bytes(table.actions())))
    assert copy == table


@pytest.mark.parametrize("versions", [(2, 2), (1, 3), (3, 7)])
def test_a_table_with_unknown_features_is_refused(versions: tuple[int, int]) -> None:
    reader, writer = versions
    with pytest.raises(InvalidOptionError, match="another program has enabled a feature"):
        Table().apply(0, [{"protocol": {"minReaderVersion": reader, "minWriterVersion": writer}}])


def test_times_in_statistics_are_text_that_other_readers_know() -> None:
    assert instant(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert instant(-1) == "1969-12-31T23:59:59.999Z"
    assert instant(1 << 60) is None


def test_of_two_programs_the_later_one_decides_again(spark: Spark, tmp_path: Path) -> None:
    log = DeltaLog(spark, str(tmp_path))
    mine, other = log.load(), log.load()
    assert (mine.exists, log.commit(mine, "W", lambda _: [*begun(), transaction("q", 0)])) == (False, True)
    seen: list[int] = []

    def decide(table: Table) -> list[Action]:
        seen.append(table.version)
        if len(seen) == 1:  # the other program commits between the decision and the commit
            log.commit(mine, "W", lambda _: [transaction("q", 1)])
        return [transaction("q", 9)]

    assert log.commit(other, "W", decide)
    assert seen == [0, 1]
    assert log.load() == other
    assert not log.commit(other, "W", lambda _: [])
    assert other.version == 2


def test_a_shortened_log_is_read_from_its_checkpoint(spark: Spark, tmp_path: Path) -> None:
    log, table = DeltaLog(spark, str(tmp_path)), Table()
    for number in range(4):
        added = [*([] if number else begun()), file(str(number)).add(is_change=True)]
        log.commit(table, "W", partial(lambda given, _: given, added))
        if number == 2:
            log.write_checkpoint(table)
            checkpoint = log.load()
    folder = tmp_path / "_delta_log"
    for path in folder.iterdir():
        os.utime(path, (1000, 1000))
    assert log.shorten(checkpoint, 999_999) == 0
    assert log.shorten(checkpoint, 1_000_001) == 2  # not the commit of the checkpoint and later ones
    assert log.load() == table
    assert json.loads((folder / "_last_checkpoint").read_text())["version"] == 2


def test_a_program_that_waited_longer_than_commits_are_kept_goes_on_after_the_checkpoint(
    spark: Spark, tmp_path: Path
) -> None:
    log = DeltaLog(spark, str(tmp_path))
    waiting = log.load()
    log.commit(waiting, "W", lambda _: [*begun(), file("0").add(is_change=True)])
    other = log.load()
    for name in ("1", "2", "3"):
        log.commit(other, "W", partial(lambda name, _: [file(name).add(is_change=True)], name))
    log.write_checkpoint(other)
    for path in (tmp_path / "_delta_log").iterdir():
        os.utime(path, (1000, 1000))
    log.shorten(other, 1_000_001)
    log.commit(waiting, "W", lambda _: [file("4").add(is_change=True)])
    assert waiting.version == 4
    assert set(log.load().files) == set("01234")
