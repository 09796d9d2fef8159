"""Find the newest metadata among brokers that do not run."""

from __future__ import annotations

import json

from raftmq.testing import LocalCluster

from tests.support.e2e.raftmq_command import raftmq


def newest_metadata(cluster: LocalCluster, *broker_ids: int) -> int:
    """Return the broker with the newest metadata, as the guide says."""

    def place(broker_id: int) -> tuple[int, int]:
        done = raftmq(cluster, "recover", "metadata", str(cluster.data_dir(broker_id)), "-o", "json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["result"], found["broker_id"]) == ("stored", broker_id)
        return found["term"], found["last_index"]

    return max(broker_ids, key=place)
