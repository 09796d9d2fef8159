"""An operator gives orders under load and under other faults. In the end each is carried out, or was refused in words."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from raftmq.client.admin.descriptions import (
    BrokerDescription,
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
)
from raftmq.client.admin.move_descriptions import BalancingSettings, MovesDescription, PartitionMove
from raftmq.errors import InternalError, InvalidReplicationFactorError, NoLeaderError, RequestTimedOutError

from tests.chaos.cluster import SPARE_BROKERS, ChaosCluster, best_links
from tests.chaos.faults import FAULTS
from tests.chaos.machine import missing_for_families, missing_for_shim, missing_for_volumes
from tests.chaos.nemesis import ORDERS, schedule
from tests.chaos.operator import Operator, OrderError
from tests.chaos.run import chaos_run

SEED = 4
BROKERS = 4
SECONDS = 40.0

BROKER = BrokerDescription(1, "h:1", "h", "", "1", "active", "h:3", "h:2", True, True, 1, 1, 6)
SETTLED = MovesDescription(BalancingSettings(True, 8, 0), (), 0, 0, 0, (), 9)


def partition(number: int, *brokers: int) -> PartitionDescription:
    return PartitionDescription(
        partition=number,
        group_id=number + 1,
        leader_broker_id=brokers[0],
        leader_epoch=1,
        replica_brokers=brokers,
    )


class FakeAdmin:
    """Answers with given descriptions, and keeps the orders."""

    def __init__(self, *brokers: BrokerDescription, factor: int = 2, moves: MovesDescription = SETTLED) -> None:
        self.cluster = ClusterDescription("c", 1, 1, 1, 9, brokers, 1, 1, 0, 6, 6)
        self.topic = TopicDescription("t", 1, "log", factor, {}, (partition(0, 1, 2),))
        self.moves = moves
        self.orders: list[str] = []
        self.refusal: Exception | None = None

    def describe_cluster(self) -> ClusterDescription:
        return self.cluster

    def describe_topic(self, name: str) -> TopicDescription:
        return self.topic

    def describe_moves(self) -> MovesDescription:
        return self.moves

    def __getattr__(self, name: str) -> Any:
        def order(*arguments: object) -> None:
            self.orders.append(f"{name} {arguments}")
            if self.refusal is not None:
                raise self.refusal

        return order


def operator_of(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> Operator:
    cluster: Any = None  # the fake needs none
    operator = Operator(cluster, "t", threading.Event())
    operator.has_ordered = True
    monkeypatch.setattr(operator, "_admin", lambda: nullcontext(admin))
    return operator


def test_an_operator_finds_the_orders_that_are_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    full = replace(BROKER, state="draining")
    moving = replace(SETTLED, moves=(PartitionMove("t", 0, (1,), (2,), "drain"),), waiting_count=2)
    operator = operator_of(FakeAdmin(full, moves=moving), monkeypatch)
    operator.drained, operator.factor, operator.partitions = {1}, 3, 4
    problem = operator.what_is_not_settled()
    assert "drained broker 1 is draining and has 1 replicas, 1 leaderships and a vote" in problem
    assert "1 partitions instead of 4" in problem
    assert "the replication factor is 2 instead of 3" in problem
    assert "partition 0 has replicas on (1, 2), not 3" in problem
    assert "partition 0 of t moves to (2,)" in problem
    assert "2 moves wait" in problem


def test_a_settled_cluster_has_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = replace(BROKER, state="draining", replica_count=0, leader_count=0, is_metadata_voter=False)
    operator = operator_of(FakeAdmin(empty, replace(BROKER, broker_id=2)), monkeypatch)
    operator.drained, operator.factor, operator.partitions = {1}, 2, 1
    assert operator.what_is_not_settled() == ""


def test_an_order_whose_answer_was_lost_is_repeated_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = FakeAdmin(BROKER, replace(BROKER, broker_id=2, state="draining"))
    operator = operator_of(admin, monkeypatch)
    operator.drained, operator.factor = {1}, 3
    operator.what_is_not_settled()
    assert admin.orders == ["drain_broker (1,)", "undrain_broker (2,)", "set_replication_factor ('t', 3)"]


def test_a_refused_wish_is_none_and_an_internal_error_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = FakeAdmin(BROKER)
    operator = operator_of(admin, monkeypatch)
    admin.refusal = InvalidReplicationFactorError("too many")
    assert str(operator.set_factor(5)) == "refused: too many"
    assert operator.factor == 0
    admin.refusal = InternalError("a defect")
    with pytest.raises(OrderError, match="a defect"):
        operator.drain(1)


@pytest.mark.parametrize("error", [RequestTimedOutError("late"), NoLeaderError("an election")])
def test_an_order_without_an_answer_is_repeated_and_stays_wished(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = FakeAdmin(BROKER)
    operator = operator_of(admin, monkeypatch)
    monkeypatch.setattr("tests.chaos.operator.ORDER_SECONDS", 0.0)
    admin.refusal = error
    assert operator.give("drain", lambda one: one.drain_broker(1), seconds=0.0).outcome == "unanswered"
    admin.refusal = None
    assert operator.drain(1).outcome == "accepted"
    assert operator.drained == {1}


def test_orders_may_overlap_with_each_other_but_not_with_themselves() -> None:
    steps = schedule(1, [ORDERS], 400)
    overlaps = [step for step in steps if step.background]
    assert overlaps
    assert all(step.background != step.name and FAULTS[step.background].is_light for step in overlaps)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("others", [(), ("kill", "freeze"), ("links", "power", "wipe")], ids="+".join)
async def test_orders_are_carried_out_under_load(others: tuple[str, ...], tmp_path: Path) -> None:
    missing = missing_for_families()
    families = [ORDERS, *(family for family in others if not missing.get(family))]
    async with ChaosCluster(
        BROKERS,
        spare=SPARE_BROKERS,
        links=best_links,
        has_disk_orders=missing_for_shim() is None,
        has_volumes=missing_for_volumes() is None,
    ) as cluster:
        report = await chaos_run(cluster, SEED, families, SECONDS, tmp_path)
        assert not report.findings, report.text()
        assert report.faults
        assert report.read
