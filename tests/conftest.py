"""What every test runs under."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import settings

# A property is about what is computed, not about how fast a busy machine computes it.
settings.register_profile("raftmq", deadline=None)
settings.load_profile("raftmq")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Several processes share the run as `sharing.py` says."""
    from tests.sharing import UnitScheduling

    return UnitScheduling(config, log)


def _is_long_lasting(item: pytest.Item) -> bool:
    return item.get_closest_marker("e2e") is not None or item.get_closest_marker("slow") is not None


def _within_its_timeout(item: pytest.Function) -> Callable[..., Awaitable[None]]:
    test: Callable[..., Awaitable[None]] = item.obj

    @functools.wraps(test)
    async def ended(*args: object, **kwargs: object) -> None:
        marker = item.get_closest_marker("timeout")
        async with asyncio.timeout(marker.args[0] if marker else float(item.config.getini("timeout"))):
            await test(*args, **kwargs)

    return ended


def pytest_itemcollected(item: pytest.Item) -> None:
    """A coroutine that waits for ever is ended by its loop: uvloop drops what the signal handler of pytest-timeout raises."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        item.obj = _within_its_timeout(item)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes the long ones begin: what comes last is short, and all processes end at about the same time."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not _is_long_lasting(item))  # stable: random order otherwise
