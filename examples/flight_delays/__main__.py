"""Run the pipeline: ``python -m examples.flight_delays [--flights N] [--lateness '5 days'] [--to flight-delays.png]``.

Starts three brokers, writes flights to a topic, lets Spark average their delays, reads the results with the SDK and draws them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from raftmq import Admin, Producer
from raftmq.testing import LocalCluster

from examples.demo_flights.source import FLIGHT_COUNT, Flight, archive_path, read_flights
from examples.flight_delays.picture import draw
from examples.flight_delays.pipeline import LATENESS, start
from examples.flight_delays.results import Delay, read_results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS, DELAYS = "flights", "flight-delays"
PARTITIONS = 3


class Times(msgspec.Struct):
    """When a flight was to leave, and how many minutes later it did; None: it was cancelled."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    dep_delay: int | None


_times = msgspec.json.Decoder(Times)


def left_at(flight: Flight) -> datetime:
    """When it left; when it was to, if it never did."""
    times = _times.decode(flight[1])
    scheduled = datetime(times.year, times.month, times.day, times.hour, times.minute)  # noqa: DTZ001 - New York's clocks
    return scheduled + timedelta(minutes=times.dep_delay or 0)


def flights_as_they_left() -> list[Flight]:
    """All flights; the file has its months in the order of their names: 1, 10, 11, 12, 2 and so on."""
    return sorted(read_flights(archive_path()), key=left_at)


async def write_flights(servers: str, count: int, flights: str = FLIGHTS, delays: str = DELAYS) -> None:
    """Make both topics, and write the year's first flights in the order in which they left."""
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic(flights, partitions=PARTITIONS)
        await admin.create_topic(delays, partitions=PARTITIONS)
    async with Producer(bootstrap_servers=servers) as producer:
        await producer.send_many(flights, islice(flights_as_they_left(), count))


def run(
    spark: SparkSession,
    servers: str,
    checkpoint: str,
    flights: str = FLIGHTS,
    delays: str = DELAYS,
    lateness: str = LATENESS,
) -> list[Delay]:
    """Average what is there, and read the results that are new."""
    query = start(spark, servers, flights, delays, checkpoint, lateness)
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return asyncio.run(read_results(servers, delays, PARTITIONS))


def main(arguments: Sequence[str] | None = None) -> None:
    """Everything, from the brokers to the picture."""
    parser = argparse.ArgumentParser(prog="python -m examples.flight_delays", description=__doc__)
    parser.add_argument("--flights", type=int, default=FLIGHT_COUNT, help="only the first so many (default: all)")
    parser.add_argument("--lateness", default=LATENESS, help=f"how long a day is kept open (default: {LATENESS})")
    parser.add_argument("--to", type=Path, default=Path("flight-delays.png"), help="the picture")
    found = parser.parse_args(arguments)
    os.environ.setdefault(
        "PYSPARK_PYTHON", sys.executable
    )  # where RaftMQ is: else Spark looks in whatever "python3" is
    from pyspark.sql import SparkSession

    with LocalCluster(brokers=3) as cluster, tempfile.TemporaryDirectory() as folder:
        asyncio.run(write_flights(cluster.bootstrap_servers, found.flights))
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        try:
            delays = run(spark, cluster.bootstrap_servers, f"{folder}/checkpoint", lateness=found.lateness)
        finally:
            spark.stop()
    if not delays:
        sys.exit(f"no results: a day is written {found.lateness} after its end; take more than {found.flights} flights")
    draw(delays, found.to)
    print(f"{len(delays)} results of {sum(delay.flights for delay in delays)} flights: {found.to}")


if __name__ == "__main__":
    main()
