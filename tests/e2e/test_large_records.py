"""Records above 1 MiB in topics that allow them: replication, a broker that was down, and a consumer."""

import asyncio
import random

import pytest
from raftmq import Admin, Consumer, Producer, TopicPartition, errors
from raftmq.client.base import settings
from raftmq.testing import LocalCluster

pytestmark = [pytest.mark.e2e]

BATCH_BYTES_MAX = 3_670_016
"""The largest allowed value of the topic's setting."""
LARGEST = BATCH_BYTES_MAX - settings.TOPIC_BATCH_OVERHEAD_BYTES - settings.RECORD_OVERHEAD_BYTES
T0 = TopicPartition("large", 0)


@pytest.mark.long
async def test_a_topic_with_the_largest_batch_limit_accepts_records_as_large_as_fit_one_message() -> None:
    rng = random.Random(5)
    values = [rng.randbytes(LARGEST - number) for number in range(3)]
    async with LocalCluster(brokers=3) as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic("large", replication_factor=3)
        async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            with pytest.raises(
                errors.RecordTooLargeError, match=r"at most 1048560 .* raise the topic's limit \(max\.batch\.bytes"
            ):
                await producer.send("large", values[0])
            await admin.alter_topic_config("large", {"max.batch.bytes": BATCH_BYTES_MAX})
            async with asyncio.timeout(30):
                while producer._resolver.topics["large"].batch_bytes_max != BATCH_BYTES_MAX:
                    await asyncio.sleep(0.05)
            away = next(n for n in cluster.broker_ids if n != cluster.leaders("large")[0])
            cluster.kill(away)
            assert (await producer.send_and_wait("large", values[0])).offset == 0
            await (await producer.send_many("large", [(None, value) for value in values[1:]]))
            for too_large in ([(None, bytes(LARGEST + 1))], [(b"k", bytes(LARGEST))]):
                with pytest.raises(errors.RecordTooLargeError, match=f"at most {LARGEST} are allowed"):
                    await producer.send_many("large", too_large)
            with pytest.raises(errors.RecordTooLargeError, match=f"at most {LARGEST} are allowed"):
                await producer.send("large", bytes(LARGEST), headers=[("h", b"")])
        await asyncio.to_thread(cluster.restart, away)
        async with asyncio.timeout(60):
            while away not in (await in_sync_brokers(admin)):
                await asyncio.sleep(0.1)
        cluster.kill(cluster.leaders("large")[0])
        servers = cluster.bootstrap_servers
        async with Consumer("large", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            async with asyncio.timeout(60):
                found = [(await anext(consumer)).value for _ in values]
        assert found == values


async def in_sync_brokers(admin: Admin) -> tuple[int, ...]:
    state = (await admin.describe_topic("large", ask_leaders=True)).partitions[0].state
    return state.in_sync_brokers if state is not None else ()
