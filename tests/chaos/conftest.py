"""The cluster that the tests of a module share, and what some of them need of the machine."""

from collections.abc import Iterator

import pytest

from tests.chaos.cluster import ChaosCluster
from tests.chaos.machine import missing_for_shim, missing_for_volumes
from tests.chaos.shared import SharedCluster


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[SharedCluster]:
    """Closed when the module is done, and on Ctrl-C."""
    shared = SharedCluster()
    yield shared
    shared.close()


@pytest.fixture
def cluster(shared_cluster: SharedCluster) -> ChaosCluster:
    """Three brokers that are whole, with everything failing on demand that this machine permits."""
    return shared_cluster.get()


@pytest.fixture
def volumes() -> None:
    """Skips a test that needs them where they are not permitted; only then is it tried, not while tests are collected."""
    if missing := missing_for_volumes():
        pytest.skip(f"{missing}; the model with crashes in tests/storage/ drops unsynchronised writes instead")


@pytest.fixture
def shim() -> None:
    """Skips a test that needs the shim of disks where it cannot be made."""
    if missing := missing_for_shim():
        pytest.skip(f"{missing}; tests/e2e/test_failures.py makes a commit fail by a limit of file sizes instead")
