"""A running broker renews the mark of its directory, so that a copy that is not from the latest moments is refused."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster import bootstrap
from raftmq.broker.environment import NodeEnvironment
from raftmq.broker.node import Node
from raftmq.broker.peers.protocol import Channel
from raftmq.fsm.feature_levels import MARK_RENEWAL_LEVEL
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.registry import Registry

from tests.support.broker.whole_nodes import WAIT_SECONDS, Nodes, three_voters, until

NAMES = ("one", "two", "three")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RETRY_SECONDS_MAX", 0.05)


async def three(nodes: Nodes) -> list[Node]:
    one = await nodes.serve("one", bootstrap=True)
    others = [await nodes.serve(name, join=[one.addresses.peer]) for name in NAMES[1:]]
    await three_voters(one)
    return [one, *others]


def copy(nodes: Nodes, name: str, new: str) -> Path:
    """Copy the directory of a broker that runs, as a snapshot of its disk does."""
    (running,) = (node for node in nodes.running() if node.config.data_dir.name == name)
    target = nodes.directory / new
    with running.registry._changing:
        shutil.copytree(nodes.directory / name, target, ignore=shutil.ignore_patterns("lock", "*-lock"))
    return target


def restore(nodes: Nodes, name: str, backup: Path) -> None:
    """Put a copy in the place of the directory of a broker that is stopped."""
    shutil.rmtree(nodes.directory / name)
    backup.rename(nodes.directory / name)


def registered_boot(of: Node, by: Node) -> int:
    return by.view.metadata.state_machine.node(of.view.node_id).boot


async def renew(node: Node, *witnesses: Node) -> None:
    """Let the node renew its mark, and wait until it is registered and the others have it on disk."""
    await node._bootstrap._renew_mark()
    async with asyncio.timeout(WAIT_SECONDS):
        while registered_boot(node, node) != node.registry.boot or any(
            other.registry.known_boots()[node.registry.uuid][0] != node.registry.boot for other in witnesses
        ):
            await asyncio.sleep(0.01)


async def test_a_copy_whose_original_renewed_its_mark_is_refused_although_the_original_was_never_restarted(nodes):
    one, two, third = await three(nodes)
    backup = copy(nodes, "two", "backup")
    await renew(two, one, third)
    await nodes.stop(two)
    restore(nodes, "two", backup)
    copied = nodes.begin("two")
    (why,) = await until(copied, Reason.STALE_DIRECTORY)
    assert "--broker-id" in why.message


async def test_a_peer_that_was_restarted_still_knows_the_renewed_mark(nodes):
    """Its metadata may be behind after the restart, and no greeting brought the mark: it is on its disk."""
    one, two, third = await three(nodes)
    backup = copy(nodes, "two", "backup")
    await renew(two, one, third)
    for node in (third, two, one):
        await nodes.stop(node)
    restore(nodes, "two", backup)
    third, copied = nodes.begin("three"), nodes.begin("two")
    await until(copied, Reason.STALE_DIRECTORY)
    assert third.registry.known_boots()[two.registry.uuid][0] == two.registry.boot


async def test_a_copy_of_the_latest_moments_is_kept_out_and_refused_after_the_next_renewal(nodes):
    """Until then it looks like a restart, for which the original would have to stop first."""
    one, two, third = await three(nodes)
    copy(nodes, "two", "clone")
    clone = nodes.begin("clone")
    async with asyncio.timeout(WAIT_SECONDS):
        while "still connected as boot" not in " ".join(one.message for one in clone.standing.not_ready_reasons()):
            await asyncio.sleep(0.01)
    await renew(two, one, third)
    await until(clone, Reason.STALE_DIRECTORY)
    await until(two)


async def test_a_broker_that_ends_between_the_write_and_the_registration_of_a_mark_starts_again(nodes):
    one = await nodes.serve("one", bootstrap=True)
    two = await nodes.serve("two", join=[one.addresses.peer])
    await nodes.stop(two)
    registry = Registry(nodes.directory / "two" / "node.mdb")
    registry.renew_mark()
    registry.close(is_clean=False)
    two = await nodes.serve("two")
    await until(two)
    assert registered_boot(two, one) == two.registry.boot == registry.boot + 1


async def test_renewals_interrupt_nothing_and_go_on(nodes):
    """A renewed mark is neither another process nor a restart: no connection ends, and the broker stays stable."""
    settings: dict[str, object] = {"mark_renewal_seconds": 0.05, "stable_seconds": 0.01}
    one = await nodes.serve("one", bootstrap=True, **settings)
    two = await nodes.serve("two", join=[one.addresses.peer], **settings)
    process = one.view.process_of(two.view.node_id)
    before = two.registry.boot
    async with asyncio.timeout(WAIT_SECONDS):
        while registered_boot(two, one) < before + 5 or registered_boot(one, two) < 5:
            await asyncio.sleep(0.01)
    assert one.view.process_of(two.view.node_id) == process
    await until(one)
    await until(two)
    assert one.transport.evicted_total == two.transport.evicted_total == 0


async def test_a_broker_that_dies_after_a_renewal_is_not_taken_for_a_refused_copy(nodes):
    """Its connected peers still have the greeting from before the renewal, and look at it when the connections of others change."""
    one, two, third = await three(nodes)
    await renew(two, one, third)
    await nodes.stop(third)
    await nodes.stop(two)
    async with asyncio.timeout(WAIT_SECONDS):
        while one.view.is_connected(two.view.node_id):
            await asyncio.sleep(0.01)
    assert one.standing.warnings() == []


async def test_a_greeting_that_a_renewal_overtakes_is_not_taken_for_a_refused_copy(nodes):
    one, two, third = await three(nodes)
    late = two.transport.handler.hello(one.view.node_id, Channel.SNAPSHOT)  # built when its link began to connect
    await renew(two, one, third)
    async with asyncio.timeout(WAIT_SECONDS):
        while not one.view.is_connected(two.view.node_id):
            await asyncio.sleep(0.01)
    assert "stale data directory" in (one.transport.handler.refusal(late) or "")
    await nodes.stop(two)
    async with asyncio.timeout(WAIT_SECONDS):
        while one.view.is_connected(two.view.node_id):
            await asyncio.sleep(0.01)
    assert one.standing.warnings() == []


async def test_metadata_that_is_older_than_the_marks_accepts_them(nodes):
    """So it is after metadata was recovered from a replica that lagged."""
    one = await nodes.serve("one", bootstrap=True)
    await nodes.stop(one)
    (file,) = (nodes.directory / "one" / "groups").glob("*.mdb")
    older = file.read_bytes()
    one = await nodes.serve("one")
    for _ in range(3):
        await renew(one)
    await nodes.stop(one)
    file.write_bytes(older)
    again = await nodes.serve("one")
    await until(again)
    assert again.registry.boot == one.registry.boot + 1
    async with asyncio.timeout(WAIT_SECONDS):
        while registered_boot(again, again) != again.registry.boot:
            await asyncio.sleep(0.01)


@pytest.mark.long
async def test_all_directories_of_one_snapshot_start_together(nodes):
    """All brokers go back to one moment, and so does their knowledge of each other."""
    running = await three(nodes)
    backups = [copy(nodes, name, f"backup-{name}") for name in NAMES]
    for node in running:
        await renew(node, *(other for other in running if other is not node))
    for node in running:
        await nodes.stop(node)
    for name, backup in zip(NAMES, backups, strict=True):
        restore(nodes, name, backup)
    again = [nodes.begin(name) for name in NAMES]
    for node in again:
        await until(node)


@pytest.mark.long
async def test_without_a_metadata_leader_no_further_marks_are_drawn(nodes):
    """A broker that is cut off for days must not use up the lineage that proves its descent."""
    one, two, third = await three(nodes)
    await nodes.stop(two)
    two = await nodes.serve("two", mark_renewal_seconds=0.05)
    attempts, announce = list[int](), two._bootstrap._announce_once

    async def counted() -> None:
        attempts.append(two.registry.boot)
        await announce()

    two._bootstrap._announce_once = counted
    await nodes.stop(one)
    await nodes.stop(third)
    async with asyncio.timeout(WAIT_SECONDS):
        while not two._metadata.leaderless_seconds():
            await asyncio.sleep(0.01)
        del attempts[:]
        while len(attempts) < 5:
            await asyncio.sleep(0.01)
    assert two.registry.boot - registered_boot(two, two) <= 1
    waiting = two.registry.boot
    assert set(attempts) == {waiting}
    for name in ("one", "three"):
        nodes.begin(name)
    async with asyncio.timeout(WAIT_SECONDS):
        while registered_boot(two, two) <= waiting:
            await asyncio.sleep(0.01)


async def test_a_registration_whose_answer_is_lost_counts(nodes):
    one = await nodes.serve("one", bootstrap=True)
    two = await nodes.serve("two", join=[one.addresses.peer])
    calls, register = list[int](), two._bootstrap.seeds.register_once

    async def lost(*arguments: object) -> None:
        calls.append(two.registry.boot)
        await register(*arguments)
        raise RequestError(pb.REQUEST_TIMED_OUT, "planted")

    two._bootstrap.seeds.register_once = lost
    before = two.registry.boot
    await renew(two, one)
    await renew(two, one)
    assert set(calls) == {before + 1, before + 2}
    await until(two)


async def test_no_mark_is_renewed_before_every_broker_knows_what_that_is(nodes):
    class Older(NodeEnvironment):
        def feature_level(self) -> int:
            return MARK_RENEWAL_LEVEL - 1

    one = await nodes.serve("one", Older, bootstrap=True)
    await one._bootstrap._renew_mark()
    assert one.registry.boot == 1
