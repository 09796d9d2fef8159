import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from raftmq.storage.directory_lock import DirectoryLock, kept_from_brokers
from raftmq.storage.errors import DirectoryInUseError, RegistryError
from raftmq.storage.registry import Registry


def test_a_second_lock_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path)
    assert int((tmp_path / "lock").read_text()) == os.getpid()
    with pytest.raises(DirectoryInUseError, match=r"is in use by another process \(a broker or raftmq doctor\)"):
        DirectoryLock(tmp_path)
    first.close()
    first.close()  # a descriptor that was given to somebody else in the meantime must stay open
    DirectoryLock(tmp_path).close()


def test_a_process_that_is_killed_releases_the_directory(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom raftmq.storage.directory_lock import DirectoryLock\n"
        "held = DirectoryLock(Path(sys.argv[1]))\nos.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == -9
    DirectoryLock(tmp_path).close()


def test_readers_share_a_directory_and_keep_brokers_off(tmp_path: Path) -> None:
    DirectoryLock(tmp_path).close()
    with kept_from_brokers(tmp_path), kept_from_brokers(tmp_path), pytest.raises(DirectoryInUseError):
        DirectoryLock(tmp_path)
    lock = DirectoryLock(tmp_path)
    with (
        pytest.raises(DirectoryInUseError, match=rf"running broker \(process {os.getpid()}\): stop it first"),
        kept_from_brokers(tmp_path),
    ):
        pytest.fail("a broker holds the lock")
    lock.close()


def test_a_reader_creates_nothing(tmp_path: Path) -> None:
    with kept_from_brokers(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_a_full_volume_does_not_prevent_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUseError):
        DirectoryLock(tmp_path)
    lock.close()


def test_a_registry_locks_its_directory_unless_its_opener_has(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "node.mdb")
    with pytest.raises(DirectoryInUseError):
        DirectoryLock(tmp_path)
    registry.close(is_clean=True)
    with_lock = DirectoryLock(tmp_path)
    Registry(tmp_path / "node.mdb", lock=with_lock).close(is_clean=True)
    with pytest.raises(DirectoryInUseError):
        DirectoryLock(tmp_path)
    with_lock.close()


def test_a_registry_that_cannot_be_opened_releases_its_directory(tmp_path: Path) -> None:
    (tmp_path / "node.mdb").write_bytes(b"nonsense" * 1000)
    with pytest.raises(RegistryError):
        Registry(tmp_path / "node.mdb")
    DirectoryLock(tmp_path).close()
