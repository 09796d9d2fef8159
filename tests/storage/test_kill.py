"""Acknowledged means on disk: a writing process is killed at random times, and everything it acknowledged is found."""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from raftmq.raft.core import RestoredState
from raftmq.storage.state_store import is_body, is_location, sequence_of
from raftmq.types import Offset

from tests.support.storage.killed_writer import payload_of
from tests.support.storage.log_builder import KEY, lmdb_store

KILLS = 40
ACKS_MAX = 25
MOMENT_SECONDS_MAX = 0.006
"""The time of about two commits, so that a kill may hit any point of a transaction or of a snapshot's file swap."""


def test_every_acknowledged_entry_survives_kill_9(tmp_path: Path) -> None:
    write_and_kill(tmp_path, [], check)


def test_every_acknowledged_write_back_survives_kill_9(tmp_path: Path) -> None:
    write_and_kill(tmp_path, ["state"], check_with_state_file)


def write_and_kill(
    tmp_path: Path, arguments: list[str], check_files: Callable[[Path, tuple[int, int, int]], None]
) -> None:
    random_ = random.Random(20)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.storage.killed_writer", str(tmp_path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    acknowledged = (5, 5, 5)
    acks = 0
    try:
        for seed in range(KILLS):
            count, acknowledged = run_and_kill(process, seed, random_, acknowledged)
            acks += count
            check_files(tmp_path, acknowledged)
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
    assert process.returncode == 0
    assert acks > 3 * KILLS


def run_and_kill(
    process: subprocess.Popen[bytes], seed: int, random_: random.Random, before: tuple[int, int, int]
) -> tuple[int, tuple[int, int, int]]:
    """Let a writer acknowledge some writes, kill it a random time later, and return its last acknowledgement."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"%d\n" % seed)
    process.stdin.flush()
    pid = int(process.stdout.readline().removeprefix(b"pid "))
    acks: list[tuple[int, int, int]] = []
    try:
        acks += [parsed(process.stdout.readline()) for _ in range(random_.randint(1, ACKS_MAX))]
        wait_for_nothing(random_.random() * MOMENT_SECONDS_MAX)
    finally:
        os.kill(pid, signal.SIGKILL)
    while (line := process.stdout.readline()) != b"dead\n":
        acks.append(parsed(line))
    assert acks == sorted(acks)
    assert acks[0] > before
    return len(acks), acks[-1]


def wait_for_nothing(seconds: float) -> None:
    """Wait for this time: the time of the kill is the only intentionally random thing here."""
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        while (left := end - time.monotonic()) > 0:
            selector.select(left)


def parsed(line: bytes) -> tuple[int, int, int]:
    word, last_index, state_index, term = line.split()
    assert word == b"ack"
    return int(last_index), int(state_index), int(term)


def check(directory: Path, acknowledged: tuple[int, int, int]) -> None:
    """Check that everything acknowledged is stored, and that each later write is stored completely or not at all."""
    with lmdb_store(directory) as store:
        restored: RestoredState = store.open(KEY)
        assert (restored.last_index, restored.state_index, restored.hard_state.term) >= acknowledged
        assert restored.last_index == restored.state_index == restored.hard_state.commit_index
        assert list(store.state_rows(KEY)) == [(b"index", b"%d" % restored.state_index)]
        number = restored.position.index + 1
        while number <= restored.last_index:
            for entry in store.entries(KEY, type(restored.last_index)(number), restored.last_index, 1 << 20):
                assert entry.payload == payload_of(entry.index)
                number = entry.index + 1


def check_with_state_file(directory: Path, acknowledged: tuple[int, int, int]) -> None:
    """Check also that the two files belong together, and that the body of each waiting message is in one of them."""
    with lmdb_store(directory) as store:
        assert not [path for path in (directory / "groups").iterdir() if ".new" in path.name or ".copy" in path.name]
        restored: RestoredState = store.open(KEY)
        assert (restored.last_index, restored.state_index, restored.hard_state.term) >= acknowledged
        assert restored.position.index <= restored.state_index <= restored.last_index
        rows = dict(store.state_rows(KEY))
        assert rows.get(b"\x01index", b"5") == b"%d" % restored.state_index
        through = store.evacuated_through(KEY)
        living = {sequence_of(key) for key in rows if is_location(key)}
        evacuated = {sequence_of(key): body for key, body in rows.items() if is_body(key)}
        assert evacuated == {sequence: b"body %d" % sequence for sequence in living if sequence <= through}
        for sequence in living - evacuated.keys():
            holder = store.find_offset(KEY, Offset(sequence))
            assert holder is not None
            assert store.entries(KEY, holder, holder, 1)[0].payload == payload_of(holder)
