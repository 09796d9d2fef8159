"""Encode HTTP/2 by hand, for behaviour that no library permits: half a message, no reading, no window, false frames.

Source: RFC 9113 (frames) and RFC 7541 (headers, only as literals without indexing and without Huffman coding).
"""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(**values: int) -> bytes:
    """Encode SETTINGS. Hostile clients need only `initial_window_size`."""
    body = b"".join(struct.pack(">HI", INITIAL_WINDOW_SIZE, value) for value in values.values())
    return frame(SETTINGS, 0, 0, body)


def greeting(initial_window_size: int = 65535) -> bytes:
    """Return the bytes that open a connection."""
    return PREFACE + settings(initial_window_size=initial_window_size)


def _literal(text: bytes) -> bytes:
    length = len(text)
    if length < 127:
        return bytes([length]) + text
    length -= 127
    prefix = bytearray([127])
    while length >= 128:
        prefix.append(length % 128 | 128)
        length //= 128
    prefix.append(length)
    return bytes(prefix) + text


def header_block(path: str, more: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"broker"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *more,
    )
    return b"".join(b"\0" + _literal(name) + _literal(value) for name, value in fields)


def call_headers(stream: int, path: str, more: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, header_block(path, more))


def message(body: bytes, claimed: int | None = None, *, is_compressed: int = 0) -> bytes:
    """Return a gRPC message as DATA frames carry it."""
    return struct.pack(">BI", is_compressed, len(body) if claimed is None else claimed) + body


def data(stream: int, payload: bytes, *, is_last: bool = False) -> bytes:
    """Return DATA frames of at most 16 KiB."""
    pieces = [payload[at : at + 16384] for at in range(0, len(payload), 16384)] or [b""]
    return b"".join(
        frame(DATA, END_STREAM if is_last and number == len(pieces) - 1 else 0, stream, piece)
        for number, piece in enumerate(pieces)
    )


def unary(stream: int, path: str, body: bytes) -> bytes:
    """Return the frames of a whole call."""
    return call_headers(stream, path) + data(stream, message(body), is_last=True)
