"""Fake brokers with a queue topic, for tests of commands."""

from collections.abc import Iterator

import pytest

from tests.support.cli.queue_commands import QueueCommands


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueCommands]:
    """Run fake brokers with the topic ``jobs`` of one partition."""
    commands = QueueCommands.start(monkeypatch)
    yield commands
    commands.close()


@pytest.fixture
def wide_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueCommands]:
    """Run fake brokers with the topic ``jobs`` of three partitions."""
    commands = QueueCommands.start(monkeypatch, partitions=3)
    yield commands
    commands.close()
