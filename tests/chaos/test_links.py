"""Check both kinds of links: each direction is cut on its own and silently."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from raftmq.broker.peers.codec import WIRE_VERSION, FrameType, frame
from raftmq.broker.peers.protocol import Hello

from tests.chaos.links import CLIENTS
from tests.chaos.machine import missing_for_namespaces
from tests.chaos.namespaces import Namespaces
from tests.chaos.proxies import Proxies

CLONE_NEWNET = 0x40000000
SILENCE_SECONDS = 0.3
ANSWER_SECONDS = 20.0
SLOW_BYTES = 100_000
"""Bytes that take two seconds on a slow link."""


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    missing = missing_for_namespaces()
    if missing:
        pytest.skip(f"{missing}; `Proxies` stands in")
    made = Namespaces(2)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def inside(links: Namespaces, broker_id: int) -> Iterator[None]:
    """Enter the broker's name space: sockets created inside belong to it."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as here, Path(links.net_of(broker_id)).open() as there:
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            assert libc.setns(here.fileno(), CLONE_NEWNET) == 0


def mailbox(links: Namespaces, broker_id: int) -> socket.socket:
    with inside(links, broker_id):
        box = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    box.bind((links.address(broker_id), 0))
    box.settimeout(ANSWER_SECONDS)
    return box


def arrives(source: socket.socket, target: socket.socket) -> bool:
    target.settimeout(SILENCE_SECONDS)
    source.sendto(b"x", target.getsockname())  # a cut link accepts it without an error
    try:
        return target.recv(1) == b"x"
    except TimeoutError:
        return False


def test_each_direction_between_name_spaces_is_cut_on_its_own(namespaces: Namespaces) -> None:
    with mailbox(namespaces, 1) as one, mailbox(namespaces, 2) as two, mailbox(namespaces, CLIENTS) as client:
        boxes = {1: one, 2: two, CLIENTS: client}
        pairs = [(a, b) for a in boxes for b in boxes if a != b]
        assert all(arrives(boxes[a], boxes[b]) for a, b in pairs)
        for cut in pairs:
            namespaces.cut(*cut)
            assert {pair for pair in pairs if not arrives(boxes[pair[0]], boxes[pair[1]])} == {cut}
            namespaces.restore(*cut)
        namespaces.cut(1, 2)
        namespaces.cut(CLIENTS, 1)
        namespaces.heal()
        assert all(arrives(boxes[a], boxes[b]) for a, b in pairs)


def seconds_for(source: socket.socket, target: socket.socket, count: int) -> float:
    """Return how long the transfer of `count` bytes takes."""
    source.settimeout(ANSWER_SECONDS)
    target.settimeout(ANSWER_SECONDS)
    start = time.monotonic()
    source.sendall(bytes(count))
    while count:
        count -= len(target.recv(count))
    return time.monotonic() - start


def test_only_the_sending_direction_of_a_slow_broker_is_throttled(namespaces: Namespaces) -> None:
    with inside(namespaces, 1), socket.create_server((namespaces.address(1), 0)) as server:
        with inside(namespaces, 2):
            two = socket.create_connection(server.getsockname())
        one, _ = server.accept()
        with one, two:
            namespaces.slow(1)
            slow = seconds_for(one, two, SLOW_BYTES)
            assert slow > 1.0
            assert seconds_for(two, one, SLOW_BYTES) < slow / 2
            namespaces.hurry(1)
            assert seconds_for(one, two, SLOW_BYTES) < slow / 2


def test_the_name_spaces_leave_nothing_behind(namespaces: Namespaces) -> None:
    nets = [Path(namespaces.net_of(broker_id)).readlink() for broker_id in (1, 2)]
    holders = [int(namespaces.net_of(broker_id).split("/")[2]) for broker_id in (1, 2)]
    interface = next(name for _, name in socket.if_nameindex() if name.startswith(f"ch{os.getpid()}n"))
    namespaces.close()
    namespaces.close()
    deadline = time.monotonic() + ANSWER_SECONDS
    while any(name == interface for _, name in socket.if_nameindex()):  # the kernel removes it asynchronously
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not [pid for pid in holders if Path(f"/proc/{pid}").exists()]
    assert nets[0] != nets[1]


# ------------------------------------------------------------------------------------------------------------- proxies


@contextmanager
def proxied(origin: int) -> Iterator[tuple[Proxies, socket.socket, socket.socket]]:
    """Connect broker `origin` (or a client) to broker 2. Yield the proxies and both ends of the connection, the broker's last."""
    links = Proxies(2)
    try:
        port = links.first_port + 10 + (origin != CLIENTS)
        with (
            socket.create_server((links.place(2).bind_host, port)) as server,
            socket.create_connection(("127.0.2.2", port)) as near,
        ):
            hello = b""
            if origin != CLIENTS:
                said = Hello(WIRE_VERSION, "cluster", origin, "uuid", 2, 0)
                hello = b"".join(frame(FrameType.HELLO, [msgspec.msgpack.encode(said)]))
                near.sendall(hello)
            far, _ = server.accept()
            with far:
                far.settimeout(ANSWER_SECONDS)
                while hello:
                    hello = hello[len(far.recv(len(hello))) :]
                yield links, near, far
    finally:
        links.close()


def passes(source: socket.socket, target: socket.socket) -> bool:
    """Send a byte and wait until it arrives, for long enough on a busy machine."""
    source.sendall(b"x")
    target.settimeout(ANSWER_SECONDS)
    return target.recv(1) == b"x"


def is_held_back(source: socket.socket, target: socket.socket) -> bool:
    source.sendall(b"x")
    target.settimeout(SILENCE_SECONDS)
    try:
        return not target.recv(1)
    except TimeoutError:
        return True


@pytest.mark.parametrize("origin", [1, CLIENTS])
def test_each_direction_through_a_proxy_is_cut_on_its_own(origin: int) -> None:
    with proxied(origin) as (links, near, far):
        assert passes(near, far)
        assert passes(far, near)
        links.cut(origin, 2)
        assert is_held_back(near, far)
        assert passes(far, near)
        links.heal()
        far.settimeout(ANSWER_SECONDS)
        assert far.recv(1) == b"x", "as TCP does, what was held back arrives later"
        links.cut(2, origin)
        assert passes(near, far)
        assert is_held_back(far, near)
        links.restore(2, origin)
        near.settimeout(ANSWER_SECONDS)
        assert near.recv(1) == b"x"


def test_a_proxy_throttles_the_sending_direction_of_a_slow_broker() -> None:
    with proxied(1) as (links, near, far):
        links.slow(1)
        slow = seconds_for(near, far, SLOW_BYTES)
        assert slow > 1.0
        assert seconds_for(far, near, SLOW_BYTES) < slow / 2
        links.hurry(1)
        assert seconds_for(near, far, SLOW_BYTES) < slow / 2


def test_a_leash_releases_when_its_owner_is_killed(tmp_path: Path) -> None:
    """The owner gets SIGKILL and cannot clean up itself."""
    mark = tmp_path / "released"
    program = (
        f"import sys, time; sys.path.insert(0, '.'); from tests.chaos.leash import Leash; "
        f"leash = Leash(release='touch {mark}'); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        assert not mark.exists()
        owner.kill()
    deadline = time.monotonic() + ANSWER_SECONDS
    while not mark.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
