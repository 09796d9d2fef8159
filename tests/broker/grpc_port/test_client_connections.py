"""The watch over connections to the client port survives failures."""

from __future__ import annotations

import asyncio

from raftmq.broker.base.supervisor import Work
from raftmq.broker.grpc_port import client_connections
from raftmq.broker.grpc_port.client_connections import ClientConnections

from tests.support.broker.waiting import until


async def test_a_failed_check_is_recorded_and_the_next_one_follows(monkeypatch):
    looks, failures = [], []

    def open_files():
        looks.append(1)
        raise ValueError("planted")

    monkeypatch.setattr(client_connections, "open_files", open_files)
    monkeypatch.setattr(client_connections, "_LOOK_SECONDS", 0.001)
    connections = ClientConnections(10, set, lambda work, error: failures.append(work))
    running = asyncio.create_task(connections.run(1))
    await until(lambda: len(looks) >= 3)
    running.cancel()
    assert set(failures) == {Work.CONNECTIONS}


def test_open_files_are_counted_with_and_without_the_kernel_s_count(monkeypatch, tmp_path):
    before = client_connections.open_files()
    with (tmp_path / "one").open("w"), (tmp_path / "another").open("w"):
        assert client_connections.open_files() == before + 2
        monkeypatch.setattr("sys.platform", "darwin")
        assert 0 <= client_connections.open_files() - (before + 2) <= 1, "the directory that is read is open, too"
