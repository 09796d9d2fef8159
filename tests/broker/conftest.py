"""Broker code runs on uvloop in production; what touches sockets directly is tested on asyncio's own loop too."""

import asyncio

import uvloop


def pytest_asyncio_loop_factories(config, item):
    if item.path.name == "test_peer_transport.py":
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}
