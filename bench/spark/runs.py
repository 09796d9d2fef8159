"""Run the ways in alternating rounds (A B A B …), in one Spark session of two cores beside three brokers. Must not format.

Beyond the table, samples have the processor time of brokers, JVM and Python, in microseconds for each record.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final  # Any: pyspark's session has several classes

from raftmq.testing import LocalCluster

from bench.machine import load_average, probe_processor
from bench.runner import WARM_UP, Sample
from bench.spark.processors import Processors, read_processors
from bench.systems import UnavailableError
from bench.workloads import Figure
from scripts.find_java import ADVICE, find_java

if TYPE_CHECKING:
    from bench.spark.ways import Way

RECORDS: Final = 1_000_000
TOPIC: Final = "bench"
SETTINGS: Final = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def figures() -> tuple[Figure, ...]:
    """Return the figures and their targets."""
    return (
        Figure("source", "records/s", is_higher_better=True, target=1_000_000),
        Figure("sink", "records/s", is_higher_better=True),
    )


def measure(rounds: int, tell: Callable[[str], None], records: int = RECORDS, codec: str = "none") -> list[Sample]:
    """Measure all ways after one round of warm-up. Raises `UnavailableError` where Spark cannot run."""
    with LocalCluster(brokers=3) as cluster, session() as spark:
        from bench.spark import ways

        servers = cluster.bootstrap_servers
        brokers = [cluster.pid(broker_id) for broker_id in cluster.broker_ids]
        jvm = spark.sparkContext._gateway.proc.pid
        ways.fill(servers, TOPIC, records, codec)
        chosen = {
            "source": ways.ways_of_reading(spark, servers, TOPIC, records),
            "sink": ways.ways_of_writing(spark, servers, records),
        }
        samples: list[Sample] = []
        for figure, by_name in chosen.items():
            for number in range(WARM_UP, rounds + 1):
                for name, way in by_name.items():
                    sample = _run(figure, name, way, number, records, partial(read_processors, brokers, jvm))
                    said = ", ".join(f"{what} {values[0]:,.2f}" for what, values in sample.figures.items())
                    tell(f"{name}, round {number} of {rounds}: {said}")
                    if number != WARM_UP:
                        samples.append(sample)
        return samples


def _run(figure: str, name: str, way: Way, number: int, records: int, processors: Callable[[], Processors]) -> Sample:
    load, processor_ms, before = load_average(), probe_processor(), processors()
    started = time.perf_counter()
    way()
    seconds = time.perf_counter() - started
    spent = processors().per_record(before, records)
    return Sample("spark", name, number, load, processor_ms, seconds, {figure: [records / seconds]} | spent)


@contextmanager
def session() -> Iterator[Any]:
    """Open a Spark session of two cores. Raises `UnavailableError` when there is no Java or no pyspark."""
    home = find_java()
    if home is None:
        raise UnavailableError(ADVICE)
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UnavailableError("pip install 'raftmq[spark]'") from error
    builder = SparkSession.builder.master("local[2]").appName("raftmq bench")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
