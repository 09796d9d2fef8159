"""A broker's ports can be reached at the addresses at which gRPC's can."""

from __future__ import annotations

import asyncio
import socket

import pytest
from raftmq.broker.base.listening import listen

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


async def is_served(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


@needs_ipv6
@pytest.mark.parametrize("host", ["::", "0.0.0.0"])
async def test_a_wildcard_means_both_families(host):
    """A loop's own listener at ``::`` refused IPv4, so clients of a name with an IPv4 address used gRPC only."""
    server, port = await listen(asyncio.get_running_loop(), asyncio.Protocol, host, 0, 10)
    assert await is_served("127.0.0.1", port)
    assert await is_served("::1", port)
    server.close()
    await server.wait_closed()
    assert not await is_served("127.0.0.1", port)


async def test_an_address_means_itself_alone():
    server, port = await listen(asyncio.get_running_loop(), asyncio.Protocol, "127.0.0.1", 0, 10)
    assert await is_served("127.0.0.1", port)
    assert not await is_served("127.0.0.2", port)
    server.close()


class _Names(asyncio.SelectorEventLoop):
    """A loop for which the name ``broker`` has two addresses."""

    async def getaddrinfo(self, host, port, **_):
        hosts = ["127.0.0.1", "127.0.0.2"] if host == "broker" else [host]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in hosts]


def test_all_addresses_of_a_name_have_one_port():
    """Each got a free port of its own, and the one of the first address was advertised."""

    async def listen_at_a_name() -> None:
        server, port = await listen(asyncio.get_running_loop(), asyncio.Protocol, "broker", 0, 10)
        assert port
        for host in ("127.0.0.1", "127.0.0.2"):
            assert await is_served(host, port)
        server.close()

    with asyncio.Runner(loop_factory=_Names) as runner:
        runner.run(listen_at_a_name())


async def test_a_port_in_use_is_an_os_error():
    loop = asyncio.get_running_loop()
    for host in ("127.0.0.1", "::") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
        server, port = await listen(loop, asyncio.Protocol, host, 0, 10)
        with pytest.raises(OSError, match="in use"):
            await listen(loop, asyncio.Protocol, host, port, 10)
        server.close()
