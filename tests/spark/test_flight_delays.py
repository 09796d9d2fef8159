"""The example pipeline writes the delays that a separate computation finds, and its picture shows them."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest
from raftmq import sync

from examples.demo_flights.source import archive_path
from examples.flight_delays import pipeline
from examples.flight_delays.__main__ import flights_as_they_left, left_at, run, write_flights
from examples.flight_delays.picture import draw, figure_of
from examples.flight_delays.results import Delay
from tests.spark.conftest import HAS_ADMISSION_CONTROL

FLIGHTS = 8_000
"""Number of flights of the first nine days of the year."""
LATENESS = timedelta(days=5)


def plain(count: int) -> dict[tuple[str, str, str], tuple[int, float]]:
    """Compute the delays of the days before the watermark with pyarrow, without a broker, Spark or code of the example."""
    with zipfile.ZipFile(archive_path()) as archive, archive.open("flights.csv") as file:
        table = pyarrow.csv.read_csv(file, convert_options=pyarrow.csv.ConvertOptions(null_values=["NA"]))
    text = pc.binary_join_element_wise(
        *(pc.utf8_lpad(table[name].cast(pa.string()), 2, "0") for name in ("year", "month", "day", "hour", "minute")),
        "-",
    )
    scheduled = pc.strptime(text, "%Y-%m-%d-%H-%M", "s")
    left = pc.add(scheduled, pc.multiply(pc.fill_null(table["dep_delay"], 0), 60).cast(pa.duration("s")))
    table = table.append_column("scheduled", scheduled).append_column("left", left)
    table = table.append_column("number", pa.array(range(len(table))))
    table = table.sort_by([("left", "ascending"), ("number", "ascending")]).slice(0, count)
    table = table.filter(pc.is_valid(table["dep_delay"]))
    newest = pc.max(table["scheduled"]).as_py()
    table = table.append_column("date", table["scheduled"].cast(pa.timestamp("s")).cast(pa.date32()))
    means = table.group_by(["date", "carrier", "origin"]).aggregate([("dep_delay", "count"), ("dep_delay", "mean")])
    passed = newest - LATENESS
    return {
        (row["date"].isoformat(), row["carrier"], row["origin"]): (row["dep_delay_count"], row["dep_delay_mean"])
        for row in means.to_pylist()
        if row["date"] + timedelta(days=1) <= passed.date()
    }


def test_flights_are_produced_in_the_order_of_their_departure():
    times = [left_at(flight) for flight in islice(flights_as_they_left(), 50_000)]
    assert times == sorted(times)
    assert (times[0].month, times[0].day, times[-1].month) == (1, 1, 2)


@pytest.mark.long
@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="the pipeline reads in batches, which needs Spark 4.2")
def test_the_pipeline_writes_each_days_delays_once_and_draws_them(
    spark: Any,
    servers: str,
    topic: Callable[..., str],
    admin: sync.Admin,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    flights, delays = (topic() for _ in range(2))
    for name in (flights, delays):
        admin.delete_topic(name)  # the example creates its own topics
    monkeypatch.setattr(pipeline, "FLIGHTS_PER_BATCH", FLIGHTS // 3)  # the watermark must advance before the last batch
    asyncio.run(write_flights(servers, FLIGHTS, flights, delays))
    found = run(spark, servers, str(tmp_path / "checkpoint"), flights, delays)
    wanted = plain(FLIGHTS)
    assert len(found) == len(wanted) > 100
    assert {
        (delay.day, delay.carrier, delay.origin): (delay.flights, pytest.approx(delay.mean_delay)) for delay in found
    } == wanted
    again = run(spark, servers, str(tmp_path / "checkpoint"), flights, delays)
    assert again == []  # no new result and no repeated one
    picture = tmp_path / "delays.png"
    draw(found, picture)
    assert matplotlib.image.imread(picture).shape == (650, 1100, 4)
    assert sum(np.count_nonzero(~np.isnan(image.get_array().filled(np.nan))) for image in images(found)) == len(found)


def images(delays: list[Delay]) -> list[Any]:
    """Return the heat maps of a picture, one for each airport."""
    return [image for axes in figure_of(delays).axes for image in axes.images]


def test_each_result_is_drawn_in_the_row_of_its_carrier_and_the_column_of_its_day():
    kennedy, newark = images(
        [
            Delay("2013-01-01", "UA", "JFK", 3, 12.5),
            Delay("2013-01-03", "AA", "JFK", 2, -4.0),
            Delay("2013-01-02", "UA", "EWR", 1, 70.0),
        ]
    )[::-1]
    nan = np.nan
    np.testing.assert_array_equal(kennedy.get_array().filled(nan), [[nan, nan, -4.0], [12.5, nan, nan]])
    np.testing.assert_array_equal(newark.get_array().filled(nan), [[nan, 70.0, nan]])


def test_a_single_result_can_be_drawn(tmp_path: Path):
    draw([Delay("2013-01-01", "UA", "EWR", 3, 12.5)], tmp_path / "one.png")
    assert matplotlib.image.imread(tmp_path / "one.png").shape == (650, 1100, 4)
