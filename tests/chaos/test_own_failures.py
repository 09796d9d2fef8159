"""Failures of RaftMQ itself under attack: each test repeats the fault under load and judges the history.

The table in `cases.md` lists them. Each test fails on the version that was attacked.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from tests.chaos.cluster import ChaosCluster
from tests.chaos.damage import replica_files, turn_back
from tests.chaos.fault import Target
from tests.chaos.faults import FAULTS
from tests.chaos.run import Trial

pytestmark = [pytest.mark.e2e, pytest.mark.long]

needs_volumes = pytest.mark.usefixtures("volumes")
needs_shim = pytest.mark.usefixtures("shim")


async def survives(cluster: ChaosCluster, directory: Path, name: str, seed: int = 1) -> None:
    """Check that the fault breaks no promise and the cluster is whole afterwards."""
    fault = FAULTS[name]
    async with Trial(cluster, directory) as trial:
        target = Target(cluster, trial.topic, random.Random(seed))

        def act() -> None:
            with fault.act(target):
                time.sleep(fault.hold_seconds[1])

        await asyncio.to_thread(act)
    trial.demand_clean()


@needs_shim
async def test_a_leader_a_week_ahead_deletes_nothing(cluster: ChaosCluster, tmp_path: Path) -> None:
    """By the default retention of seven days the leader deleted a quarter of the acknowledged records, on all replicas."""
    await survives(cluster, tmp_path, "leader_a_week_ahead")


@needs_shim
@pytest.mark.parametrize("name", ["leader_a_day_ahead", "all_a_day_ahead"])
async def test_a_clock_leap_of_a_day_expires_no_producer(cluster: ChaosCluster, tmp_path: Path, name: str) -> None:
    """The first entry with the wrong time expired every producer: records were duplicated, or written but reported as failed."""
    await survives(cluster, tmp_path, name)


@pytest.mark.parametrize("name", ["idle_connections", "too_few_descriptors", "too_little_memory"])
async def test_a_broker_short_of_resources_serves_or_names_the_limit(
    cluster: ChaosCluster, tmp_path: Path, name: str
) -> None:
    """1,500 idle connections ended a broker that may open 1,024 files. A limit of 48 files ended it with a traceback."""
    await survives(cluster, tmp_path, name)


@needs_volumes
@pytest.mark.parametrize("name", ["full_until_records_are_deleted", "full_until_a_topic_is_deleted"])
async def test_deletion_frees_space_on_a_full_volume(cluster: ChaosCluster, tmp_path: Path, name: str) -> None:
    """After all records were deleted, the file kept its 433 MiB, and appends were refused permanently."""
    await survives(cluster, tmp_path, name)


async def test_an_old_copy_and_a_lagging_replica_are_no_majority(cluster: ChaosCluster, tmp_path: Path) -> None:
    """300 of 600 acknowledged records were lost without any error."""
    await survives(cluster, tmp_path, "old_copy_and_one_that_lags")


@pytest.mark.parametrize("name", ["old_copy", "two_brokers_of_one_directory"])
async def test_a_broker_on_a_copied_data_directory_breaks_no_promise(
    cluster: ChaosCluster, tmp_path: Path, name: str
) -> None:
    """A broker announced its start to the others, but they did not compare it with its earlier starts."""
    await survives(cluster, tmp_path, name)


async def test_a_broker_starts_with_a_file_missing_after_two_crashes(cluster: ChaosCluster, tmp_path: Path) -> None:
    """The inspection of all files ended every start with exit code 70."""
    await survives(cluster, tmp_path, "missing_file_after_two_kills")


async def test_a_flipped_bit_that_undoes_a_commit_is_found(cluster: ChaosCluster, tmp_path: Path) -> None:
    """The replica lacked a commit that it had acknowledged, but its file was intact."""
    await survives(cluster, tmp_path, "turned_back_replica")


@pytest.mark.parametrize("name", ["truncated_registry", "turned_back_registry"])
async def test_a_damaged_registry_ends_a_start_with_a_clear_error(
    cluster: ChaosCluster, tmp_path: Path, name: str
) -> None:
    """The length of the file was not compared with its meta page, so a signal ended the broker."""
    await survives(cluster, tmp_path, name)


def test_lmdb_reads_the_previous_commit_after_the_flipped_bit(tmp_path: Path) -> None:
    """This is the control: LMDB itself does not notice the flipped bit."""
    import lmdb

    path = tmp_path / "groups" / "1-1.mdb"
    path.parent.mkdir()
    for key in (b"first", b"second"):
        with lmdb.open(str(path), subdir=False) as environment, environment.begin(write=True) as transaction:
            transaction.put(key, b"x")
    assert replica_files(tmp_path) == [path]
    turn_back(path)
    with (
        lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        assert (transaction.get(b"first"), transaction.get(b"second")) == (b"x", None)
