from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.client.fake_broker import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=2) as running:
        yield running
