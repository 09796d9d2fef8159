"""A broker tells systemd its state, on a real socket of its kind."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq.broker.service_manager import ServiceManager


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(20)
        yield bound


def environment(listener: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(listener.getsockname()), **more}


def manager_of(environment: dict[str, str]) -> ServiceManager:
    return ServiceManager(environment, os.getpid())


async def received(listener: socket.socket) -> str:
    return (await asyncio.to_thread(listener.recv, 4096)).decode()


async def test_readiness_and_the_stop_are_reported(listener: socket.socket) -> None:
    manager = manager_of(environment(listener))
    manager.ready("serves")
    manager.stopping()
    assert await received(listener) == "READY=1\nSTATUS=serves"
    assert (await received(listener)).startswith("STOPPING=1\n")
    assert manager.ping_seconds == 0


async def test_the_running_loop_is_reported_until_the_end(listener: socket.socket) -> None:
    manager = manager_of(environment(listener, WATCHDOG_USEC="30000", WATCHDOG_PID=str(os.getpid())))
    assert manager.ping_seconds == pytest.approx(0.01)
    manager.ready("serves")
    manager.stopping()
    await received(listener)
    assert {await received(listener) for _ in range(4)} == {
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=handing over leaderships and stopping",
    }
    manager.close()
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            listener.recv(4096)
    await asyncio.sleep(0.05)
    with pytest.raises(BlockingIOError):
        listener.recv(4096)


@pytest.mark.parametrize("more", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": ""}], ids=str)
def test_a_watchdog_of_another_process_or_without_a_time_gets_no_pings(
    listener: socket.socket, more: dict[str, str]
) -> None:
    assert manager_of(environment(listener, **{"WATCHDOG_USEC": "30000"} | more)).ping_seconds == 0


async def test_an_abstract_socket_is_found_by_its_name() -> None:
    name = f"raftmq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.settimeout(20)
        manager_of({"NOTIFY_SOCKET": f"@{name}"}).stopping()
        assert (await received(listener)).startswith("STOPPING=1\n")


def test_without_systemd_or_with_one_that_is_gone_the_broker_goes_on(tmp_path: Path) -> None:
    manager_of({"WATCHDOG_USEC": "30000"}).stopping()
    manager_of({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).stopping()
