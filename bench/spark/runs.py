"""Run the ways in alternating rounds (A B A B …), in one Spark session of two cores beside three brokers. Must not format.

Kafka's connector takes its turns where `kafka_topics` finds it. Its three brokers then run beside ours, idle when it is not their turn.

Beyond the table, samples have the processor time of all brokers, the JVM and Python, in microseconds for each record or batch, and the
durations of the parts of micro-batches.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final  # Any: pyspark's session has several classes

from raftmq.testing import LocalCluster

from bench.machine import load_average, probe_processor
from bench.runner import WARM_UP, Sample
from bench.spark.kafka_topics import find_connector, kafka_topics
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
        Figure("sink", "records/s", is_higher_better=True, target=500_000),
        Figure("micro_batch", "ms", is_higher_better=False, target=200),
    )


NAMES: Final = tuple(figure.name for figure in figures())


def measure(
    rounds: int,
    tell: Callable[[str], None],
    records: int = RECORDS,
    codec: str = "none",
    only: Collection[str] = NAMES,
) -> list[Sample]:
    """Measure all ways of the figures in `only` after one round of warm-up. Raises `UnavailableError` where Spark cannot run."""
    try:
        kafka, jars = find_connector(os.environ)
    except UnavailableError as error:
        tell(str(error))
        kafka, jars = None, []
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(brokers=3))
        spark = stack.enter_context(session(jars))
        from bench.spark import micro_batches, ways

        peer = stack.enter_context(kafka_topics(kafka, spark)) if kafka is not None else None
        servers = cluster.bootstrap_servers
        brokers = [cluster.pid(broker_id) for broker_id in cluster.broker_ids] + (peer.pids if peer is not None else [])
        jvm = spark.sparkContext._gateway.proc.pid
        if "source" in only:
            ways.fill(servers, TOPIC, records, codec)
        chosen: dict[str, Callable[[], dict[str, Way]]] = {
            "source": lambda: ways.ways_of_reading(spark, servers, TOPIC, records, peer),
            "sink": lambda: ways.ways_of_writing(spark, servers, records, peer),
            "micro_batch": lambda: micro_batches.ways_of_micro_batches(spark, servers, peer),
        }
        samples: list[Sample] = []
        for figure in filter(only.__contains__, NAMES):
            by_name = chosen[figure]()
            for number in range(WARM_UP, rounds + 1):
                for name, way in by_name.items():
                    sample = _run(figure, name, way, number, records, partial(read_processors, brokers, jvm))
                    said = ", ".join(f"{what} {median(values):,.2f}" for what, values in sample.figures.items())
                    tell(f"{name}, round {number} of {rounds}: {said}")
                    if number != WARM_UP:
                        samples.append(sample)
        return samples


def _run(figure: str, name: str, way: Way, number: int, records: int, processors: Callable[[], Processors]) -> Sample:
    load, processor_ms, before = load_average(), probe_processor(), processors()
    started = time.perf_counter()
    own = way()
    seconds = time.perf_counter() - started
    found = {figure: [records / seconds]} if own is None else dict(own)
    spent = processors().per_record(before, records if own is None else len(found[figure]))
    return Sample("spark", name, number, load, processor_ms, seconds, found | spent)


@contextmanager
def session(jars: Sequence[Path] = ()) -> Iterator[Any]:
    """Open a Spark session of two cores, with more jars. Raises `UnavailableError` when there is no Java or no pyspark."""
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
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
