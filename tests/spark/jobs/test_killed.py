"""Jobs that are killed with their JVM and Python workers while they run, and started again: each record exists once."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from raftmq import sync
from raftmq.spark.archive.delta_log import LOG
from raftmq.spark.archive.entries import DATA
from raftmq.spark.jobs.archive import ArchiveSettings, archive
from raftmq.spark.jobs.compact import compact
from raftmq.spark.jobs.running import EXIT_OK, EXIT_VIOLATION, Stop

from tests.spark.conftest import HAS_ADMISSION_CONTROL
from tests.support.spark.job_run import Job, Spark, archived, content, produce
from tests.support.spark.reading import counting, read_all

COUNT = 600
needs_cap = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="before Spark 4.2 a run that is capped would end early"
)
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def filled(topic: Callable[..., str], producer: sync.Producer) -> str:
    name = topic(partitions=3)
    produce(producer, name, 0, COUNT)
    return name


def names(folder: Path) -> set[str]:
    """Return the names of data folders."""
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def commits(archive: Path) -> list[str]:
    """Return the commits of the archive's log."""
    return [path.read_text() for path in sorted((archive / LOG).glob("[0-9]*.json"))]


def committed(archive: Path) -> set[str]:
    """Return the data folders that a commit names."""
    return set(re.findall(r"data/(batches-[^/]+)/", "".join(commits(archive))))


def half_written(archive: Path) -> set[str]:
    """Return data that no commit names: a job is writing them, or a dead job left them."""
    return names(archive / DATA) - committed(archive)


def is_amid(folder: Path, batches: int, known: set[str]) -> bool:
    """Return whether the job has finished this many batches and is writing another one."""
    return len(commits(folder)) >= batches and not half_written(folder) <= known


def has_written(written: Callable[[], int], least: int) -> bool:
    return written() >= least


@needs_cap
def test_a_killed_archive_continues_and_archives_each_record_once(
    spark: Spark, servers: str, filled: str, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    where = ("--bootstrap-servers", servers, "--topics", filled, "--to", str(folder))
    job = Job(tmp_path, "archive", *where, "--option", "maxOffsetsPerTrigger=60")
    for batches in (1, 4):
        known = half_written(folder)
        job.kill_when(partial(is_amid, folder, batches, known))
        assert len(commits(folder)) < COUNT / 60
    code, _ = job.run()
    assert code == EXIT_OK
    assert archived(spark, folder) == content(read_all(servers, filled))
    assert len(committed(folder)) == len(commits(folder))  # no batch was added twice
    left = half_written(folder)
    assert left
    assert compact(spark, str(folder), Stop(), kept_ms=0) == EXIT_OK
    assert half_written(folder) == set()
    assert archived(spark, folder) == content(read_all(servers, filled))


@pytest.fixture
def archive_of(spark: Spark, servers: str, tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        folder = tmp_path / "archive"
        settings = ArchiveSettings(servers, (name,), {}, str(folder), str(folder / "checkpoint"), None)
        assert archive(spark, settings, Stop()) == EXIT_OK
        return folder

    return make


def test_a_killed_compaction_keeps_each_record_once(
    spark: Spark,
    servers: str,
    filled: str,
    producer: sync.Producer,
    archive_of: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    archive_of(filled)
    produce(producer, filled, COUNT, COUNT + 50)
    folder = archive_of(filled)
    expected = content(read_all(servers, filled))
    job = Job(tmp_path, "compact", "--archive", str(folder))
    job.kill_when(lambda: bool(half_written(folder)))
    assert archived(spark, folder) == expected
    job.kill_when(lambda: "OPTIMIZE" in commits(folder)[-1])
    assert archived(spark, folder) == expected
    code, _ = job.run()
    assert code == EXIT_OK
    assert archived(spark, folder) == expected
    assert compact(spark, str(folder), Stop(), kept_ms=0) == EXIT_OK
    assert archived(spark, folder) == expected
    assert len(names(folder / DATA)) == 1


def test_a_killed_replay_continues_and_writes_each_record_once(
    servers: str, filled: str, topic: Callable[..., str], archive_of: Callable[[str], Path], tmp_path: Path
) -> None:
    target, folder = topic(partitions=3), archive_of(filled)
    where = ("--archive", str(folder), "--checkpoint", str(tmp_path / "replay"), "--topic", target)
    small = ("--option", "batchRecords=1")  # requests of 64 records
    job = Job(tmp_path, "replay", "--bootstrap-servers", servers, *where, *small, "--tasks", "3")
    with counting(servers, target) as written:
        for least in (1, 300):
            job.kill_when(partial(has_written, written, least))
            assert written() < COUNT
    code, _ = job.run()
    assert code == EXIT_OK
    assert content(read_all(servers, target)) == content(read_all(servers, filled))


@needs_cap
def test_a_killed_mirror_continues_and_copies_each_record_once(
    servers: str, filled: str, admin: sync.Admin, tmp_path: Path
) -> None:
    copy = f"copy-{filled}"
    where = ("--from", servers, "--to", servers, "--topics", filled, "--prefix", "copy-")
    job = Job(tmp_path, "mirror", *where, "--checkpoint", str(tmp_path / "c"), "--option", "maxOffsetsPerTrigger=60")
    admin.create_topic(copy, partitions=3)
    try:
        with counting(servers, copy) as written:
            for least in (1, 190):
                job.kill_when(partial(has_written, written, least))
                assert written() < COUNT
        code, _ = job.run()
        assert code == EXIT_OK
        assert content(read_all(servers, copy)) == content(read_all(servers, filled))
    finally:
        admin.delete_topic(copy)


def test_a_killed_audit_repeats_the_whole_audit(
    servers: str, filled: str, producer: sync.Producer, tmp_path: Path
) -> None:
    where = ("--bootstrap-servers", servers, "--topics", filled, "--checkpoint", str(tmp_path / "audit"))
    job = Job(tmp_path, "audit", *where, "--duplicates-by", "header:id")

    def has_checked() -> bool:
        return any(event["event"] == "checked" for event in job.events())

    def audited() -> tuple[int, int, dict[str, int]]:
        code, events = job.run()
        [found] = [event for event in events if event["event"] == "audited"]
        return code, found["records"], found["violations"]

    job.kill_when(has_checked)
    assert audited() == (EXIT_OK, COUNT, {})  # it audits everything again
    produce(producer, filled, COUNT + 1, COUNT + 2)
    produce(producer, filled, COUNT + 1, COUNT + 2)
    job.kill_when(has_checked)
    assert audited() == (EXIT_VIOLATION, 2, {"duplicates": 1})  # it audits all new records
