"""Boots of other nodes are on disk before any message is exchanged with them, even if a caller gives up waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace

from raftmq.broker.base.limits import Limits
from raftmq.broker.cluster.peer_boots import PeerBoots
from raftmq.broker.peers.codec import WIRE_VERSION
from raftmq.broker.peers.protocol import Channel, Hello
from raftmq.storage.registry import Registry


def hello(uuid: str = "uuid-2") -> Hello:
    return Hello(WIRE_VERSION, "cluster", 2, uuid, 1, Channel.CONTROL, 1, "", b"0001")


async def test_an_abandoned_connection_does_not_prevent_the_write_of_its_boot(tmp_path: Path) -> None:
    registry, threads, may_go_on = Registry(tmp_path / "node.mdb"), ThreadPoolExecutor(1), Event()
    boots = PeerBoots(registry, SimpleNamespace(replica=None), threads.submit, Limits())
    threads.submit(may_go_on.wait)  # the disk is slow: the write has not begun
    try:
        waiting = boots.remember(hello())
        assert waiting is not None
        waiting.cancel()  # as the time to connect does, which is over
        await asyncio.sleep(0)
        again = boots.remember(hello())
        assert again is not None, "the boot is not on disk yet"
        may_go_on.set()
        await again
        assert registry.known_boots() == {"uuid-2": (1, b"0001")}
        assert boots.remember(hello()) is None
    finally:
        may_go_on.set()
        threads.shutdown()
        registry.close(is_clean=True)


async def test_a_boot_whose_write_failed_is_written_again(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "node.mdb")
    failures: list[Exception] = [OSError("no descriptors")]

    def write(function: Callable[..., object], *arguments: object) -> Future[object]:
        done: Future[object] = Future()
        if failures:
            done.set_exception(failures.pop())
        else:
            done.set_result(function(*arguments))
        return done

    boots = PeerBoots(registry, SimpleNamespace(replica=None), write, Limits())
    first = boots.remember(hello())
    assert first is not None
    await asyncio.wait([first])
    assert isinstance(first.exception(), OSError)
    second = boots.remember(hello())
    assert second is not None
    await second
    assert registry.known_boots() == {"uuid-2": (1, b"0001")}
    registry.close(is_clean=True)


async def test_remembered_boots_of_strangers_are_bounded(tmp_path: Path) -> None:
    registry, threads = Registry(tmp_path / "node.mdb"), ThreadPoolExecutor(1)
    limits = Limits(known_boots_max=3)
    boots = PeerBoots(registry, SimpleNamespace(replica=None), threads.submit, limits)
    for number in range(10):
        remembered = boots.remember(hello(f"stranger-{number}"))
        assert remembered is not None
        await remembered
    assert len(registry.known_boots()) == len(boots._known) == 3
    assert len(boots._under_way) <= 3
    threads.shutdown()
    registry.close(is_clean=True)
