"""Provide hostile clients over real sockets, and measurements of the broker's process."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.hostile import http2

MIB = 1024 * 1024


def resident_bytes(pid: int) -> int:
    """Return the current physical memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmRSS")


def reset_peak(pid: int) -> None:
    """Reset the maximum that `peak_bytes` returns."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    """Return the maximum of the process's physical memory since `reset_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmHWM")


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    """Raise this process's limit of open files to the maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dial(address: str, *, receive_buffer: int = 0) -> socket.socket:
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(10)
    sock.connect((host, int(port)))
    return sock


@contextlib.contextmanager
def connections(address: str, count: int, first_bytes: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open `count` connections and send `first_bytes` on each. The server may close them."""
    socks: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = dial(address)
            socks.append(sock)
            if first_bytes:
                with contextlib.suppress(OSError):
                    sock.sendall(first_bytes)
        yield socks
    finally:
        for sock in socks:
            sock.close()


def is_closed_by_peer(sock: socket.socket) -> bool:
    """Return whether the other side has closed the connection. Received bytes are discarded."""
    sock.setblocking(False)
    try:
        while sock.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def closed_count(socks: list[socket.socket]) -> int:
    return sum(map(is_closed_by_peer, socks))


def wait_closed(socks: list[socket.socket], count: int, seconds: float) -> int:
    """Wait until the other side has closed at least `count` connections. Return how many it has closed by then."""
    poller = select.epoll()
    try:
        by_number = {sock.fileno(): sock for sock in socks}
        for number in by_number:
            poller.register(number, select.EPOLLIN | select.EPOLLRDHUP)
        closed = 0
        deadline = time.monotonic() + seconds
        while closed < count and (left := deadline - time.monotonic()) > 0:
            for number, _ in poller.poll(left):
                if is_closed_by_peer(by_number[number]):
                    poller.unregister(number)
                    closed += 1
        return closed
    finally:
        poller.close()


class HalfUploader:
    """An HTTP/2 connection that sends calls without the last bytes of their messages, as fast as flow control permits."""

    def __init__(self, address: str, path: str, calls: int, message: bytes, *, answer_window: int = 65535) -> None:
        self._sock = dial(address)
        self._message = message
        self._out = bytearray(http2.greeting(answer_window))
        self._in = b""
        self._window = 65535
        self._initial = 65535
        self._windows: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self.statuses: dict[int, bytes] = {}
        """HEADERS of refusals, by stream."""
        for number in range(calls):
            stream = 2 * number + 1
            self._out += http2.call_headers(stream, path)
            self._windows[stream] = self._initial
            self._sent[stream] = 0
        self._sock.setblocking(False)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    @property
    def sent_bytes(self) -> int:
        return sum(self._sent.values())

    def step(self) -> bool:
        """Read and write without blocking. Return whether bytes moved."""
        moved = self._read()
        if len(self._out) < MIB:
            self._fill()
        if self._out:
            with contextlib.suppress(BlockingIOError):
                sent = self._sock.send(self._out)
                del self._out[:sent]
                moved = moved or sent > 0
        return moved

    def _read(self) -> bool:
        try:
            received = self._sock.recv(1 << 18)
        except BlockingIOError:
            return False
        self._in += received
        while len(self._in) >= 9:
            end = 9 + int.from_bytes(self._in[:3], "big")
            if len(self._in) < end:
                break
            kind, flags, stream = struct.unpack_from(">BBI", self._in, 3)
            self._on_frame(kind, flags, stream, self._in[9:end])
            self._in = self._in[end:]
        return bool(received)

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        match kind:
            case http2.WINDOW_UPDATE if stream == 0:
                self._window += int.from_bytes(payload, "big")
            case http2.WINDOW_UPDATE if stream in self._windows:
                self._windows[stream] += int.from_bytes(payload, "big")
            case http2.SETTINGS if not flags & http2.ACK:
                for key, value in struct.iter_unpack(">HI", payload):
                    if key == http2.INITIAL_WINDOW_SIZE:
                        for number in self._windows:
                            self._windows[number] += value - self._initial
                        self._initial = value
                self._out += http2.frame(http2.SETTINGS, http2.ACK, 0)
            case http2.PING if not flags & http2.ACK:
                self._out += http2.frame(http2.PING, http2.ACK, 0, payload)
            case http2.HEADERS:
                self.statuses[stream] = self.statuses.get(stream, b"") + payload
            case http2.RST_STREAM:
                self._windows.pop(stream, None)

    def _fill(self) -> None:
        for stream, window in self._windows.items():
            at = self._sent[stream]
            size = min(window, self._window, 16384, len(self._message) - at)
            if size <= 0:
                continue
            self._out += http2.frame(http2.DATA, 0, stream, self._message[at : at + size])
            self._sent[stream] = at + size
            self._windows[stream] -= size
            self._window -= size
            if len(self._out) > MIB:
                return
