"""Leaderships return to preferred leaders, but not while the groups of a lost broker elect theirs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.cluster.leader_placement import LeaderPlacement
from raftmq.fsm.metadata_nodes import ACTIVE, DRAINING
from raftmq.raft.ready import Role

HERE, PREFERRED = 1, 2


class Site:
    """A node that leads a group whose preferred leader is elsewhere."""

    def __init__(self, state: str) -> None:
        self.offered: list[int] = []
        self.stability = SimpleNamespace(is_stable=lambda node_id: True, is_calm=True)
        core = SimpleNamespace(role=Role.LEADER, membership=SimpleNamespace(is_joint=False))
        replica = SimpleNamespace(group_id=7, core=core, is_leader=True, node_of=int)
        host = SimpleNamespace(
            node_id=HERE,
            limits=Limits(),
            timing=Timing(),
            loop=asyncio.get_running_loop(),
            stability=self.stability,
            replication=SimpleNamespace(in_sync=lambda replica: {PREFERRED}),
            metadata=SimpleNamespace(is_leader=False),
            topology_version=lambda: 1,
            partition_replicas=lambda: [replica],
            is_clock_right=lambda node_id: True,
            transfer_leadership=lambda replica, target: self.offered.append(target),
        )
        partition = SimpleNamespace(
            replicas=[SimpleNamespace(replica_id=PREFERRED, node_id=PREFERRED)], is_unsettled=False
        )
        self.metadata = SimpleNamespace(
            node=lambda node_id: SimpleNamespace(state=state if node_id == HERE else ACTIVE),
            partition=lambda group_id: partition,
            balancing=SimpleNamespace(may_move_leaders=True),
        )
        self._placement = LeaderPlacement(host, SimpleNamespace(is_ready=self._is_ready))

    async def _is_ready(self, node_id: int) -> bool:
        return True

    async def offers(self) -> list[int]:
        self.offered.clear()
        await self._placement.round(self.metadata)
        return list(self.offered)


async def test_a_preferred_leader_waits_until_the_cluster_is_calm():
    site = Site(ACTIVE)
    site.stability.is_calm = False
    assert await site.offers() == []
    site.stability.is_calm = True
    assert await site.offers() == [PREFERRED]


@pytest.mark.parametrize("is_calm", [True, False])
async def test_a_draining_broker_hands_over_in_any_case(is_calm):
    site = Site(DRAINING)
    site.stability.is_calm = is_calm
    assert await site.offers() == [PREFERRED]
