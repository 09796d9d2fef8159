"""The example pipeline: what it writes is what the flights say, and the picture shows it."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from raftmq import sync

from examples.demo_flights.source import archive_path, read_flights
from examples.flight_delays.__main__ import PARTITIONS, run, write_flights
from examples.flight_delays.picture import CELL, LEFT, TOP, color_of, draw
from examples.flight_delays.results import Delay
from tests.spark.conftest import HAS_ADMISSION_CONTROL

FLIGHTS = 8_000
"""The first nine days of the year."""
LATENESS = timedelta(hours=6)


def expected(count: int) -> dict[tuple[str, str, str], tuple[int, float]]:
    """What the flights themselves say, without the days that the watermark has not passed."""
    delays: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    newest = datetime(2013, 1, 1, tzinfo=UTC)
    for _, value in islice(read_flights(archive_path()), count):
        flight = json.loads(value)
        if flight["dep_delay"] is None:
            continue
        year, month, day, hour, minute = (flight[part] for part in ("year", "month", "day", "hour", "minute"))
        departure = datetime(year, month, day, hour, minute, tzinfo=UTC)
        newest = max(newest, departure)
        delays[departure.date().isoformat(), flight["carrier"], flight["origin"]].append(flight["dep_delay"])
    passed = newest - LATENESS
    return {
        key: (len(found), sum(found) / len(found))
        for key, found in delays.items()
        if datetime.fromisoformat(key[0]).replace(tzinfo=UTC) + timedelta(days=1) <= passed
    }


@pytest.fixture
def spark_to_the_end(spark: Any) -> Iterator[Any]:
    """Before Spark 4.2 a run of AvailableNow is one batch otherwise, and windows that it closes come with the next run."""
    setting = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    if not HAS_ADMISSION_CONTROL:
        spark.conf.set(setting, "true")
    yield spark
    spark.conf.unset(setting)


def test_the_pipeline_writes_each_days_delays_once_and_draws_them(
    spark_to_the_end: Any, servers: str, topic: Callable[..., str], admin: sync.Admin, tmp_path: Path
):
    flights, delays = (topic() for _ in range(2))
    for name in (flights, delays):
        admin.delete_topic(name)  # the example makes its own
    asyncio.run(write_flights(servers, FLIGHTS, flights, delays))
    found = run(spark_to_the_end, servers, str(tmp_path / "checkpoint"), flights, delays)
    assert len(found) == len({(delay.day, delay.carrier, delay.origin) for delay in found})
    wanted = expected(FLIGHTS)
    assert len(wanted) > 100
    assert {
        (delay.day, delay.carrier, delay.origin): (delay.flights, pytest.approx(delay.mean_delay)) for delay in found
    } == wanted
    again = run(spark_to_the_end, servers, str(tmp_path / "checkpoint"), flights, delays)
    assert sorted(again) == sorted(found)  # nothing new, nothing twice
    picture = tmp_path / "delays.png"
    draw(found, picture)
    width, height, pixels = decode(picture.read_bytes())
    assert (width, height) == (
        LEFT + len({d.day for d in found}) * CELL + 12,
        TOP + len({d[1:3] for d in found}) * CELL + 12,
    )
    assert PARTITIONS == 3
    days, lines = sorted({d.day for d in found}), sorted({(d.origin, d.carrier) for d in found})
    for delay in found:
        x = LEFT + days.index(delay.day) * CELL + 3
        y = TOP + lines.index((delay.origin, delay.carrier)) * CELL + 3
        assert pixels[y][x] == color_of(delay.mean_delay)


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


@pytest.mark.parametrize(("minutes", "color"), [(600, (178, 24, 43)), (0, (246, 243, 225)), (-600, (49, 104, 142))])
def test_colors_go_from_early_to_late(minutes, color):
    assert color_of(minutes) == color


def test_one_result_is_a_picture(tmp_path: Path):
    draw([Delay("2013-01-01", "UA", "EWR", 3, 12.5)], tmp_path / "one.png")
    assert decode((tmp_path / "one.png").read_bytes())[0] == LEFT + CELL + 12
