"""The checksum that ends every value in every database: CRC32C over the key and the value, 4 bytes little-endian.

The key is included so that an intact value under another key (a misdirected page) is damage too.
Measured (crc32c 2.9 and google-crc32c 1.x in C, x86-64): 0.35 and 0.33 µs for 4 KiB, 3.0 and 2.8 µs for 64 KiB, 20 GB/s
both. They are equally fast, but google-crc32c refuses memoryviews, which would cost a copy for each row checked in place.
zlib's CRC-32 takes 1.3 and 20 µs.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

Buffer = bytes | bytearray | memoryview

CHECKSUM = struct.Struct("<I")
CHECKSUM_BYTES = CHECKSUM.size

_RESIDUE: int = crc32c(CHECKSUM.pack(crc32c(b"")))
"""The CRC of every message that is followed by its own CRC. So a check of a value needs neither a slice nor a copy."""


def seal(key: Buffer, body: bytes) -> bytes:
    """Return the value to store under `key`: `body` and its checksum."""
    return body + CHECKSUM.pack(crc32c(body, crc32c(key)))


def is_intact(key: Buffer, value: Buffer) -> bool:
    """Return whether `value` ends with the checksum that `seal` adds under this key."""
    return len(value) >= CHECKSUM_BYTES and bool(crc32c(value, crc32c(key)) == _RESIDUE)
