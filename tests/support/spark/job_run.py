"""Produce records for Spark jobs, read their results, and run jobs as processes that can be killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raftmq import Record, sync
from raftmq.spark import read_archive

from tests.spark.conftest import SETTINGS, prepare_environment
from tests.support.spark.sink_run import LOG_TAIL, kill_session

Spark = Any  # a SparkSession: pyspark is imported only where Java exists


def produce(producer: sync.Producer, topic: str, start: int, end: int, partitions: int = 3) -> None:
    deliveries = [
        producer.send(
            topic,
            value=None if n % 7 == 0 else b"v%d" % n,
            key=None if n % 5 == 0 else b"k%d" % (n % 4),
            partition=n % partitions,
            timestamp_ms=1_700_000_000_000 + n * 3_600_000,
            headers=[("id", b"%d" % n), ("empty", b"")] if n % 2 else (),
        )
        for n in range(start, end)
    ]
    for delivery in deliveries:
        delivery.result(30)


def content(records: list[Record]) -> list[tuple[object, ...]]:
    """Return all fields but the offset of each record, in the order of the partitions."""
    return [(r.partition, r.key, r.value, r.headers, r.timestamp) for r in records]


def archived(spark: Spark, path: Path) -> list[tuple[object, ...]]:
    rows = read_archive(spark, str(path)).orderBy("partition", "offset").collect()
    return [
        (
            row["partition"],
            None if row["key"] is None else bytes(row["key"]),
            None if row["value"] is None else bytes(row["value"]),
            tuple((pair["key"], bytes(pair["value"])) for pair in row["headers"] or ()),
            round(row["timestamp"].timestamp() * 1000),
        )
        for row in rows
    ]


def command(folder: Path, *arguments: str) -> list[str]:
    """Return the command of a job with few resources. Spark's files go to `folder`."""
    prepare_environment()
    settings = [part for name, value in SETTINGS.items() for part in ("--conf", f"{name}={value}")]
    local = ["--master", "local[2]", "--conf", f"spark.local.dir={folder}/local"]
    return [sys.executable, "-m", "raftmq.spark", *arguments, *local, *settings]


class Job:
    """A job ``python -m raftmq.spark …`` that a test starts repeatedly with the same arguments."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.command = command(folder, *arguments)
        self.output, self.log = folder / "job.out", folder / "job.log"

    def _start(self) -> subprocess.Popen[bytes]:
        with self.output.open("wb") as output, self.log.open("wb") as log:
            return subprocess.Popen(self.command, stdout=output, stderr=log)

    def kill_when(self, is_time: Callable[[], bool]) -> None:
        """Start the job, and kill it with its JVM and its Python workers at a moment that must come before its end."""
        process = self._start()
        try:
            while not is_time():
                if process.poll() is not None:
                    pytest.fail(f"the job ended too early\n{self._tail()}")
                time.sleep(0.01)
        finally:
            kill_session(process)

    def run(self) -> tuple[int, list[dict[str, Any]]]:
        """Run the job to its end and return its exit code and its events."""
        process = self._start()
        try:
            code = process.wait()
        finally:
            kill_session(process)
        return code, self.events()

    def events(self) -> list[dict[str, Any]]:
        """Return the job's events so far, without an incomplete last line."""
        *lines, _ = self.output.read_text().split("\n")
        return [json.loads(line) for line in lines]

    def _tail(self) -> str:
        return self.output.read_text() + self.log.read_text(errors="replace")[-LOG_TAIL:]
