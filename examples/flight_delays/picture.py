"""Draws results as a heat map in a PNG file, with nothing but the standard library: a row per carrier and airport, a column per day."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Self

from examples.flight_delays.results import Delay

Color = tuple[int, int, int]
WHITE, BLACK, GREY, RULE = (255, 255, 255), (40, 40, 40), (232, 232, 232), (150, 150, 150)
EARLY, PUNCTUAL, LATE = (33, 102, 172), (250, 246, 232), (178, 24, 43)
EARLY_MINUTES, LATE_MINUTES = 15.0, 60.0
"""As blue, and as red, as it gets."""
CELL_WIDTH, CELL_HEIGHT, GAP = 3, 16, 14
"""In pixels: of a day, of a row, between airports."""
LEFT, TOP, MARGIN = 96, 86, 16
WIDTH_MIN = 956
"""Of the headline and the legend."""
GLYPH_WIDTH = 6
# Five columns of seven bits for each character, the lowest bit at the top.
_GLYPHS = {
    character: bytes.fromhex(columns)
    for character, columns in zip(
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-:,+",
        [
            "3E5149453E",
            "00427F4000",
            "4261514946",
            "2141454B31",
            "1814127F10",
            "2745454539",
            "3C4A494930",
            "0171090503",
            "3649494936",
            "064949291E",
            "7E1111117E",
            "7F49494936",
            "3E41414122",
            "7F4141221C",
            "7F49494941",
            "7F09090901",
            "3E4149497A",
            "7F0808087F",
            "00417F4100",
            "2040413F01",
            "7F08142241",
            "7F40404040",
            "7F020C027F",
            "7F0408107F",
            "3E4141413E",
            "7F09090906",
            "3E4151215E",
            "7F09192946",
            "4649494931",
            "01017F0101",
            "3F4040403F",
            "1F2040201F",
            "3F4038403F",
            "6314081463",
            "0708700807",
            "6151494543",
            "2054545478",
            "7F48444438",
            "3844444420",
            "384444487F",
            "3854545418",
            "087E090102",
            "0C5252523E",
            "7F08040478",
            "00447D4000",
            "2040443D00",
            "7F10284400",
            "00417F4000",
            "7C04180478",
            "7C08040478",
            "3844444438",
            "7C14141408",
            "081414187C",
            "7C08040408",
            "4854545420",
            "043F444020",
            "3C4040207C",
            "1C2040201C",
            "3C4030403C",
            "4428102844",
            "0C5050503C",
            "4464544C44",
            "0808080808",
            "0036360000",
            "0050300000",
            "08083E0808",
        ],
        strict=True,
    )
}


class Canvas:
    """Pixels in rows."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._rows = [bytearray(bytes(WHITE) * width) for _ in range(height)]

    def fill(self, x: int, y: int, width: int, height: int, color: Color) -> None:
        """A rectangle; what is beyond the right edge is left out."""
        width = max(0, min(width, self.width - x))
        for row in self._rows[y : y + height]:
            row[3 * x : 3 * (x + width)] = bytes(color) * width

    def write(self, x: int, y: int, text: str, size: int = 2) -> None:
        """A line of text; characters without a glyph are spaces."""
        for character in text:
            for across, column in enumerate(_GLYPHS.get(character, b"")):
                for down in range(7):
                    if column >> down & 1:
                        self.fill(x + across * size, y + down * size, size, size, BLACK)
            x += GLYPH_WIDTH * size

    def png(self) -> bytes:
        """The picture as a PNG file (RFC 2083): header, one compressed block of rows without filters, end."""
        pixels = zlib.compress(b"".join(b"\0" + row for row in self._rows), 9)
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def color_of(minutes: float) -> Color:
    """Blue for early, red for late."""
    share = max(-1.0, min(1.0, minutes / (LATE_MINUTES if minutes > 0 else EARLY_MINUTES)))
    end = LATE if share > 0 else EARLY
    red, green, blue = (round(a + (b - a) * abs(share)) for a, b in zip(PUNCTUAL, end, strict=True))
    return red, green, blue


class Grid:
    """Where each result is: days from left to right, rows grouped by airport."""

    def __init__(self, first: date, last: date, rows: Sequence[tuple[str, str]]) -> None:
        self.days = [first + timedelta(number) for number in range((last - first).days + 1)]
        self.rows: dict[tuple[str, str], int] = {}
        """Airport and carrier → the row's upper edge."""
        y, airport = TOP, rows[0][0]
        for row in rows:
            y += GAP if row[0] != airport else 0
            airport = row[0]
            self.rows[row] = y
            y += CELL_HEIGHT
        self.width = LEFT + len(self.days) * CELL_WIDTH + MARGIN
        self.height = y + MARGIN

    @classmethod
    def of(cls, delays: Sequence[Delay]) -> Self:
        """For at least one result."""
        days = [date.fromisoformat(delay.day) for delay in delays]
        return cls(min(days), max(days), sorted({(delay.origin, delay.carrier) for delay in delays}))

    def x(self, day: date) -> int:
        """The left edge of a day."""
        return LEFT + (day - self.days[0]).days * CELL_WIDTH

    def at(self, delay: Delay) -> tuple[int, int]:
        """The upper left corner of a result."""
        return self.x(date.fromisoformat(delay.day)), self.rows[delay.origin, delay.carrier]


def draw(delays: Sequence[Delay], path: Path) -> None:
    """Draw at least one result."""
    grid = Grid.of(delays)
    canvas = Canvas(max(grid.width, WIDTH_MIN), grid.height)
    flights = sum(delay.flights for delay in delays)
    canvas.write(MARGIN, MARGIN, f"New York City, {grid.days[0].year}: mean delay per day, carrier and airport", size=2)
    canvas.write(MARGIN, MARGIN + 24, f"{flights:,} departures", size=2)
    _draw_legend(canvas, canvas.width - 380, MARGIN + 24)
    for day in grid.days:
        if day.day == 1:
            canvas.fill(grid.x(day), TOP - 24, 1, 20, RULE)
            canvas.write(grid.x(day) + 5, TOP - 20, f"{day:%b}")
    previous = ""
    for (origin, carrier), y in grid.rows.items():
        if origin != previous:
            canvas.write(MARGIN, y + 1, origin)
            previous = origin
        canvas.write(LEFT - 32, y + 1, carrier)
        canvas.fill(LEFT, y, len(grid.days) * CELL_WIDTH, CELL_HEIGHT - 1, GREY)
    for delay in delays:
        canvas.fill(*grid.at(delay), CELL_WIDTH, CELL_HEIGHT - 1, color_of(delay.mean_delay))
    path.write_bytes(canvas.png())


def _draw_legend(canvas: Canvas, x: int, y: int) -> None:
    canvas.write(x, y, "early")
    bar = x + 70
    for minutes in range(-int(EARLY_MINUTES), int(LATE_MINUTES) + 1):
        canvas.fill(bar + 2 * (minutes + int(EARLY_MINUTES)), y, 2, 14, color_of(minutes))
    canvas.write(bar + 160, y, f"{LATE_MINUTES:.0f}+ minutes")
