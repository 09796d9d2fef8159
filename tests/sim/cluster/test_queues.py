"""Runs with queue topics: some seeds have them, their clients do everything, and a batch has no findings."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.errors import CommitFailedError
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import LogIndex, Offset

from sim.cluster.batch import run_batch, run_isolated
from sim.cluster.cluster import Process
from sim.cluster.options import FAULTS
from sim.cluster.queues.options import DRAWN_EVERY, FIRST_DRAWN_SEED, QUEUE_LEVEL, draw_queue_options, has_queues
from sim.cluster.run import Build, Verdict
from sim.cluster.world.disk import Disk, SimLogStore
from sim.core.invariants.violation import demand
from tests.support.storage.log_builder import initial_state

SEEDS = 2
POWER_SEED = 1
QUEUES = Build(has_queues=True)
KEY = ReplicaKey(cast("Any", 7), cast("Any", 3))


def test_a_part_of_the_seeds_has_queues_and_those_of_the_other_bugs_have_none() -> None:
    drawn = [seed for seed in range(200) if has_queues(seed)]

    assert min(drawn) == FIRST_DRAWN_SEED
    assert len(drawn) == (200 - FIRST_DRAWN_SEED) // DRAWN_EVERY


def test_a_cluster_of_an_old_level_is_raised_while_it_is_disturbed() -> None:
    outcome = run_isolated(1, Build(has_queues=True, queue_overrides={"starts_at_level": 1}))

    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.counts["queue levels raised"] >= 1
    assert outcome.counts["queue Drained ok"] >= 2


@pytest.mark.long
def test_the_dead_are_copied_while_leaders_change() -> None:
    outcome = run_isolated(6, Build(has_queues=True, queue_overrides={"has_dead_letters": True}))

    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.counts["dead_letters"] >= 20


def test_power_cuts_of_every_machine_take_nothing_from_queues() -> None:
    """Each machine loses the writes that its disk did not confirm: entries, votes, and rows of messages."""
    power = dict.fromkeys(FAULTS, 0) | {"power_cut": 2, "all_down": 2, "fault_every": 0.6}
    outcome = run_isolated(POWER_SEED, Build(has_queues=True, option_overrides=power))

    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.faults["power_cut"] >= 2
    assert outcome.faults["all_down"] >= 3
    assert outcome.counts["queue Put ok"] >= 20
    assert outcome.counts["queue Drained ok"] >= 2


@pytest.mark.slow
def test_a_batch_of_seeds_with_queues_has_no_findings() -> None:
    outcomes = list(run_batch(0, SEEDS, jobs=2, build=QUEUES))

    assert [(one.seed, one.verdict, one.detail) for one in outcomes if one.verdict is not Verdict.OK] == []
    totals = {name: sum(one.counts.get(name, 0) for one in outcomes) for one in outcomes for name in one.counts}
    for name in ("Put ok", "Put unknown", "LeaseTaken ok", "Settlement ok", "Settlement unknown", "Alteration ok"):
        assert totals[f"queue {name}"] > 0, name
    assert totals["queue Swept ok"] > 0
    assert totals["queue_states_compared"] > 0
    assert all(one.counts["queue Drained ok"] >= 2 for one in outcomes)

    last = outcomes[-1]
    again, without = run_isolated(last.seed, QUEUES), run_isolated(last.seed)
    assert (again.digest, again.counts) == (last.digest, last.counts), "a run is the same every time"
    assert without.groups == last.groups, "queues do not change what is drawn for logs"
    assert without.digest != last.digest


def test_options_of_queues_are_all_drawn() -> None:
    drawn = [draw_queue_options(random.Random(seed)) for seed in range(60)]

    assert {one.is_memory_tiny for one in drawn} == {one.is_work_small for one in drawn} == {True, False}
    assert {one.starts_at_level for one in drawn} == {1, QUEUE_LEVEL, FEATURE_LEVEL}
    assert {one.all_down for one in drawn} == {0, 1}
    assert {one.schedules for one in drawn} == {0, 4, 8}
    assert {one.is_single_active for one in drawn} == {True, False}


def test_a_crash_between_the_two_files_of_a_snapshot_is_repaired_when_the_replica_is_opened() -> None:
    disk = Disk(random.Random(1), 1 << 20)
    store = SimLogStore(disk, map_bytes=1 << 20)
    store.create_with_state_file(KEY, initial_state())
    before = store.open(KEY)
    position = replace(before.position, index=LogIndex(9), next_offset=Offset(4))
    meta = SnapshotMeta(position, LogIndex(12), before.membership)
    rows = [(b"\x01row", b"value")]

    store.is_crashing = True
    while not disk.torn_installs:
        with suppress(CommitFailedError):
            store.install(KEY, before.hard_state, meta, rows)
    after = SimLogStore(disk, map_bytes=1 << 20).open(KEY)

    assert (after.position, after.state_index) == (position, 12)


def test_a_look_at_a_broker_is_in_its_own_time() -> None:
    """In another time its clock seems to leap, and it forgets the clocks of the others and refuses messages."""

    def patch() -> Callable[[], None]:
        from sim.cluster import checker
        from sim.cluster.world.host import HOST

        def check(process: Process) -> None:
            demand(HOST.get() is process.host, "InItsTime", repr(process.host))

        vars(checker)["check_served_or_reported"] = check
        return lambda: None

    outcome = run_isolated(0, Build(patch=patch, has_queues=False, option_overrides={"seconds": 1.0}))

    assert outcome.verdict is Verdict.OK, outcome.detail


EVERY_COMMAND = (
    "CancelJob", "Change", "ChangeSchedule", "CloseSession", "ContinueJob", "DeleteSchedule", "OpenSession", "PauseTenant",
    "PurgeAll", "PutSchedule", "ResumeTenant", "SkipFirings", "StartJob", "StepClock",
)  # fmt: skip
BUSY = {"meddlers": 4, "purges": 4, "schedules": 20, "lost_share": 0.25, "pause_seconds": 0.05}


@pytest.mark.long
@pytest.mark.slow
def test_operators_use_every_command_and_repeat_it_after_a_lost_answer() -> None:
    outcomes = list(run_batch(0, 3, jobs=2, build=Build(has_queues=True, queue_overrides=BUSY)))

    assert [one.detail for one in outcomes if one.verdict is not Verdict.OK] == []
    totals = sum((Counter(one.counts) for one in outcomes), Counter[str]())
    assert [name for name in EVERY_COMMAND if not totals[f"queue answered {name}"]] == []
    repeated = [name for name in EVERY_COMMAND if totals[f"queue unanswered {name}"]]
    assert len(repeated) >= len(EVERY_COMMAND) - 3
    assert all(totals[f"queue changes by {by}"] for by in ("id", "version", "sequence"))
    assert totals["firings"] > 0
