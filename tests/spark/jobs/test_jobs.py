"""The jobs in a real Spark session, with small data."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from raftmq import sync
from raftmq.spark import read_archive
from raftmq.spark.archive.entries import Entry
from raftmq.spark.archive.folder import Folder
from raftmq.spark.archive.table import ArchiveTable
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.jobs import main
from raftmq.spark.jobs.archive import ArchiveSettings, archive
from raftmq.spark.jobs.audit import AuditSettings, audit
from raftmq.spark.jobs.compact import compact
from raftmq.spark.jobs.mirror import MirrorSettings, mirror
from raftmq.spark.jobs.replay import DONE, ReplaySettings, replay
from raftmq.spark.jobs.running import (
    EXIT_OK,
    EXIT_STOPPED,
    EXIT_USAGE,
    EXIT_VIOLATION,
    Stop,
    explain,
    open_session,
)

from tests.support.spark.job_run import archived, command, content, produce
from tests.support.spark.reading import read_all

Spark = Any  # a SparkSession; pyspark is imported once Java is there


@pytest.mark.long
def test_a_topic_is_archived_compacted_and_replayed_each_record_once(
    spark: Spark, servers: str, topic: Callable[..., str], producer: sync.Producer, tmp_path: Path
):
    source, target = topic(partitions=3), topic(partitions=3)
    folder = tmp_path / "archive"
    settings = ArchiveSettings(
        servers=servers,
        topics=(source,),
        source={},
        archive=str(folder),
        checkpoint=str(folder / "checkpoint"),
        trigger_seconds=None,
    )
    for bounds in ((0, 40), (40, 100)):
        produce(producer, source, *bounds)
        assert archive(spark, settings, Stop()) == EXIT_OK
    expected = content(read_all(servers, source))
    assert len(expected) == 100
    assert archived(spark, folder) == expected
    assert [entry.records for entry in entries(spark, folder)] == [40, 60]

    # imitate a job that died after it wrote a batch's data and before it committed them
    last = ArchiveTable(spark, str(folder))
    (folder / "_delta_log" / f"{last.table.version:020d}.json").unlink()
    batch = last.entries()[-1].last
    for name in (str(batch), f".{batch}.crc"):
        (folder / "checkpoint" / "commits" / name).unlink()
    with pytest.raises(InvalidOptionError):  # a query with another checkpoint must not continue the archive
        archive(spark, replace(settings, checkpoint=str(tmp_path / "other")), Stop())
    assert archive(spark, settings, Stop()) == EXIT_OK
    assert archived(spark, folder) == expected
    # imitate a job that died after the commit and before Spark recorded the batch
    version = ArchiveTable(spark, str(folder)).table.version
    for name in (str(batch), f".{batch}.crc"):
        (folder / "checkpoint" / "commits" / name).unlink()
    assert archive(spark, settings, Stop()) == EXIT_OK
    assert ArchiveTable(spark, str(folder)).table.version == version

    assert compact(spark, str(folder), Stop(), kept_ms=0) == EXIT_OK
    assert len(entries(spark, folder)) == 1
    assert archived(spark, folder) == expected
    assert len(list((folder / "data").iterdir())) > 1  # readers may still use the old data
    assert compact(spark, str(folder), Stop()) == EXIT_OK
    assert len(list((folder / "data").iterdir())) > 1  # not for long enough
    assert compact(spark, str(folder), Stop(), kept_ms=0) == EXIT_OK
    assert len(entries(spark, folder)) == 1
    assert len(list((folder / "data").iterdir())) == 1
    assert archived(spark, folder) == expected

    back = ReplaySettings(
        {"bootstrap.servers": servers}, str(folder), str(tmp_path / "replay"), target, keeps_partitions=True, tasks=2
    )
    assert replay(spark, back, Stop()) == EXIT_OK
    assert content(read_all(servers, target)) == expected
    (tmp_path / "replay" / DONE).unlink()  # imitate a job that died before it recorded its completion
    (tmp_path / "replay" / f".{DONE}.crc").unlink(missing_ok=True)
    assert replay(spark, back, Stop()) == EXIT_OK
    assert content(read_all(servers, target)) == expected

    stopped = Stop()
    stopped.ask()
    assert (
        replay(spark, ReplaySettings(back.sink, str(folder), str(tmp_path / "r2"), target, True, 2), stopped)
        == EXIT_STOPPED
    )
    assert len(read_all(servers, target)) == 100


def test_a_checkpoint_that_is_older_or_newer_than_its_archive_is_refused(
    spark: Spark, servers: str, topic: Callable[..., str], producer: sync.Producer, tmp_path: Path
):
    """Its next batch had a number that the archive has, so its records were never archived, and the job ended with 0."""
    source, folder, point = topic(partitions=2), tmp_path / "archive", tmp_path / "checkpoint"
    settings = ArchiveSettings(servers, (source,), {}, str(folder), str(point), None)
    for start in (0, 10, 20):
        produce(producer, source, start, start + 10, partitions=2)
        assert archive(spark, settings, Stop()) == EXIT_OK
        shutil.copytree(point, tmp_path / f"backup-{start}")
    produce(producer, source, 30, 40, partitions=2)
    for start in (10, 0):  # one batch and two batches behind
        shutil.rmtree(point)
        shutil.copytree(tmp_path / f"backup-{start}", point)
        with pytest.raises(Exception, match="the checkpoint is older than the archive") as refused:
            archive(spark, settings, Stop())
        assert explain(refused.value)[0] == EXIT_USAGE
    assert len(archived(spark, folder)) == 30
    shutil.rmtree(point)
    shutil.copytree(tmp_path / "backup-20", point)
    assert archive(spark, settings, Stop()) == EXIT_OK
    assert len(archived(spark, folder)) == 40

    produce(producer, source, 40, 50, partitions=2)
    folder.rename(tmp_path / "moved")
    with pytest.raises(
        Exception, match="the archive is older than the checkpoint: it lacks batch 0, and the next one is 4"
    ):
        archive(spark, settings, Stop())  # the archive would begin with the new records
    (tmp_path / "moved").rename(folder)
    assert archive(spark, settings, Stop()) == EXIT_OK
    assert len(archived(spark, folder)) == 50


LEAST_TIME_MS = -(2**63 - 1)


def test_records_with_any_timestamp_are_archived_replayed_and_audited(
    spark: Spark,
    servers: str,
    topic: Callable[..., str],
    producer: sync.Producer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """One record ended every archive of its topic and every audit: the day of the earliest times does not fit, and Python has no year 10000."""
    source, target = topic(), topic()
    for time_ms in (1_700_000_000_000, 1_700_000_000_000_000, -100_000_000_000_000, -1, LEAST_TIME_MS, -LEAST_TIME_MS):
        producer.send(source, b"v", key=b"k", timestamp_ms=time_ms, partition=0).result(30)
    settings = ArchiveSettings(servers, (source,), {}, str(tmp_path / "a"), str(tmp_path / "c"), None)
    assert archive(spark, settings, Stop()) == EXIT_OK
    back = ReplaySettings({"bootstrap.servers": servers}, settings.archive, str(tmp_path / "r"), target, True, 1)
    assert replay(spark, back, Stop()) == EXIT_OK
    assert (
        content(read_all(servers, target))[:4] == content(read_all(servers, source))[:4]
    )  # Spark has no times of the last two

    capsys.readouterr()
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert audit(spark, AuditSettings(servers, (source,), {}, None, "timestamp", None), Stop()) == EXIT_VIOLATION
    finally:
        monkeypatch.undo()
        time.tzset()
    found = report(capsys.readouterr().out)
    assert found["hours"] == {"2023-11-14 22:00:00": 1, "1969-12-31 23:00:00": 1, None: 4}
    assert found["violations"] == {"out_of_order": 2}


def test_a_replay_without_all_of_its_records_or_with_the_checkpoint_of_another_one_fails(
    spark: Spark, servers: str, topic: Callable[..., str], producer: sync.Producer, tmp_path: Path
):
    """Both ended with 0: the records of files that are missing, and those of finished entries, were silently left out."""
    source, target, other = topic(), topic(), topic()
    folders = []
    for name in ("a", "b"):
        produce(producer, source, 0, 5, partitions=1)
        folders.append(tmp_path / name)
        settings = ArchiveSettings(servers, (source,), {}, str(tmp_path / name), str(tmp_path / f"c{name}"), None)
        assert archive(spark, settings, Stop()) == EXIT_OK
    back = ReplaySettings({"bootstrap.servers": servers}, str(folders[0]), str(tmp_path / "r"), target, True, 1)
    assert replay(spark, back, Stop()) == EXIT_OK
    for another in (replace(back, topic=other), replace(back, topic=None), replace(back, archive=str(folders[1]))):
        with pytest.raises(InvalidOptionError, match="is that of a replay of another archive, or to another topic"):
            replay(spark, another, Stop())
    (tmp_path / "r" / DONE).unlink()
    assert replay(spark, back, Stop()) == EXIT_OK
    assert len(read_all(servers, target)) == 5

    file, *_ = folders[0].glob("data/*/*/*/*.parquet")
    file.unlink()
    with pytest.raises(RuntimeError, match=r"has \d of its 5 records: files are missing"):
        replay(spark, replace(back, topic=other, checkpoint=str(tmp_path / "r2")), Stop())
    assert read_all(servers, other) == []


def test_an_audit_begins_again_with_a_topic_that_was_created_again(
    spark: Spark,
    servers: str,
    topic: Callable[..., str],
    producer: sync.Producer,
    admin: sync.Admin,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    """The first records of the new topic, as many as the old one had, were never audited."""
    name = topic()
    produce(producer, name, 0, 6, partitions=1)
    settings = AuditSettings(servers, (name,), {}, "header:id", None, str(tmp_path / "audit"))
    assert audit(spark, settings, Stop()) == EXIT_OK
    admin.delete_topic(name)
    admin.create_topic(name, partitions=1, replication_factor=1)
    with sync.Producer(bootstrap_servers=servers) as another:
        for number in (1, 1, *range(2, 10)):
            produce(another, name, number, number + 1, partitions=1)
    capsys.readouterr()
    assert audit(spark, settings, Stop()) == EXIT_VIOLATION
    found = report(capsys.readouterr().out)
    assert (found["records"], found["violations"]) == (10, {"duplicates": 1})


def entries(spark: Spark, folder: Path) -> list[Entry]:
    return ArchiveTable(spark, str(folder)).entries()


def report(output: str) -> dict[str, Any]:
    events = [json.loads(line) for line in output.splitlines()]
    found: dict[str, Any]
    (found,) = [event for event in events if event["event"] == "audited"]
    found["hours"] = Counter({event["hour"]: event["records"] for event in events if event["event"] == "hour"})
    return found


def test_an_audit_finds_violations_and_continues_after_the_last_audit(
    spark: Spark,
    servers: str,
    topic: Callable[..., str],
    producer: sync.Producer,
    admin: sync.Admin,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    name = topic(partitions=2)
    produce(producer, name, 0, 40, partitions=2)
    settings = AuditSettings(servers, (name,), {}, "header:id", "header:id", str(tmp_path / "audit"))
    assert audit(spark, settings, Stop()) == EXIT_OK
    found = report(capsys.readouterr().out)
    assert (found["records"], found["partitions"], found["violations"]) == (40, 2, {})
    assert sum(found["hours"].values()) == 40
    assert len(found["hours"]) == 40

    produce(producer, name, 41, 42, partitions=2)
    produce(producer, name, 41, 42, partitions=2)  # again
    producer.send(name, key=b"k1", headers=[("id", b"40")], partition=1).result(30)  # after 41
    assert audit(spark, settings, Stop()) == EXIT_VIOLATION
    found = report(capsys.readouterr().out)
    assert (found["records"], found["violations"]) == (3, {"duplicates": 1, "out_of_order": 1})
    assert found["samples"]["duplicates"][0]["records"] == 2

    by_contents = replace(settings, checkpoint=None, duplicates_by="value", order_by="timestamp")
    producer.send(name, b"late", key=b"k1", timestamp_ms=1, partition=1).result(30)
    assert audit(spark, by_contents, Stop()) == EXIT_VIOLATION
    found = report(capsys.readouterr().out)
    assert (found["records"], found["violations"]) == (44, {"duplicates": 1, "out_of_order": 1})
    with pytest.raises(InvalidOptionError, match="--order-by is timestamp or header:NAME, not 'offset'"):
        audit(spark, replace(settings, order_by="offset"), Stop())

    from raftmq import TopicPartition

    admin.delete_records({TopicPartition(name, 1): 22})  # two of the three that the last audit has not passed
    loose = replace(settings, source={"failOnDataLoss": "false"}, duplicates_by=None, order_by=None)
    assert audit(spark, loose, Stop()) == EXIT_VIOLATION
    assert report(capsys.readouterr().out)["violations"] == {"missing_offsets": 2}


@pytest.mark.long
def test_a_mirror_copies_everything_once(
    spark: Spark, servers: str, topic: Callable[..., str], producer: sync.Producer, admin: sync.Admin, checkpoint: str
):
    name = topic(partitions=3)
    settings = MirrorSettings(servers, servers, (name,), "copy-", {}, checkpoint, None)
    try:
        for bounds in ((0, 50), (50, 60)):
            produce(producer, name, *bounds)
            assert mirror(spark, settings, Stop()) == EXIT_OK
            assert content(read_all(servers, f"copy-{name}")) == content(read_all(servers, name))
        admin.add_partitions(name, 4)
        with pytest.raises(InvalidOptionError, match="3 partitions"):
            mirror(spark, settings, Stop())
    finally:
        admin.delete_topic(f"copy-{name}")


def test_a_mirror_into_itself_is_refused(spark: Spark, servers: str, topic: Callable[..., str], checkpoint: str):
    with pytest.raises(InvalidOptionError, match="copied into itself"):
        mirror(spark, MirrorSettings(servers, servers, (topic(),), "", {}, checkpoint, None), Stop())


def test_topics_that_do_not_exist_are_refused(spark: Spark, servers: str, tmp_path: Path):
    nothing = ArchiveSettings(servers, ("nothing",), {}, str(tmp_path / "archive"), str(tmp_path / "checkpoint"), None)
    with pytest.raises(InvalidOptionError, match="no topic 'nothing'"):
        archive(spark, nothing, Stop())
    with pytest.raises(InvalidOptionError, match="no topic 'nothing'"):
        audit(spark, AuditSettings(servers, ("nothing",), {}, None, None, None), Stop())
    assert list(tmp_path.iterdir()) == []


def test_a_topic_whose_name_is_a_number_is_archived_under_its_name(
    spark: Spark, servers: str, producer: sync.Producer, admin: sync.Admin, tmp_path: Path
):
    admin.create_topic("0042", partitions=1)
    try:
        produce(producer, "0042", 0, 3, partitions=1)
        settings = ArchiveSettings(servers, ("0042",), {}, str(tmp_path / "a"), str(tmp_path / "c"), None)
        assert archive(spark, settings, Stop()) == EXIT_OK
        rows = read_archive(spark, settings.archive).collect()
        assert [(row["topic"], row["offset"], str(row["date"])) for row in rows] == [
            ("0042", number, "2023-11-14" if number < 2 else "2023-11-15") for number in range(3)
        ]
    finally:
        admin.delete_topic("0042")


def test_a_small_file_that_is_replaced_always_exists(spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A driver that died between deleting and renaming left a replay without its progress."""
    folder, file = Folder(spark, str(tmp_path)), tmp_path / "done.json"
    folder.write("done.json", "0")
    (tmp_path / ".done.json.crc").write_bytes(b"crc\0 of an earlier version")
    missing = []
    rename = Folder._rename
    monkeypatch.setattr(Folder, "_rename", lambda *given: (missing.append(not file.exists()), rename(*given))[1])
    for number in range(3):
        folder.write("done.json", str(number))
        assert folder.read("done.json") == str(number)
        assert folder.names() == ["done.json"]
    assert missing == [False] * 3
    folder._is_local = False  # as on HDFS
    folder.write("other.json", "0")
    folder.write("other.json", "1")
    assert (folder.read("other.json"), folder.names()) == ("1", ["done.json", "other.json"])


@pytest.mark.parametrize("kind", ["local", "HDFS", "object store"])
def test_a_file_is_created_by_one_of_its_writers(spark: Spark, tmp_path: Path, kind: str) -> None:
    """The classes for HDFS and object stores run on a local disk here."""
    folder = Folder(spark, str(tmp_path))
    folder._is_local, folder._is_object_store = kind == "local", kind == "object store"
    assert folder.create("1.json", "a")
    assert not folder.create("1.json", "b")
    assert folder.read("1.json") == "a"
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".crc")] == ["1.json"]


def test_a_job_that_is_asked_to_stop_cancels_what_spark_is_doing(spark: Spark):
    stop = Stop()

    def ask_when_it_runs() -> None:
        while not spark.sparkContext.statusTracker().getActiveJobsIds():
            time.sleep(0.05)
        stop.ask()

    asker = threading.Thread(target=ask_when_it_runs)
    asker.start()
    with pytest.raises(Exception, match="cancelled") as ended, stop.cancels(spark):
        spark.range(0, 1 << 62, 1, 2).selectExpr("sum(id % 7)").collect()  # it would take years
    asker.join()
    assert stop.is_cancelled(ended.value)
    assert not Stop().is_cancelled(ended.value)


def test_a_job_runs_the_source_with_the_python_of_the_executors(spark: Spark, monkeypatch):
    """PYSPARK_DRIVER_PYTHON would override it, and the driver's interpreter does not exist where executors run."""
    monkeypatch.setenv("PYSPARK_PYTHON", "environment/bin/python")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    open_session("job", "spark://elsewhere:7077", {})  # returns the existing session
    assert os.environ["PYSPARK_PYTHON"] == "environment/bin/python"
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ

    monkeypatch.delenv("PYSPARK_PYTHON")
    open_session("job", "spark://elsewhere:7077", {})
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.long
def test_a_job_from_the_command_line_ends_cleanly_on_sigterm(
    servers: str, topic: Callable[..., str], producer: sync.Producer, tmp_path: Path
):
    name, folder = topic(partitions=1), tmp_path / "archive"
    produce(producer, name, 0, 20, partitions=1)
    where = ("--bootstrap-servers", servers, "--topics", name, "--to", str(folder), "--continuous", "1")
    job = subprocess.Popen(
        command(tmp_path, "archive", *where), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    guard = threading.Timer(200, job.kill)
    guard.start()
    try:
        assert job.stdout is not None
        events = []
        for line in job.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "batch" and events[-1]["records"] == 20:
                os.kill(job.pid, signal.SIGTERM)
        assert job.wait() == EXIT_STOPPED
    finally:
        guard.cancel()
        job.kill()
        job.wait()
        assert job.stdout is not None
        job.stdout.close()
    assert [event["event"] for event in events] == ["batch", "archived", "ended"]
    assert events[1]["records"] == 20
    shutil.rmtree(folder)


@pytest.mark.long
def test_spark_submit_runs_a_job_and_ends_with_its_exit_code(
    servers: str, topic: Callable[..., str], producer: sync.Producer, tmp_path: Path
):
    import pyspark

    name = topic()
    for _ in range(2):
        produce(producer, name, 1, 2, partitions=1)
    _, _, _, *words = command(tmp_path, "audit", "--bootstrap-servers", servers, "--topics", name)
    submit = [str(Path(pyspark.__file__).parent / "bin/spark-submit"), "--master", "local[2]", str(main.__file__)]
    done = subprocess.run(
        [*submit, *words, "--duplicates-by", "header:id"], capture_output=True, text=True, check=False
    )
    assert done.returncode == EXIT_VIOLATION, done.stderr[-5000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]  # Spark mixes them with standard error
    assert report("\n".join(lines))["violations"] == {"duplicates": 1}
