"""Where the brokers of a local cluster listen, and that it is remembered."""

import socket
from pathlib import Path

from raftmq.cluster_addresses import Addresses, is_free, load_addresses, numbered, save_addresses, without_taken


def test_a_broker_has_three_ports_and_the_next_begins_ten_higher() -> None:
    assert numbered(1, 9400) == ("127.0.0.1:9400", "127.0.0.1:9401", "127.0.0.1:9402")
    assert numbered(3, 9400).client == "127.0.0.1:9420"
    assert numbered(3, 0) == ("", "", "")


def test_addresses_are_remembered(tmp_path: Path) -> None:
    assert load_addresses(tmp_path) == {}
    save_addresses(tmp_path, {1: Addresses("a:1", "a:2", "a:3"), 2: Addresses("b:1", "b:2", "b:3")})
    save_addresses(tmp_path, {2: Addresses("c:1", "c:2", "c:3")})
    assert load_addresses(tmp_path) == {2: Addresses("c:1", "c:2", "c:3")}
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


def test_a_port_that_is_taken_gives_way_to_any_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert not is_free(address)
        assert without_taken(Addresses(address, "127.0.0.1:0", "")) == ("", "127.0.0.1:0", "")
    assert is_free(address)


def test_a_port_that_cannot_exist_is_not_free() -> None:
    assert not is_free("127.0.0.1:70000")
