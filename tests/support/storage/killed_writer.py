"""The process that `test_kill.py` kills: it forks a writer for each line on its input, and the writers print their durable writes.

Run it as `python -m tests.support.storage.killed_writer DIRECTORY` or, for a replica with a state file, with `state` after it. Writers print
`pid N`, then `ack LAST_INDEX STATE_INDEX TERM` after each call that returned. The parent process prints `dead` when a writer has ended.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from raftmq.raft.entry import GENESIS, LogPosition
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.errors import LogRangeError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import StateRow, Update
from raftmq.storage.state_store import FilePart, StateWrite, location_key, sequence_of
from raftmq.types import Offset

from tests.support.storage.log_builder import (
    KEY,
    MAP_BYTES,
    VOTERS,
    LogBuilder,
    hard,
    index,
    initial_state,
    position_after,
)


def payload_of(number: int) -> bytes:
    """Return the fixed payload of the entry at an index. Most are small, and some have pages of their own."""
    return b"%d." % number * (3 if number % 5 else 900)


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def write_forever(directory: Path, seed: int) -> None:
    random_ = random.Random(seed)
    store = LmdbLogStore(directory, map_bytes=MAP_BYTES)
    if not store.exists(KEY):
        store.create(KEY, initial_state(), [(b"index", b"5")])
    restored = store.open(KEY)
    term = restored.hard_state.term
    last = LogPosition(
        restored.last_index, restored.hard_state.term, restored.last_next_offset, restored.last_append_time_ms
    )
    if restored.term_starts:
        last = LogPosition(last.index, restored.term_starts[-1][0], last.next_offset, last.append_time_ms)
    log = LogBuilder(last)
    while True:
        term = type(term)(term + (random_.random() < 0.1))
        entries = [log.data(1, payload_of(log.index + 1), term=term) for _ in range(random_.randint(1, 4))]
        end = entries[-1].index
        truncation = position_after(entries[0]) if random_.random() < 0.05 else None
        rows = ((b"index", b"%d" % end),)
        update = Update(hard(term, 2, end), tuple(entries), truncation, rows, end)
        store.append_batch([(KEY, update)])
        say(f"ack {end} {end} {term}")
        if truncation is not None:
            store.delete_truncated(KEY, 50)
        if random_.random() < 0.2:
            store.reclaim(KEY)
        if random_.random() < 0.1:
            end = index(end + 3)
            position = LogPosition(end, term, entries[-1].next_offset, entries[-1].append_time_ms)
            store.install(KEY, hard(term, 2, end), SnapshotMeta(position, end, VOTERS), [(b"index", b"%d" % end)])
            say(f"ack {end} {end} {term}")
            log = LogBuilder(position)


def write_state_forever(directory: Path, seed: int) -> None:
    """Enqueue a message with each entry, finish some of the waiting ones, evacuate, truncate and install."""
    random_ = random.Random(seed)
    store = LmdbLogStore(directory, map_bytes=MAP_BYTES)
    if not store.exists(KEY):
        store.create_with_state_file(KEY, initial_state())
    restored = store.open(KEY)
    log = LogBuilder(
        LogPosition(restored.last_index, GENESIS.term, restored.last_next_offset, restored.last_append_time_ms)
    )
    while True:
        entries = [log.data(1, payload_of(log.index + 1)) for _ in range(random_.randint(1, 4))]
        end = entries[-1].index
        store.append_batch([(KEY, Update(entries=tuple(entries)))])
        [waiting] = store.read_rows(KEY, [(location_key(0, 0), location_key(1, 0), 1000)])
        rows: list[StateRow] = [(key, None) for key, _ in waiting if random_.random() < 0.3]
        rows += [(location_key(0, entry.base_offset), b"home") for entry in entries]
        store.write_state(KEY, StateWrite(end, (*rows, (b"\x01index", b"%d" % end))))
        say(f"ack {end} {end} {GENESIS.term}")
        evacuate_and_truncate(store, random_)
        if random_.random() < 0.1:
            end = index(end + 3)
            position = LogPosition(end, GENESIS.term, entries[-1].next_offset, entries[-1].append_time_ms)
            install_staged(store, SnapshotMeta(position, end, VOTERS))
            say(f"ack {end} {end} {GENESIS.term}")
            log = LogBuilder(position)
        if random_.random() < 0.1:
            copy = store.copy_state(KEY)
            assert dict(copy.rows_from(b""))[b"\x01index"] == b"%d" % copy.state_index
            copy.close()


def install_staged(store: LmdbLogStore, meta: SnapshotMeta) -> None:
    """Install a snapshot that arrives in two chunks."""
    staged = store.stage(KEY, meta.position)
    staged.put([(b"\x01chunk", bytes(1000))])
    staged.put([(b"\x01index", b"%d" % meta.state_index)])
    staged.finish()
    store.install_staged(KEY, hard(5, 0, meta.position.index), meta, staged)


def evacuate_and_truncate(store: LmdbLogStore, random_: random.Random) -> None:
    after = store.evacuated_through(KEY)
    [waiting] = store.read_rows(KEY, [(location_key(0, after + 1), location_key(1, 0), random_.randint(0, 5))])
    if waiting:
        store.evacuate(KEY, [(key, b"body %d" % sequence_of(key)) for key, _ in waiting], after)
    first = store.first_location(KEY, store.evacuated_through(KEY))
    holder = store.find_offset(KEY, Offset(first)) if first is not None else None
    if holder is not None:
        with suppress(LogRangeError):  # it is the first entry
            last = store.entries(KEY, index(holder - 1), index(holder - 1), 1)[0]
            store.append_batch([(KEY, Update(truncation=position_after(last)))])
            store.delete_truncated(KEY, 50)
    if random_.random() < 0.2:
        store.reclaim(KEY, FilePart.STATE)


def main(directory: Path, write: Callable[[Path, int], None]) -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            say(f"pid {os.getpid()}")
            write(directory, int(line))
        os.waitpid(child, 0)
        say("dead")


if __name__ == "__main__":
    main(Path(sys.argv[1]), write_state_forever if "state" in sys.argv[2:] else write_forever)
