"""A data directory of an earlier version is served: nothing is missing, and work on it goes on."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from raftmq import sync
from raftmq.testing import LocalCluster

from tests.formats.directory import LOG, QUEUE, TEN_YEARS_MS, describe
from tests.formats.record import DESCRIPTION, DIRECTORY


@pytest.mark.e2e
def test_a_recorded_data_directory_is_served(tmp_path: Path) -> None:
    recorded = json.loads(DESCRIPTION.read_text())
    with tarfile.open(DIRECTORY) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have none
        archive.extractall(tmp_path)
    kept = ("--set", f"offsets_retention_seconds={TEN_YEARS_MS // 1000}")
    with LocalCluster(brokers=1, directory=tmp_path, broker_arguments=kept) as cluster:
        assert json.loads(json.dumps(describe(cluster))) == recorded
        servers = cluster.bootstrap_servers
        with sync.Producer(bootstrap_servers=servers) as producer:
            assert producer.send(LOG, b"next", partition=0).result(30).offset == recorded["ends"][0]
        with sync.Queue(QUEUE, bootstrap_servers=servers) as queue:
            queue.resume("tenant")
            message = queue.get(wait_ms=10_000)
            assert message is not None
            assert message.value == b"ready"
            message.ack()
            assert queue.redrive() == 1
