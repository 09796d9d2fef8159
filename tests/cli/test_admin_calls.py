"""The questions of commands that change something later are reported as questions."""

from __future__ import annotations

import pytest
from raftmq.client.admin.admin import Admin
from raftmq.client.dead_letters.topic import DeadLetterTopic
from raftmq.client.queue.queue import Queue
from raftmq.errors import BrokenConnectionError

from tests.support.cli.queue_commands import QueueCommands, assert_refused


@pytest.mark.parametrize(
    ("owner", "method", "arguments"),
    [
        (Admin, "describe_topic", ("topic", "delete", "log")),
        (Admin, "describe_topic", ("topic", "delete-records", "log", "--all")),
        (Admin, "describe_group", ("group", "delete", "audit")),
        (Admin, "reset_group_offsets", ("group", "reset-offsets", "audit", "--to-earliest")),
        (Admin, "reset_group_offsets", ("group", "reset-offsets", "audit", "--to-earliest", "--dry-run", "--yes")),
        (Admin, "forget_producer_names", ("cluster", "forget-names", "--yes")),
        (Admin, "describe_cluster", ("cluster", "raise-level")),
        (Queue, "stats", ("queue", "purge", "jobs", "--yes")),
        (Queue, "clocks", ("queue", "clock", "jobs", "--step", "--yes")),
        (Queue, "jobs", ("queue", "jobs", "jobs")),
        (DeadLetterTopic, "count", ("dlq", "redrive", "log", "--yes")),
        (DeadLetterTopic, "count", ("dlq", "purge", "log", "--yes")),
    ],
)
def test_an_unanswered_question_before_a_change_does_not_count_as_a_change(
    jobs: QueueCommands, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, arguments: tuple[str, ...]
) -> None:
    async def break_off(*_arguments: object, **_options: object) -> None:
        raise BrokenConnectionError("the connection broke")

    jobs.cluster.create_topic("log")
    monkeypatch.setattr(owner, method, break_off)
    assert_refused(jobs.run(*arguments), 3, "the connection broke\n")
