"""Configure all test runs: Hypothesis, timeouts, and the distribution of tests over processes."""

import asyncio
import functools
import inspect
import signal
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import settings

# Properties check results. Their time depends on the load of the machine.
settings.register_profile("raftmq", deadline=None)
settings.load_profile("raftmq")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Distribute the tests over several processes with `sharing.py`."""
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


def pytest_configure() -> None:
    """Handle SIGINT although a shell that started the tests in the background ignores it: processes of tests inherit that, and get SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let the event loop end a coroutine that hangs, because uvloop drops the exception that pytest-timeout's signal handler raises."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        item.obj = _within_its_timeout(item)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run long tests first when several processes share the run, so that all processes end at about the same time."""
    if hasattr(config, "workerinput"):
        from tests.sharing import SPARK

        # stable: the order is random otherwise
        items.sort(key=lambda item: (not item.nodeid.startswith(SPARK), not _is_long_lasting(item)))
