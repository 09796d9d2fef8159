"""Real engines in real time survive links that lose one direction, and wall clocks that jump."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import NoReturn

import pytest
from raftmq.broker.base.clock import WallClock
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Work
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import Proposal
from raftmq.raft.ready import Appended

from tests.support.broker.engine_cluster import TIMING, EngineCluster, data, next_progress

SLOW = dataclasses.replace(TIMING, data_tick_seconds=0.1)
"""Elections after 1-2 s of silence, so that a short stall of a busy machine does not look like the fault under test."""
ELECTION_SECONDS = SLOW.data_tick_seconds * SLOW.data_election_ticks
HOUR_MS = 3_600_000


async def write_for(cluster: EngineCluster, group_id: int, seconds: float, among: tuple[int, ...]) -> int:
    """Write proposals one after another to the present leader. Return the number of committed ones."""
    deadline = cluster.loop.time() + seconds
    committed = 0
    while cluster.loop.time() < deadline:
        leader = await cluster.leader(group_id, among=among)
        try:
            await asyncio.wait_for(leader.propose([data(committed)])[1], ELECTION_SECONDS)
        except (Exception, TimeoutError):  # noqa: BLE001 -- leadership moved: ask the next leader
            continue
        committed += 1
    return committed


@pytest.mark.parametrize("direction", ["from the leader", "to the leader"])
@pytest.mark.long
async def test_a_one_way_link_costs_at_most_one_election_and_no_terms(direction: str) -> None:
    """Pre-vote with stickiness, and check-quorum: the cut-off follower may ask, but no voter that hears a leader grants a vote."""
    async with EngineCluster(timing=SLOW) as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        await leader.propose([data(0)])[1]
        term, led_by = leader.term, leader.replica_id
        cut_off = next(n for n in (1, 2, 3) if n != led_by)
        cluster.cuts.add((led_by, cut_off) if direction == "from the leader" else (cut_off, led_by))
        others = tuple(n for n in (1, 2, 3) if n != cut_off)
        assert await write_for(cluster, 7, 4 * ELECTION_SECONDS, others) > 0
        terms = [cluster.replica(7, n).term for n in (1, 2, 3)]
        assert max(terms) <= term + 1
        cluster.heal()
        assert await write_for(cluster, 7, ELECTION_SECONDS, (1, 2, 3)) > 0
        leader = await cluster.leader(7)
        follower = cluster.replica(7, cut_off)
        while follower.state_machine.next_offset < leader.state_machine.next_offset:
            await next_progress([follower])
        assert max(cluster.replica(7, n).term for n in (1, 2, 3)) <= term + 2


async def test_a_leader_that_hears_no_peer_steps_down_and_an_unheard_one_is_replaced() -> None:
    async with EngineCluster(timing=SLOW) as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        await leader.propose([data(0)])[1]
        term, led_by = leader.term, leader.replica_id
        others = tuple(n for n in (1, 2, 3) if n != led_by)
        cluster.cuts |= {(other, led_by) for other in others}
        while leader.is_leader:
            await next_progress([leader])
        successor = await cluster.leader(7, among=others)
        assert successor.term == term + 1
        cluster.heal()
        await successor.propose([data(1)])[1]
        while leader.state_machine.next_offset < successor.state_machine.next_offset:
            await next_progress([leader])
        assert leader.term == successor.term == term + 1


class JumpingClock(WallClock):
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.jump_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.jump_ms


async def proposed(leader: Replica[StateMachine], proposal: Proposal) -> tuple[Appended, asyncio.Future[list[object]]]:
    """Propose repeatedly, as a client does: a node whose clock leaps accepts nothing until another node has sent its time."""
    while True:
        try:
            return leader.propose([proposal])
        except RequestError as error:
            if error.code != pb.NOT_READY:
                raise
            await asyncio.sleep(0.001)


@pytest.mark.long
async def test_a_clock_that_jumps_by_an_hour_moves_no_leader_and_times_never_decrease() -> None:
    clock = JumpingClock()
    async with EngineCluster(clock=clock, timing=SLOW) as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        term = leader.term
        times = []
        for jump in (0, HOUR_MS, -HOUR_MS, 5 * HOUR_MS, 0):
            clock.jump_ms = jump
            for number in range(5):
                appended, applied = await proposed(leader, data(number))
                await applied
                times += [entry.append_time_ms for entry in appended.entries]
            if clock.jump_ms:
                await write_for(cluster, 7, 2 * ELECTION_SECONDS, (1, 2, 3))
        assert times == sorted(times)
        assert times[-1] - times[0] >= 5 * HOUR_MS, "forward jumps are followed, and backward ones are waited out"
        assert leader.is_leader
        assert {cluster.replica(7, n).term for n in (1, 2, 3)} == {term}


def raises(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise error

    return fail


async def test_a_defect_in_the_treatment_of_a_broken_replica_does_not_affect_other_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended the pass. Cores do not hand out their work again, so the groups behind it stood until their next election."""
    async with EngineCluster(size=1) as cluster:
        cluster.create_group(7, (1,))
        cluster.create_group(8, (1,))
        broken, healthy = await cluster.leader(7), await cluster.leader(8)
        node, defect = cluster.nodes[1], KeyError("a defect of the node")
        take = node.engine._take_ready
        failures: list[tuple[Work, BaseException]] = []
        monkeypatch.setattr(node, "record_failure", lambda *failure: failures.append(failure), raising=False)
        monkeypatch.setattr(node, "on_replica_broken", raises(defect))
        monkeypatch.setattr(
            node.engine, "_take_ready", lambda one: raises(ValueError())() if one is broken else take(one)
        )
        node.engine.mark_dirty(broken)
        await asyncio.wait_for(healthy.propose([data(0)])[1], 5)
        assert broken.is_closed
        assert failures == [(Work.ENGINE, defect)]
