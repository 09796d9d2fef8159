"""Replicas are equal: the same log prefix gives byte-equal state, independently of the replica's history (thesis 3.5, 5.1)."""

import os
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raftmq.errors import InvariantError
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.row_decoders import UnsupportedRowError
from raftmq.fsm.state_machine import UnsupportedCommandError
from raftmq.raft.entry import Entry, EntryKind
from raftmq.types import LogIndex

from tests.support.fsm import histories
from tests.support.fsm.histories import Machine

KINDS = pytest.mark.parametrize(
    ("make", "history"),
    [(Metadata, histories.metadata_history), (LogPartition, histories.log_history)],
    ids=["metadata", "log"],
)
MakeMachine = Callable[[], Machine]
MakeHistory = Callable[[random.Random, int], list[Entry]]


@KINDS
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), length=st.integers(0, 120))
def test_replicas_agree_byte_for_byte(make: MakeMachine, history: MakeHistory, seed: int, length: int) -> None:
    """Two plain replicas drain differently, one is restarted repeatedly, and one begins with a snapshot."""
    rng = random.Random(seed)
    entries = history(rng, length)
    plain, results = histories.plain_life(make, entries)
    eager, eager_results, eager_rows = histories.draining_life(make, entries, lambda: True)
    lazy, lazy_results, lazy_rows = histories.draining_life(make, entries, lambda: rng.random() < 0.1)
    restarted = histories.restarting_life(make, entries, rng)
    restored = histories.snapshot_life(make, entries, rng.randint(0, len(entries)))

    expected = tuple(plain.rows())
    assert [key for key, _ in expected] == sorted({key for key, _ in expected})
    assert results == eager_results == lazy_results
    for machine in (eager, lazy, restarted, restored):
        assert tuple(machine.rows()) == expected
        assert machine.applied_index == plain.applied_index
    assert eager_rows == lazy_rows == expected


@KINDS
def test_long_histories_agree(make: MakeMachine, history: MakeHistory) -> None:
    for seed in range(5):
        rng = random.Random(seed)
        entries = history(rng, 1500)
        plain, _ = histories.plain_life(make, entries)
        restarted = histories.restarting_life(make, entries, rng)
        restored = histories.snapshot_life(make, entries, 700)
        expected = tuple(plain.rows())
        assert len(expected) > 3
        assert tuple(restarted.rows()) == tuple(restored.rows()) == expected


def test_state_does_not_depend_on_the_hash_seed() -> None:
    """Sets of text iterate differently in each process, which must not influence any row or result."""
    expected = histories.seeded_digests(range(10))
    assert len(set(expected)) == len(expected)
    for hash_seed in ("0", "1", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.fsm.histories"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert done.stdout.split() == expected


@KINDS
def test_entries_already_applied_are_ignored(make: MakeMachine, history: MakeHistory) -> None:
    entries = history(random.Random(1), 50)
    machine, _ = histories.plain_life(make, entries)
    expected = tuple(machine.rows())
    machine.take_dirty_rows()
    assert [machine.apply(entry) for entry in entries] == [None] * len(entries)
    assert tuple(machine.rows()) == expected
    assert machine.take_dirty_rows() == ()


@KINDS
def test_a_skipped_entry_is_an_invariant_violation(make: MakeMachine, history: MakeHistory) -> None:
    """Applying with a gap would make replicas differ silently and permanently (etcd 3.5.0-3.5.2)."""
    entries = history(random.Random(1), 5)
    machine = make()
    machine.apply(entries[0])
    with pytest.raises(InvariantError, match="apply_is_contiguous"):
        machine.apply(entries[2])


@KINDS
@settings(max_examples=300, deadline=None)
@given(payloads=st.lists(st.binary(max_size=120), max_size=8))
def test_no_payload_makes_apply_raise_anything_else(
    make: MakeMachine, history: MakeHistory, payloads: list[bytes]
) -> None:
    """A command is applied. If it cannot be read, it stops the replica and leaves its state unchanged."""
    for payload in payloads:
        log = histories.LogBuilder()
        machine = make()
        machine.apply(log.append(EntryKind.DATA, payload, 1))
        entry = log.append(EntryKind.COMMAND, payload)
        before = (machine.applied_index, tuple(machine.rows()))
        if machine.level_needed(payload) is None:
            with pytest.raises(UnsupportedCommandError):
                machine.apply(entry)
            assert (machine.applied_index, tuple(machine.rows())) == before
        else:
            machine.apply(entry)
            assert machine.applied_index == entry.index


@KINDS
@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 100_000,
        b"\x81\xa1x" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ],
    ids=["nested arrays", "nested maps", "huge array", "huge bytes", "huge map"],
)
def test_hostile_payloads_are_not_read(make: MakeMachine, history: MakeHistory, payload: bytes) -> None:
    log = histories.LogBuilder()
    machine = make()
    assert machine.level_needed(payload) is None
    assert machine.apply(log.append(EntryKind.DATA, payload, 1)) is None
    with pytest.raises(UnsupportedCommandError, match=f"entry {log.next_index} holds a command"):
        machine.apply(log.append(EntryKind.COMMAND, payload))
    assert machine.applied_index == log.next_index - 2


@KINDS
def test_a_row_of_no_table_is_refused(make: MakeMachine, history: MakeHistory) -> None:
    with pytest.raises(ValueError, match="no table"):
        make().restore([(b"", b"")], LogIndex(9))
    with pytest.raises(UnsupportedRowError, match="another table"):
        make().restore([(b"\x63key", b"")], LogIndex(9))


@KINDS
def test_restoring_replaces_the_existing_state(make: MakeMachine, history: MakeHistory) -> None:
    entries = history(random.Random(3), 80)
    other = history(random.Random(4), 80)
    machine, _ = histories.plain_life(make, entries)
    source, _ = histories.plain_life(make, other)
    machine.restore(source.rows(), source.applied_index)
    assert tuple(machine.rows()) == tuple(source.rows())
    assert machine.take_dirty_rows() == ()
