"""A worker acknowledges Spark's command immediately, because Spark holds the rows back until then."""

import os
import pickle
import socket
import sys
from pathlib import Path

import pytest
from raftmq.spark.base import worker_socket
from raftmq.spark.base.worker_socket import acknowledge
from raftmq.spark.source.options import read_source_options
from raftmq.spark.source.readers import StreamReader

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has TCP_QUICKACK")


def is_quick(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_socket, "_found", {})
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0] as accepted,
        Path("/dev/null").open() as other,
    ):
        descriptors = (other.fileno(), server.fileno(), accepted.fileno(), sender.fileno())
        monkeypatch.setattr(worker_socket, "_FIRST_SOCKETS", descriptors)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        yield accepted
    for copy in worker_socket._found.values():
        if copy is not None:
            copy.close()


def test_the_first_connection_of_the_process_is_acknowledged_whenever_asked(connection: socket.socket) -> None:
    for _ in range(2):
        assert not is_quick(connection)
        acknowledge()
        assert is_quick(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)


def test_a_reader_acknowledges_when_it_arrives_in_a_worker(connection: socket.socket) -> None:
    options, _ = read_source_options({"bootstrap.servers": "localhost:1", "subscribe": "t"}, is_streaming=True)
    sent = pickle.dumps(StreamReader(options, None))
    assert not is_quick(connection)
    assert pickle.loads(sent).options == options
    assert is_quick(connection)


def test_what_is_no_socket_is_not_kept_open(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(worker_socket, "_found", {})
    monkeypatch.setattr(worker_socket, "_FIRST_SOCKETS", (writer,))
    acknowledge()
    os.close(writer)
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b""  # its end
    os.close(reader)


def test_a_process_without_a_connection_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_socket, "_found", {})
    monkeypatch.setattr(worker_socket, "_FIRST_SOCKETS", (1000,))
    acknowledge()
