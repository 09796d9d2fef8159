"""The chart's question before an upgrade: fewer pods are refused while a broker above their number belongs to the cluster."""

from __future__ import annotations

import asyncio
import importlib.util
from types import ModuleType

import pytest
from raftmq.errors import UnreachableError

from tests.support.helm.render import CHART

SERVERS = "raftmq-1:9400,raftmq-2:9400,raftmq-3:9400"


def program() -> ModuleType:
    found = importlib.util.spec_from_file_location("scale_down", CHART / "files/scale_down.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load the program, for a cluster of the brokers 1 to 4 in whose network no name exists."""
    module = program()

    async def members(bootstrap_servers: str) -> list[int]:
        assert bootstrap_servers == SERVERS
        return [1, 2, 3, 4]

    monkeypatch.setattr(module, "members", members)
    monkeypatch.setattr(module, "resolves", lambda name: False)
    return module


def unreachable(monkeypatch: pytest.MonkeyPatch, guard: ModuleType) -> None:
    async def members(bootstrap_servers: str) -> list[int]:
        raise UnreachableError("no broker answers")

    monkeypatch.setattr(guard, "members", members)


def test_as_many_pods_as_brokers_are_permitted(guard: ModuleType) -> None:
    assert guard.refusal(4, "raftmq-5", SERVERS) == ""
    assert guard.refusal(5, "raftmq-6", SERVERS) == ""


def test_fewer_pods_than_brokers_are_refused_with_the_commands(guard: ModuleType) -> None:
    sentence = guard.refusal(2, "raftmq-3", SERVERS)
    assert sentence.startswith("replicas=2 would stop brokers 3, 4 of the cluster. First run: raftmq cluster drain 3; ")
    assert sentence.endswith("; raftmq cluster remove 4")


def test_a_cluster_that_does_not_answer_can_be_upgraded(guard: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable(monkeypatch, guard)
    assert guard.refusal(3, "raftmq-4", SERVERS) == ""


def test_without_an_answer_no_existing_pod_is_stopped(guard: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable(monkeypatch, guard)
    monkeypatch.setattr(guard, "resolves", lambda name: name == "raftmq-4")
    assert guard.refusal(3, "raftmq-4", SERVERS).startswith("raftmq-4 exists, and no remaining broker says")


def test_a_cluster_that_hangs_counts_as_one_that_does_not_answer(
    guard: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def members(bootstrap_servers: str) -> list[int]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(guard, "members", members)
    assert guard.refusal(3, "raftmq-4", SERVERS, seconds=0.01) == ""


def test_a_name_without_an_address_does_not_resolve() -> None:
    assert program().resolves("localhost")
    assert not program().resolves("raftmq-4.invalid")
