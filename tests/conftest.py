"""What every test runs under, and which tests stay together when several processes share them."""

import pytest
from hypothesis import settings

# A property is about what is computed, not about how fast a busy machine computes it.
settings.register_profile("raftmq", deadline=None)
settings.load_profile("raftmq")


def _is_long_lasting(item: pytest.Item) -> bool:
    return item.get_closest_marker("e2e") is not None or item.get_closest_marker("slow") is not None


def pytest_itemcollected(item: pytest.Item) -> None:
    """The tests of a module run in one process, one after the other; long ones go wherever there is room.

    Modules whose long tests share what is costly to make say so themselves, with `xdist_group`.
    """
    if item.get_closest_marker("xdist_group") is None and not _is_long_lasting(item):
        item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes the long ones begin: what comes last is short, and all processes end at about the same time."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not _is_long_lasting(item))  # stable: random order otherwise
