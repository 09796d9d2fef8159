"""The example pipeline: what it writes is what the flights say, and the picture shows it."""

from __future__ import annotations

import asyncio
import struct
import zipfile
import zlib
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest
from raftmq import sync

from examples.demo_flights.source import archive_path
from examples.flight_delays import pipeline
from examples.flight_delays.__main__ import flights_as_they_left, left_at, run, write_flights
from examples.flight_delays.picture import CELL_WIDTH, WIDTH_MIN, Grid, color_of, draw
from examples.flight_delays.results import Delay

FLIGHTS = 8_000
"""The first nine days of the year."""
LATENESS = timedelta(days=5)


def plain(count: int) -> dict[tuple[str, str, str], tuple[int, float]]:
    """The same of the file, by pyarrow: no broker, no Spark, no code of the example; days that the watermark has passed."""
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


def test_flights_go_in_as_they_left():
    times = [left_at(flight) for flight in islice(flights_as_they_left(), 50_000)]
    assert times == sorted(times)
    assert (times[0].month, times[0].day, times[-1].month) == (1, 1, 2)


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
        admin.delete_topic(name)  # the example makes its own
    monkeypatch.setattr(
        pipeline, "FLIGHTS_PER_BATCH", FLIGHTS // 3
    )  # so that the watermark passes while there is more to read
    asyncio.run(write_flights(servers, FLIGHTS, flights, delays))
    found = run(spark, servers, str(tmp_path / "checkpoint"), flights, delays)
    wanted = plain(FLIGHTS)
    assert len(found) == len(wanted) > 100
    assert {
        (delay.day, delay.carrier, delay.origin): (delay.flights, pytest.approx(delay.mean_delay)) for delay in found
    } == wanted
    again = run(spark, servers, str(tmp_path / "checkpoint"), flights, delays)
    assert again == []  # nothing new, nothing twice
    picture = tmp_path / "delays.png"
    draw(found, picture)
    width, height, pixels = decode(picture.read_bytes())
    grid = Grid.of(found)
    assert (width, height) == (max(grid.width, WIDTH_MIN), grid.height)
    for delay in found:
        x, y = grid.at(delay)
        assert pixels[y][x] == pixels[y + 1][x + CELL_WIDTH - 1] == color_of(delay.mean_delay)


def decode(png: bytes) -> tuple[int, int, list[list[tuple[int, int, int]]]]:
    """A PNG of 8-bit RGB without filters."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length) == (zlib.crc32(kind + data),)
        chunks[kind] = data
        at += 12 + length
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    raw = zlib.decompress(chunks[b"IDAT"])
    stride = 1 + 3 * width
    rows = [raw[row * stride + 1 : (row + 1) * stride] for row in range(height)]
    return width, height, [[(r[x], r[x + 1], r[x + 2]) for x in range(0, 3 * width, 3)] for r in rows]


@pytest.mark.parametrize(("minutes", "color"), [(600, (178, 24, 43)), (0, (250, 246, 232)), (-600, (33, 102, 172))])
def test_colors_go_from_early_to_late(minutes, color):
    assert color_of(minutes) == color


def test_one_result_is_a_picture(tmp_path: Path):
    draw([Delay("2013-01-01", "UA", "EWR", 3, 12.5)], tmp_path / "one.png")
    assert decode((tmp_path / "one.png").read_bytes())[0] == WIDTH_MIN
