"""A synchronous program that ends without closing its producer loses none of its accepted records."""

import asyncio
import subprocess
import sys

import pytest
from raftmq import Admin, Consumer, TopicPartition
from raftmq.testing import LocalCluster

pytestmark = [pytest.mark.e2e]

RECORDS = 1000
PROGRAM = f"""
import sys
from raftmq.sync import Producer

producer = Producer(bootstrap_servers=sys.argv[1], linger_ms=50)
for number in range({RECORDS}):
    producer.send("forgotten", value=b"%d" % number)
"""


async def test_accepted_records_are_written_at_the_end_of_the_program() -> None:
    async with LocalCluster(brokers=1) as cluster:
        servers = cluster.bootstrap_servers
        async with Admin(bootstrap_servers=servers) as admin:
            await admin.create_topic("forgotten")
        program = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-W", "always::ResourceWarning", "-c", PROGRAM, servers],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert program.returncode == 0, program.stderr
        assert "was not closed" in program.stderr
        async with Consumer(bootstrap_servers=servers) as consumer:
            partition = TopicPartition("forgotten", 0)
            assert await consumer.end_offsets([partition]) == {partition: RECORDS}
