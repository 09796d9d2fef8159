"""The addresses of a local cluster's brokers, their storage, and the ports that are held for them."""

import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq.cluster_addresses import Addresses, HeldPorts, load_addresses, numbered, save_addresses


def test_a_broker_has_three_ports_and_the_next_begins_ten_higher() -> None:
    assert numbered(1, 9400) == ("127.0.0.1:9400", "127.0.0.1:9401", "127.0.0.1:9402")
    assert numbered(3, 9400).client == "127.0.0.1:9420"
    assert numbered(3, 0) == ("", "", "")


def test_saved_addresses_can_be_loaded(tmp_path: Path) -> None:
    assert load_addresses(tmp_path) == {}
    save_addresses(tmp_path, {1: Addresses("a:1", "a:2", "a:3"), 2: Addresses("b:1", "b:2", "b:3")})
    save_addresses(tmp_path, {2: Addresses("c:1", "c:2", "c:3")})
    assert load_addresses(tmp_path) == {2: Addresses("c:1", "c:2", "c:3")}
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.fixture
def ports() -> Iterator[HeldPorts]:
    held = HeldPorts()
    yield held
    held.close()


def test_a_port_in_use_is_replaced_by_a_free_one(ports: HeldPorts) -> None:
    with socket.socket() as taken, socket.socket() as closed:
        for one in (taken, closed):
            one.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = Addresses(*(f"127.0.0.1:{one.getsockname()[1]}" for one in (taken, closed)))
        closed.close()
        held = ports.hold(wanted)
        assert held.client != wanted.client
        assert held.peer == wanted.peer
        assert 0 not in map(port_of, held)
        assert len(set(held)) == 3


def test_a_port_number_out_of_range_is_replaced_by_a_free_one(ports: HeldPorts) -> None:
    assert 0 < port_of(ports.hold(Addresses("127.0.0.1:70000")).client) < 65536


@pytest.mark.skipif(sys.platform != "linux", reason="ports can be kept on Linux only")
def test_only_a_broker_can_take_a_held_port(ports: HeldPorts) -> None:
    """A broker may listen on it by number, again after its end. A program that binds it without SO_REUSEADDR is refused."""
    port = port_of(ports.hold(Addresses()).client)
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)) as broker:
            assert broker.getsockname()[1] == port
        with socket.socket() as somebody, pytest.raises(OSError, match="in use"):
            somebody.bind(("127.0.0.1", port))
    ports.close()
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", port))


IP_LOCAL_PORT_RANGE = 51
"""Of Linux 6.3 and later: the ports that the kernel may assign to a socket."""


def only_port(port: int, *, is_reused: bool = False) -> socket.socket:
    """Create a socket to which the kernel may assign this port alone."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, is_reused)
    try:
        made.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", port << 16 | port))
    except OSError:
        made.close()
        pytest.skip("the range of ports cannot be chosen here")
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="ports can be kept on Linux only")
def test_the_kernel_assigns_a_held_port_to_nobody(ports: HeldPorts) -> None:
    """Neither to a client's connection nor to a server on any port, before its broker has listened and after."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        port = port_of(ports.hold(Addresses()).client)
        for _ in range(2):
            with only_port(port) as client, pytest.raises(OSError, match="annot assign"):
                client.connect(elsewhere.getsockname())
            for is_reused in (False, True):
                with only_port(port, is_reused=is_reused) as server, pytest.raises(OSError, match="in use"):
                    server.bind(("127.0.0.1", 0))
            with (
                socket.create_server(("127.0.0.1", port)) as broker,
                socket.create_connection(("127.0.0.1", port)),
                broker.accept()[0],
            ):
                pass
