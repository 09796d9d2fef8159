"""Draws results as a heat map in a PNG file, with nothing but the standard library: a row per carrier and airport, a column per day."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from examples.flight_delays.results import Delay

Color = tuple[int, int, int]
WHITE, BLACK, GREY = (255, 255, 255), (30, 30, 30), (225, 225, 225)
EARLY, PUNCTUAL, LATE = (49, 104, 142), (246, 243, 225), (178, 24, 43)
LATE_MINUTES = 60.0
"""As red as it gets."""
CELL, MARGIN, LEFT, TOP = 14, 12, 60, 42
"""In pixels."""
GLYPH_WIDTH, GLYPH_HEIGHT = 4, 6
# Five rows of three bits for each character: 0-9, A-Z and a few signs.
_ROWS = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757", "7": "71122",
    "8": "75757", "9": "75717", "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647", "F": "74644",
    "G": "34553", "H": "55755", "I": "72227", "J": "11152", "K": "55655", "L": "44447", "M": "57755", "N": "65555",
    "O": "25552", "P": "65644", "Q": "25573", "R": "65655", "S": "34216", "T": "72222", "U": "55557", "V": "55552",
    "W": "55775", "X": "55255", "Y": "55222", "Z": "71247", "/": "11244", "-": "00700", " ": "00000", ":": "02020",
}  # fmt: skip


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

    def write(self, x: int, y: int, text: str, color: Color = BLACK, size: int = 1) -> None:
        """A line of text in capitals; characters without a glyph are left out."""
        for character in text.upper():
            for down, bits in enumerate(_ROWS.get(character, "00000")):
                for across in range(3):
                    if int(bits) >> (2 - across) & 1:
                        self.fill(x + across * size, y + down * size, size, size, color)
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
    share = max(-1.0, min(1.0, minutes / LATE_MINUTES))
    end = LATE if share > 0 else EARLY
    red, green, blue = (round(a + (b - a) * abs(share)) for a, b in zip(PUNCTUAL, end, strict=True))
    return red, green, blue


def draw(delays: Sequence[Delay], path: Path) -> None:
    """Draw at least one result."""
    days = sorted({delay.day for delay in delays})
    lines = sorted({(delay.origin, delay.carrier) for delay in delays})
    canvas = Canvas(LEFT + len(days) * CELL + MARGIN, TOP + len(lines) * CELL + MARGIN)
    canvas.write(MARGIN, MARGIN, f"mean departure delay {days[0]} to {days[-1]}: blue early - red 60 minutes", size=2)
    for column, day in enumerate(days):
        if column % 2 == 0:
            canvas.write(LEFT + column * CELL + 2, TOP - GLYPH_HEIGHT - 2, day[8:])
    for row, (origin, carrier) in enumerate(lines):
        canvas.write(MARGIN, TOP + row * CELL + 4, f"{carrier}/{origin}", size=1)
        canvas.fill(LEFT, TOP + row * CELL, len(days) * CELL, CELL - 1, GREY)
    for delay in delays:
        column, row = days.index(delay.day), lines.index((delay.origin, delay.carrier))
        canvas.fill(LEFT + column * CELL, TOP + row * CELL, CELL - 1, CELL - 1, color_of(delay.mean_delay))
    path.write_bytes(canvas.png())
