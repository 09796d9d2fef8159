"""The next process knows which files a process was reading when a memory fault killed it, and suspects none after any other death."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from raftmq.storage.fault_board import FAULT_FILE, FaultBoard, last_fault

from tests.support.storage.log_builder import KEY, OTHER, LogBuilder, append, initial_state, lmdb_store

PROGRAM = """
import ctypes, os, signal, sys, threading
from pathlib import Path
from raftmq.storage.fault_board import FaultBoard
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey

directory = Path(sys.argv[1])
board = FaultBoard(directory)
board.catch_faults()
store = LmdbLogStore(directory, map_bytes=1 << 28, board=board)
for key in (ReplicaKey(7, 3), ReplicaKey(8, 4)):
    store.open(key)
store.header(ReplicaKey(7, 3), 6)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with lmdb_store(tmp_path) as store:
        for key in (KEY, OTHER):
            store.create(key, initial_state(), [])
            store.open(key)
            append(store, *LogBuilder().many(3, b"x" * 9000), key=key)
    return tmp_path


def die(directory: Path, last: str) -> int:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + last, str(directory)], check=False, capture_output=True
    ).returncode


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT])
def test_a_fault_leaves_the_replica_whose_file_was_being_read(number: signal.Signals, directory: Path) -> None:
    assert die(directory, f"os.kill(os.getpid(), {int(number)})") == -number
    fault = last_fault(directory)
    assert fault is not None
    assert fault.suspects == {KEY}
    assert "Fatal Python error" in fault.trace


def test_a_fault_of_a_missing_page_names_the_replica(directory: Path) -> None:
    """Reading a truncated file through its map raises SIGBUS, like a place on the disk that cannot be read."""
    cut = "os.truncate(store.path(ReplicaKey(8, 4)), 8192)\nstore.header(ReplicaKey(8, 4), 8)"
    assert die(directory, cut) == -signal.SIGBUS
    fault = last_fault(directory)
    assert fault is not None
    assert fault.suspects == {OTHER}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_makes_no_file_suspect(number: signal.Signals, directory: Path) -> None:
    assert die(directory, f"os.kill(os.getpid(), {int(number)})") == -number
    assert last_fault(directory) is None


def test_the_next_process_begins_without_suspects(directory: Path) -> None:
    die(directory, "os.kill(os.getpid(), signal.SIGBUS)")
    assert last_fault(directory) is not None
    FaultBoard(directory).close()
    assert last_fault(directory) is None


def test_each_thread_has_a_slot_of_its_own(tmp_path: Path) -> None:
    board = FaultBoard(tmp_path)
    board.touch(KEY)
    other = threading.Thread(target=board.touch, args=(OTHER,))
    other.start()
    other.join()
    (tmp_path / FAULT_FILE).write_text("Fatal Python error: Bus error")
    fault = last_fault(tmp_path)
    assert fault is not None
    assert fault.suspects == {KEY, OTHER}
    board.close()


def test_a_directory_that_cannot_be_written_leads_to_no_suspects(tmp_path: Path) -> None:
    board = FaultBoard(tmp_path / "missing")
    board.touch(KEY)
    board.close()
    assert last_fault(tmp_path / "missing") is None
