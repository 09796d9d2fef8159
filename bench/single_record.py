"""Measure the way of one record at a time: where its time goes, process by process. Usage: python -m bench.single_record [RECORDS]

One producer sends a record, waits for its acknowledgement and sends the next. For the client and each broker the table shows the
processor time, the context switches and the wake-ups of the record, and for brokers the time of its commit. Two echoes say how much of it is
the transport: the same bytes over a gRPC stream and over a plain TCP protocol, from one process to another and back.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import grpc.aio
from raftmq import Admin, Producer
from raftmq.testing import LocalCluster

RECORDS: Final = 2000
WARM_UP: Final = 300
VALUE: Final = os.urandom(100)
METHOD: Final = "/bench.Echo/Stream"
_TICK_SECONDS: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """The work of a process until now."""

    cpu_seconds: float
    """User and system time of all its threads."""
    voluntary: int
    """Context switches because a thread waited: each ends with a wake-up."""
    involuntary: int


def usage_of(pid: int) -> Usage:
    """Read the work of a process from /proc, over all its threads."""
    nanoseconds = voluntary = involuntary = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            nanoseconds += int((task / "schedstat").read_text().split()[0])
            status = (task / "status").read_text()
        except FileNotFoundError:  # the thread ended
            continue
        voluntary += int(_number(status, "voluntary_ctxt_switches"))
        involuntary += int(_number(status, "nonvoluntary_ctxt_switches"))
    return Usage(nanoseconds / 1e9, voluntary, involuntary)


def _number(status: str, name: str) -> str:
    found = re.search(rf"^{name}:\s+(\d+)$", status, re.MULTILINE)
    assert found is not None, name
    return found[1]


def commits_of(http_address: str) -> tuple[float, float, float]:
    """Read from a broker's metrics how many commits it made, and the seconds of all of them: until the loop knew, and on disk."""
    with urllib.request.urlopen(f"http://{http_address}/metrics", timeout=10) as answer:
        text = answer.read().decode()

    def value(name: str) -> float:
        found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found is not None else 0.0

    return (
        value("raftmq_commit_seconds_count"),
        value("raftmq_commit_seconds_sum"),
        value("raftmq_commit_disk_seconds_sum"),
    )


async def timed(send: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Call one after the other; return the seconds of each call."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await send()
        times.append(time.perf_counter() - started)
    return times


def row(name: str, values: list[str]) -> str:
    """Return a line of a table."""
    return f"{name:<22}" + "".join(f"{value:>14}" for value in values)


def in_ms(times: list[float]) -> list[str]:
    """Return the median and the 99th percentile in milliseconds."""
    cuts = statistics.quantiles(times, n=100)
    return [f"{cuts[49] * 1000:.3f}", f"{cuts[98] * 1000:.3f}"]


async def measure_records(cluster: LocalCluster, count: int) -> None:
    """Print the table of one record's way through the cluster, whose partition's leader is named."""
    servers = cluster.bootstrap_servers
    async with Admin(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as producer:
        await admin.create_topic("single", partitions=1, replication_factor=3)

        async def send() -> None:
            await producer.send_and_wait("single", value=VALUE)

        await timed(send, WARM_UP)
        leader = (await admin.describe_topic("single", ask_leaders=True)).partitions[0].leader_broker_id
        async with measure_processes(cluster, leader, count):
            times = await timed(send, count)
    print()
    print(row("", ["p50 ms", "p99 ms"]))
    print(row("one record", in_ms(times)))


@asynccontextmanager
async def measure_processes(cluster: LocalCluster, leader: int, count: int) -> AsyncGenerator[None, None]:
    """Print the table of the work of the client and the brokers within the block, for each of `count` records."""
    pids = {"client": os.getpid()} | {
        f"broker {broker_id}{' (leader)' if broker_id == leader else ''}": cluster.pid(broker_id)
        for broker_id in cluster.broker_ids
    }
    commits = [commits_of(cluster.http_address(broker_id)) for broker_id in cluster.broker_ids]
    before = {name: usage_of(pid) for name, pid in pids.items()}
    started = time.perf_counter()
    yield
    elapsed = time.perf_counter() - started
    after = {name: usage_of(pid) for name, pid in pids.items()}
    commits_after = [commits_of(cluster.http_address(broker_id)) for broker_id in cluster.broker_ids]
    print(row("per record", ["cpu ms", "switches", "preempted", "commit ms", "on disk ms", "commits"]))
    total = 0.0
    for number, name in enumerate(pids):
        cpu = (after[name].cpu_seconds - before[name].cpu_seconds) / count * 1000
        total += cpu
        values = [
            f"{cpu:.3f}",
            f"{(after[name].voluntary - before[name].voluntary) / count:.1f}",
            f"{(after[name].involuntary - before[name].involuntary) / count:.1f}",
        ]
        if number:
            made, waited, disk = (b - a for a, b in zip(commits[number - 1], commits_after[number - 1], strict=True))
            values += (
                [f"{waited / made * 1000:.3f}", f"{disk / made * 1000:.3f}", f"{made / count:.3f}"] if made else []
            )
        print(row(name, values))
    busy = f"busy {100 * total / 1000 / (elapsed / count):.0f} %"
    print(row("all", [f"{total:.3f}", "", "", f"{count / elapsed:.0f}/s", "", busy]))


# ------------------------------------------------------------------------------------------------------------- echoes


class _TcpEcho(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's has another base

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _TcpAsk(asyncio.Protocol):
    answer: asyncio.Future[bytes]

    def data_received(self, data: bytes) -> None:
        self.answer.set_result(data)


async def serve_echoes() -> None:
    """Serve both echoes on free ports of loopback, and print the ports."""

    async def echo(requests: object, context: Any) -> None:  # noqa: ANN401 -- gRPC's, untyped
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    server = grpc.aio.server()
    handler = cast("Any", grpc.stream_stream_rpc_method_handler)(echo)  # bytes in, bytes out
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", {"Stream": handler}),))
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tcp = await asyncio.get_running_loop().create_server(_TcpEcho, "127.0.0.1", 0)
    print(grpc_port, tcp.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent is gone


async def measure_echoes(grpc_port: int, tcp_port: int, count: int) -> None:
    """Print the time of an echo over each transport."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        stream: Any = channel.stream_stream(METHOD)()

        async def ask_grpc() -> None:
            await stream.write(VALUE)
            await stream.read()

        await timed(ask_grpc, WARM_UP)
        print(row("echo, gRPC stream", in_ms(await timed(ask_grpc, count))))
        stream.cancel()
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(_TcpAsk, "127.0.0.1", tcp_port)

    async def ask_tcp() -> None:
        protocol.answer = loop.create_future()
        transport.write(VALUE)
        await protocol.answer

    await timed(ask_tcp, WARM_UP)
    print(row("echo, plain TCP", in_ms(await timed(ask_tcp, count))))
    transport.close()


def main() -> None:
    """Run both measurements."""
    if sys.argv[1:] == ["--serve-echoes"]:
        import uvloop

        uvloop.run(serve_echoes())
        return
    count = int(sys.argv[1]) if sys.argv[1:] else RECORDS
    with LocalCluster(brokers=3) as cluster:
        asyncio.run(measure_records(cluster, count))
    print()
    command = [sys.executable, "-m", "bench.single_record", "--serve-echoes"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        grpc_port, tcp_port = map(int, server.stdout.readline().split())
        print(row("", ["p50 ms", "p99 ms"]))
        asyncio.run(measure_echoes(grpc_port, tcp_port, count))
        server.stdin.close()


if __name__ == "__main__":
    main()
