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
    """Hold a flight's scheduled departure and its delay in minutes, which is None for a cancelled flight."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    dep_delay: int | None


_times = msgspec.json.Decoder(Times)


def left_at(flight: Flight) -> datetime:
    """Return the time of departure, or the scheduled time of a cancelled flight."""
    times = _times.decode(flight[1])
    scheduled = datetime(times.year, times.month, times.day, times.hour, times.minute)  # noqa: DTZ001 - New York's clocks
    return scheduled + timedelta(minutes=times.dep_delay or 0)


def flights_as_they_left() -> list[Flight]:
    """Return all flights in the order of departure. The file has its months in the order 1, 10, 11, 12, 2 and so on."""
    return sorted(read_flights(archive_path()), key=left_at)


async def write_flights(servers: str, count: int, flights: str = FLIGHTS, delays: str = DELAYS) -> None:
    """Create both topics, and write the year's first flights in the order of departure."""
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
    """Average the flights in the topic, and read the new results."""
    query = start(spark, servers, flights, delays, checkpoint, lateness)
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return asyncio.run(read_results(servers, delays, PARTITIONS))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything, from the brokers to the picture."""
    parser = argparse.ArgumentParser(prog="python -m examples.flight_delays", description=__doc__)
    parser.add_argument("--flights", type=int, default=FLIGHT_COUNT, help="number of flights to write (default: all)")
    parser.add_argument("--lateness", default=LATENESS, help=f"how long a day is kept open (default: {LATENESS})")
    parser.add_argument("--to", type=Path, default=Path("flight-delays.png"), help="file of the picture")
    found = parser.parse_args(arguments)
    os.environ.setdefault(
        "PYSPARK_PYTHON", sys.executable
    )  # the Python that has RaftMQ. By default Spark uses "python3".
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
