"""Addresses of brokers."""

import pytest
from raftmq.broker.base.addresses import is_loopback, split_address


def test_loopback_is_recognized():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "")))


def test_addresses_split():
    assert split_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert split_address("[::1]:9400") == ("::1", 9400)
    for bad in ("", "x", ":1", "x:", "x:-1", "x:1x", "[::1]", "::1:1"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            split_address(bad)
