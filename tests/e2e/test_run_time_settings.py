"""Settings that are changed while real brokers run: every broker follows, also after a restart, and so does a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from raftmq import Admin, Producer
from raftmq.errors import InvalidConfigError, UnknownBrokerError
from raftmq.testing import LocalCluster

from tests.support.e2e.helpers import eventually
from tests.support.e2e.raftmq_command import raftmq

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]


def has_event(cluster: LocalCluster, event: str, *broker_ids: int) -> Callable[[], bool]:
    """Return a condition: each of these brokers logged an event of this name, which is of the level info."""
    return lambda: all(f'"event": "{event}"' in cluster.logs(broker_id) for broker_id in broker_ids)


async def sources(admin: Admin, broker_id: int) -> tuple[object, str]:
    level = (await admin.describe_config(broker_id))["log_level"]
    return level.value, level.source


async def test_the_log_level_changes_on_all_brokers_survives_restarts_and_reaches_a_new_broker() -> None:
    async with (
        LocalCluster(brokers=3, broker_arguments=("--set", "log_level=warning")) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        for broker_id in (1, 2, 3):
            assert await sources(admin, broker_id) == ("warning", "--set log_level")
            assert not has_event(cluster, "broker_ready", broker_id)()
        done = await asyncio.to_thread(raftmq, cluster, "config", "set", "log_level=info")
        assert (done.returncode, done.stdout) == (0, b"log_level set for all brokers\n")
        for broker_id in (1, 2, 3):
            assert await sources(admin, broker_id) == ("info", "cluster")
        assert await asyncio.to_thread(cluster.stop, 3) == 0
        await eventually(has_event(cluster, "peer_disconnected", 1, 2))
        await asyncio.to_thread(cluster.restart, 3)
        await eventually(has_event(cluster, "broker_ready", 3))
        assert await sources(admin, 3) == ("info", "cluster")
        fourth = await asyncio.to_thread(cluster.add_broker)
        await eventually(has_event(cluster, "broker_ready", fourth))
        assert await sources(admin, fourth) == ("info", "cluster")
        await admin.alter_config({"log_level": "error"}, broker_id=2)
        assert await sources(admin, 2) == ("error", "cluster for this broker")
        await admin.alter_config(unset=["log_level"])
        assert await sources(admin, 1) == ("warning", "--set log_level")
        assert await sources(admin, 2) == ("error", "cluster for this broker")


async def test_refusals_change_nothing_and_a_default_of_topics_is_enforced() -> None:
    async with (
        LocalCluster(brokers=1, broker_arguments=("--set", "retention_check_seconds=0.2")) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        for changes, words in (
            ({"log_levle": "debug"}, "did you mean log_level"),
            ({"map_bytes": "1GiB"}, "cannot be changed at run time"),
            ({"log_level": "loud"}, "must be debug or info"),
        ):
            with pytest.raises(InvalidConfigError, match=words):
                await admin.alter_config(changes)
        with pytest.raises(UnknownBrokerError, match="has no broker 9"):
            await admin.alter_config({"log_level": "debug"}, broker_id=9)
        assert all(one.value is None and not one.broker_values for one in await admin.list_config())
        for name, config in (("short", {}), ("long", {"retention.ms": "3600000"})):
            await admin.create_topic(name, config=config)
            async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
                await producer.send_and_wait(name, b"value")
        await admin.alter_config({"retention.ms": 1})
        assert ((await admin.describe_topic("short")).effective_config or {})["retention.ms"] == "1"

        async def start_of(name: str) -> int:
            state = (await admin.describe_topic(name, ask_leaders=True)).partitions[0].state
            return state.log_start_offset if state is not None else 0

        async with asyncio.timeout(60):
            while await start_of("short") == 0:
                await asyncio.sleep(0.1)
        assert await start_of("long") == 0, "a topic's own setting wins"


async def test_a_smaller_disk_reserve_lets_a_full_broker_write_again() -> None:
    async with (
        LocalCluster(brokers=1, broker_arguments=("--set", "disk_reserve_bytes=1000TiB")) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        await admin.alter_config({"disk_reserve_bytes": 0}, broker_id=1)
        await admin.create_topic("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.send_and_wait("orders", b"value")
