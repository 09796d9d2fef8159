"""Frames of a data connection: every cut of the byte stream, every stop and every size, compared with a slow obvious twin."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from raftmq import methods
from raftmq.frames import (
    BUFFER_BYTES,
    DATA_METHODS,
    HEADER_BYTES,
    METHOD_VERSIONS,
    FrameError,
    FrameReader,
    FrameType,
    frame_header,
)

BODY_MAX = 3 * BUFFER_BYTES
_SMALL = [
    b"",
    b"x",
    b"y" * HEADER_BYTES,
    bytes(range(256)),
]


class Frame(NamedTuple):
    type: FrameType
    method_number: int
    timeout_ms: int
    correlation_id: int
    body: bytes

    @property
    def wire(self) -> bytes:
        header = frame_header(self.type, len(self.body), self.correlation_id, self.method_number, self.timeout_ms)
        return header + self.body


class Reading:
    """A reader and the frames that it delivered. It stops after each frame for which `stops` returns true."""

    def __init__(self, body_bytes_max: int = BODY_MAX, stops: Callable[[int], bool] = lambda _: False) -> None:
        self.reader = FrameReader(body_bytes_max)
        self.frames: list[Frame] = []
        self.error: FrameError | None = None
        self.is_stopped = False
        self._stops = stops
        self._handed_on = 0

    def take(self, data: bytes) -> None:
        """Receive bytes as a transport does, in pieces that fit the buffer. Continue after each stop."""
        while data and self.error is None:
            buffer = self.reader.get_buffer()
            assert len(buffer) > 0
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            buffer.release()
            self._received(count)
            data = data[count:]

    def take_kept(self) -> None:
        """Continue with bytes that the reader has kept."""
        self._received(0)

    def _received(self, count: int) -> None:
        try:
            self.is_stopped = False
            self.reader.received(count, self._on_frame)
            while self.is_stopped:
                self.is_stopped = False
                self.reader.received(0, self._on_frame)
        except FrameError as error:
            self.error = error

    def _on_frame(
        self, frame_type: FrameType, method_number: int, timeout_ms: int, correlation_id: int, body: memoryview
    ) -> bool:
        assert not self.is_stopped, "a frame was delivered after a stop"
        self.frames.append(Frame(frame_type, method_number, timeout_ms, correlation_id, bytes(body)))
        self._handed_on += 1
        self.is_stopped = self._stops(self._handed_on)
        return self.is_stopped


def cut_slowly(data: bytes, body_bytes_max: int) -> tuple[list[Frame], bool]:
    """Cut whole frames off the beginning. Return them, and whether the rest cannot be a frame."""
    frames = []
    while len(data) >= 20:
        length, type_number, method_number, zero, timeout_ms, correlation_id = struct.unpack("<IBBHIQ", data[:20])
        del zero
        if length > body_bytes_max or type_number not in list(FrameType):
            return frames, True
        if len(data) < 20 + length:
            break
        body = data[20 : 20 + length]
        frames.append(Frame(FrameType(type_number), method_number, timeout_ms, correlation_id, body))
        data = data[20 + length :]
    return frames, False


def numbered(bodies: list[bytes]) -> list[Frame]:
    return [Frame(FrameType.CALL, number % 2, number, number, body) for number, body in enumerate(bodies, 1)]


def joined(frames: list[Frame]) -> bytes:
    return b"".join(frame.wire for frame in frames)


# ---------------------------------------------------------------------------------------------------------------- layout


def test_a_header_is_20_bytes_in_the_documented_layout() -> None:
    expected = struct.pack("<I", 5) + bytes([3, 1, 0, 0]) + struct.pack("<IQ", 2**32 - 1, 2**64 - 1)
    assert frame_header(FrameType.CALL, 5, 2**64 - 1, 1, 2**32 - 1) == expected
    assert len(expected) == HEADER_BYTES == 20


def test_numbers_on_the_wire_equal_the_released_ones() -> None:
    assert {frame_type.name: frame_type.value for frame_type in FrameType} == {
        "HELLO": 1,
        "WELCOME": 2,
        "CALL": 3,
        "CANCEL": 4,
        "ANSWER": 5,
        "ERROR": 6,
        "GOODBYE": 7,
        "REQUEST": 8,
        "RESPONSE": 9,
    }
    assert DATA_METHODS == (methods.APPEND, methods.POLL, methods.POLL_STREAM, methods.INIT_PRODUCER)
    assert METHOD_VERSIONS == (1, 1, 2, 3)


# ---------------------------------------------------------------------------------------------------------- cuts and stops


def test_two_cuts_anywhere_give_the_same_frames() -> None:
    frames = numbered(_SMALL[:3])
    stream = joined(frames)
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            reading = Reading()
            for piece in (stream[:first], stream[first:second], stream[second:]):
                reading.take(piece)
            assert reading.frames == frames, (first, second)


@pytest.mark.parametrize("step", [1, 2, 19, 20, 21, 4096])
def test_pieces_of_one_size_give_the_same_frames(step: int) -> None:
    frames = numbered([*_SMALL, bytes(range(256)) * 300, b"", b"last"])
    stream = joined(frames)
    reading = Reading()
    for at in range(0, len(stream), step):
        reading.take(stream[at : at + step])
    assert reading.frames == frames


@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_reading_continues_at_the_same_place_after_every_stop(cut: int) -> None:
    frames = numbered([*_SMALL, *_SMALL])
    stream = joined(frames)
    for stops in (lambda _: True, lambda number: number % 2 == 0, lambda number: number == len(frames)):
        reading = Reading(stops=stops)
        reading.take(stream[:cut])
        reading.take(stream[cut:])
        assert reading.frames == frames


def test_frames_after_a_stop_are_kept_and_delivered_once() -> None:
    frames = numbered([b"one", b"two", b"three"])
    stream = joined(frames)
    reader, seen = FrameReader(BODY_MAX), list[int]()

    def stop(_type: FrameType, _method: int, _timeout: int, correlation_id: int, _body: memoryview) -> bool:
        seen.append(correlation_id)
        return True

    reader.get_buffer()[: len(stream)] = stream
    reader.received(len(stream), stop)
    for expected in ([1, 2], [1, 2, 3], [1, 2, 3], [1, 2, 3]):
        reader.received(0, stop)
        assert seen == expected


def test_a_stop_does_not_move_what_is_in_the_buffer() -> None:
    """Megabytes of small frames in a large buffer were moved for each call of a connection that has as many as it may."""
    reader = FrameReader(BODY_MAX)
    stream = joined(numbered([b"x"] * 1000))
    reader.get_buffer()[: len(stream)] = stream
    reader.received(len(stream), lambda *_: True)
    for _ in range(900):
        reader.received(0, lambda *_: True)
    assert reader.get_buffer().obj[: len(stream)] == stream


def test_kept_bytes_are_delivered_later() -> None:
    frames = numbered([b"one", b"two", b"three"])
    stream = joined(frames)
    for cut in range(len(stream) + 1):
        reading = Reading()
        for piece in (stream[:cut], stream[cut:]):
            reading.reader.get_buffer()[: len(piece)] = piece
            reading.reader.keep(len(piece))
            reading.take_kept()
        assert reading.frames == frames


def test_a_large_frame_that_begins_after_a_stop_is_announced_when_reading_continues() -> None:
    """The owner of the budget for large frames learns of this frame only then, before the buffer is enlarged."""
    large = Frame(FrameType.CALL, 0, 0, 2, bytes(BUFFER_BYTES))
    begun = Frame(FrameType.CALL, 0, 0, 1, b"").wire + large.wire[:100]
    reader = FrameReader(BODY_MAX)
    reader.get_buffer()[: len(begun)] = begun
    reader.received(len(begun), lambda *_: True)
    assert not reader.needs_growth
    reader.received(0, lambda *_: True)
    assert (reader.needs_growth, reader.is_large, reader.wanted) == (True, False, len(large.wire))


# ------------------------------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize("spare", [-1, 0, 1, 2])
@pytest.mark.parametrize("before", [0, 1])
def test_only_frames_larger_than_the_buffer_enlarge_it(spare: int, before: int) -> None:
    frames = numbered([b"small"] * before + [b"z" * (BUFFER_BYTES - HEADER_BYTES + spare), b"after"])
    reading = Reading()
    reading.take(joined(frames))
    assert reading.frames == frames
    assert reading.reader.is_large == (spare > 0)
    assert reading.reader.shrink()
    assert not reading.reader.is_large


@pytest.mark.parametrize("stops", [False, True])
def test_the_buffer_is_enlarged_with_the_body_and_not_with_the_header_of_a_large_frame(stops: bool) -> None:
    large = bytes(range(256)) * (BODY_MAX // 256)
    frames = numbered([large, b"", large, b"small"])
    reading = Reading(stops=lambda _: stops)
    wire = frames[0].wire
    sizes = []
    for piece in (wire[:HEADER_BYTES], wire[HEADER_BYTES:-1], wire[-1:]):
        reading.take(piece)
        sizes.append((reading.reader.needs_growth, reading.reader.is_large))
    assert sizes == [(True, False), (False, True), (False, True)], (
        "enlarged for a header alone, or before a buffer is requested"
    )
    reading.take(joined(frames[1:]))
    assert reading.frames == frames
    assert reading.reader.shrink()


def test_a_reader_that_will_enlarge_its_buffer_needs_the_budget_for_it() -> None:
    reading = Reading()
    reading.take(numbered([bytes(3 * BUFFER_BYTES)])[0].wire[:HEADER_BYTES])
    assert not reading.reader.is_large
    assert not reading.reader.shrink()


def test_a_large_buffer_is_kept_for_the_next_large_frame_and_not_shrunk_with_bytes_in_it() -> None:
    reading = Reading()
    (first, second) = (frame.wire for frame in numbered([bytes(3 * BUFFER_BYTES), bytes(3 * BUFFER_BYTES - 9)]))
    reading.take(first)
    buffer = reading.reader._buffer
    reading.take(second[:1])
    assert not reading.reader.shrink()
    reading.take(second[1:])
    assert reading.reader._buffer is buffer
    assert reading.reader.shrink()
    assert len(reading.reader._buffer) == BUFFER_BYTES


def test_a_body_may_be_as_large_as_allowed_and_no_larger() -> None:
    for body_bytes, is_allowed in ((100, True), (101, False), (2**32 - 1, False)):
        reading = Reading(body_bytes_max=100)
        reading.take(frame_header(FrameType.HELLO, body_bytes))
        assert (reading.error is None) == is_allowed
        assert not reading.reader.needs_growth


def test_a_limit_raised_while_a_frame_is_delivered_applies_to_the_next_frame() -> None:
    """A broker allows larger frames after the HELLO, and a client may send both in one piece."""
    stream = frame_header(FrameType.HELLO, 1) + b"h" + frame_header(FrameType.CALL, 50, 1) + bytes(50)
    reader, seen = FrameReader(10), list[FrameType]()

    def on_frame(frame_type: FrameType, *_: object) -> None:
        seen.append(frame_type)
        reader.body_bytes_max = 50

    reader.get_buffer()[: len(stream)] = stream
    reader.received(len(stream), on_frame)
    assert seen == [FrameType.HELLO, FrameType.CALL]


@pytest.mark.parametrize("type_number", [0, 10, 99, 255])
def test_an_unknown_type_is_an_error_after_the_frames_before_it(type_number: int) -> None:
    good = numbered([b"good"])
    header = bytearray(frame_header(FrameType.CALL, 2**31, 1))
    header[:5] = bytes([0, 0, 0, 0, type_number])
    reading = Reading()
    reading.take(joined(good) + header)
    assert reading.frames == good
    assert reading.error is not None
    assert str(type_number) in str(reading.error)


# ------------------------------------------------------------------------------------------------------------------- twin

_FRAMES = st.builds(
    Frame,
    st.sampled_from(FrameType),
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.one_of(
        st.binary(max_size=40),
        st.integers(BUFFER_BYTES - 2 * HEADER_BYTES, BUFFER_BYTES + HEADER_BYTES).map(bytes),
        st.just(bytes(BODY_MAX)),
    ),
)
_STREAMS = st.tuples(
    st.lists(_FRAMES, max_size=6).map(joined),
    st.one_of(st.just(b""), st.binary(max_size=60), _FRAMES.map(lambda frame: frame.wire[:-1])),
).map(b"".join)


@given(
    stream=_STREAMS,
    cuts=st.lists(st.integers(0, 2 * BUFFER_BYTES), max_size=8),
    stops=st.sets(st.integers(1, 8)),
    body_bytes_max=st.sampled_from([0, 39, BUFFER_BYTES, BODY_MAX]),
)
@example(stream=b"\xff" * 20, cuts=[], stops=set(), body_bytes_max=BODY_MAX)
def test_any_bytes_in_any_pieces_give_the_frames_of_the_slow_twin(
    stream: bytes, cuts: list[int], stops: set[int], body_bytes_max: int
) -> None:
    reading = Reading(body_bytes_max, lambda number: number in stops)
    ends = sorted({min(cut, len(stream)) for cut in cuts} | {len(stream)})
    start = 0
    for end in ends:
        reading.take(stream[start:end])
        start = end
    expected, is_broken = cut_slowly(stream, body_bytes_max)
    assert reading.frames == expected
    assert (reading.error is not None) == is_broken
