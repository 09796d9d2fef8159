"""An older copy of a data directory, or a directory used twice, takes no part, because it lacks acknowledged records."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

import msgspec
import pytest
from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.node import Node
from raftmq.fsm.node_lineage import Lineage
from raftmq.storage.errors import RegistryError
from raftmq.storage.registry import Registry

from tests.support.broker.whole_nodes import NOBODY, WAIT_SECONDS, Nodes, config, three_voters, until


def copied(nodes: Nodes, name: str, new: str) -> Path:
    """Copy a data directory."""
    target = nodes.directory / new
    shutil.copytree(nodes.directory / name, target, ignore=shutil.ignore_patterns("lock", "*-lock"))
    return target


async def three(nodes: Nodes) -> list[Node]:
    one = await nodes.serve("one", bootstrap=True)
    others = [await nodes.serve(name, join=[one.addresses.peer]) for name in ("two", "three")]
    await three_voters(one)
    return [one, *others]


async def has_met(node: Node, other: Node) -> None:
    """Wait until the node has stored the other one's present boot on disk."""
    async with asyncio.timeout(WAIT_SECONDS):
        while node.registry.known_boots().get(other.registry.uuid, (0, b""))[0] != other.registry.boot:
            await asyncio.sleep(0.01)


async def stopped(nodes: Nodes, node: Node, *others: Node) -> None:
    """Stop a node, and wait until the other ones know."""
    await nodes.stop(node)
    async with asyncio.timeout(WAIT_SECONDS):
        while any(other.view.is_connected(node.view.node_id) for other in others):
            await asyncio.sleep(0.01)


async def restored(nodes: Nodes) -> tuple[Node, Node, Node, Node]:
    """Start three nodes, and in place of the second a copy of its directory from one boot ago. Return (copy, the others...)."""
    one, two, third = await three(nodes)
    await nodes.stop(two)
    copied(nodes, "two", "backup")
    two = await nodes.serve("two")
    for node in (one, third):
        await has_met(node, two)
    await nodes.stop(two)
    shutil.rmtree(nodes.directory / "two")
    (nodes.directory / "backup").rename(nodes.directory / "two")
    return nodes.begin("two"), two, one, third


async def test_an_older_copy_is_refused_and_silent(nodes):
    """With a broker that lags, a copy would be a majority without the latest records."""
    copy, original, one, third = await restored(nodes)
    assert copy.registry.boot == original.registry.boot  # as if it had been restarted once
    (why,) = await until(copy, Reason.STALE_DIRECTORY)
    said = " ".join((*one.standing.warnings(), *third.standing.warnings()))
    assert (
        f"broker {original.view.node_id} is not connected, and a process at {copy.addresses.peer} was refused" in said
    )
    assert "--broker-id" in why.message
    assert copy.engine.replicas == {}
    assert copy.transport.connections() == {}
    async with asyncio.timeout(WAIT_SECONDS):
        while not copy.registry.refusal:
            await asyncio.sleep(0.01)


async def test_a_refused_directory_is_not_started_again(nodes):
    """Each start would count a boot, so after some of them the copy would be the newest of all."""
    copy, original, _, _ = await restored(nodes)
    await until(copy, Reason.STALE_DIRECTORY)
    await nodes.stop(copy)
    for _ in range(2):
        with pytest.raises(RegistryError, match="refuses this data directory permanently"):
            Node(config(copy.config.data_dir), "0.test")
    registry = Registry(copy.config.data_dir / "node.mdb")
    assert registry.boot > original.registry.boot
    registry.close(is_clean=True)


async def test_a_peer_that_was_restarted_still_knows_the_newer_boot(nodes):
    """It is down while the copy is put in place. Its knowledge must be on its disk, because its metadata is behind, too."""
    one, two, third = await three(nodes)
    await nodes.stop(two)
    copied(nodes, "two", "backup")
    two = await nodes.serve("two")
    await has_met(third, two)
    for node in (third, two, one):
        await nodes.stop(node)
    shutil.rmtree(nodes.directory / "two")
    (nodes.directory / "backup").rename(nodes.directory / "two")
    third = nodes.begin("three")
    copy = nodes.begin("two")
    await until(copy, Reason.STALE_DIRECTORY)
    assert two.registry.uuid in third.registry.known_boots()


async def three_and_a_clone(nodes):
    """Return three nodes. The second began again after its directory was copied to "clone", and the others have met it since."""
    one, two, third = await three(nodes)
    await nodes.stop(two)
    copied(nodes, "two", "clone")
    two = await nodes.serve("two")
    for node in (one, third):
        await has_met(node, two)
    return one, two, third


async def test_a_second_process_of_a_directory_is_refused_and_the_first_goes_on(nodes):
    """Two brokers with one identity would vote twice. The copy has the same boot number, but another mark."""
    _, two, _ = await three_and_a_clone(nodes)
    clone = nodes.begin("clone")
    await until(clone, Reason.STALE_DIRECTORY)
    assert clone.registry.boot == two.registry.boot
    await until(two)


async def test_a_refused_copy_is_no_warning_once_the_newest_directory_was_connected(nodes):
    """Whenever the broker was stopped afterwards, the others said again that its directory had been refused."""
    one, two, third = await three_and_a_clone(nodes)
    await stopped(nodes, two, one, third)
    clone = nodes.begin("clone")
    await until(clone, Reason.STALE_DIRECTORY)
    await nodes.stop(clone)
    assert "was refused" in " ".join((*one.standing.warnings(), *third.standing.warnings()))
    two = await nodes.serve("two")
    async with asyncio.timeout(WAIT_SECONDS):
        while not (one.view.is_connected(two.view.node_id) and third.view.is_connected(two.view.node_id)):
            await asyncio.sleep(0.01)
    await stopped(nodes, two, one)
    assert "was refused" not in " ".join((*one.standing.warnings(), *third.standing.warnings()))


async def test_a_copy_that_was_refused_while_its_original_ran_says_nothing_about_the_original_when_that_stops(nodes):
    """The advice was to start the healthy broker on an empty directory."""
    one, two, third = await three_and_a_clone(nodes)
    async with asyncio.timeout(WAIT_SECONDS):
        while not (one.view.is_connected(two.view.node_id) and third.view.is_connected(two.view.node_id)):
            await asyncio.sleep(0.01)
    clone = nodes.begin("clone")
    await until(clone, Reason.STALE_DIRECTORY)
    await nodes.stop(clone)
    await stopped(nodes, two, one, third)
    assert [*one.standing.warnings(), *third.standing.warnings()] == []


async def test_a_node_stops_that_sees_a_later_boot_of_itself_in_metadata(nodes):
    """No peer needs to have met the later boot: the entries that the node applies are committed."""
    one = await nodes.serve("one", bootstrap=True)
    await nodes.serve("two", join=[one.addresses.peer])
    mine = Lineage(one.registry.boot, one.registry.boot_marks)
    later = mine.followed_by(b"next")
    registration = one._bootstrap.seeds.registration()
    with contextlib.suppress(RequestError):  # it becomes silent before it can receive the answer
        await one._metadata.propose(msgspec.structs.replace(registration, boot=later.boot, lineage=later.marks))
    (why,) = await until(one, Reason.STALE_DIRECTORY)
    assert "metadata knows a later process" in why.message


async def test_restarts_and_failed_starts_raise_no_alarm(nodes):
    """Each start counts a boot, even one that ends before any peer hears of it."""
    one = await nodes.serve("one", bootstrap=True)
    two = await nodes.serve("two", join=[one.addresses.peer])
    for _ in range(2):
        await nodes.stop(two)
        for _ in range(3):
            registry = Registry(nodes.directory / "two" / "node.mdb")
            registry.close(is_clean=False)
        two = await nodes.serve("two")
        await until(two)
        await has_met(one, two)


async def test_a_new_disk_takes_the_place_of_a_refused_directory(nodes):
    """The refusal recommends this remedy."""
    copy, original, one, _ = await restored(nodes)
    await until(copy, Reason.STALE_DIRECTORY)
    await nodes.stop(copy)
    async with asyncio.timeout(WAIT_SECONDS):
        while one.view.is_connected(original.view.node_id):
            await asyncio.sleep(0.01)
    replaced = await nodes.serve("new", join=[one.addresses.peer, NOBODY], broker_id=int(original.view.node_id))
    assert replaced.view.node_id == original.view.node_id
    await until(replaced)


async def test_a_lone_broker_goes_on_with_an_older_registry(nodes):
    """No other broker can have told its metadata of the later boot. So node.mdb is older than the replicas beside it, not the directory."""
    one = await nodes.serve("one", bootstrap=True)
    await nodes.stop(one)
    file = one.config.data_dir / "node.mdb"
    older = file.read_bytes()
    one = await nodes.serve("one")
    later = one.registry.boot
    async with asyncio.timeout(WAIT_SECONDS):
        while one.view.metadata.state_machine.nodes()[0].boot != later:
            await asyncio.sleep(0.01)
    await nodes.stop(one)
    file.write_bytes(older)
    for _ in range(2):
        one = await nodes.serve("one")
        await until(one)
        assert one.registry.boot > later
        await nodes.stop(one)
