"""Each kind of fault really happens and has an effect that a run without it does not have, and the cluster survives it."""

from __future__ import annotations

import pytest

from sim.cluster.batch import run_isolated
from sim.cluster.mutants.registry import OVERTAKING
from sim.cluster.options import FAULTS
from sim.cluster.run import Outcome, Verdict
from tests.support.sim.calm import calm_options

MARKS = {
    "kill": "boots",
    "power_cut": "boots",
    "kill_all": "boots",
    "stop": "boots",
    "freeze": "stalls",
    "isolate": "packets_held",
    "split": "packets_held",
    "one_way": "packets_held",
    "clog": "packets_clogged",
    "break_streams": "streams_reset",
    "slow_disk": "slow_commits",
    "full_map": "writes_refused",
    "fail_commit": "commits_failed",
    "clock_jump": "clock_jumps_read",
    "wrong_clock": "clocks_found_wrong",
    "sleep_all": "clock_jumps_read",
    "all_down": "boots",
    "wipe": "snapshots_installed",
    "remove_node": "snapshots_installed",
    "replace_replica": "snapshots_installed",
    "move_replicas": "snapshots_installed",
    "operate": "snapshots_installed",
    "add_machine": "boots",
    "reshape": "leaders",
    "retire_node": "boots",
    "swap": "boots",
    "defect": "defects_noted",
}
"""Fault -> the count that it increases."""
HINDRANCES = ("stall_disk", "full_disk", "freeze_client")
"""Faults under which clearly fewer records are acknowledged."""
OWN_TESTS = (
    "flip",
    "stale_copy",
    "renewed_copy",
    "recover",
    "stuck_growth",
    "configure",
    "overtake",
)
"""A flipped byte is found when its file is read again, and a copy is stale after another boot. These other faults cause that. A partition
can lose its majority only where the metadata keeps its own. A further replica gets another place only if there is another broker.
A leader is overtaken only in a group of five."""
SECONDS = 4.0


@pytest.fixture(scope="module")
def calm() -> Outcome:
    """Return the outcome of a run without faults."""
    return run_isolated(1, options=calm_options(seconds=SECONDS))


def test_every_fault_has_a_counted_effect() -> None:
    assert sorted([*MARKS, *HINDRANCES, *OWN_TESTS]) == sorted(FAULTS)


def test_partitions_that_lose_their_majority_are_recovered() -> None:
    options = calm_options(
        seconds=SECONDS, fault_every=0.8, recover=1, machines=5, metadata_voters=5, replication_factor=3
    )
    outcome = run_isolated(1, options=options)
    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.faults["recover"]
    assert outcome.counts["boots"] > 5


def test_members_that_are_late_lose_their_sessions() -> None:
    outcome = run_isolated(1, options=calm_options(seconds=9.0, members=3, late_share=0.3))
    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.counts["sessions_ended"]


def test_copies_for_moves_keep_the_rate_of_an_operator() -> None:
    options = calm_options(seconds=SECONDS, fault_every=0.4, machines=4, move_replicas=1, move_rate=20_000)
    outcome = run_isolated(1, options=options)
    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.counts["moves_paced"]


def test_leaders_are_overtaken_while_a_follower_installs_their_snapshot() -> None:
    needed = {name: value for name, value in OVERTAKING.items() if name not in FAULTS}
    outcome = run_isolated(1, options=calm_options(seconds=9.0, overtake=1, **needed))
    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.counts["installs_overtaken"]


@pytest.mark.long
def test_a_further_replica_whose_broker_is_down_gets_another_place() -> None:
    """The run ends well only if the broker may start again, which it may when nothing waits for it."""
    options = calm_options(seconds=SECONDS, fault_every=0.8, stuck_growth=1, machines=5, replication_factor=2)
    outcome = run_isolated(1, options=options)
    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.faults["stuck_growth"]


@pytest.mark.long
@pytest.mark.parametrize("seed", [8, 9, 13])
def test_a_broker_that_stays_down_returns_although_another_one_loses_its_disk(seed: int) -> None:
    """The two are the majority of a group, so that nothing stops to wait for the one that is down."""
    options = calm_options(seconds=SECONDS, fault_every=0.4, stuck_growth=2, wipe=2, machines=5)
    outcome = run_isolated(seed, options=options)
    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.faults["stuck_growth"]
    assert outcome.faults["wipe"]


@pytest.mark.long
def test_permanent_topics_get_more_partitions_that_every_client_uses() -> None:
    options = calm_options(seconds=SECONDS, grow_every=0.7, members=2)
    outcome = run_isolated(1, options=options)
    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.groups > options.topics * options.partitions
    assert outcome.counts["growth ok"]
    assert outcome.counts["partitions learned"], "members of the group took part in them"


def test_a_recovery_from_a_replica_that_lags_loses_no_more_than_it_lacks() -> None:
    """The run ends well only if everything that the replica had is kept, and if clients find their way in the rest."""
    options = calm_options(
        seconds=SECONDS, fault_every=0.8, recover=1, may_recover_less=True, machines=5, metadata_voters=5, members=2
    )
    outcome = run_isolated(1, options=options)
    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.counts["lost_ends"]


def test_an_older_copy_of_a_disk_is_refused() -> None:
    """Together with a broker that lags it would be a majority that lacks data acknowledged after the copy."""
    outcomes = [
        run_isolated(seed, options=calm_options(seconds=SECONDS, fault_every=0.4, stale_copy=1)) for seed in range(3)
    ]

    assert [one.verdict for one in outcomes] == [Verdict.OK] * 3, [one.detail for one in outcomes]
    struck = sum(one.faults["stale_copy"] for one in outcomes)
    refused = sum(one.counts["stale_directories"] for one in outcomes)
    assert struck == refused > 0


def test_a_copy_from_before_a_renewed_mark_is_refused_without_any_restart() -> None:
    options = calm_options(seconds=SECONDS, fault_every=0.4, renewed_copy=1, renewal_seconds=0.7)
    outcome = run_isolated(1, options=options)
    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.faults["renewed_copy"] == outcome.counts["stale_directories"] > 0


def test_settings_that_an_operator_changes_are_followed_by_every_broker() -> None:
    """The run ends well only if each broker uses them in the end, also those that were restarted."""
    options = calm_options(seconds=SECONDS, fault_every=0.4, configure=2, kill=1)
    outcome = run_isolated(1, options=options)
    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.faults["configure"] > 2
    assert outcome.faults["kill"]


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault == "flip" or fault not in OWN_TESTS])
def test_a_fault_happens_and_is_survived(calm: Outcome, fault: str) -> None:
    machines = 4 if fault in ("move_replicas", "operate", "retire_node") else 3
    options = calm_options(seconds=SECONDS, fault_every=0.4, machines=machines, **{fault: 1})

    outcome = run_isolated(1, options=options)

    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.faults[fault] >= 1
    assert sum(outcome.faults.values()) == outcome.faults[fault]
    if fault in MARKS:
        assert outcome.counts[MARKS[fault]] > calm.counts[MARKS[fault]]
    if fault in HINDRANCES:
        assert outcome.acknowledged < 0.8 * calm.acknowledged


def test_frames_are_dropped_and_streams_reset_when_the_weather_is_bad() -> None:
    outcome = run_isolated(1, options=calm_options(drop_share=0.1, reset_share=0.005, slow_share=0.1))

    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.counts["frames_dropped"] > 0
    assert outcome.counts["streams_reset"] > 0


def test_a_run_without_faults_loses_nothing_and_fails_no_operation() -> None:
    outcome = run_isolated(3, options=calm_options())

    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.counts["boots"] == 3
    assert {name for name in outcome.counts if name.startswith("send ")} == {"send ok"}
    assert [outcome.counts[name] for name in ("packets_held", "packets_clogged", "streams_reset")] == [0, 0, 0]
    assert [outcome.counts[name] for name in ("slow_commits", "clock_jumps_read")] == [0, 0]


def test_a_crash_during_a_write_keeps_only_a_part_of_it() -> None:
    slow = calm_options(seconds=6.0, fault_every=0.3, kill=1, disk_latency=0.05)

    assert sum(run_isolated(seed, options=slow).counts["torn_commits"] for seed in range(3)) > 0


def test_a_flipped_byte_is_found_by_the_checksums_and_silences_its_replica_alone() -> None:
    outcomes = [run_isolated(seed, options=calm_options(seconds=5.0, flip=3, kill=1)) for seed in range(4)]

    assert [one.detail for one in outcomes if one.verdict is not Verdict.OK] == []
    assert sum(one.faults["flip"] for one in outcomes) > 4
    assert sum(one.counts["replicas_quarantined"] for one in outcomes) > 0


def test_broken_streams_cause_unknown_outcomes() -> None:
    broken = calm_options(seconds=5.0, reset_share=0.01, delivery_seconds=0.3, disk_latency=0.05, kill=1)

    counts = run_isolated(2, options=broken).counts
    assert counts.get("send DeliveryTimeoutError", 0) > 0
