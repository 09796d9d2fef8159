"""The data directory of a first start survives a power failure, with every directory above it that the start created."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from raftmq.broker.base.config import BrokerConfig, LoadedConfig
from raftmq.broker.main import EXIT_MACHINE, run_broker
from raftmq.storage import durable_files


def test_each_new_directory_s_name_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those below the data directory were. A cluster's only copy of its records could have lost its name."""
    synced: list[Path] = []
    monkeypatch.setattr(durable_files, "sync_directory", synced.append)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken_address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = BrokerConfig(data_dir=tmp_path / "raftmq" / "data", listen=taken_address)
        assert run_broker(LoadedConfig(config, {})) == EXIT_MACHINE, "the start ends after the directory was made"
    assert (tmp_path / "raftmq" / "data").is_dir()
    assert synced == [tmp_path, tmp_path / "raftmq"]
