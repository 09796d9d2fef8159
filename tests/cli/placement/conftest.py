"""Fake brokers whose partitions can be moved, for tests of commands."""

from collections.abc import Iterator

import pytest

from tests.support.cli.cluster_commands import ClusterCommands


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterCommands]:
    """Run three fake brokers with the topic ``orders``."""
    running = ClusterCommands.start_cluster(monkeypatch)
    yield running
    running.close()
