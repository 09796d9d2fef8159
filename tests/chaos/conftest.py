"""The cluster that the tests of a module share."""

from collections.abc import Iterator

import pytest

from tests.chaos.cluster import ChaosCluster
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
