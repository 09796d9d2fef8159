"""Broker code runs on uvloop in production. Tests that use sockets directly also run on asyncio's own loop."""

import asyncio

import pytest
import uvloop

from tests.support.broker.whole_nodes import Nodes


@pytest.fixture
async def nodes(tmp_path):
    """Yield a starter of whole nodes, which are stopped at the end."""
    made = Nodes(tmp_path)
    try:
        yield made
    finally:
        await made.stop_all()


def pytest_asyncio_loop_factories(config, item):
    if item.path.parts[-2:] == ("peers", "test_transport.py"):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}
