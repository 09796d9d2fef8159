"""An archive and its live topic as one table: each record once, whatever was compacted and trimmed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raftmq import TopicPartition, sync
from raftmq.spark import read_archive, read_history
from raftmq.spark.archive.table import ArchiveTable
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.jobs.archive import ArchiveSettings, archive
from raftmq.spark.jobs.compact import compact
from raftmq.spark.jobs.running import EXIT_OK, Stop

from tests.support.spark.job_run import content, produce
from tests.support.spark.reading import read_all

Spark = Any  # a SparkSession; pyspark is imported once Java is there


def offsets(rows: Any) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in rows.select("partition", "offset").collect())


def all_offsets(count: int, partitions: int = 2) -> list[tuple[int, int]]:
    return sorted((n % partitions, n // partitions) for n in range(count))


@pytest.fixture
def settings(servers: str, topic: Callable[..., str], tmp_path: Path) -> ArchiveSettings:
    folder = str(tmp_path / "archive")
    return ArchiveSettings(servers, (topic(partitions=2),), {}, folder, f"{folder}/_checkpoint", None)


def test_history_refuses_to_read_whole_batches() -> None:
    options = {"bootstrap.servers": "a:1", "Isolation": "batch"}
    with pytest.raises(InvalidOptionError, match="where batches begin"):
        read_history(None, archive="nowhere", topic="t", options=options)  # no session is used


@pytest.mark.long
def test_history_has_each_record_once_after_a_compaction_and_a_trim(
    spark: Spark, servers: str, producer: sync.Producer, admin: sync.Admin, settings: ArchiveSettings
) -> None:
    name, folder = settings.topics[0], settings.archive

    def history(**options: str) -> Any:
        return read_history(spark, archive=folder, topic=name, options={"bootstrap.servers": servers} | options)

    produce(producer, name, 0, 10, partitions=2)
    with pytest.raises(InvalidOptionError, match="there is no archive in"):
        history()  # the folder may be misspelt, and the archived records would be missing
    assert archive(spark, settings, Stop()) == EXIT_OK
    produce(producer, name, 10, 30, partitions=2)
    assert archive(spark, settings, Stop()) == EXIT_OK
    produce(producer, name, 30, 44, partitions=2)
    expected = content(read_all(servers, name))
    assert offsets(read_archive(spark, folder)) == all_offsets(30)
    assert offsets(history()) == all_offsets(44)
    assert compact(spark, folder, Stop(), kept_ms=0) == EXIT_OK
    admin.delete_records(
        {TopicPartition(name, 0): 15, TopicPartition(name, 1): 7}
    )  # up to the archive's end, and before it
    rows = history()
    assert offsets(rows) == all_offsets(44)
    assert rows.where("date = '2023-11-15'").count() == 24
    assert rows.where("headers IS NULL").count() == sum(not record[3] for record in expected)
    assert history(columns="partition,offset,value").columns == ["partition", "offset", "value"]
    assert offsets(history(columns="partition,offset,value")) == all_offsets(44)

    admin.add_partitions(name, 3)
    producer.send(name, value=b"new", partition=2).result(30)
    assert offsets(history()) == sorted([*all_offsets(44), (2, 0)])

    admin.delete_records({TopicPartition(name, 0): 18})
    with pytest.raises(Exception, match="offsets 15 to 17 were deleted before they were read"):
        history().collect()
    lossy = offsets(history(failOnDataLoss="false"))
    assert lossy == [pair for pair in sorted([*all_offsets(44), (2, 0)]) if pair not in [(0, 15), (0, 16), (0, 17)]]

    admin.delete_topic(name)
    admin.create_topic(name, partitions=2, replication_factor=1)
    with pytest.raises(Exception, match="deleted and created again"):
        history()
    with pytest.raises(InvalidOptionError, match="startingOffsets is not an option"):
        history(startingOffsets="latest")


@pytest.mark.long
def test_an_archive_of_an_earlier_release_is_read_and_then_converted_in_one_step(
    spark: Spark, servers: str, producer: sync.Producer, settings: ArchiveSettings
) -> None:
    """Both formats have the same data files, so a table without its log and with a manifest is an archive of an earlier release."""
    name, folder = settings.topics[0], Path(settings.archive)
    for bounds in ((0, 10), (10, 30)):
        produce(producer, name, *bounds, partitions=2)
        assert archive(spark, settings, Stop()) == EXIT_OK
    known = ArchiveTable(spark, settings.archive).entries()
    (folder / "manifest").mkdir()
    for entry in known:
        (folder / "data" / entry.folder_name).rename(folder / "data" / f"batches={entry.name}")
        fields = {"first": entry.first, "last": entry.last, "query_id": entry.query_id, "records": entry.records}
        written = json.dumps(fields | {"data_bytes": entry.data_bytes, "version": 1})
        (folder / "manifest" / f"{entry.name}.json").write_text(written)
    for path in (folder / "_delta_log").iterdir():
        path.unlink()

    old = ArchiveTable(spark, settings.archive)
    assert [(entry.first, entry.records) for entry in old.entries()] == [
        (entry.first, entry.records) for entry in known
    ]
    assert offsets(read_archive(spark, settings.archive)) == all_offsets(30)
    produce(producer, name, 30, 36, partitions=2)
    history = read_history(spark, archive=str(folder), topic=name, options={"bootstrap.servers": servers})
    assert offsets(history) == all_offsets(36)
    with pytest.raises(InvalidOptionError, match="another checkpoint"):
        old.check_owner("another")

    old._manifest.retire = lambda: None  # type: ignore[method-assign] # dies after the commit
    old.convert()
    assert len(list((folder / "manifest").glob("0*.json"))) == 2
    assert offsets(read_archive(spark, settings.archive)) == all_offsets(30)
    assert archive(spark, settings, Stop()) == EXIT_OK
    assert offsets(read_archive(spark, settings.archive)) == all_offsets(36)
    assert [path.name for path in (folder / "manifest").glob("*.json")] == ["retired.json"]
    assert compact(spark, settings.archive, Stop(), kept_ms=0) == EXIT_OK
    assert offsets(read_archive(spark, settings.archive)) == all_offsets(36)
