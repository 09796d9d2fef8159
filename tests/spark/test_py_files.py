"""The guide to clusters: a program brings RaftMQ along as one zip file, to machines that have only the packages that it needs."""

from __future__ import annotations

from types import SimpleNamespace

from raftmq.spark import register
from raftmq.spark.source import RaftMQDataSource


def test_register_gives_the_session_the_data_source() -> None:
    registered: list[object] = []
    session = SimpleNamespace(dataSource=SimpleNamespace(register=registered.append))
    register(session)
    assert registered == [RaftMQDataSource]
