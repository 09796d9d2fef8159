"""Each kind of fault really happens, and leaves the mark that only it leaves; the cluster comes through."""

from __future__ import annotations

import pytest

from sim.node.batch import run_isolated
from sim.node.options import FAULTS
from sim.node.run import Verdict
from tests.sim.calm import calm_options

MARKS = {
    "kill": "boots",
    "power_cut": "boots",
    "kill_all": "boots",
    "stop": "boots",
    "isolate": "packets_held",
    "split": "packets_held",
    "one_way": "packets_held",
    "break_streams": "streams_reset",
    "full_map": "writes_refused",
    "wipe": "boots",
    "add_machine": "boots",
}
"""Fault -> what is counted because of it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_happens_and_is_survived(fault: str) -> None:
    more = {"machines": 4} if fault == "move_replicas" else {}
    calm = run_isolated(1, options=calm_options(**more))
    assert calm.verdict is Verdict.OK, calm.detail

    outcome = run_isolated(1, options=calm_options(seconds=4.0, fault_every=0.4, **{fault: 1}, **more))

    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.faults[fault] >= 1
    assert sum(outcome.faults.values()) == outcome.faults[fault]
    if fault in MARKS:
        assert outcome.counts.get(MARKS[fault], 0) > calm.counts.get(MARKS[fault], 0)


def test_a_calm_run_loses_nothing_and_fails_nothing() -> None:
    outcome = run_isolated(3, options=calm_options())

    assert outcome.verdict is Verdict.OK, outcome.detail
    assert outcome.counts["boots"] == 3
    assert {name for name in outcome.counts if name.startswith("send ")} == {"send ok"}
    assert outcome.counts["packets_held"] == outcome.counts["streams_reset"] == 0


def test_a_crash_in_the_middle_of_a_write_keeps_a_part_of_it_only() -> None:
    slow = calm_options(seconds=6.0, fault_every=0.3, kill=1, disk_latency=0.05)

    assert sum(run_isolated(seed, options=slow).counts["torn_commits"] for seed in range(3)) > 0


def test_a_flipped_byte_is_found_by_the_checksums_and_silences_its_replica_alone() -> None:
    outcomes = [run_isolated(seed, options=calm_options(seconds=5.0, flip=3, kill=1)) for seed in range(4)]

    assert [one.detail for one in outcomes if one.verdict is not Verdict.OK] == []
    assert sum(one.faults["flip"] for one in outcomes) > 4
    assert sum(one.counts["replicas_quarantined"] for one in outcomes) > 0


def test_clients_hear_of_unknown_outcomes_when_streams_break() -> None:
    broken = calm_options(seconds=5.0, reset_share=0.01, delivery_seconds=0.3, disk_latency=0.05, kill=1)

    counts = run_isolated(2, options=broken).counts
    assert counts.get("send DeliveryTimeoutError", 0) > 0
