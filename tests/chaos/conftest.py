"""Fixtures: the cluster that a module's tests share, and the requirements that some tests have of the machine."""

from collections.abc import Iterator

import pytest

from tests.chaos.cluster import ChaosCluster
from tests.chaos.machine import missing_for_shim, missing_for_volumes
from tests.chaos.shared import SharedCluster


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[SharedCluster]:
    """Close the cluster after the module, also on Ctrl-C."""
    shared = SharedCluster()
    yield shared
    shared.close()


@pytest.fixture
def cluster(shared_cluster: SharedCluster) -> ChaosCluster:
    """Return three healthy brokers with every kind of fault injection that this machine permits."""
    return shared_cluster.get()


@pytest.fixture
def volumes() -> None:
    """Skip the test where volumes are not permitted. Permission is tried here and not during collection."""
    if missing := missing_for_volumes():
        pytest.skip(f"{missing}; the model with crashes in tests/storage/ drops unsynchronised writes instead")


@pytest.fixture
def shim() -> None:
    """Skip the test where the shims cannot be compiled."""
    if missing := missing_for_shim():
        pytest.skip(f"{missing}; tests/e2e/test_failures.py makes a commit fail by a limit of file sizes instead")
