"""The data directory of a first start survives a power failure. One that cannot be opened now is not said to be damaged."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from raftmq.broker import main
from raftmq.broker.base.config import BrokerConfig, LoadedConfig
from raftmq.broker.main import EXIT_BAD_DATA, EXIT_MACHINE, run_broker
from raftmq.storage import durable_files
from raftmq.storage.directory_lock import DirectoryLock
from raftmq.storage.errors import (
    DamagedReplicaError,
    RegistryError,
    RegistryUnavailableError,
    StorageFullError,
    StorageUnavailableError,
)
from raftmq.storage.registry import Registry

from tests.support.storage.descriptors import free_descriptors


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


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (StorageUnavailableError((0, 1), "cannot be read now: Too many open files"), EXIT_MACHINE),
        (StorageFullError((0, 1), "no room for a new file"), EXIT_MACHINE),
        (RegistryUnavailableError("cannot be opened: Cannot allocate memory"), EXIT_MACHINE),
        (DamagedReplicaError((0, 1), "a flipped bit"), EXIT_BAD_DATA),
        (RegistryError("damaged"), EXIT_BAD_DATA),
    ],
)
def test_a_lack_of_resources_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, exit_code: int
) -> None:
    """It ended a start as damaged data does, after which the unit for systemd does not start the broker again."""

    async def serve(*_: object) -> int:
        raise error

    monkeypatch.setattr(main, "_serve", serve)
    for name in ("_raise_file_limit", "_tune_allocator"):
        monkeypatch.setattr(main, name, lambda: None)
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr("sys.setswitchinterval", lambda seconds: None)
    addresses = dict.fromkeys(("listen", "peer_listen", "http_listen"), "127.0.0.1:0")
    assert run_broker(LoadedConfig(BrokerConfig(data_dir=tmp_path, **addresses), {})) == exit_code


def test_a_registry_that_no_descriptor_is_left_for_is_unavailable(tmp_path: Path) -> None:
    Registry(tmp_path / "node.mdb").close(is_clean=True)
    lock = DirectoryLock(tmp_path)
    with free_descriptors(1), pytest.raises(RegistryUnavailableError):
        Registry(tmp_path / "node.mdb", lock=lock)
    lock.close()
    Registry(tmp_path / "node.mdb").close(is_clean=True)
