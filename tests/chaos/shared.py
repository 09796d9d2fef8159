"""Share one cluster between the tests of a module, since its start takes longer than most tests. Replace it after a test left it broken."""

from __future__ import annotations

from tests.chaos.cluster import ChaosCluster, best_links
from tests.chaos.condition import wait_until, what_is_not_whole
from tests.chaos.machine import missing_for_shim, missing_for_volumes

RECOVERY_SECONDS = 20.0


class SharedCluster:
    """Holds at most one cluster, which the first use creates with all fault injection that this machine permits."""

    def __init__(self) -> None:
        self._cluster: ChaosCluster | None = None

    def get(self) -> ChaosCluster:
        """Return a healthy cluster."""
        cluster = self._cluster
        if cluster is not None:
            cluster.links.heal()
            if wait_until(lambda: not what_is_not_whole(cluster, ""), RECOVERY_SECONDS):
                return cluster
            self.close()
        cluster = ChaosCluster(
            links=best_links,
            has_disk_orders=missing_for_shim() is None,
            has_clock_orders=missing_for_shim() is None,
            has_volumes=missing_for_volumes() is None,
        )
        self._cluster = cluster
        cluster.start()
        return cluster

    def close(self) -> None:
        """Close the cluster."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()
