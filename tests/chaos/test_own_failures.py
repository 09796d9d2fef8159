"""How RaftMQ itself failed when it was attacked: one test for each case, with the fault that did it, under load and judged.

`cases.md` has them in its table. Each fails on the version that the attack found.
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
    """The fault breaks no promise, and the cluster is whole afterwards."""
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
    """It trimmed by the default retention of seven days, on all replicas: a quarter of the acknowledged records."""
    await survives(cluster, tmp_path, "leader_a_week_ahead")


@needs_shim
@pytest.mark.parametrize("name", ["leader_a_day_ahead", "all_a_day_ahead"])
async def test_a_day_that_nobody_lived_through_expires_no_producer(
    cluster: ChaosCluster, tmp_path: Path, name: str
) -> None:
    """The first entry it stamped expired every producer: duplicates, and records reported as not written that were."""
    await survives(cluster, tmp_path, name)


@pytest.mark.parametrize("name", ["idle_connections", "too_few_descriptors", "too_little_memory"])
async def test_what_the_system_does_not_give_is_missed_in_words(
    cluster: ChaosCluster, tmp_path: Path, name: str
) -> None:
    """1,500 idle connections ended a broker that may open 1,024 files; with 48 it ended with a traceback."""
    await survives(cluster, tmp_path, name)


@needs_volumes
@pytest.mark.parametrize("name", ["full_until_records_are_deleted", "full_until_a_topic_is_deleted"])
async def test_deleted_records_are_room_again_on_a_full_volume(
    cluster: ChaosCluster, tmp_path: Path, name: str
) -> None:
    """Everything was deleted, the file kept its 433 MiB, and appends were refused for ever."""
    await survives(cluster, tmp_path, name)


async def test_an_old_copy_and_one_that_lags_are_no_majority(cluster: ChaosCluster, tmp_path: Path) -> None:
    """300 of 600 acknowledged records were gone, and nobody noticed."""
    await survives(cluster, tmp_path, "old_copy_and_one_that_lags")


@pytest.mark.parametrize("name", ["old_copy", "two_brokers_of_one_directory"])
async def test_a_copy_of_a_data_directory_is_not_believed(cluster: ChaosCluster, tmp_path: Path, name: str) -> None:
    """A broker's start was told to the others, and nobody compared it with what was heard before."""
    await survives(cluster, tmp_path, name)


async def test_a_file_that_is_missing_after_two_crashes_does_not_end_every_start(
    cluster: ChaosCluster, tmp_path: Path
) -> None:
    """The look at all files before the start ended with exit code 70, each time again."""
    await survives(cluster, tmp_path, "missing_file_after_two_kills")


async def test_a_flipped_bit_that_undoes_a_commit_is_found(cluster: ChaosCluster, tmp_path: Path) -> None:
    """A replica was a commit behind what it had acknowledged; everything in its file was in order."""
    await survives(cluster, tmp_path, "turned_back_replica")


@pytest.mark.parametrize("name", ["truncated_registry", "turned_back_registry"])
async def test_a_damaged_registry_ends_a_start_in_words(cluster: ChaosCluster, tmp_path: Path, name: str) -> None:
    """Its length was not compared with what it says of itself: a signal ended the broker."""
    await survives(cluster, tmp_path, name)


def test_the_flipped_bit_does_undo_a_commit(tmp_path: Path) -> None:
    """The control: LMDB itself sees nothing, and reads what was there a commit ago."""
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
