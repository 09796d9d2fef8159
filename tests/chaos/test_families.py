"""The short form of chaos: run each family of faults for some seconds under load, with a fixed seed, and judge the history."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from raftmq.broker.base.metric_catalog import CATALOG

from tests.chaos.__main__ import circumstances, parsed
from tests.chaos.cluster import ChaosCluster
from tests.chaos.condition import ZERO_WHEN_WHOLE
from tests.chaos.faults import FAULTS, families
from tests.chaos.machine import missing_for_families
from tests.chaos.nemesis import ORDERS, schedule
from tests.chaos.run import Report, chaos_run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SEED = 11
"""With this seed the first cut links are those between brokers, and the first damage is in the newest rows."""
SECONDS = 4.0
SHARED_FAMILIES = [name for name in families() if name != ORDERS]
"""The families that leave a cluster as it was. `test_orders.py` has the other one."""
LONG_FAMILIES = frozenset(SHARED_FAMILIES) - {"kill", "power"}
"""Families that `make test-long` runs."""


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=pytest.mark.long) if name in LONG_FAMILIES else name for name in SHARED_FAMILIES],
)
async def test_a_family_of_faults_breaks_no_promise(cluster: ChaosCluster, family: str, tmp_path: Path) -> None:
    missing = missing_for_families().get(family)
    if missing:
        pytest.skip(f"{missing}; tests/chaos/README.md names the substitute")
    report = await chaos_run(cluster, SEED, [family], SECONDS, tmp_path)
    assert not report.findings, report.text()
    assert report.faults
    assert report.acknowledged
    assert report.read
    assert report.data_appends, "the writers use data connections, as users' programs do"


def test_brokers_run_on_uvloop(cluster: ChaosCluster) -> None:
    """Faults are injected into the event loop of production."""
    for broker_id in cluster.broker_ids:
        maps = Path(f"/proc/{cluster.pid(broker_id)}/maps").read_text()
        assert "uvloop/loop." in maps


def test_a_whole_cluster_is_recognised_by_metrics_that_exist() -> None:
    """A renamed metric once went on being looked for under its old name, and was always 0."""
    assert set(ZERO_WHEN_WHOLE) <= CATALOG.keys()


def test_the_command_of_a_finding_repeats_its_options() -> None:
    options = parsed(["--seed", "9", "--default-timing", "--proxies", "--run-seconds", "4"])
    report = Report(9, ["kill", "links"], Path("kept"), findings=["something"], circumstances=circumstances(options))
    again = re.search(r"again: make chaos SEED=9 ARGS='(.*)'", report.text())
    assert again is not None
    assert again[1] == "--families kill,links --default-timing --proxies --run-seconds 4"
    repeated = parsed(["--seed", "9", *again[1].split()])
    assert vars(repeated) | {"families": ""} == vars(options)
    assert circumstances(parsed([])) == ""


def test_a_schedule_depends_on_its_seed_alone() -> None:
    steps = schedule(7, families(), 200)
    assert steps == schedule(7, families(), 200)
    assert steps != schedule(8, families(), 200)
    assert steps[:20] == schedule(7, families(), 20), "a shorter run is the beginning of a longer one"


def test_the_short_form_isolates_brokers_within_its_time() -> None:
    first, second, *_ = schedule(SEED, ["links"], 4)
    assert [first.name, second.name] == ["leader_does_not_hear", "isolated"]
    assert first.hold_seconds + first.gap_seconds < 0.9 * SECONDS


def test_a_schedule_has_every_kind_of_fault_once_before_it_repeats_one() -> None:
    steps = schedule(3, families(), len(FAULTS))
    assert sorted(step.name for step in steps) == sorted(FAULTS)


def test_faults_of_data_never_overlap_with_others() -> None:
    """RaftMQ does not promise to survive the loss of more than a minority of a group's disks."""
    for step in schedule(1, families(), 500):
        assert not (FAULTS[step.name].needs_whole and step.background)
        assert not FAULTS[step.name].needs_whole or step.waits
