"""Provide NATS JetStream as systems: two clusters of three servers on loopback from `NATS_SERVER`, measured through nats-py.

Streams are R3 file streams. One cluster has JetStream's default `sync_interval` (fsync every two minutes), the other `always` (fsync
before each acknowledgement). Each partition is a stream and so a Raft group, as in RaftMQ. Records are sent to them in turn.

nats-py is an optional import. Nothing is downloaded, and nothing is written outside a temporary directory.
"""

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.queue_workloads import NOT_OF_NATS, QUEUE_WORKLOADS
from bench.servers import Servers, free_ports
from bench.systems import System, UnavailableError
from bench.workloads import WORKLOADS, Client, Taken

START_SECONDS = 60.0
READ_SECONDS = 600.0
TAKE_SECONDS = 30.0
NATS_WORKLOADS = frozenset(WORKLOADS | QUEUE_WORKLOADS) - {"read_back_group"} - NOT_OF_NATS
SYNCS: Mapping[str, str] = {"default": "", "always": "sync_interval: always"}
"""Name of the variant → line of the server's JetStream configuration."""


def find_server(environment: Mapping[str, str]) -> str:
    """Return the path of the server. Raises `UnavailableError`, which says how to provide it."""
    named = environment.get("NATS_SERVER", "")
    if not named:
        raise UnavailableError("NATS is left out: set NATS_SERVER to the path of nats-server")
    found = shutil.which(named, path=environment.get("PATH", ""))
    if found is None:
        raise UnavailableError(f"NATS is left out: NATS_SERVER is {named}, which is not a program")
    if not find_spec("nats"):
        raise UnavailableError("NATS is left out: install nats-py")
    return found


def server_configuration(node: int, ports: Sequence[tuple[int, int]], directory: Path, sync: str) -> str:
    """Return the configuration of server `node` (from 1). `ports` has a (client, cluster) port for each server."""
    client_port, cluster_port = ports[node - 1]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for _, port in ports)
    return "\n".join(
        (
            f"server_name: n{node}",
            f'listen: "127.0.0.1:{client_port}"',
            f'jetstream {{ store_dir: "{directory}"\n  {sync} }}',
            f'cluster {{ name: bench, listen: "127.0.0.1:{cluster_port}", routes: [{routes}] }}',
            "",
        )
    )


@contextmanager
def nats_systems(environment: Mapping[str, str]) -> Iterator[list[System]]:
    """Start both clusters."""
    program = find_server(environment)
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    numbers = re.search(r"[\d.]+", said)
    versions = f"{numbers[0] if numbers else said.strip()}, nats-py {version('nats-py')}"
    with Servers("nats") as servers:
        systems = []
        for variant, sync in SYNCS.items():
            ports = free_ports(6)
            pairs = list(zip(ports[:3], ports[3:], strict=True))
            for node in range(1, 4):
                label = f"{variant}-{node}"
                configuration = servers.directory / f"{label}.conf"
                configuration.write_text(server_configuration(node, pairs, servers.directory / label, sync))
                servers.start(label, [program, "-c", str(configuration)])
            connect = partial(NatsClient, [f"nats://127.0.0.1:{port}" for port in ports[:3]])
            asyncio.run(servers.wait_serving(connect, START_SECONDS))
            systems.append(System(f"NATS {variant}, nats-py", versions, connect, NATS_WORKLOADS, 0.05))
        yield systems


class NatsClient(Client):
    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)
        self._library: Any = import_module("nats")  # an optional import: it has no types here
        self._api: Any = import_module("nats.js.api")  # the same
        self._connection: Any = None  # the same
        self._jetstream: Any = None  # the same
        self._subjects: dict[str, Iterator[str]] = {}
        self._counts: dict[str, int] = {}
        self._idle_pulls: dict[str, list[Any]] = {}  # of an optional import

    async def __aenter__(self) -> Self:
        self._connection = await self._library.connect(
            self._servers, connect_timeout=2, max_reconnect_attempts=1, error_cb=_ignore_error
        )
        self._jetstream = self._connection.jetstream(timeout=30)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()

    async def create_topic(self, topic: str, partitions: int) -> None:
        subjects = [f"{topic}.{partition}" for partition in range(partitions)]
        for subject in subjects:
            await self._jetstream.add_stream(
                name=subject.replace(".", "-"),
                subjects=[subject],
                num_replicas=3,
                storage=self._api.StorageType.FILE,
            )
        self._subjects[topic] = cycle(subjects)
        self._counts[topic] = partitions

    async def create_queue(self, topic: str) -> None:
        """Create a stream that deletes acknowledged messages, and one durable consumer that all workers share."""
        await self._jetstream.add_stream(
            name=f"{topic}-0",
            subjects=[f"{topic}.0"],
            num_replicas=3,
            storage=self._api.StorageType.FILE,
            retention=self._api.RetentionPolicy.WORK_QUEUE,
        )
        self._counts[topic] = 1
        settings = self._api.ConsumerConfig(max_ack_pending=100_000)
        self._idle_pulls[topic] = [
            await self._jetstream.pull_subscribe(f"{topic}.0", durable="workers", config=settings)
        ]

    async def put(self, topic: str, values: Sequence[bytes]) -> None:
        if len(values) == 1:
            await self._jetstream.publish(f"{topic}.0", values[0])
        else:
            sent = [await self._jetstream.publish_async(f"{topic}.0", value) for value in values]
            await asyncio.gather(*sent)

    async def take(self, topic: str, count: int) -> Sequence[Taken]:
        """Fetch with a subscription that no other task uses: the answers of simultaneous fetches share its inbox, and one takes another's."""
        idle = self._idle_pulls[topic]
        pull = idle.pop() if idle else await self._jetstream.pull_subscribe_bind("workers", f"{topic}-0")
        try:
            found = await pull.fetch(count, timeout=TAKE_SECONDS)
        finally:
            idle.append(pull)
        return [Taken(message.data, message) for message in found]

    async def accept(self, topic: str, taken: Sequence[Taken]) -> None:
        await asyncio.gather(*(one.message.ack_sync() for one in taken))

    async def delete_topic(self, topic: str) -> None:
        for partition in range(self._counts[topic]):
            await self._jetstream.delete_stream(f"{topic}-{partition}")

    async def send_many(self, topic: str, values: Sequence[bytes], count: int) -> float:
        publish, subjects = self._jetstream.publish_async, self._subjects[topic]
        started = time.perf_counter()
        sent = [await publish(next(subjects), value) for value in islice(cycle(values), count)]
        await asyncio.gather(*sent)
        return time.perf_counter() - started

    async def send_one(self, topic: str, value: bytes) -> None:
        await self._jetstream.publish(next(self._subjects[topic]), value)

    def producer(self) -> Client:
        other = NatsClient(self._servers)
        other._subjects = self._subjects
        return other

    async def read_all(self, topic: str, count: int) -> float:
        got = 0
        has_all = asyncio.Event()

        async def on_message(message: object) -> None:
            nonlocal got
            got += 1
            if got == count:
                has_all.set()

        started = time.perf_counter()
        async with asyncio.timeout(READ_SECONDS):
            for partition in range(self._counts[topic]):
                await self._jetstream.subscribe(f"{topic}.{partition}", cb=on_message, ordered_consumer=True)
            await has_all.wait()
        return time.perf_counter() - started

    async def receive(self, topic: str) -> AsyncGenerator[bytes, None]:
        received: asyncio.Queue[bytes] = asyncio.Queue()

        async def on_message(message: Any) -> None:  # noqa: ANN401 -- of an optional import
            received.put_nowait(message.data)

        for partition in range(self._counts[topic]):
            await self._jetstream.subscribe(f"{topic}.{partition}", cb=on_message, ordered_consumer=True)
        while True:
            yield await received.get()


async def _ignore_error(error: Exception) -> None:
    """Ignore connections that are refused while servers start. A failed call raises its own error."""
