"""Measure the way of single messages of a queue: put, leased and accepted. Usage: python -m bench.single_message [MESSAGES] [--workers N] [--grpc]

Each worker puts a message, gets one and accepts it, and begins again. With one worker the time is that of a message which waits for nothing
but its own steps. For the client and each broker the table has the columns of `bench.single_record`, for each message. `--grpc` keeps the streams
of messages on gRPC, for comparison. Puts use data connections in both cases.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final
from unittest import mock

from raftmq import Admin, Queue
from raftmq.client.connection.data_port import DataPort
from raftmq.client.connection.data_stream import POLL_STREAM_NUMBER
from raftmq.testing import LocalCluster

from bench.single_record import VALUE, in_ms, measure_processes, row, timed

MESSAGES: Final = 2000
WARM_UP: Final = 300
TOPIC: Final = "single"


async def measure_messages(cluster: LocalCluster, count: int, workers: int) -> None:
    """Print the table of single messages' way through the cluster, whose partition's leader is named."""
    servers = cluster.bootstrap_servers
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic(TOPIC, kind="queue", partitions=1, replication_factor=3)
        async with Queue(TOPIC, bootstrap_servers=servers) as queue:

            async def cycle() -> None:
                await queue.put(VALUE)
                message = await queue.get()
                assert message is not None
                await message.ack()

            async def all_cycles(each: int) -> list[float]:
                times = await asyncio.gather(*(timed(cycle, each) for _ in range(workers)))
                return [seconds for one in times for seconds in one]

            await all_cycles(max(1, WARM_UP // workers))
            leader = (await admin.describe_topic(TOPIC, ask_leaders=True)).partitions[0].leader_broker_id
            each = max(2, count // workers)
            async with measure_processes(cluster, leader, each * workers):
                times = await all_cycles(each)
    print()
    print(row("", ["p50 ms", "p99 ms"]))
    print(row("one cycle", in_ms(times)))


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("messages", type=int, nargs="?", default=MESSAGES)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--grpc", action="store_true", help="keep the streams of messages on gRPC")
    options = parser.parse_args()
    connection = DataPort.connection

    def without_streams(port: DataPort, method_number: int) -> Any:  # noqa: ANN401 -- as `connection`
        return None if method_number == POLL_STREAM_NUMBER else connection(port, method_number)

    with (
        mock.patch.object(DataPort, "connection", without_streams if options.grpc else connection),
        LocalCluster(brokers=3) as cluster,
    ):
        asyncio.run(measure_messages(cluster, options.messages, options.workers))


if __name__ == "__main__":
    main()
